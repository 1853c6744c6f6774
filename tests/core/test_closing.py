"""A task that has done everything still takes the checkpoints whose barriers it has (P32).

Each task here reads a channel, has no sink, and needs no final checkpoint (P36).
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.channel_task import Task, barrier, kinds, segment, trigger

from weir.core.messages.channel import (
    CancelCheckpointMarker,
    EndOfPartition,
    EndOfUserRecords,
    SegmentsConsumed,
)
from weir.core.messages.protocol import NotifyCheckpointAborted
from weir.core.messages.task import BatchStaged, Drained, SyncPartDone, TakeSnapshot
from weir.core.types import SnapshotKind, TaskStatus


def draining(**options: Any) -> Task:
    """A task that has read and emitted one segment, with a consumer, and drains now."""
    task = Task(inputs=("a",), consumers=("x",), requires_final_checkpoint=False, **options)
    task.get("a", segment(0))
    task.plan(-1)
    task.do(BatchStaged(position=0, committables=(), segment=segment(0)))
    task.plan(0, a=0)
    effects = task.get("a", EndOfUserRecords(finished=True))
    effects += task.plan(0)
    assert "StartDrain" in kinds(effects)
    return task


def consumed(task: Task) -> list[Any]:
    """Everything that the task has emitted is read."""
    return task.do(SegmentsConsumed(vertex="v", consumer="x", position=0, batch_size=1))


def taken(effects: list[Any]) -> list[int]:
    """The checkpoints whose snapshots start."""
    return [effect.checkpoint_id for effect in effects if isinstance(effect, TakeSnapshot)]


def two_barriers(second: SnapshotKind) -> Task:
    """A drained task that takes one snapshot, with the barrier of another behind it."""
    task = draining(operators_take_part=True)
    task.get("a", barrier(1))
    task.get("a", barrier(2, second))
    consumed(task)
    assert taken(task.do(Drained(position=0))) == [1]
    return task


@pytest.mark.parametrize("kind", [SnapshotKind.CHECKPOINT, SnapshotKind.SAVEPOINT])
def test_a_barrier_after_another_that_waited_for_the_drain_is_taken(kind: SnapshotKind) -> None:
    """The task read nothing behind the first one before its snapshot."""
    task = two_barriers(kind)
    assert taken(task.do(SyncPartDone(checkpoint_id=1))) == [2]
    task.snapshot(2, 0)
    task.finish(1, 0)
    assert task.machine.status is TaskStatus.FINISHED


def test_a_trigger_for_a_task_whose_channels_are_ending_is_taken() -> None:
    """The coordinator triggers it, since its producers have finished."""
    task = draining(operators_take_part=True)
    task.get("a", EndOfPartition())
    for checkpoint_id in (1, 2):
        task.do(trigger(checkpoint_id))
    consumed(task)
    assert taken(task.do(Drained(position=0))) == [1]
    assert taken(task.do(SyncPartDone(checkpoint_id=1))) == [2]


def test_a_barrier_that_came_during_the_snapshot_of_an_aborted_checkpoint_is_taken() -> None:
    """A stop aborts it; meanwhile the consumers read everything."""
    task = draining()
    task.do(Drained(position=0))
    assert taken(task.get("a", barrier(1))) == [1]
    task.do(NotifyCheckpointAborted(vertex="v", checkpoint_id=1))
    task.get("a", barrier(2, SnapshotKind.SYNC_SAVEPOINT))
    consumed(task)
    assert taken(task.do(SyncPartDone(checkpoint_id=1))) == [2]


def test_the_task_closes_once_the_checkpoint_of_a_barrier_behind_is_given_up() -> None:
    """By the coordinator, or by a cancel marker in the channel."""
    task = two_barriers(SnapshotKind.CHECKPOINT)
    task.do(NotifyCheckpointAborted(vertex="v", checkpoint_id=2))
    task.snapshot(1, 0)
    assert task.machine.status is TaskStatus.FINISHED

    task = Task(inputs=("a", "b"), requires_final_checkpoint=False)
    for channel in ("a", "b"):
        task.get(channel, EndOfUserRecords(finished=True))
    task.plan(-1)
    task.get("a", barrier(1))
    task.do(Drained(position=-1))
    assert task.machine.status is TaskStatus.RUNNING
    task.get("b", CancelCheckpointMarker(checkpoint_id=1))
    assert task.machine.status is TaskStatus.FINISHED
