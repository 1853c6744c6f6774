"""Checkpoints that the readers of a source induce (MISSION B4): the task waits for their point."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.core.channel_task import Task, barrier, kinds, trigger
from tests.kit.job_master import MasterWorld, of

from weir.core.coordination.coordinators import CoordinatedOperator
from weir.core.messages.coordination import CoordinatorSnapshotTaken, DeliverEvent
from weir.core.messages.job import HookFailed
from weir.core.messages.protocol import NotifyCheckpointAborted, TriggerCheckpoint
from weir.core.messages.task import (
    AnswerPlanning,
    BatchStaged,
    Drained,
    InducedCheckpoint,
    StartDrain,
    TakeSnapshot,
)
from weir.core.task.triggers import WaitingTriggers
from weir.core.types import CheckpointFailureReason as Reason
from weir.core.types import SnapshotKind

STOP = SnapshotKind.SYNC_SAVEPOINT


class Induced:
    """A task whose readers induce checkpoints, and what it lets them do."""

    def __init__(self, **plan: Any) -> None:
        self.task = Task(has_own_readers=True, externally_induced=True, has_operators=True, **plan)
        self.position = 0
        self.over = self._answer(self.task.plan(-1)).induced_over
        self.batch()
        assert self.over == 0

    def batch(self, at: int = 0, *, by_all: bool | None = None, ended: bool = False) -> Any:
        """Run a batch after which readers stand at a checkpoint's point; return what follows.

        By default, all of them do, or none.
        """
        induced = InducedCheckpoint(at, bool(at) if by_all is None else by_all)
        staged = BatchStaged(
            position=self.position, committables=(), induced=induced, input_ended=ended
        )
        assert self.task.do(staged) == []
        effects = self.task.plan(self.position)
        self.position += 1
        return self._seen(effects)

    def do(self, event: Any) -> Any:
        return self._seen(self.task.do(event))

    def trigger(self, checkpoint_id: int, **said: Any) -> Any:
        return self.do(replace(trigger(checkpoint_id), **said))

    def snapshot(self, checkpoint_id: int) -> Any:
        return self._seen(self.task.snapshot(checkpoint_id, self.position - 1))

    def abort(self, checkpoint_id: int) -> Any:
        return self.do(NotifyCheckpointAborted(vertex="v", checkpoint_id=checkpoint_id))

    def _seen(self, effects: list[Any]) -> list[Any]:
        for effect in effects:
            if isinstance(effect, AnswerPlanning):
                self.over = effect.induced_over
        return effects

    @staticmethod
    def _answer(effects: list[Any]) -> AnswerPlanning:
        [answer] = effects
        assert isinstance(answer, AnswerPlanning)
        return answer


def taken(effects: list[Any]) -> list[tuple[int, int]]:
    """The snapshots that are taken, with their positions."""
    return [(e.checkpoint_id, e.position) for e in effects if isinstance(e, TakeSnapshot)]


def test_a_checkpoint_is_taken_where_all_readers_say() -> None:
    """The trigger only says that it is wanted: records flow until the last reader is there."""
    job = Induced()
    assert job.trigger(1) == []
    assert kinds(job.batch()) == ["AnswerPlanning"]
    assert kinds(job.batch(1, by_all=False)) == ["AnswerPlanning"]
    assert job.over == 0, "the reader that is there reads nothing more"
    assert taken(job.batch(1)) == [(1, 3)]
    assert "AnswerPlanning" in kinds(job.snapshot(1))
    assert job.over == 1


def test_readers_may_be_there_before_the_trigger() -> None:
    """They wait for it, and the checkpoint is taken at their point."""
    job = Induced()
    assert kinds(job.batch(1)) == ["AnswerPlanning"]
    assert job.over == 0
    job.trigger(1)
    assert taken(job.batch(1)) == [(1, 2)]


def test_a_checkpoint_whose_point_never_comes_expires_and_the_readers_go_on() -> None:
    """The coordinator aborts it; readers that wait at its point read on."""
    job = Induced()
    job.trigger(1)
    job.batch(1, by_all=False)
    job.abort(1)
    assert kinds(job.batch(1, by_all=False)) == ["AnswerPlanning"]
    assert job.over == 1
    job.trigger(2)
    assert taken(job.batch(2)) == [(2, 3)]


def test_readers_go_on_if_the_checkpoint_is_aborted_before_the_task_is_triggered() -> None:
    """Their coordinator had asked for the point already."""
    job = Induced()
    job.batch(1)
    job.abort(1)
    job.batch(1)
    assert job.over == 1


def test_a_newer_trigger_says_that_an_older_one_will_not_come() -> None:
    """Also if the notification of its abort is lost."""
    job = Induced()
    job.batch(1)
    job.trigger(2)
    assert kinds(job.batch(1)) == ["AnswerPlanning"]
    assert job.over == 1


def test_checkpoints_in_flight_are_taken_one_after_the_other() -> None:
    """C9: an abort of the newer checkpoint does not let readers pass the point of the older."""
    job = Induced()
    job.trigger(1)
    job.trigger(2)
    job.trigger(3)
    job.abort(2)
    job.batch(1, by_all=False)
    assert job.over == 0
    assert taken(job.batch(1)) == [(1, 2)]
    job.snapshot(1)
    assert job.over == 2
    assert taken(job.batch(3)) == [(3, 3)]


def test_a_checkpoint_that_a_reader_skips_is_declined() -> None:
    """It has read rows beyond any point that the others could still give it."""
    job = Induced(consumers=("x",))
    job.trigger(1)
    job.trigger(2)
    effects = job.batch(2, by_all=False)
    [declined] = [effect for effect in effects if hasattr(effect, "reason")]
    assert (declined.checkpoint_id, declined.reason) == (1, Reason.CHECKPOINT_DECLINED_SUBSUMED)
    assert "CancelCheckpointMarker" in kinds(effects)
    assert job.over == 1
    assert taken(job.batch(2)) == [(2, 2)]


def test_points_of_earlier_attempts_are_over_from_the_start() -> None:
    """Readers meet them again after a failure, and nobody will take these checkpoints."""
    assert WaitingTriggers(Induced().task.machine._plan, 5).over == 5


def test_readers_without_splits_have_nothing_before_any_point() -> None:
    """So the checkpoint is taken as soon as it is wanted."""
    job = Induced()
    job.trigger(1)
    assert taken(job.batch(0, by_all=True)) == [(1, 1)]


def test_events_are_handled_while_the_point_is_awaited() -> None:
    """P2: the next checkpoint's coordinator part does not wait for this one's point."""
    job = Induced()
    job.trigger(1)
    event = DeliverEvent(operator="v", subtask=0, number=1, payload={})
    job.batch(1, by_all=False)
    job.do(event)
    [answer] = job.batch(1, by_all=False)
    assert (answer.events, answer.induced_over) == ((event,), 0)


def test_operators_prepare_for_the_barrier_behind_the_readers_point() -> None:
    """P6: what they emit precedes the barrier, and the readers read nothing in that batch."""
    job = Induced(prepares_for_barriers=True)
    job.trigger(1)
    [answer] = job.batch(1)
    assert (answer.barrier, answer.induced_over) == (1, 0)
    assert taken(job.batch(1)) == [(1, 2)]


@pytest.mark.parametrize("drain", [True, False])
def test_a_stop_ends_the_records_at_the_readers_point(*, drain: bool) -> None:
    """P34: its savepoint is a checkpoint like any other; only then the records end."""
    job = Induced()
    job.do(TriggerCheckpoint(vertex="v", barrier=barrier(1, STOP), drain=drain))
    assert kinds(job.batch()) == ["AnswerPlanning"]
    effects = job.batch(1)
    if drain:
        assert [effect.position for effect in effects if isinstance(effect, StartDrain)] == [2]
        assert taken(job.do(Drained(position=3))) == [(1, 3)]
    else:
        assert taken(effects) == [(1, 2)]


def test_the_end_of_the_input_is_behind_every_point() -> None:
    """A checkpoint that is still wanted then contains everything."""
    job = Induced()
    job.trigger(1)
    assert kinds(job.batch(ended=True)) == ["StartDrain"]
    assert taken(job.do(Drained(position=2))) == [(1, 2)]


def test_a_source_whose_readers_induce_nothing_waits_for_no_point() -> None:
    """And they are never notified that a checkpoint is over."""
    task = Task(has_own_readers=True, consumers=("x",))
    task.plan(-1)
    task.do(trigger(1))
    assert taken(task.step(0)) == [(1, 0)]
    triggers = WaitingTriggers(task.machine._plan, 5)
    triggers.announced(trigger(7))
    assert triggers.over is None


def test_a_task_is_notified_of_a_checkpoint_that_fails_before_it_was_triggered() -> None:
    """Its readers may stand at the point already; no other task knows of the checkpoint."""
    inducing = CoordinatedOperator(vertex="a", parallelism=1, induces_checkpoints=True)
    other = CoordinatedOperator(vertex="b", parallelism=1)
    subject = MasterWorld(
        hooks=("h",), coordinated={"x": inducing, "y": other, "z": inducing}
    ).running()
    n = subject.trigger()
    for name in ("x", "y", "z"):
        subject.handle(
            CoordinatorSnapshotTaken(operator=name, attempt=1, checkpoint_id=n, state={})
        )
    effects = subject.handle(HookFailed(identifier="h", checkpoint_id=n, message="no"))
    assert of(effects, NotifyCheckpointAborted) == [
        NotifyCheckpointAborted(vertex="a", checkpoint_id=n)
    ]
