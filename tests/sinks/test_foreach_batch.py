"""``ForeachBatch`` on real Spark: each batch in a call of its own, again with the same id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.kit.live_job import RESTARTED, LiveJob, RaiseOnce, numbers, settings
from tests.kit.place import Place
from tests.kit.sink import sink_context

import weir
from weir.core.status import JobStatus
from weir.errors import LostRowsError, SinkError
from weir.sinks import Batch, ForeachBatch

pytestmark = pytest.mark.spark

JOB = "0123456789abcdef0123456789abcdef"
OTHER_JOB = "fedcba9876543210fedcba9876543210"


class Calls:
    """The user's function: keeps its calls, and raises what it is told to, by the batch's id."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, list[int]]] = []
        self.errors: dict[int, list[BaseException]] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.seen.append((batch_id, sorted(row.id for row in frame.collect())))
        if errors := self.errors.get(batch_id):
            raise errors.pop()


class Killed(BaseException):
    """Simulates the end of the process."""


def opened(path: Path, calls: Any, **changes: Any) -> ForeachBatch:
    context = sink_context(session=SparkSession.getActiveSession, **changes)
    sink = ForeachBatch(calls, staging=str(path))
    sink.check(context)
    sink.open(context)
    return sink


def flushed(sink: ForeachBatch, frame: Any, position: int) -> dict[str, Any]:
    payload = sink.stage(frame, Batch(batch_id=position))
    assert payload is not None
    (payload,) = sink.flush([json.loads(json.dumps(payload))])
    return json.loads(json.dumps(payload))


def three(sink: ForeachBatch, spark: SparkSession, first: int = 0) -> list[dict[str, Any]]:
    """Three staged batches with one row each."""
    return [flushed(sink, spark.range(n, n + 1).coalesce(1), n) for n in range(first, first + 3)]


def test_each_batch_of_an_epoch_is_passed_by_itself_in_order(spark, tmp_path):
    """Ids count from 0 over epochs; after the calls nothing is staged; batches without rows are
    left out."""
    calls = Calls()
    sink = opened(tmp_path / "s", calls)
    payloads = [flushed(sink, spark.range(3), 0), flushed(sink, spark.range(0), 1)]
    payloads.append(flushed(sink, spark.range(3, 5), 2))
    assert calls.seen == []
    assert sink.commit(7, payloads) == 5
    assert sink.commit(8, [flushed(sink, spark.range(5, 6), 3)]) == 1
    assert calls.seen == [(0, [0, 1, 2]), (1, [3, 4]), (2, [5])]
    assert list((tmp_path / "s").rglob("*.parquet")) == []


def test_an_epoch_that_was_passed_is_not_passed_again(spark, tmp_path):
    """Nor by another process: the ledger has it."""
    calls = Calls()
    sink = opened(tmp_path / "s", calls)
    payloads = three(sink, spark)
    assert sink.commit(7, payloads) == 3
    assert opened(tmp_path / "s", calls, attempt=2).commit(7, payloads) == 0
    assert len(calls.seen) == 3


@pytest.mark.parametrize("again", ["the same attempt", "the next attempt"])
@pytest.mark.parametrize("batch", [0, 1, 2])
def test_only_the_call_that_was_interrupted_is_repeated(spark, tmp_path, batch, again):
    """With the same rows and the same id, after an exception or the end of the process."""
    calls = Calls()
    calls.errors = {batch: [Killed()]}
    sink = opened(tmp_path / "s", calls)
    payloads = three(sink, spark)
    with pytest.raises(Killed):
        sink.commit(7, payloads)
    assert sink.newest_committed() is None and sink.newest_begun() == 7
    if again == "the next attempt":
        sink = opened(tmp_path / "s", calls, attempt=2)
    assert sink.commit(7, payloads) == 3 - batch
    assert calls.seen == sorted([(n, [n]) for n in (0, 1, 2, batch)])
    sink.commit(8, three(sink, spark, first=3))
    assert [batch_id for batch_id, _ in calls.seen[4:]] == [3, 4, 5]


def test_ids_are_not_taken_again_by_other_rows(spark, tmp_path):
    """Not even if an epoch's number comes again with other batches, or in another job."""
    calls = Calls()
    calls.errors = {1: [Killed()]}
    sink = opened(tmp_path / "s", calls)
    with pytest.raises(Killed):
        sink.commit(7, three(sink, spark))
    sink = opened(tmp_path / "s", calls, attempt=2)
    sink.commit(7, three(sink, spark, first=3))
    other = opened(tmp_path / "s", calls, job_id=OTHER_JOB)
    other.commit(1, three(other, spark, first=6))
    assert calls.seen == [(0, [0]), (1, [1]), *((n, [n]) for n in range(3, 9))]


def test_a_damaged_record_of_ids_is_reported(spark, tmp_path):
    """Ids that are guessed might come again with other rows."""
    calls = Calls()
    sink = opened(tmp_path / "s", calls)
    sink.commit(7, three(sink, spark))
    (record,) = (tmp_path / "s").rglob("7.batches")
    record.write_text("{")
    with pytest.raises(SinkError, match=r"7\.batches of ForeachBatch.* is damaged"):
        sink.commit(8, three(sink, spark, first=3))


def test_records_of_ids_do_not_pile_up(spark, tmp_path):
    """Only the newest few are kept."""
    calls = Calls()
    sink = opened(tmp_path / "s", calls)
    for epoch in range(1, 8):
        sink.commit(epoch, [flushed(sink, spark.range(1), epoch)])
    assert len(list((tmp_path / "s").rglob("*.batches"))) == 3
    assert [batch_id for batch_id, _ in calls.seen] == list(range(7))


def test_rows_that_are_gone_are_not_passed_in_part(spark, tmp_path):
    """The commit fails by name, before the function is called."""
    calls = Calls()
    sink = opened(tmp_path / "s", calls)
    payloads = three(sink, spark)
    next((tmp_path / "s").rglob("*.parquet")).unlink()
    with pytest.raises(LostRowsError, match="is gone"):
        sink.commit(7, payloads)
    assert calls.seen == []


def test_a_job_that_fails_passes_each_change_once_and_merges_by_key(
    tmp_path: Path, spark: Any
) -> None:
    """In update mode, on a job's own threads: a batch has a key once, and the newest row is the
    sum over the input."""
    del spark
    place = Place(tmp_path)
    place.land(6)
    batches: dict[int, dict[int, int]] = {}
    fails = RaiseOnce(OSError("the function fails after its effect"))

    def merge(frame: DataFrame, batch_id: int) -> None:
        rows = frame.collect()
        found = {row.key: row.total for row in rows}
        assert len(found) == len(rows)
        assert batches.setdefault(batch_id, found) == found
        if batch_id == 2:
            fails()

    job = weir.Job("batches")
    sums = job.source("numbers", numbers(place), bounded=True).transform(
        "sums",
        lambda frame: (
            frame.selectExpr("id % 7 AS key", "id")
            .groupBy("key")
            .agg({"id": "sum"})
            .toDF("key", "total")
        ),
        output_mode="update",
    )
    sums.sink("merged", ForeachBatch(merge, staging=str(place.directory / "staged")))
    conf = settings(place, RESTARTED, interval="200ms")
    with LiveJob(job, conf) as live:
        assert live.result().status is JobStatus.FINISHED
    assert list(batches) == list(range(len(batches)))
    newest: dict[int, int] = {}
    for rows in batches.values():
        newest |= rows
    expected: dict[int, int] = {}
    for number, _ in place.rows().elements():
        expected[number % 7] = expected.get(number % 7, 0) + number
    assert newest == expected
