"""The benchmarks that need no Spark run at all, and say no when a target is missed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks import coordinator, graph, overhead
from benchmarks.graph_tables import check_tables, expect
from benchmarks.inputs import InputSize, write_input
from benchmarks.runs import Batch, Checkpoint, GraphResult, Side
from benchmarks.tables import TablesDifferError
from deltalake import write_deltalake


def test_every_part_of_a_checkpoint_has_its_cost() -> None:
    """Trigger, acknowledgements and completion each take time, and nothing else is in the whole."""
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
    """Its last two lines are the verdict, its exit code the sum of it."""
    monkeypatch.setattr(coordinator, "_ROUNDS", {1: 2, 2: 2})
    monkeypatch.setattr(coordinator, "SCALING_TARGET", 10**6)
    monkeypatch.setattr(coordinator, "ACKNOWLEDGEMENTS_TARGET", 1)
    monkeypatch.setattr(coordinator, "describe_machine", lambda: "machine")
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
    """Checkpoints from before the first row do not count, nor does what a batch waited in its planning."""

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
    """A side that writes less has no time."""
    write_input(tmp_path / "input", InputSize(files=2, rows_per_file=50, keys=5, seconds_per_file=60))
    expected = expect(tmp_path / "input")
    raw = pa.concat_tables([pq.read_table(path) for path in sorted((tmp_path / "input").glob("*.parquet"))])
    windows = expected.windows
    write_deltalake(tmp_path / "raw", raw.slice(1) if wrong == "raw" else raw)
    (tmp_path / "minutes").mkdir()
    pq.write_table(windows.slice(1) if wrong == "minutes" else windows, tmp_path / "minutes" / "a.parquet")
    if wrong == "none":
        check_tables(tmp_path, Side.WEIR, expected)
    else:
        with pytest.raises(TablesDifferError):
            check_tables(tmp_path, Side.WEIR, expected)


def test_small_batches_are_compared_pair_by_pair() -> None:
    """The ratio is the median of the pairs' ratios, and so is what Weir adds."""
    lines, met = overhead.small_verdict([300, 200, 100], [120, 90, 80])
    assert lines == ["small_batch_added ms=-110.0", "small_batch ratio=0.450 target=0.45"]
    assert met
    assert not overhead.small_verdict([300], [136])[1]


def test_a_batch_behind_a_channel_counts_without_its_planning() -> None:
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
