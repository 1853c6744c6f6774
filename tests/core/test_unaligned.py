"""Unaligned checkpoints (PROTOCOL P27).

A barrier overtakes unread segments, which become part of the snapshot.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.channel_task import BATCH_SIZE, Task, barrier, kinds, segment, trigger

from weir.core.messages.channel import (
    ChannelAppended,
    EndOfPartition,
    EndOfUserRecords,
    Segment,
    SegmentsConsumed,
    Watermark,
)
from weir.core.messages.protocol import AcknowledgeCheckpoint, NotifyCheckpointAborted
from weir.core.messages.task import (
    AnswerPlanning,
    BatchStaged,
    Drained,
    SnapshotFailed,
    SyncPartDone,
    TakeSnapshot,
)
from weir.core.task.output_channels import ChannelBound
from weir.core.types import InFlightSegment, SnapshotKind
from weir.errors import InvariantError


def unaligned(*inputs: str, timeout_ms: int = 0, **how: Any) -> Task:
    """A task whose barriers may overtake."""
    return Task(inputs=inputs, aligned_timeout_ms=timeout_ms, **how)


def in_flight(effects: list[Any]) -> list[tuple[str, int]]:
    """The in-flight segments of the only snapshot among the effects, by channel and position."""
    (take,) = (effect for effect in effects if isinstance(effect, TakeSnapshot))
    return [(segment.channel, segment.position) for segment in take.in_flight]


def of(channel: str, *positions: int) -> tuple[InFlightSegment, ...]:
    """Segments in the form a port puts them into the snapshot."""
    return tuple(
        InFlightSegment(channel=channel, position=n, size=1, payload={"kept": n}) for n in positions
    )


def reading(task: Task) -> Task:
    """A task reading segment 0 of channel a while segment 1, barrier 1 and segment 2 arrive."""
    task.plan(-1)
    for entry in (segment(0), segment(1), barrier(1), segment(2)):
        task.get("a", entry)
    return task


def test_a_barrier_overtakes_what_was_not_read_at_the_next_planning_call() -> None:
    """Neither what the batch has read nor what follows the barrier is in flight."""
    task = reading(unaligned("a"))
    assert in_flight(task.plan(0, a=0)) == [("a", 1)]


def test_nothing_is_overtaken_while_a_batch_runs() -> None:
    """The query's state is not stable then."""
    task = unaligned("a")
    task.plan(-1)
    task.get("a", segment(0))
    task.get("a", segment(1))
    assert task.get("a", barrier(1)) == []
    assert in_flight(task.plan(0, a=0)) == [("a", 1)]


def test_without_the_setting_a_barrier_waits_for_what_is_before_it() -> None:
    """Aligned checkpoints are the default."""
    task = reading(Task(inputs=("a",)))
    assert kinds(task.plan(0, a=0)) == ["SegmentsConsumed", "AnswerPlanning"]


def test_segments_that_were_overtaken_are_read_on() -> None:
    """They stay in place, and what follows the barrier is read in the same batch."""
    task = reading(unaligned("a"))
    task.plan(0, a=0)
    (_, answer) = task.do(SyncPartDone(checkpoint_id=1))
    assert isinstance(answer, AnswerPlanning)
    assert [segment.position for segment in answer.admitted[0].segments] == [1, 2]
    task.finish(1, 0, of("a", 1))
    reports = [effect for effect in task.plan(1, a=2) if isinstance(effect, SegmentsConsumed)]
    assert reports == [
        SegmentsConsumed(vertex="a", consumer="v", position=2, batch_size=BATCH_SIZE)
    ]


def test_a_barrier_that_is_missing_on_one_channel_is_waited_for() -> None:
    """It cannot overtake before it arrives."""
    task = unaligned("a", "b")
    task.plan(-1)
    for entry in (segment(0), segment(1), segment(2), barrier(1)):
        task.get("a", entry)
    assert kinds(task.plan(0, a=0)) == ["SegmentsConsumed", "AnswerPlanning"]
    task.get("b", segment(0))
    task.get("b", barrier(1))
    assert in_flight(task.plan(1, a=2)) == [("b", 0)]


def test_a_held_channel_has_nothing_in_flight() -> None:
    """Its barrier was reached; only the other channel's overtakes."""
    task = unaligned("a", "b")
    task.plan(-1)
    task.get("b", segment(0))
    task.get("a", barrier(1))
    task.get("a", segment(7))
    task.get("b", segment(1))
    task.get("b", barrier(1))
    assert in_flight(task.plan(0, b=0)) == [("b", 1)]


def test_barriers_wait_for_the_timeout_before_they_overtake() -> None:
    """Counted from the arrival of the checkpoint's first barrier at the task, wherever it is in its
    channel."""
    early, late = unaligned("a", timeout_ms=100), unaligned("a", timeout_ms=100)
    for task in (early, late):
        task.plan(-1)
        for entry in (segment(0), segment(1), barrier(1)):
            task.get("a", entry, now_ms=50)
    assert kinds(early.plan(0, now_ms=149, a=0)) == ["SegmentsConsumed", "AnswerPlanning"]
    assert in_flight(late.plan(0, now_ms=150, a=0)) == [("a", 1)]


def test_a_task_that_rests_under_backpressure_overtakes_when_the_timeout_is_over() -> None:
    """No event arrives then: the machine says when it wants to be called again."""
    task = unaligned("a", timeout_ms=100, consumers=("x",))
    task.plan(-1)
    for position in range(8):
        task.get("a", segment(position))
        task.do(BatchStaged(position=position, committables=(), segment=segment(position)))
        if "AnswerPlanning" in kinds(task.plan(position, a=position)):
            task.plan(position, a=position)
    assert task.get("a", segment(8), now_ms=50) == [], "the channel to x is full"
    assert task.machine.next_deadline() is None
    task.get("a", barrier(1), now_ms=60)
    assert task.machine.next_deadline() == 160
    assert in_flight(task.machine.on_deadline(160)) == [("a", 8)]
    assert task.machine.next_deadline() is None


def test_a_savepoints_barrier_overtakes_nothing() -> None:
    """Savepoints are always aligned."""
    task = unaligned("a")
    task.plan(-1)
    for entry in (segment(0), segment(1), barrier(1, SnapshotKind.SAVEPOINT)):
        task.get("a", entry)
    assert kinds(task.plan(0, a=0)) == ["SegmentsConsumed", "AnswerPlanning"]
    assert in_flight(task.plan(1, a=1)) == []


def test_a_barrier_does_not_overtake_a_savepoints() -> None:
    """The savepoint would be aborted by it."""
    task = unaligned("a")
    task.plan(-1)
    for entry in (segment(0), segment(1), barrier(1, SnapshotKind.SAVEPOINT), barrier(2)):
        task.get("a", entry)
    assert kinds(task.plan(0, a=0)) == ["SegmentsConsumed", "AnswerPlanning"]


def test_a_barrier_overtakes_one_of_a_checkpoint_that_is_over() -> None:
    """Otherwise a checkpoint that expired under backpressure would delay the following ones."""
    task = reading(unaligned("a"))
    task.do(NotifyCheckpointAborted(vertex="v", checkpoint_id=1))
    task.get("a", barrier(2))
    assert in_flight(task.plan(0, a=0)) == [("a", 1), ("a", 2)]
    task.snapshot(2, 0, of("a", 1, 2))
    assert kinds(task.plan(1, a=1)) == ["SegmentsConsumed", "AnswerPlanning"]
    assert kinds(task.plan(2, a=2)) == ["SegmentsConsumed", "AnswerPlanning"]


def test_watermarks_and_ends_of_records_are_overtaken_and_not_stored() -> None:
    """A restored producer sends its watermark again, and a finished one ends its channels again."""
    task = unaligned("a")
    task.plan(-1)
    for entry in (
        segment(0),
        segment(1),
        Watermark(timestamp_ms=5),
        EndOfUserRecords(),
        barrier(1),
    ):
        task.get("a", entry)
    assert in_flight(task.plan(0, a=0)) == [("a", 1)]
    task.snapshot(1, 0, of("a", 1))
    assert kinds(task.plan(1, a=1)) == ["SegmentsConsumed", "StartDrain"]


def test_the_task_under_backpressure_overtakes_at_once() -> None:
    """Its call is held because its consumer lags; its own barrier follows its output so far."""
    task = unaligned("a", consumers=("x",))
    task.plan(-1)
    for position in range(ChannelBound().segments):
        task.get("a", segment(position))
        task.do(BatchStaged(position=position, committables=(), segment=segment(position)))
        if "AnswerPlanning" in kinds(task.plan(position, a=position)):
            assert task.plan(position, a=position) == []
    task.get("a", segment(100))
    effects = task.get("a", barrier(1))
    assert kinds(effects) == ["CheckpointBarrier", "TakeSnapshot"]
    assert in_flight(effects) == [("a", 100)]


def test_the_acknowledgement_says_what_was_overtaken() -> None:
    """The port's descriptions of the segments go into the state, their bytes into the metrics."""
    task = reading(unaligned("a"))
    task.plan(0, a=0)
    acknowledged = next(
        effect
        for effect in task.snapshot(1, 0, of("a", 1))
        if isinstance(effect, AcknowledgeCheckpoint)
    )
    assert acknowledged.state.in_flight == of("a", 1)
    assert (acknowledged.metrics.unaligned, acknowledged.metrics.persisted_size) == (True, 1)


def test_a_snapshot_without_its_segments_is_a_bug() -> None:
    """A restore would lose them."""
    task = reading(unaligned("a"))
    task.plan(0, a=0)
    with pytest.raises(InvariantError, match="lacks the segments in flight"):
        task.snapshot(1, 0)


@pytest.mark.parametrize("end", ["done", "failed", "dropped"])
def test_a_producer_is_not_notified_while_a_snapshot_needs_its_segments(end: str) -> None:
    """P27: the producer would delete them; it is notified once the part ends, whatever its
    outcome."""
    task = reading(unaligned("a"))
    task.plan(0, a=0)
    task.do(SyncPartDone(checkpoint_id=1))
    assert "SegmentsConsumed" not in kinds(task.plan(1, a=2))
    if end == "dropped":
        assert "SegmentsConsumed" not in kinds(
            task.do(NotifyCheckpointAborted(vertex="v", checkpoint_id=1))
        )
    effects = (
        task.do(SnapshotFailed(checkpoint_id=1, message="full"))
        if end == "failed"
        else task.finish(1, 0, of("a", 1))
    )
    assert SegmentsConsumed(vertex="a", consumer="v", position=2, batch_size=BATCH_SIZE) in effects


def test_another_channels_producer_is_notified_meanwhile() -> None:
    """None of that channel's segments is in flight."""
    task = unaligned("a", "b")
    task.plan(-1)
    in_a = (segment(0), segment(1), barrier(1))
    for channel, entry in (*(("a", entry) for entry in in_a), ("b", barrier(1)), ("b", segment(0))):
        task.get(channel, entry)
    assert in_flight(task.plan(0, a=0)) == [("a", 1)]
    task.do(SyncPartDone(checkpoint_id=1))
    reports = [effect for effect in task.plan(1, a=1, b=0) if isinstance(effect, SegmentsConsumed)]
    assert [effect.vertex for effect in reports] == ["b"]


RESTORED = (
    ("a", Segment(position=3, size=BATCH_SIZE, payload={})),
    ("a", Segment(position=4, size=BATCH_SIZE, payload={})),
    ("a", EndOfUserRecords()),
    ("a", EndOfPartition()),
)


def restored(*inputs: str, timeout_ms: int | None = 0) -> Task:
    """A task restored with segments of channel a, each a whole batch, that reads the first."""
    task = Task(inputs=inputs, restored=RESTORED, aligned_timeout_ms=timeout_ms)
    task.plan(-1, a=2)
    return task


def test_a_root_with_restored_segments_keeps_them_in_its_checkpoints() -> None:
    """Its producer had finished, so the coordinator triggers it; what it has not read is still in
    flight."""
    task = restored("a")
    assert task.do(trigger(1)) == []
    assert in_flight(task.plan(0, a=3)) == [("a", 4)]
    task.snapshot(1, 0, of("a", 4))
    assert kinds(task.plan(1, a=4)) == ["SegmentsConsumed", "StartDrain"]


@pytest.mark.parametrize("kind", SnapshotKind)
def test_an_aligned_trigger_waits_until_restored_segments_are_read(kind: SnapshotKind) -> None:
    """Without the setting, and for every savepoint: otherwise its state would lack them."""
    timeout_ms = None if kind is SnapshotKind.CHECKPOINT else 0
    task = restored("a", timeout_ms=timeout_ms)
    task.do(trigger(1, kind))
    assert kinds(task.plan(0, a=3)) == ["SegmentsConsumed", "AnswerPlanning"]
    effects = task.plan(1, a=4)
    if kind.is_synchronous:
        # Its only producer has ended, so its own end has come and the snapshot of a stop is taken
        # after the drain.
        effects = task.do(Drained(position=2))
    assert in_flight(effects) == []


def test_a_channel_that_is_ending_needs_no_barrier() -> None:
    """Its producer had finished in the restored checkpoint, the other one had not."""
    task = restored("a", "b")
    task.get("b", segment(0))
    task.get("b", barrier(1))
    assert in_flight(task.plan(0, a=3)) == [("a", 4), ("b", 0)]
    task.snapshot(1, 0, of("a", 4) + of("b", 0))
    task.plan(1, a=4, b=0)
    task.get("b", barrier(2))
    assert in_flight(task.plan(2)) == []


def test_a_producer_takes_no_notice_of_segments_that_it_was_not_restored_with() -> None:
    """Its consumer was restored with them: they do not belong to this attempt."""
    task = Task(consumers=("x",))
    task.plan(-1)
    old = SegmentsConsumed(vertex="v", consumer="x", position=3, batch_size=BATCH_SIZE)
    assert task.do(old) == []
    task.do(BatchStaged(position=4, committables=(), segment=segment(4)))
    appended = task.plan(4)[0]
    assert isinstance(appended, ChannelAppended)
    assert task.do(old) == []
