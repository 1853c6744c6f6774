"""The contract of ``Source``, sentence by sentence, without Spark (MISSION C; PROTOCOL P2, P41)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from tests.kit.ranges import SCHEMA, Range, Ranges, RangesReader, ranges
from tests.kit.source_job import Checkpoint, FakeJob

import weir
from weir.core.types import Payload
from weir.errors import CoordinatorStateError, OperatorStateError, PipelineError
from weir.operators.state.store import SavedList, StateStore, decode_lists, encode_lists
from weir.sources import (
    Fetched,
    SourceReaderContext,
    SplitRecords,
    SplitSerializer,
    encode_splits,
)
from weir.sources.operator import SourceOperator


def numbers(job: FakeJob) -> list[int]:
    return [row["n"] for row in job.rows]


def job_of(*lengths: int, parallelism: int = 2, **options: Any) -> FakeJob:
    return FakeJob(Ranges(*ranges(*lengths), **options), parallelism, schema=SCHEMA)


# -- the whole


def test_every_row_of_a_bounded_source_is_read_once_and_then_the_input_ends() -> None:
    """Readers ask, read, ask again, and are told that there is nothing left."""
    job = job_of(5, 1, 7, 2)
    job.finish()
    assert sorted(numbers(job)) == list(range(15))


def test_a_source_without_splits_ends_at_once() -> None:
    """Each reader asks once, and is answered."""
    job = job_of()
    job.finish()
    assert job.rows == []


@given(
    lengths=st.lists(st.integers(1, 9), max_size=6),
    steps=st.lists(
        st.sampled_from(["coordinate", "batch", "new process", "held", "checkpoint", "kill"]),
        max_size=60,
    ),
    sizes=st.lists(st.integers(1, 5), min_size=60, max_size=60),
)
@settings(max_examples=400)
def test_no_row_is_lost_or_doubled_whatever_is_killed_and_whenever(
    lengths: list[int], steps: list[str], sizes: list[int]
) -> None:
    """A kill restores the newest checkpoint, with any number of readers."""
    job = job_of(*lengths, parallelism=sizes[0])
    newest: Checkpoint | None = None
    for step, size in zip(steps, sizes, strict=False):
        match step:
            case "coordinate":
                job.coordinate()
            case "checkpoint":
                newest = job.checkpoint()
            case "kill":
                job.restore(newest, size)
            case _:
                job.batch(may_read=step != "held", new_processes=step == "new process")
        held = sorted(one["split_id"] for splits in job.splits() for one in splits)
        assert len(held) == len(set(held)), "a split is with two readers"
    job.finish()
    assert sorted(numbers(job)) == list(range(sum(lengths)))


# -- the enumerator


def test_the_enumerator_is_started_then_hears_of_each_reader_and_of_its_request() -> None:
    """One request per reader, although the reader asks in every batch without splits."""
    job = job_of(bounded=False)
    calls = job.source.calls  # type: ignore[attr-defined]
    for _ in range(3):
        job.step()
    job.coordinate()
    assert calls == ["start", ("add_reader", 0), ("add_reader", 1), ("request", 0), ("request", 1)]


def test_each_attempt_has_an_enumerator_of_its_own_and_repeats_open_requests() -> None:
    """The one before is closed; a request that a checkpoint has as sent is sent again, once."""
    job = job_of(bounded=False)
    job.step()
    checkpoint = job.checkpoint()
    calls = job.source.calls  # type: ignore[attr-defined]
    coordinator = job.coordinator
    coordinator.reset_to_checkpoint(1, checkpoint.state)
    assert calls[-2:] == ["close", "start"]
    job.restore(checkpoint)
    calls.clear()
    for _ in range(4):
        job.step()
    job.coordinate()
    assert calls == [("request", 0), ("request", 1)]


def test_a_split_that_was_assigned_after_the_checkpoint_is_with_the_enumerator_again() -> None:
    """And one that was assigned before it is in the reader's state, although it was not read."""
    job = job_of(4, 4, parallelism=1)
    job.batch()
    before = job.checkpoint()
    job.coordinate()
    after = job.checkpoint()
    assert [one["split"]["split_id"] for one in before.state["left"]] == ["r0", "r1"]
    assert [one["split"]["split_id"] for one in after.state["left"]] == ["r1"]
    job.restore(before)
    assert job.splits() == [[]]
    job.restore(after)
    assert [one["split_id"] for one in job.splits()[0]] == ["r0"]


def test_splits_of_a_reader_that_was_reset_alone_go_back_to_the_enumerator() -> None:
    """Those assigned after its checkpoint; the others are in its state (MISSION C5)."""
    job = job_of(9, 9, 9, parallelism=1)
    coordinator, calls = job.coordinator, job.source.calls  # type: ignore[attr-defined]
    coordinator.handle_event_from_operator(0, 1, {"request": "None-1"})
    coordinator.checkpoint_coordinator(1)
    coordinator.notify_checkpoint_complete(1)
    coordinator.handle_event_from_operator(0, 1, {"request": "None-1"})
    coordinator.checkpoint_coordinator(2)
    coordinator.handle_event_from_operator(0, 1, {"request": "None-1"})
    coordinator.subtask_reset(0, 1)
    assert calls[-1] == ("back", 0, ranges(9, 9, 9)[1:])
    with pytest.raises(PipelineError, match="reader 0, which does not run"):
        coordinator.assign_splits(ranges(1), 0)
    coordinator.subtask_reset(0, 1)
    assert calls[-1][0] == "back", "what went back goes back once"
    assert calls.count(calls[-1]) == 1


def test_the_enumerator_hears_that_a_checkpoint_is_complete() -> None:
    """And its state is what it was when the snapshot was taken."""
    job = job_of(2)
    job.checkpoint()
    assert ("complete", 1) in job.source.calls  # type: ignore[attr-defined]


def test_requests_from_outside_reach_the_enumerator() -> None:
    """It refuses them unless it says otherwise."""
    with pytest.raises(ValueError, match="RangesEnumerator does not accept requests"):
        job_of().coordinator.handle_request({"now": True})


def test_only_readers_that_run_can_be_assigned_splits() -> None:
    """The others have not been added yet, or do not exist."""
    job = job_of(2)
    with pytest.raises(PipelineError, match=r"assigned 'r0' to reader 2, which does not run"):
        job.coordinator.assign_splits(ranges(1), 2)


def test_an_unbounded_source_has_no_last_split() -> None:
    """The runtime would wait for an end that cannot come."""
    with pytest.raises(PipelineError, match="the source is unbounded: set bounded = True"):
        job_of(bounded=False).coordinator.signal_no_more_splits(0)


def test_a_state_that_the_source_does_not_take_is_refused_by_name() -> None:
    """No retry could help."""
    with pytest.raises(CoordinatorStateError, match="state of source 'numbers' is invalid"):
        job_of().coordinator.reset_to_checkpoint(7, {"left": [{"version": 1, "split": {}}]})


# -- the reader


def test_positions_and_rows_are_in_a_checkpoint_together() -> None:
    """A restored reader goes on after the last row."""
    job = job_of(9, parallelism=1)
    job.step()
    job.step()
    checkpoint = job.checkpoint()
    [[split]] = job.splits()
    assert split == {"split_id": "r0", "position": len(checkpoint.rows), "end": 9}
    job.restore(checkpoint)
    job.finish()
    assert numbers(job) == list(range(9))


def test_splits_are_distributed_anew_when_the_parallelism_changes() -> None:
    """None stays with a reader that is gone."""
    job = job_of(*[9] * 6, parallelism=6)
    job.step()
    job.step()
    checkpoint = job.checkpoint()
    for parallelism in (4, 1):
        job.restore(checkpoint, parallelism)
        assert sum(map(len, job.splits())) == 6
        assert max(map(len, job.splits())) == math.ceil(6 / parallelism)


def test_a_batch_that_must_not_emit_takes_splits_and_reads_nothing() -> None:
    """As that of a drain; afterwards they are read."""
    job = job_of(4, 4)
    job.step()
    job.coordinate()
    assert job.batch(may_read=False) == 0
    assert [one["split_id"] for splits in job.splits() for one in splits] == ["r0", "r1"]
    assert job.wakes() == [0, 0]
    job.finish()
    assert sorted(numbers(job)) == list(range(8))


def test_a_reader_reads_again_at_once_after_rows_and_later_without() -> None:
    """And not at all without splits, until something comes."""
    source = Ranges(*ranges(9), bounded=False)
    source.there = 4
    job = FakeJob(source, 2, schema=SCHEMA)
    job.step()
    assert job.wakes() == [None, None]
    assert job.step() > 0
    assert job.wakes() == [0, None]
    assert (job.step(), job.step()) == (1, 0)
    assert job.wakes() == [source.poll_interval_ms, None]


class Talkative(Ranges):
    """A source whose readers answer events."""

    def create_reader(self, context: SourceReaderContext) -> RangesReader:
        return Answers(context, self)


class Answers(RangesReader):
    """Returns each event."""

    def handle_source_event(self, event: Payload) -> None:
        self.context.send_source_event({"got": event})


def test_events_of_the_users_code_go_both_ways() -> None:
    """In order with splits."""

    source = Talkative(*ranges(1))
    job = FakeJob(source, 1, schema=SCHEMA)
    job.coordinator.send_event_to_reader(0, {"hello": 1})
    job.step()
    job.coordinate()
    assert ("event", 0, {"got": {"hello": 1}}) in source.calls


# -- mistakes


@dataclass(frozen=True)
class Odd:
    """A split whose position may be anything."""

    split_id: str
    position: float


def test_a_split_reads_back_equal_or_is_refused() -> None:
    """Not a number is not equal to itself, so nobody could know whether it is the same split."""
    serializer = SplitSerializer(Odd)
    assert serializer.decode(1, serializer.encode(Odd("a", 0.5))) == Odd("a", 0.5)
    with pytest.raises(ValueError, match="split 'a' cannot be serialized"):
        encode_splits(serializer, [Odd("a", math.nan)])


def test_a_split_of_another_version_or_shape_is_refused() -> None:
    """What is read back is never trusted."""
    serializer = SplitSerializer(Odd)
    with pytest.raises(ValueError, match="it has version 2, and SplitSerializer reads only 1"):
        serializer.decode(2, {"split_id": "a", "position": 1})
    with pytest.raises(ValueError, match=r"Expected `float`, got `str` - at `\$.position`"):
        serializer.decode(1, {"split_id": "a", "position": "b"})


def test_a_split_can_be_sent_to_spark_again_after_it_was_read_back() -> None:
    """The classes of a pipeline file go to the workers by value, in each attempt."""

    @dataclass(frozen=True)
    class Part:
        first: int

    @dataclass(frozen=True)
    class Whole:
        split_id: str
        parts: list[Part | None]

    Whole.__annotations__ = {"split_id": str, "parts": list[Part | None]}
    serializer = SplitSerializer(Whole)
    whole = Whole("a", [Part(1), None])
    assert serializer.decode(1, serializer.encode(whole)) == whole
    assert cloudpickle.dumps(serializer)


class Broken(Ranges):
    """A source of one range whose reader makes a mistake."""

    def __init__(self, mistake: str) -> None:
        super().__init__(*ranges(9))
        self.mistake = mistake

    def create_reader(self, context: SourceReaderContext) -> RangesReader:
        return BrokenReader(context, self)


class BrokenReader(RangesReader):
    """Makes one mistake."""

    def __init__(self, context: SourceReaderContext, source: Broken) -> None:
        super().__init__(context, source)
        self._mistake = source.mistake

    def fetch(self, split: Range, max_rows: int) -> Fetched[Range]:
        if self._mistake == "raises":
            raise KeyError("x")
        if self._mistake == "columns":
            return Fetched(batch=pa.RecordBatch.from_pydict({"m": [1]}), split=split)
        if self._mistake == "position":
            return Fetched(split=Range(split.split_id, math.nan, 9))  # type: ignore[arg-type]
        return super().fetch(split, max_rows)

    def read(self, max_rows: int) -> Any:
        yield from super().read(max_rows)
        if self._mistake == "unknown":
            yield SplitRecords(split_id="r7", finished=True)

    def snapshot_state(self) -> Sequence[Range]:
        return [] if self._mistake == "forgets" else super().snapshot_state()


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("columns", "Split 'r0' does not fit its source. Operator 'numbers' emits the columns m,"),
        ("unknown", "The reader of source 'numbers' has read split 'r7', which it does not have"),
        ("forgets", "snapshot_state of the reader of source 'numbers' lacks split 'r0'"),
        ("position", "Split 'r0' of source 'numbers' cannot be serialized at its position, since"),
    ],
)
def test_a_mistake_of_the_reader_fails_the_job_by_source_and_split(
    mistake: str, message: str
) -> None:
    """In one sentence; no retry could help."""
    job = FakeJob(Broken(mistake), 1, schema=SCHEMA)
    with pytest.raises(PipelineError) as raised:
        for _ in range(3):
            job.step()
    assert message in str(raised.value)


def test_what_a_reader_raises_is_passed_on_with_the_split_in_a_note() -> None:
    """The job's restart strategy decides by the exception itself."""
    job = FakeJob(Broken("raises"), 1, schema=SCHEMA)
    with pytest.raises(KeyError) as raised:
        for _ in range(3):
            job.step()
    assert raised.value.__notes__ == [
        "weir: reading split 'r0' at Range(split_id='r0', position=0, end=9)"
    ]


def test_a_split_that_is_assigned_twice_is_refused() -> None:
    """Its rows would be read twice."""
    job = job_of(9, parallelism=1)
    job.step()
    job.step()
    job.coordinator.assign_splits(ranges(9), 0)
    with pytest.raises(PipelineError, match="assigned split 'r0' to reader 0, which already has"):
        job.batch()


def test_splits_that_are_not_those_of_the_source_are_refused() -> None:
    """The checkpoint is another source's, or damaged."""
    job = job_of(1)
    wrong = encode_lists({"splits": SavedList("list", [b'{"version": 1, "split": {}}'])})
    operator = SourceOperator(job.source, None)
    operator.open(job._subtask(0, fresh=False)[1])
    with pytest.raises(OperatorStateError, match="The splits of source 'numbers' in the"):
        operator.initialize_state(StateStore(decode_lists(wrong)))


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("schema", "", "Source 'numbers' has no schema: set the attribute schema of Ranges"),
        ("max_rows_per_batch", 0, "has max_rows_per_batch=0: set it to 1 or more"),
        ("poll_interval_ms", 0, "has poll_interval_ms=0: set it to 1 or more"),
    ],
)
def test_what_a_source_lacks_is_said_when_the_pipeline_is_written(
    attribute: str, value: Any, message: str
) -> None:
    """In one sentence, with the step."""
    source = Ranges()
    setattr(source, attribute, value)
    with pytest.raises(PipelineError, match=message):
        weir.Job("job").source("numbers", source)
