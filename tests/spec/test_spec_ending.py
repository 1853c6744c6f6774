"""The final checkpoint and both stops as one table, cell by cell.

FLIP-147; MISSION E, PROTOCOL P28, P37.

===========================  ======================  ======================  =======================
event                        final checkpoint        stop with drain         stop
===========================  ======================  ======================  =======================
aligned on MAX_WATERMARK     all timers fire,        all timers fire,        nothing
                             MAX_WATERMARK goes on   MAX_WATERMARK goes on
aligned on EndOfUserRecords  endInput, finish        endInput, finish        neither
                             EndOfUserRecords(True)  EndOfUserRecords(True)  EndOfUserRecords(False)
aligned on the barrier       barrier goes on         barrier goes on         barrier goes on
                             wait for completion     wait for completion     wait for completion
checkpoint completed         wait for consumers      wait for consumers      wait for consumers
consumers have acknowledged  close, EndOfPartition   close, EndOfPartition   close, EndOfPartition
===========================  ======================  ======================  =======================

Each column has a task in the middle of a chain, ``a -> v -> x``. Under Spark the watermark and
``finish`` are one step, the drain: ``StartDrain`` starts it, ``Drained`` reports its end, and one
entry, ``EndOfUserRecords``, goes on downstream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from weir.core.messages.channel import (
    ChannelAppended,
    CheckpointBarrier,
    EndOfPartition,
    EndOfUserRecords,
    Segment,
    SegmentsConsumed,
)
from weir.core.messages.protocol import NotifyCheckpointComplete, TaskStatusChanged
from weir.core.messages.task import (
    AsyncPartDone,
    BatchStaged,
    CloseOperators,
    CommitSinks,
    Drained,
    OperatorsClosed,
    PlanningCalled,
    SinksCommitted,
    StartDrain,
    SyncPartDone,
    TakeSnapshot,
    TaskErrored,
    TaskStarted,
)
from weir.core.status import OperatorStatus
from weir.core.task.plan import TaskPlan
from weir.core.task.stream_task import StreamTask
from weir.core.types import (
    Committable,
    OperatorState,
    SnapshotKind,
    SnapshotMetrics,
    TaskState,
    TaskStatus,
)

WAITING = TaskStatus.WAITING_FOR_FINAL_CHECKPOINT

#: The rows of batch 0 that the chain's own sink has to commit.
STAGED = Committable(sink="s", position=0, payload={"rows": 3})


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A column of the table."""

    kind: SnapshotKind
    #: The entry the producer sends when its records end.
    end: EndOfUserRecords

    @property
    def finishes(self) -> bool:
        return self.end.finished


MODES = {
    "final checkpoint": Mode(kind=SnapshotKind.CHECKPOINT, end=EndOfUserRecords(finished=True)),
    "stop with drain": Mode(
        kind=SnapshotKind.SYNC_SAVEPOINT, end=EndOfUserRecords(finished=True, savepoint=1)
    ),
    "stop": Mode(
        kind=SnapshotKind.SYNC_SAVEPOINT, end=EndOfUserRecords(finished=False, savepoint=1)
    ),
}


class Column:
    """The task of one column, moved from row to row."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.task = StreamTask(
            TaskPlan(
                vertex="v",
                operators=(OperatorState(operator_id="v", name="v"),),
                sinks=("s",),
                bounded=True,
                requires_final_checkpoint=True,
                inputs=("a",),
            ),
            attempt=1,
            consumers=("x",),
        )
        self.position = 0
        self.do(TaskStarted(position=-1))
        self.do(PlanningCalled(call=1, position=-1))
        segment = Segment(position=0, size=1, payload={})
        self.do(ChannelAppended(vertex="v", channel="a", entries=(segment,)))
        self.do(BatchStaged(position=0, committables=(STAGED,), segment=segment))
        self.do(PlanningCalled(call=2, position=0, consumed={"a": 0}))

    def do(self, event: Any) -> list[Any]:
        """Handle one event; return the effects, entries of the channel to x without envelope."""
        effects = self.task.handle(event, 0)
        self.task.validate()
        found: list[Any] = []
        for effect in effects:
            found += effect.entries if isinstance(effect, ChannelAppended) else (effect,)
        return found

    def get(self, entry: Any) -> list[Any]:
        return self.do(ChannelAppended(vertex="v", channel="a", entries=(entry,)))

    def end_of_user_records(self) -> list[Any]:
        """Move to the end of the row; a drain takes two events."""
        effects = self.get(self.mode.end)
        if self.mode.finishes:
            self.position = 1
            effects += self.do(Drained(position=1))
        return effects

    def barrier(self) -> list[Any]:
        effects = self.get(
            CheckpointBarrier(
                checkpoint_id=1, kind=self.mode.kind, timestamp_ms=0, target=None, full=True
            )
        )
        state = TaskState(vertex="v", position=self.position, operators=(), committables=(STAGED,))
        effects += self.do(SyncPartDone(checkpoint_id=1))
        return effects + self.do(
            AsyncPartDone(checkpoint_id=1, state=state, metrics=SnapshotMetrics())
        )

    def completed(self) -> list[Any]:
        return self.do(NotifyCheckpointComplete(vertex="v", checkpoint_id=1)) + self.do(
            SinksCommitted(checkpoint_id=1)
        )

    def acknowledged(self) -> list[Any]:
        return self.do(SegmentsConsumed(vertex="v", consumer="x", position=0, batch_size=1))


@pytest.fixture(params=MODES)
def column(request: pytest.FixtureRequest) -> Column:
    return Column(MODES[request.param])


def test_aligned_on_max_watermark(column: Column) -> None:
    """All timers fire before anything else, except in a stop without drain: its windows stay in the
    state."""
    effects = column.get(column.mode.end)
    drains = [effect for effect in effects if isinstance(effect, StartDrain)]
    assert drains == ([StartDrain(vertex="v", position=0, call=2)] if column.mode.finishes else [])


def test_aligned_on_end_of_user_records(column: Column) -> None:
    """Operators are FINISHED only after finished=True; the flag is passed on, and the task always
    waits."""
    effects = column.end_of_user_records()
    finished = OperatorStatus.FINISHED if column.mode.finishes else OperatorStatus.RUNNING
    assert column.task.operator_status is finished
    assert column.mode.end in effects
    assert column.task.status is WAITING


def test_aligned_on_the_barrier(column: Column) -> None:
    """The barrier goes on before the snapshot is taken, and the task waits for the checkpoint to
    complete."""
    column.end_of_user_records()
    effects = column.barrier()
    order = [type(effect) for effect in effects]
    assert order.index(CheckpointBarrier) < order.index(TakeSnapshot)
    (take,) = (effect for effect in effects if isinstance(effect, TakeSnapshot))
    assert take.finished is column.mode.finishes
    assert column.task.status is WAITING


def test_checkpoint_completed(column: Column) -> None:
    """Staged output is committed; then the task waits for its consumers."""
    column.end_of_user_records()
    column.barrier()
    effects = column.completed()
    commit = CommitSinks(vertex="v", checkpoint_id=1, payloads={"s": (STAGED.payload,)})
    assert [effect for effect in effects if isinstance(effect, CommitSinks)] == [commit]
    assert not [effect for effect in effects if isinstance(effect, CloseOperators | EndOfPartition)]
    assert column.task.status is WAITING


def test_consumers_have_acknowledged(column: Column) -> None:
    """The operators are closed, then the channel ends, then the task is FINISHED."""
    column.end_of_user_records()
    column.barrier()
    column.completed()
    assert CloseOperators(vertex="v") in column.acknowledged()
    effects = column.do(OperatorsClosed())
    assert EndOfPartition() in effects
    assert column.task.operator_status is OperatorStatus.CLOSED
    assert column.task.status is TaskStatus.FINISHED


ROWS = ("end_of_user_records", "barrier", "completed")


@pytest.mark.parametrize("rows", range(len(ROWS) + 1))
def test_failure_from_each_row(column: Column, rows: int) -> None:
    """A task that fails in between reports it once and neither finishes nor ends its channel."""
    for row in ROWS[:rows]:
        getattr(column, row)()
    effects = column.do(TaskErrored(message="disk full"))
    assert [effect.status for effect in effects if isinstance(effect, TaskStatusChanged)] == [
        TaskStatus.FAILED
    ]
    assert column.task.operator_status is OperatorStatus.FAILED
    assert column.acknowledged() == []
    assert not [effect for effect in effects if isinstance(effect, CloseOperators | EndOfPartition)]


def test_consumers_that_acknowledge_before_the_checkpoint_completes_release_the_task_with_it() -> (
    None
):
    """The task waits for both, in either order (PROTOCOL P30)."""
    column = Column(MODES["stop with drain"])
    column.end_of_user_records()
    column.barrier()
    assert not [effect for effect in column.acknowledged() if isinstance(effect, CloseOperators)]
    assert CloseOperators(vertex="v") in column.completed()
