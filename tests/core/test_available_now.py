"""A task that reads what its sources have when the attempt begins (``TaskPlan.available_now``)."""

from __future__ import annotations

import pytest
from tests.kit.stream_task import VERTEX, TaskHarness

from weir.core.messages.channel import CheckpointBarrier, EndOfUserRecords
from weir.core.messages.coordination import DeliverEvent
from weir.core.messages.protocol import CaughtUp
from weir.core.messages.task import AnswerPlanning, BatchStaged, StartDrain, TakeSnapshot
from weir.core.types import SnapshotKind, TaskStatus

STOP = SnapshotKind.SYNC_CHECKPOINT
CAUGHT_UP = CaughtUp(vertex=VERTEX, attempt=3)


def available_now(**settings: bool) -> TaskHarness:
    """A task in its first planning call, which is answered."""
    harness = TaskHarness(bounded=False, available_now=True, **settings)
    harness.plan(1, -1)
    return harness


def answers(effects: list[object]) -> list[AnswerPlanning]:
    return [effect for effect in effects if isinstance(effect, AnswerPlanning)]


def test_it_reports_once_that_it_has_caught_up_and_then_rests() -> None:
    """Spark has read what there was, so the call in place of the query is not answered."""
    harness = available_now()
    harness.stage(0)
    assert harness.plan(2, 0, caught_up=True) == [CAUGHT_UP]
    harness.trigger(7)
    harness.acknowledge(7)
    assert harness.complete(7) == [*harness.effects[-2:]]
    assert not answers(harness.committed(7))
    assert harness.task.status is TaskStatus.RUNNING


def test_readers_that_have_read_everything_get_one_more_answer_for_their_last_watermark() -> None:
    """The query is alive: it may run a batch without records, once for each position."""
    harness = available_now(takes_barriers=True)
    assert harness.send(BatchStaged(position=0, committables=(), input_ended=True)) == []
    assert harness.plan(2, 0) == [AnswerPlanning(call=2)]
    harness.stage(1)
    assert harness.plan(3, 1) == [AnswerPlanning(call=3)]
    assert harness.plan(4, 1) == [CAUGHT_UP]


def test_it_takes_part_in_checkpoints_while_it_rests_and_none_is_finished() -> None:
    """Its input goes on in the next run."""
    harness = available_now()
    harness.stage(0)
    harness.plan(2, 0, caught_up=True)
    harness.trigger(7)
    assert harness.taken[7].position == 0
    assert not harness.taken[7].finished


def test_the_checkpoint_of_the_stop_follows_the_last_row_and_ends_the_task() -> None:
    """Windows and timers stay in the state, and every sink commits."""
    harness = available_now(consumers=("next",))
    harness.stage(0)
    harness.plan(2, 0, caught_up=True)
    effects = harness.trigger(7, STOP)
    entries = [entry for effect in effects for entry in getattr(effect, "entries", ())]
    assert entries == [
        EndOfUserRecords(finished=False, savepoint=7, kind=STOP),
        CheckpointBarrier(checkpoint_id=7, kind=STOP, timestamp_ms=9),
    ]
    assert harness.task.status is TaskStatus.WAITING_FOR_FINAL_CHECKPOINT
    assert not harness.taken[7].finished


def test_it_finishes_once_its_sinks_have_committed_the_checkpoint_of_the_stop() -> None:
    """P16: the end is recorded after the last commit."""
    harness = available_now()
    harness.stage(0)
    harness.plan(2, 0, caught_up=True)
    harness.trigger(7, STOP)
    harness.acknowledge(7)
    harness.complete(7)
    assert harness.task.status is TaskStatus.WAITING_FOR_FINAL_CHECKPOINT
    harness.committed(7)
    assert harness.task.status is TaskStatus.FINISHED


def test_a_stop_with_a_drain_drains_it_first() -> None:
    """From the call in place of the query."""
    harness = available_now()
    harness.stage(0)
    harness.plan(2, 0, caught_up=True)
    drain = StartDrain(vertex=VERTEX, position=0, call=2)
    assert harness.trigger(7, STOP, drain=True) == [drain]
    harness.drained(1)
    assert harness.taken[7].finished


def test_operators_prepare_for_the_barrier_in_a_batch_of_their_own() -> None:
    """P6: although all is read, the query runs one more batch before the checkpoint."""
    harness = available_now(takes_barriers=True)
    harness.stage(0)
    harness.plan(2, 0, caught_up=True)
    assert harness.trigger(7, STOP) == [AnswerPlanning(call=2, barrier=7)]
    harness.stage(1)
    effects = harness.plan(3, 1, caught_up=True)
    assert [effect.position for effect in effects if isinstance(effect, TakeSnapshot)] == [1]


def test_events_of_coordinators_reach_it_while_it_rests() -> None:
    """P2: a checkpoint waits for every event that was sent before it."""
    harness = available_now(takes_barriers=True)
    harness.stage(0)
    harness.plan(2, 0, caught_up=True)
    event = DeliverEvent(operator="o", subtask=0, number=1, payload={"do": "this"})
    assert answers(harness.send(event)) == [AnswerPlanning(call=2, events=(event,))]
    harness.stage(1)
    assert not answers(harness.plan(3, 1, caught_up=True))


@pytest.mark.parametrize("caught_up", [False, True])
def test_the_stop_may_come_before_it_has_caught_up(*, caught_up: bool) -> None:
    """A user stops the job: it is taken between two batches, as ever."""
    harness = TaskHarness(bounded=False, available_now=True)
    harness.trigger(7, STOP)
    harness.plan(1, -1, caught_up=caught_up)
    assert harness.taken[7].position == -1
