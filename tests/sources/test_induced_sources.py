"""Readers that say themselves when a checkpoint is due (MISSION B4), without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from tests.kit.clock import ManualClock
from tests.kit.ranges import SCHEMA, Range, Ranges, RangesEnumerator, RangesReader, ranges
from tests.kit.source_job import FakeJob
from tests.operators.test_source_readers import reported

from weir.core.messages.task import InducedCheckpoint
from weir.core.types import Payload
from weir.errors import PipelineError
from weir.sources import (
    ExternallyInducedSourceReader,
    SourceReaderContext,
    SplitEnumeratorContext,
    SplitRecords,
)
from weir.sources.operator import ReaderReport
from weir.sources.watermarks import ReaderTime
from weir.subtasks.messages import BatchResult
from weir.subtasks.source_readers import SourceReaders


class Marked(Ranges):
    """Ranges with marks: (checkpoint, before which number)."""

    externally_induced = True

    def __init__(
        self, *ranges: Range, marks: Iterable[tuple[Any, int]] = (), rows: int = 8
    ) -> None:
        super().__init__(*ranges, rows=rows, bounded=False)
        self.marks = list(marks)

    def create_enumerator(self, context: SplitEnumeratorContext) -> RangesEnumerator:
        return MarkingEnumerator(context, self, list(self.ranges))

    def create_reader(self, context: SourceReaderContext) -> MarkedReader:
        return MarkedReader(context, self)


class MarkingEnumerator(RangesEnumerator):
    """Notes the checkpoints that are wanted, and that have failed."""

    def snapshot_state(self, checkpoint_id: int) -> Payload:
        self.calls.append(("wanted", checkpoint_id))
        return super().snapshot_state(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.calls.append(("aborted", checkpoint_id))


class MarkedReader(RangesReader, ExternallyInducedSourceReader[Range]):
    """Reads number by number, and says each mark that it meets."""

    def __init__(self, context: SourceReaderContext, source: Marked) -> None:
        super().__init__(context, source)
        self._marks = source.marks

    def fetch(self, split: Range, max_rows: int) -> Any:
        return super().fetch(split, 1)

    def should_trigger_checkpoint(self) -> int | None:
        positions = {split.position for split in self.snapshot_state()}
        return next((n for n, at in self._marks if positions == {at}), None)


def job_of(*marks: tuple[Any, int], parallelism: int = 1, **options: Any) -> FakeJob:
    """Readers with a range of 20 numbers each; the first batch has assigned them."""
    lengths = [20] * parallelism
    job = FakeJob(Marked(*ranges(*lengths), marks=marks, **options), parallelism, schema=SCHEMA)
    job.batch()
    job.coordinate()
    return job


def numbers(job: FakeJob) -> list[int]:
    return [row["n"] for row in job.rows]


def test_a_reader_stops_at_its_point_and_goes_on_when_the_checkpoint_is_over() -> None:
    """The rest of the batch stays unread, and nothing wakes the reader meanwhile."""
    job = job_of((1, 3))
    assert job.batch() == 3
    assert (job.stand_at(), job.wakes()) == ([1], [None])
    assert job.batch() == 0
    job.induced_over = 1
    assert job.batch() == 8
    assert numbers(job) == list(range(11))
    assert job.stand_at() == [None]


def test_another_process_stands_at_the_same_point() -> None:
    """Spark may change it between any two batches."""
    job = job_of((1, 3))
    job.batch(new_processes=True)
    assert job.batch(new_processes=True) == 0
    assert job.stand_at() == [1]
    job.induced_over = 1
    assert job.batch(new_processes=True) == 8


def test_a_point_at_the_end_of_what_there_is_counts_without_another_row() -> None:
    """The reader is asked when ``read`` has ended, whether or not it had anything."""
    job = FakeJob(Listing(*ranges(4), marks=[(1, 0)], rows=0), 1, schema=SCHEMA)
    job.batch()
    job.coordinate()
    job.batch()
    assert (numbers(job), job.stand_at()) == ([], [1])


def test_points_of_an_earlier_attempt_are_passed_over() -> None:
    """They are met again after a failure, and mean nothing."""
    job = job_of((1, 3), (2, 6), (3, 9))
    job.batch()
    checkpoint = job.checkpoint()
    job.induced_over = 1
    job.batch()
    assert job.stand_at() == [2]
    job.checkpoint()
    job.checkpoint()
    job.restore(checkpoint)
    job.batch()
    assert (numbers(job), job.stand_at()) == (list(range(11)), [None])


def test_where_a_reader_stood_is_forgotten_in_a_new_attempt() -> None:
    """Also in that of another job, whose ids begin again."""
    job = job_of((1, 3))
    job.batch()
    checkpoint = job.checkpoint()
    assert job.stand_at() == [1]
    job.restore(checkpoint)
    job.induced_over = 0
    assert job.batch() == 8


def test_the_enumerator_hears_which_checkpoint_is_wanted_and_that_it_has_failed() -> None:
    """It tells the system outside."""
    job = job_of()
    job.checkpoint()
    job.coordinator.notify_checkpoint_aborted(2)
    calls = job.source.calls  # type: ignore[attr-defined]
    assert calls.index(("wanted", 1)) < calls.index(("aborted", 2))


@pytest.mark.parametrize("wrong", ["1", 1.0, True])
def test_an_id_that_is_none_is_refused_by_name(wrong: object) -> None:
    """No retry could help."""
    job = job_of((wrong, 1))
    with pytest.raises(PipelineError, match=r"should_trigger_checkpoint of the reader of source"):
        job.batch()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Ranges, "RangesReader of source 'numbers' is not an ExternallyInducedSourceReader, but"),
        (Marked, "MarkedReader of source 'numbers' is an ExternallyInducedSourceReader, but the"),
    ],
)
def test_a_source_says_whether_its_readers_induce_checkpoints(
    kind: type[Ranges], message: str
) -> None:
    """The driver must know before there is a reader."""
    source = kind(*ranges(4))
    source.externally_induced = kind is Ranges
    with pytest.raises(PipelineError, match=message):
        FakeJob(source, 1, schema=SCHEMA).batch()


class Listing(Marked):
    """Its reader returns a list, and has nothing to close."""

    def create_reader(self, context: SourceReaderContext) -> MarkedReader:
        return ListingReader(context, self)


class ListingReader(MarkedReader):
    """Reads nothing beyond a point, whatever comes in one list."""

    def read(self, max_rows: int) -> Iterator[SplitRecords]:
        return iter(list(super().read(min(max_rows, 1))))


def test_what_read_returns_need_not_be_a_generator() -> None:
    """Any iterable of results will do."""
    job = FakeJob(Listing(*ranges(4), marks=[(1, 2)]), 1, schema=SCHEMA)
    job.batch()
    job.coordinate()
    assert (job.batch(), job.batch(), job.batch()) == (1, 1, 0)
    assert job.stand_at() == [1]


def report(stands_at: int | None, *, has_splits: bool = True) -> BatchResult:
    time = ReaderTime(watermark_ms=None, is_active=False)
    reader = ReaderReport(
        wake_in_ms=None,
        time=time,
        ended=False,
        has_splits=has_splits,
        unread=0,
        stands_at=stands_at,
    )
    return reported(reader, rows=0)


def test_all_readers_with_splits_must_be_there() -> None:
    """The task hears of the newest point, and whether anybody is still short of it."""
    readers = SourceReaders([("s", one) for one in range(3)], ManualClock())
    readers.take("s", 0, report(None))
    readers.take("s", 1, report(7))
    readers.take("s", 2, report(None, has_splits=False))
    assert readers.induced == InducedCheckpoint(7, by_all=False)
    readers.take("s", 0, report(6))
    assert readers.induced == InducedCheckpoint(7, by_all=False)
    assert (readers.may_go_on(5), readers.may_go_on(6)) == (False, True)
    readers.take("s", 0, report(7))
    assert readers.induced == InducedCheckpoint(7, by_all=True)
    for one in range(3):
        readers.take("s", one, report(None, has_splits=False))
    assert readers.induced == InducedCheckpoint(0, by_all=True)
