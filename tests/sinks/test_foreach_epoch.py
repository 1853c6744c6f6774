"""``ForeachEpoch`` on real Spark: all rows of an epoch at once, again with the same key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.kit.live_job import RESTARTED, LiveJob, RaiseOnce, numbers, settings
from tests.kit.place import Place, Rows
from tests.kit.sink import sink_context

import weir
from weir.core.status import JobStatus
from weir.errors import LostRowsError
from weir.sinks import Batch, CommitInfo, ForeachEpoch

pytestmark = pytest.mark.spark

JOB = "0123456789abcdef0123456789abcdef"


class Calls:
    """The user's function: keeps its calls, and raises what it is told to."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[int]]] = []
        self.errors: list[Exception] = []

    def __call__(self, frame: Any, info: CommitInfo) -> None:
        self.seen.append((info.key, sorted(row.id for row in frame.collect())))
        if self.errors:
            raise self.errors.pop()


def opened(path: Path, calls: Calls, attempt: int = 1) -> ForeachEpoch:
    context = sink_context(attempt=attempt, session=SparkSession.getActiveSession)
    sink = ForeachEpoch(calls, staging=str(path))
    sink.check(context)
    sink.open(context)
    return sink


def flushed(sink: ForeachEpoch, frame: Any, position: int) -> dict[str, Any]:
    payload = sink.stage(frame, Batch(batch_id=position))
    assert payload is not None
    (payload,) = sink.flush([json.loads(json.dumps(payload))])
    return json.loads(json.dumps(payload))


def test_the_function_gets_the_rows_of_all_batches_of_an_epoch(spark, tmp_path):
    """In one call, after which nothing lies in the staging directory; the count is theirs."""
    calls = Calls()
    sink = opened(tmp_path / "s", calls)
    payloads = [flushed(sink, spark.range(3), 0), flushed(sink, spark.range(3, 5), 1)]
    assert calls.seen == []
    assert sink.commit(7, payloads) == 5
    assert calls.seen == [(f"{JOB}/out/7", [0, 1, 2, 3, 4])]
    assert list((tmp_path / "s").rglob("*.parquet")) == []


def test_an_epoch_that_was_passed_is_not_passed_again(spark, tmp_path):
    """Nor by another process: the ledger has it."""
    calls = Calls()
    sink = opened(tmp_path / "s", calls)
    payload = flushed(sink, spark.range(3), 0)
    assert sink.commit(7, [payload]) == 3
    assert sink.commit(7, [payload]) == 0
    assert opened(tmp_path / "s", calls, attempt=2).commit(7, [payload]) == 0
    assert len(calls.seen) == 1
    assert sink.newest_committed() == 7


def test_a_call_that_raises_is_repeated_with_the_same_rows_and_key(spark, tmp_path):
    """P13: by this attempt or the next one."""
    calls = Calls()
    calls.errors = [OSError("no network"), OSError("no network")]
    sink = opened(tmp_path / "s", calls)
    payload = flushed(sink, spark.range(3), 0)
    for _ in range(2):
        with pytest.raises(OSError, match="no network"):
            sink.commit(7, [payload])
    assert sink.newest_committed() is None
    assert opened(tmp_path / "s", calls, attempt=2).commit(7, [payload]) == 3
    assert calls.seen == [(f"{JOB}/out/7", [0, 1, 2])] * 3


def test_an_epoch_without_rows_is_not_passed(spark, tmp_path):
    """P15: it is committed all the same."""
    calls = Calls()
    sink = opened(tmp_path / "s", calls)
    payload = flushed(sink, spark.range(0), 0)
    assert sink.commit(7, [payload]) == 0
    assert calls.seen == []


def test_rows_that_are_gone_are_not_passed_in_part(spark, tmp_path):
    """The commit fails by name, before the function is called."""
    calls = Calls()
    sink = opened(tmp_path / "s", calls)
    payloads = [flushed(sink, spark.range(3), 0), flushed(sink, spark.range(3, 5), 1)]
    next((tmp_path / "s").rglob("*.parquet")).unlink()
    with pytest.raises(LostRowsError, match="is gone"):
        sink.commit(7, payloads)
    assert calls.seen == []


def test_rows_that_another_driver_passes_and_deletes_meanwhile_are_not_lost(
    spark, tmp_path, monkeypatch
):
    """P18: it commits between a late driver's look at the ledger and at the files."""
    calls = Calls()
    late = opened(tmp_path / "s", calls)
    payload = flushed(late, spark.range(3), 0)
    look = late._look

    def look_slowly(payloads: Any) -> Any:
        monkeypatch.setattr(late, "_look", look)
        found = look(payloads)
        successor = opened(tmp_path / "s", calls, attempt=2)
        assert successor.commit(7, [payload]) == 3
        successor.clean(2)
        return found

    monkeypatch.setattr(late, "_look", look_slowly)
    assert late.commit(7, [payload]) == 0
    assert len(calls.seen) == 1


def test_rows_that_cannot_be_read_are_not_left_out(spark, tmp_path):
    """The user's settings let sources skip such files: the epoch would lack their rows."""
    calls = Calls()
    sink = opened(tmp_path / "s", calls)
    frames = [spark.range(3).coalesce(1), spark.range(3, 5).coalesce(1)]
    payloads = [flushed(sink, frame, number) for number, frame in enumerate(frames)]
    damaged = next((tmp_path / "s").rglob("*.parquet"))
    damaged.write_bytes(bytes(damaged.stat().st_size))
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(Exception, match=damaged.name):
            sink.commit(7, payloads)
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    assert not any(calls.seen)


def test_batches_with_and_without_a_column_are_one_frame(spark, tmp_path):
    """A pipeline that was changed in between: the missing values are null."""
    found: list[tuple[int, str | None]] = []

    def keep(frame: Any, info: CommitInfo) -> None:
        found.extend((row.id, row.v) for row in frame.collect())

    sink = opened(tmp_path / "s", keep)  # type: ignore[arg-type]
    wider = spark.range(1, 2).selectExpr("id", "'x' AS v")
    sink.commit(7, [flushed(sink, spark.range(1), 0), flushed(sink, wider, 1)])
    assert sorted(found) == [(0, None), (1, "x")]


@pytest.mark.parametrize("name", ["run[1]{a,b}*", "day=1"])
def test_the_staging_directory_may_have_any_name(spark, tmp_path, name):
    """Its files are read by their names: it is not a pattern, and adds no column."""
    columns: list[list[str]] = []
    calls = Calls()

    def seen(frame: Any, info: CommitInfo) -> None:
        columns.append(frame.columns)
        calls(frame, info)

    sink = opened(tmp_path / name, seen)  # type: ignore[arg-type]
    payloads = [flushed(sink, spark.range(3), 0), flushed(sink, spark.range(3, 5), 1)]
    assert sink.commit(7, payloads) == 5
    assert (calls.seen, columns) == ([(f"{JOB}/out/7", [0, 1, 2, 3, 4])], [["id"]])


def test_a_job_that_fails_passes_each_row_once(tmp_path: Path, spark: Any) -> None:
    """On a job's own threads: by key, every epoch has the same rows however often it is passed."""
    del spark
    place = Place(tmp_path)
    place.land(4)
    epochs: dict[str, Rows] = {}
    fails = RaiseOnce(OSError("the function fails after its effect"))

    def merge(frame: Any, info: CommitInfo) -> None:
        rows = Rows(tuple(row) for row in frame.select("id").collect())
        assert epochs.setdefault(info.key, rows) == rows
        fails()

    job = weir.Job("epochs")
    staging = str(place.directory / "staged")
    source = job.source("numbers", numbers(place), bounded=True)
    source.sink("merged", ForeachEpoch(merge, staging=staging))
    with LiveJob(job, settings(place, RESTARTED, interval="200ms")) as live:
        assert live.result().status is JobStatus.FINISHED
    total = sum(epochs.values(), Rows())
    assert total == Rows((row[0],) for row in place.rows().elements())
