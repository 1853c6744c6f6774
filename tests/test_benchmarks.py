"""The parts of the benchmarks that need no Spark: reading tables, counting processes, verdicts."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from benchmarks import coordinator, graph, measured_job, memory, overhead, start
from benchmarks.graph_tables import check_tables, expect
from benchmarks.inputs import InputSize, write_input
from benchmarks.processes import RunFailedError, check_alive, session_members, started
from benchmarks.runs import Batch, Checkpoint, GraphResult, Side
from benchmarks.start_recovery import Landing, Numbers
from benchmarks.tables import (
    TablesDifferError,
    check_part,
    committed_files,
    has_rows,
    read_committed,
)
from deltalake import write_deltalake
from tests.kit.waiting import wait_until

import weir
from weir.core.status import JobStatus
from weir.launch.options import JobResult, RunListener, RunOptions


def test_every_part_of_a_checkpoint_has_its_cost() -> None:
    """Trigger, acknowledgements and completion each take time, and add up to the whole."""
    cost = coordinator.measure(10, 1)
    parts = (cost.trigger_s, cost.acknowledge_s, cost.complete_s)
    assert all(part > 0 for part in parts)
    assert cost.whole_s == sum(parts)


@pytest.mark.parametrize(
    ("target", "value", "code"),
    [
        (None, 0, 0),
        ("SCALING_TARGET", 0, 1),
        ("ACKNOWLEDGEMENTS_TARGET", 10**9, 1),
    ],
)
def test_the_coordinator_benchmark_ends_well_only_if_both_targets_are_met(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str | None,
    value: int,
    code: int,
) -> None:
    """The last two lines are the verdict, and the exit code follows from both."""
    monkeypatch.setattr(coordinator, "_ROUNDS", {1: 2, 2: 2})
    monkeypatch.setattr(coordinator, "SCALING_TARGET", 10**6)
    monkeypatch.setattr(coordinator, "ACKNOWLEDGEMENTS_TARGET", 1)
    monkeypatch.setattr(coordinator, "describe_machine", lambda: "machine")
    # It would look through all that other tests have left.
    monkeypatch.setattr(gc, "collect", lambda: 0)
    if target is not None:
        monkeypatch.setattr(coordinator, target, value)
    assert coordinator.main([]) == code
    *_, scaling, acknowledgements = capsys.readouterr().out.splitlines()
    assert scaling.startswith("coordinator_scaling ratio=")
    assert acknowledgements.startswith("coordinator_acknowledgements per_second=")


@pytest.mark.parametrize(
    ("weir_ms", "checkpoint_ms", "met"),
    [(9_000, 2_000, True), (9_500, 2_000, False), (9_000, 2_001, False)],
)
def test_the_graph_benchmark_ends_well_only_if_both_targets_are_met(
    weir_ms: int, checkpoint_ms: int, met: bool
) -> None:
    """Checkpoints from before the first row do not count, nor does a batch's wait in planning."""

    def result(elapsed_ms: int) -> GraphResult:
        duration_ms = {"triggerExecution": 4_000, "latestOffset": 3_000, "addBatch": 900}
        return GraphResult(
            started_ms=0,
            committed_ms=3_000 + elapsed_ms,
            batches={"orders": [Batch(rows=10, end_ms=4_000, duration_ms=duration_ms)]},
            checkpoints=[
                Checkpoint(triggered_ms=2_999, duration_ms=1, tasks={}),
                Checkpoint(triggered_ms=3_000, duration_ms=checkpoint_ms, tasks={}),
            ],
        )

    lines, all_met = graph.verdict([{Side.PLAIN: result(10_000), Side.WEIR: result(weir_ms)}])
    assert all_met is met
    assert lines[-2:] == [
        f"graph_checkpoint ratio={checkpoint_ms / 1000:.3f} target=2.0",
        f"graph ratio={10_000 / weir_ms:.3f} target=1.1",
    ]


@pytest.mark.parametrize("wrong", ["none", "raw", "minutes"])
def test_the_graph_benchmark_sees_a_table_that_lacks_a_row(tmp_path: Path, wrong: str) -> None:
    """The time of a side that lacks rows does not count."""
    write_input(
        tmp_path / "input", InputSize(files=2, rows_per_file=50, keys=5, seconds_per_file=60)
    )
    expected = expect(tmp_path / "input")
    raw = pa.concat_tables(
        [pq.read_table(path) for path in sorted((tmp_path / "input").glob("*.parquet"))]
    )
    windows = expected.windows
    write_deltalake(tmp_path / "raw", raw.slice(1) if wrong == "raw" else raw)
    (tmp_path / "minutes").mkdir()
    pq.write_table(
        windows.slice(1) if wrong == "minutes" else windows, tmp_path / "minutes" / "a.parquet"
    )
    if wrong == "none":
        check_tables(tmp_path, Side.WEIR, expected)
    else:
        with pytest.raises(TablesDifferError):
            check_tables(tmp_path, Side.WEIR, expected)


def test_the_graph_benchmark_leaves_out_the_window_of_the_closing_row(tmp_path: Path) -> None:
    """It may be open at the end or not, and begins before the row."""
    write_input(
        tmp_path / "input", InputSize(files=2, rows_per_file=50, keys=5, seconds_per_file=50)
    )
    expected = expect(tmp_path / "input")
    files = sorted((tmp_path / "input").glob("*.parquet"))
    (tmp_path / "minutes").mkdir()
    write_deltalake(str(tmp_path / "raw"), pa.concat_tables(map(pq.read_table, files)))
    closing = pc.floor_temporal(expected.closing, unit="minute").as_py()
    assert closing < expected.closing.as_py()
    window = pa.table(
        {"minute": [closing], "key": [0], "orders": [1], "amount": [0]}, expected.windows.schema
    )
    for name, table in (("a", expected.windows), ("b", window)):
        pq.write_table(table, tmp_path / "minutes" / f"{name}.parquet")
    check_tables(tmp_path, Side.WEIR, expected)


@pytest.mark.parametrize(
    ("weir_ms", "warm_ms", "met"), [(1_000, 600, True), (1_001, 600, False), (1_000, 601, False)]
)
def test_the_start_benchmark_ends_well_only_if_both_targets_are_met(
    weir_ms: float, warm_ms: float, met: bool
) -> None:
    """The last table decides; for a graph the first one is shown as well."""
    pair: dict[start.Side, start.FirstRows] = {
        start.Side.PLAIN: {"a": 1_000, "b": 500},
        start.Side.WEIR: {"a": 250, "b": weir_ms},
        start.Side.WARM: {"a": 100, "b": warm_ms},
    }
    assert start.verdict("x", [pair]) == (
        [
            "x_first ratio=0.500",
            f"x ratio={weir_ms / 1000:.3f} target=1.0",
            "x_warm_first ratio=0.200",
            f"x_warm ratio={warm_ms / 1000:.3f} target=0.6",
        ],
        met,
    )


def test_the_recovery_is_the_median_of_all() -> None:
    """One slow recovery does not decide."""
    assert start.recovery_verdict([1_000, 6_000, 90_000]) == ("recovery ms=6000 target=6000", True)
    assert start.recovery_verdict([6_001]) == ("recovery ms=6001 target=6000", False)


def test_small_batches_are_compared_pair_by_pair() -> None:
    """The ratio is the median of the pairs' ratios; the added time is that of their differences."""
    lines, met = overhead.small_verdict([300, 200, 100], [120, 90, 80])
    assert lines == ["small_batch_added ms=-110.0", "small_batch ratio=0.450 target=0.45"]
    assert met
    assert not overhead.small_verdict([300], [136])[1]


def test_a_batch_after_a_channel_counts_without_its_planning() -> None:
    """Batches without rows do not count, nor do those of the first query."""

    def result(busy_ms: int) -> GraphResult:
        def batch(rows: int, busy_ms: int) -> Batch:
            duration_ms = {"triggerExecution": busy_ms + 50, "latestOffset": 50}
            return Batch(rows=rows, end_ms=0, duration_ms=duration_ms)

        batches = {"orders": [batch(100, 1)], overhead.READER: [batch(100, busy_ms), batch(0, 1)]}
        return GraphResult(started_ms=0, committed_ms=0, batches=batches)

    assert overhead.channel_verdict([{Side.PLAIN: result(200), Side.WEIR: result(150)}]) == [
        "channel_batch plain_ms=200 weir_ms=150",
        "channel ratio=0.750 aim=0.6",
    ]


def test_a_process_of_a_query_is_distinguished_from_sparks_workers() -> None:
    """Processes forked by Spark's daemon are workers; any other Python process counts."""
    python = "/usr/bin/python3.11"

    def seen(pid: int, parent: int, *command: str, pss: int | None = 1_000_000) -> memory.Seen:
        return memory.Seen(pid=pid, parent=parent, command=command, rss=2_000_000, pss=pss)

    processes = [
        seen(1, 0, python, "-m", "weir", "run"),
        seen(2, 1, "/usr/lib/jvm/bin/java", "-cp", "x"),
        seen(3, 2, python, "-m", "pyspark.daemon", "pyspark.worker"),
        seen(4, 3, python, "-m", "pyspark.daemon", "pyspark.worker"),
        seen(5, 2, python, "-m", "pyspark.sql.streaming.python_streaming_source_runner"),
    ]
    kinds = memory.by_kind(processes, 1)
    assert {kind: [process.pid for process in found] for kind, found in kinds.items()} == {
        memory.DRIVER: [1],
        memory.JVM: [2],
        memory.DAEMON: [3],
        memory.WORKER: [4],
        memory.OTHER_PYTHON: [5],
        memory.OTHER: [],
    }
    assert memory.verdict(kinds, 2) == (
        "memory python_processes_per_query=0.500 target=0 total_mb=5",
        False,
    )
    kinds = memory.by_kind([*processes[:4], seen(6, 2, "bash", pss=None)], 1)
    assert memory.verdict(kinds, 2) == (
        "memory python_processes_per_query=0.000 target=0 total_mb=10",
        True,
    )
    assert memory.table_lines(kinds)[-1].split() == ["other", "1", "2", "unknown"]


def _write_delta(table: Path, rows: pa.Table) -> None:
    write_deltalake(table, rows, partition_by=["key"])


def _write_files(table: Path, rows: pa.Table) -> None:
    (table / "_weir").mkdir(parents=True)
    pq.write_table(rows, table / "_weir" / "staged.parquet")
    pq.write_table(rows, table / "a.parquet")


def _write_as_spark(table: Path, rows: pa.Table) -> None:
    (table / "_spark_metadata").mkdir(parents=True)
    pq.write_table(rows, table / "not committed.parquet")
    for name, part in (("0", rows.slice(0, 0)), ("1", rows)):
        path = table / f"part {name}.parquet"
        pq.write_table(part, path)
        (table / "_spark_metadata" / name).write_text(f"v1\n{json.dumps({'path': path.as_uri()})}")


@pytest.mark.parametrize("write", [_write_delta, _write_files, _write_as_spark])
def test_only_committed_rows_of_a_table_are_read(
    tmp_path: Path, write: Callable[[Path, pa.Table], None]
) -> None:
    """This holds for every writer, and for a column that is in the paths alone."""
    rows = pa.table({"id": [1, 2], "key": ["a b", "c"]})
    table = tmp_path / "a table"
    assert committed_files(table) == []
    assert not has_rows(table)
    write(table, rows)
    assert has_rows(table)
    assert read_committed(table, rows.schema).sort_by("id").equals(rows)


def test_a_part_of_a_table_may_lack_rows_and_have_none_too_many() -> None:
    """A row that is expected once must not be there twice."""
    expected = pa.table({"id": [1, 2, 2], "name": [None, "a", "a"]})
    check_part("the table", expected.slice(1), expected)
    for found in (
        pa.table({"id": [3], "name": ["a"]}),
        pa.concat_tables([expected.slice(0, 1)] * 2),
    ):
        with pytest.raises(TablesDifferError, match="the table has 1 surplus rows"):
            check_part("the table", found, expected)


def test_recovered_rows_are_complete_and_unique(tmp_path: Path) -> None:
    """A table is complete when no number is missing; a duplicate number is an error."""

    def add(*numbers: int) -> None:
        pq.write_table(pa.table({"id": numbers}), tmp_path / f"{numbers}.parquet")

    table = Numbers(tmp_path)
    assert table.largest == -1
    assert table.has_all(0)
    add(3, 0)
    assert table.largest == 3
    assert not table.has_all(2)
    add(1, 2)
    assert table.has_all(4)
    add(4, 2)
    with pytest.raises(TablesDifferError):
        table.has_all(4)


def test_files_are_landed_whole_and_in_order(tmp_path: Path) -> None:
    """Every row counted as landed exists, and the numbers have no gap."""
    with Landing(tmp_path / "rows") as landing:
        wait_until(lambda: landing.landed >= 200, "200 rows are landed")
    found = pa.concat_tables(
        [pq.read_table(path) for path in sorted((tmp_path / "rows").glob("*"))]
    )
    assert found["id"].to_pylist() == list(range(landing.landed))


@pytest.mark.kill
def test_a_started_process_ends_with_all_that_it_started(tmp_path: Path) -> None:
    """Even an orphan in a process group of its own is killed."""
    orphan = "import os, time; os.setpgid(0, 0); time.sleep(600)"
    command = (
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {orphan!r}]);"
        " time.sleep(600)"
    )
    with started([sys.executable, "-c", command], tmp_path) as process:
        while len(session_members(process.pid)) < 2:
            check_alive(process, tmp_path, time.monotonic() + 60)
        members = session_members(process.pid)
    assert session_members(process.pid) == []
    assert [
        member for member in members if member.is_running() and member.status() != "zombie"
    ] == []


@pytest.mark.kill
@pytest.mark.parametrize("expected", [JobStatus.CANCELED, JobStatus.FINISHED])
def test_an_error_of_a_measurement_is_raised_and_not_what_became_of_the_job(
    monkeypatch: pytest.MonkeyPatch, expected: JobStatus
) -> None:
    """The job is cancelled for it, also one that was to finish."""
    gateway = MagicMock()

    def run(job: object, options: object, listener: RunListener) -> JobResult:
        listener.submitted("a" * 32, gateway, "")
        wait_until(lambda: gateway.cancel.called, "the job is cancelled")
        return JobResult(job_id="a" * 32, status=JobStatus.CANCELED)

    def measure(job: object, over: object) -> None:
        raise RunFailedError("a row is missing")

    monkeypatch.setattr(measured_job, "run_job", run)
    with pytest.raises(RunFailedError, match="a row is missing"):
        measured_job.measure_job(weir.Job("measured"), RunOptions(), measure, status=expected)


def test_a_process_that_ended_early_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    """The benchmark fails with the end of the log instead of waiting for ever."""
    with started(
        [sys.executable, "-c", "print('no room'); raise SystemExit(3)"], tmp_path
    ) as process:
        process.wait()
        with pytest.raises(RunFailedError, match=r"(?s)ended with exit code 3:.*no room"):
            check_alive(process, tmp_path, time.monotonic() + 60)
