"""Facts about Spark that the code relies on, by name: a release that differs fails here.

They are slow tests, since a new release comes seldom. Weir's own part is tested with each change:
the drain of a job in ``tests/e2e/test_draining.py``, snapshots in ``test_snapshots.py``.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.kit.rig import Collected, Landing, Rig, hashes
from tests.kit.waiting import wait_until
from tests.spark.queries import QUERIES, Query

from weir.core.messages.task import Drained, RecordsEnded
from weir.core.types import Payload
from weir.job import Job
from weir.sinks.base import Batch
from weir.spark.state.rocksdb_files import StateFiles

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def copying(landing: Landing, *, bounded: bool = True) -> tuple[Job, Collected]:
    """A stateless job: every row unchanged."""
    job, sink = Job("facts"), Collected()
    job.source("numbers", landing.source, bounded=bounded).sink("out", sink)
    return job, sink


def ids_by_step(sink: Collected) -> dict[int, list[int]]:
    """The ids that each batch with rows gave to the sink."""
    return {
        position: sorted(row[0] for row in rows) for position, rows in sink.steps.items() if rows
    }


def copy_keys(rig: Rig, keys: list[str], target: Path) -> None:
    """Copy these files of a query's directory into another directory."""
    for key in keys:
        (target / key).parent.mkdir(parents=True, exist_ok=True)
        (target / key).write_bytes((rig.path / key).read_bytes())


def copy_named_files(rig: Rig, position: int, target: Path) -> list[str]:
    """Copy the files that ``QueryDirectory`` and ``StateFiles`` name; return the state files."""
    entries = rig.directory.log_entries(position)
    inline, files = rig.directory.source_entries(position)
    state = StateFiles(rig.directory, [], -1).keys(position)
    for key, text in (entries | inline).items():
        (target / key).parent.mkdir(parents=True, exist_ok=True)
        (target / key).write_text(text)
    copy_keys(rig, files + state, target)
    return state


# -- the planning call -----------------------------------------------------------------------------


def test_the_planning_call_runs_strictly_between_two_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    """At every call the newest of commits/ is the newest of offsets/ and equals the reported
    position."""
    landing = Landing(tmp_path / "in")
    landing.land(10)
    seen: list[tuple[int, int, int]] = []

    def look(position: int) -> bool:
        seen.append((rig.newest("commits"), rig.newest("offsets"), position))
        return True

    rig = Rig(spark, copying(landing)[0], tmp_path / "query", on_plan=look)
    with rig:
        rig.wait_for(RecordsEnded)
    assert [position for _, _, position in seen] == list(range(-1, 10))
    assert all(commits == offsets == position for commits, offsets, position in seen)


def test_while_the_call_is_unanswered_the_query_rests_and_stops_quickly(
    spark: SparkSession, tmp_path: Path
) -> None:
    """No file of the directory changes while a call is held, and ``query.stop()`` does not wait for
    its answer."""
    landing = Landing(tmp_path / "in")
    landing.land(4)
    job, sink = QUERIES["windows"].job(landing, bounded=False)
    with Rig(spark, job, tmp_path / "query", on_plan=lambda position: position < 1) as rig:
        rig.wait_held(1)
        before = hashes(rig.path)
        time.sleep(1.0)
        assert {name: text for name, text in hashes(rig.path).items() if name in before} == before
        assert rig.newest("offsets") == 1
        begun = time.monotonic()
        rig.task.stop()
        assert time.monotonic() - begun < 5
    assert max(sink.steps) == 1


def test_the_control_input_adds_no_rows_and_a_bounded_query_ends_by_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    """An availableNow query with the control input reads each file in a separate batch and then
    ends."""
    landing = Landing(tmp_path / "in")
    landing.land(5)
    job, sink = copying(landing)
    with Rig(spark, job, tmp_path / "query") as rig:
        assert rig.wait_for(RecordsEnded).position == 4
    assert ids_by_step(sink) == {file: landing.ids(file) for file in range(5)}


def test_a_watermark_inside_a_source_function_survives_the_control_input(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The control input carries the source's column metadata, so that windows close before the end
    (P26)."""
    landing = Landing(tmp_path / "in")
    landing.land(6)

    def source(session: SparkSession) -> DataFrame:
        return landing.source(session).withWatermark("ts", "20 seconds")

    def count(frame: DataFrame) -> DataFrame:
        return frame.groupBy(F.window("ts", "1 minute")).count().select("window.start", "count")

    job, sink = Job("facts"), Collected()
    job.source("numbers", source, bounded=True).transform("count", count).sink("out", sink)
    with Rig(spark, job, tmp_path / "query") as rig:
        ended = rig.wait_for(RecordsEnded)
        closed = sink.rows()
        rig.drain(ended.position)
        rig.wait_for(Drained)
    whole = Counter(tuple(row) for row in count(landing.table(spark)).collect())
    assert sink.rows() == whole
    # The watermark is 20 seconds below the last row (11:50), so all minutes but the last are
    # closed.
    assert sum(closed.values()) == sum(whole.values()) - 1


# -- draining --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUERIES)
def test_the_drain_entry_fires_everything_and_reads_nothing_that_came_later(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """A hand-written offset-log entry with the maximal watermark yields the rows of the batch
    computation."""
    landing = Landing(tmp_path / "in")
    landing.land(5)
    query = QUERIES[name]
    job, sink = query.job(landing)
    with Rig(spark, job, tmp_path / "query") as rig:
        ended = rig.wait_for(RecordsEnded)
        before = sink.rows()
        landing.land(2)
        rig.drain(ended.position)
        drained = rig.wait_for(Drained)
    expected = query.batch(landing.table(spark, files=5))
    assert sink.rows() == expected
    assert drained.position == ended.position + 1
    if query is not QUERIES["duplicates within the watermark"]:
        assert before != expected, "nothing was left to fire"


# -- going back ------------------------------------------------------------------------------------


def gone_back(spark: SparkSession, tmp_path: Path, landing: Landing) -> Path:
    """A directory with logs up to batch 1 and a source log up to the fourth file (3)."""
    landing.land(4)
    job, _ = copying(landing)
    with Rig(spark, job, tmp_path / "query") as rig:
        assert rig.wait_for(RecordsEnded).position == 3
    for log in ("offsets", "commits"):
        for number in (2, 3):
            (rig.path / log / str(number)).unlink()
    assert {"2", "3"} <= {path.name for path in (rig.path / "sources" / "1").iterdir()}
    return rig.path


def test_source_log_entries_above_the_pin_shift_rows_unless_they_are_pruned(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Unpruned, both later files come in one batch; pruned, each comes in a separate one again
    (P3)."""
    landing = Landing(tmp_path / "in")
    path = gone_back(spark, tmp_path, landing)
    job, shifted = copying(landing)
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    with Rig(spark, job, copy, position=1) as rig:
        rig.wait_for(RecordsEnded)
    assert ids_by_step(shifted) == {2: landing.ids(2, 3)}
    job, exact = copying(landing)
    rig = Rig(spark, job, path, position=1)
    rig.directory.prune_sources(1)
    with rig:
        rig.wait_for(RecordsEnded)
    assert ids_by_step(exact) == {2: landing.ids(2), 3: landing.ids(3)}


def test_source_log_entries_above_the_pin_lose_rows_without_an_error_unless_they_are_pruned(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Deleted files of unpruned entries read as empty, and a file under a reused name is never read
    (P3)."""
    landing = Landing(tmp_path / "in")
    path = gone_back(spark, tmp_path, landing)
    landing.path(2).unlink()
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    job, lost = copying(landing)
    with Rig(spark, job, copy, position=1) as rig:
        rig.wait_for(RecordsEnded)
    assert ids_by_step(lost) == {2: landing.ids(3)}
    job, exact = copying(landing)
    rig = Rig(spark, job, path, position=1)
    rig.directory.prune_sources(1)
    with rig:
        rig.wait_for(RecordsEnded)
    assert ids_by_step(exact) == {2: landing.ids(3)}
    assert [path.name for path in sorted((path / "sources" / "1").glob("[0-9]*"))] == [
        "0",
        "1",
        "2",
    ]


# -- exactly the files that are named --------------------------------------------------------------

RESTORED = ["windows", "a left outer join"]


def continue_from(
    spark: SparkSession, query: Query, landing: Landing, directory: Path, position: int
) -> Collected:
    """Run to the end of the input and drain."""
    job, sink = query.job(landing)
    with Rig(spark, job, directory, position=position) as rig:
        ended = rig.wait_for(RecordsEnded)
        rig.drain(ended.position)
        rig.wait_for(Drained)
    return sink


@pytest.mark.parametrize("name", RESTORED)
def test_the_named_files_alone_give_the_exact_continuation(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Log entries, source entries and the state files that ``commits/b`` names are all that a
    restart needs."""
    landing = Landing(tmp_path / "in")
    landing.land(8)
    query = QUERIES[name]
    job, sink = query.job(landing)
    with Rig(spark, job, tmp_path / "query", on_plan=lambda position: position != 4) as rig:
        rig.wait_held(4)
        state = copy_named_files(rig, 4, tmp_path / "restored")
        stores = {key.rsplit("/", 1)[0] for key in state if key.endswith(".changelog")}
        before = sink.rows()
    assert len(stores) == (8 if query.inputs == 2 else 2)
    after = continue_from(spark, query, landing, tmp_path / "restored", 4)
    assert min(after.steps) == 5
    assert before + after.rows() == query.batch(landing.table(spark))


@pytest.mark.parametrize("name", RESTORED)
def test_the_state_after_a_batch_can_be_copied_while_the_next_batch_runs(
    spark: SparkSession, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source's checkpoint does not wait for the batch under way, nor see any of it."""
    landing = Landing(tmp_path / "in")
    landing.land(8)
    query = QUERIES[name]
    job, sink = query.job(landing)
    stage, keys = sink.stage, []

    def stage_and_copy(frame: DataFrame, batch: Batch) -> Payload | None:
        payload = stage(frame, batch)
        if batch.batch_id == 5:
            # The tasks of batch 5 have written their state, and the batch is not committed.
            keys.append(copy_named_files(rig, 4, tmp_path / "restored"))
        return payload

    monkeypatch.setattr(sink, "stage", stage_and_copy)
    with Rig(
        spark, job, tmp_path / "query", on_plan=lambda position: position not in (4, 5)
    ) as rig:
        rig.wait_held(4)
        before = sink.rows()
        rig.answer()
        rig.wait_held(5)
        keys.append(copy_named_files(rig, 4, tmp_path / "later"))
    assert keys[0] == keys[1]
    assert hashes(tmp_path / "restored") == hashes(tmp_path / "later")
    after = continue_from(spark, query, landing, tmp_path / "restored", 4)
    assert before + after.rows() == query.batch(landing.table(spark))


@pytest.mark.parametrize("name", RESTORED)
def test_the_named_files_are_exact_once_rocksdb_snapshots_exist(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """A chain ending in a snapshot (.zip with SST files) restores as exactly as one of
    changelogs."""
    landing = Landing(tmp_path / "in")
    landing.land(8)
    query = QUERIES[name]
    job, sink = query.job(landing)
    spark.conf.set("spark.sql.streaming.stateStore.minDeltasForSnapshot", "2")
    try:
        with Rig(
            spark, job, tmp_path / "query", on_plan=lambda position: position not in (3, 5)
        ) as rig:
            rig.wait_held(3)
            stores = {path.parent for path in rig.path.glob("state/**/*.changelog")}
            wait_until(
                lambda: all(any(store.glob("*.zip")) for store in stores),
                "no snapshot was uploaded",
            )
            rig.answer()
            rig.wait_held(5)
            state = copy_named_files(rig, 5, tmp_path / "restored")
            before = sink.rows()
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.minDeltasForSnapshot")
    zips = {key.rsplit("/", 1)[0] for key in state if key.endswith(".zip")}
    assert zips == {str(store.relative_to(rig.path)) for store in stores}
    assert any(key.endswith(".sst") for key in state)
    assert len([key for key in state if key.endswith(".changelog")]) < 6 * len(stores)
    after = continue_from(spark, query, landing, tmp_path / "restored", 5)
    assert before + after.rows() == query.batch(landing.table(spark))


def test_a_query_without_one_of_the_named_files_does_not_run_on_wrong_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Every listed file is needed: a partition's missing newest changelog is an error, not empty
    state."""
    landing = Landing(tmp_path / "in")
    landing.land(4)
    query = QUERIES["windows"]
    job, _ = query.job(landing)
    with Rig(spark, job, tmp_path / "query", on_plan=lambda position: position != 2) as rig:
        rig.wait_held(2)
        state = copy_named_files(rig, 2, tmp_path / "restored")
    newest = max(key for key in state if key.startswith("state/0/0/3_"))
    (tmp_path / "restored" / newest).unlink()
    with pytest.raises(AssertionError, match="TaskErrored"):
        continue_from(spark, query, landing, tmp_path / "restored", 2)


def test_running_on_hard_links_changes_none_of_the_originals(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark and the drain only write new files, so a checkpoint may share its files with a running
    query."""
    landing = Landing(tmp_path / "in")
    landing.land(6)
    query = QUERIES["windows"]
    job, _ = query.job(landing)
    with Rig(spark, job, tmp_path / "query", on_plan=lambda position: position != 3) as rig:
        rig.wait_held(3)
    linked = tmp_path / "linked"
    for path in [path for path in rig.path.rglob("*") if path.is_file()]:
        target = linked / path.relative_to(rig.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.hardlink_to(path)
    before = hashes(rig.path)
    continue_from(spark, query, landing, linked, 3)
    assert hashes(rig.path) == before
    assert len(hashes(linked)) > len(before)


# -- keys ------------------------------------------------------------------------------------------


def test_both_zeros_and_all_nan_have_one_hash(spark: SparkSession) -> None:
    """So their keyed state is in one key group."""
    keys = (
        "double('0.0'), double('-0.0'), float('0.0'), float('-0.0'), double('NaN'), -double('NaN')"
    )
    row = spark.range(1).selectExpr(*(f"xxhash64({key})" for key in keys.split(", "))).collect()[0]
    assert len(set(row)) == 3 and row[0] == row[1] and row[2] == row[3] and row[4] == row[5]
