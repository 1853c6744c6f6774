"""What a reader that fails says of its input: the same until a checkpoint contains that input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.kit.ranges import SCHEMA, Range, Ranges, RangesReader, ranges
from tests.kit.source_job import FakeJob, TaskContext

from weir.operators.state.store import StateStore, decode_lists
from weir.sources import Fetched, SourceReaderContext, SplitRecords
from weir.sources.operator import READ


class Faulty(Ranges):
    """A source that cannot read one of its numbers."""

    def __init__(self, *ranges: Range) -> None:
        super().__init__(*ranges, bounded=False)
        self.reader = FaultyReader
        self.bad = 1 << 40

    def create_reader(self, context: SourceReaderContext) -> RangesReader:
        return self.reader(context, self)


class FaultyReader(RangesReader):
    """Raises before the bad number, with an error that an outage raises too."""

    def __init__(self, context: SourceReaderContext, source: Faulty) -> None:
        super().__init__(context, source)
        self._bad = source.bad

    def fetch(self, split: Range, max_rows: int) -> Fetched[Range]:
        if split.position <= self._bad < split.position + 2:
            raise ConnectionError("reset by peer")
        return super().fetch(split, max_rows)


class EagerReader(FaultyReader):
    """Opens splits as soon as it gets them."""

    def add_splits(self, splits: Sequence[Range]) -> None:
        for split in splits:
            self.fetch(split, 1)
        super().add_splits(splits)


class SilentReader(FaultyReader):
    """Does not say what it reads."""

    def read(self, max_rows: int) -> Any:
        for split in list(self._splits):
            fetched = self.fetch(split, max_rows)
            yield SplitRecords(split_id=split.split_id, batch=fetched.batch)


def failing_input(job: FakeJob) -> str:
    """Step until the reader fails; what failed, by the notes."""
    with pytest.raises(ConnectionError) as raised:
        for _ in range(100):
            job.step()
    [note] = raised.value.__notes__
    return note


def test_a_failing_split_has_one_name_until_a_checkpoint_contains_its_next_rows() -> None:
    """However the rows before it are cut into batches, and whatever checkpoints complete before
    it; then the position moves, and with it the name."""
    source = Faulty(Range("r0", 0, 99))
    source.bad = 8
    job = FakeJob(source, 1, schema=SCHEMA)
    first = failing_input(job)
    assert first == "weir: reading split 'r0' at Range(split_id='r0', position=8, end=99)"
    job.restore(None)
    job.step()
    checkpoint = job.checkpoint()
    for rows in (2, 4):
        job.source.max_rows_per_batch = rows
        job.restore(checkpoint)
        assert failing_input(job) == first
    source.bad = 20
    job.restore(checkpoint)
    assert failing_input(job) != first


def test_a_split_whose_text_does_not_have_its_position_is_named_by_its_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An address differs in each process, and says nothing."""
    monkeypatch.setattr(Range, "__repr__", object.__repr__)
    source = Faulty(Range("r0", 0, 99))
    source.bad = 8
    assert failing_input(FakeJob(source, 1, schema=SCHEMA)) == (
        "weir: reading split 'r0' at {'split_id': 'r0', 'position': 8, 'end': 99}"
    )


def test_a_split_that_has_no_rows_for_now_gets_another_name_with_each_checkpoint() -> None:
    """Its position stays the same for weeks, so failures that have passed would be counted with
    those of today."""
    source = Faulty(Range("r0", 0, 99))
    source.there = 4
    job = FakeJob(source, 1, schema=SCHEMA)
    names = []
    for _ in range(2):
        for _ in range(6):
            job.step()
        checkpoint = job.checkpoint()
        source.bad = 4
        job.restore(checkpoint)
        names.append(failing_input(job))
        job.restore(checkpoint)
        assert failing_input(job) == names[-1], "the next attempt fails at the same input"
        source.bad = 1 << 40
        job.restore(checkpoint)
    assert len(set(names)) == 2
    assert all(" reads without rows" in name for name in names)


def test_a_reader_that_does_not_say_what_it_reads_fails_by_all_its_splits() -> None:
    """It may read them through one client."""
    source = Faulty()
    source.bad, source.reader = 0, SilentReader
    for splits, name in (
        (ranges(1), "split 'r0' at Range(split_id='r0', position=0, end=1)"),
        (ranges(1, 1, 1, 1), "one of the splits 'r0' at Range("),
    ):
        job = FakeJob(source, 1, schema=SCHEMA)
        job.step()
        job.coordinator.assign_splits(splits, 0)
        note = failing_input(job)
        assert note.startswith(f"weir: reading {name}")
    assert note.endswith("'r2' at Range(split_id='r2', position=2, end=3) and 1 more")


@pytest.mark.parametrize("new", [True, False])
def test_a_split_that_cannot_be_opened_fails_by_its_name(new: bool) -> None:
    """When it is assigned, and when it is restored."""
    source = Faulty(Range("r0", 0, 99))
    job = FakeJob(source, 1, schema=SCHEMA)
    if not new:
        for _ in range(3):
            job.step()
        job.restore(job.checkpoint())
    source.bad, source.reader = 0 if new else job.splits()[0][0]["position"], EagerReader
    assert failing_input(job).startswith("weir: reading split 'r0' at Range(split_id='r0', pos")


def test_a_process_leaves_behind_what_it_reads_until_it_has_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What kills the process can raise nothing."""
    source = Faulty(Range("r0", 0, 99))
    source.bad = 8
    job = FakeJob(source, 1, schema=SCHEMA)
    left: list[str] = []
    monkeypatch.setattr(TaskContext, "trace", lambda self, text: left.append(text))
    assert failing_input(job) == f"weir: {left[-2]}"
    assert left[-1] == ""


def test_the_rows_and_whole_splits_that_were_read_are_counted_over_attempts() -> None:
    """Also at another parallelism: there the range of a batch begins."""
    job = FakeJob(Ranges(*ranges(9, 5)), 2, schema=SCHEMA)
    for _ in range(4):
        job.step()
    checkpoint = job.checkpoint()
    assert read_so_far(job) == (len(job.rows), 2 - sum(map(len, job.splits())))
    for parallelism in (1, 3):
        job.restore(checkpoint, parallelism)
        job.finish()
        assert read_so_far(job) == (14, 2)


def read_so_far(job: FakeJob) -> tuple[int, int]:
    """The sum over all subtasks."""
    stores = [StateStore(decode_lists(one), operator_id="numbers") for one in job._states]
    counts = [entry for store in stores for entry in store.list_state(READ).get()]
    return sum(rows for rows, _ in counts), sum(splits for _, splits in counts)
