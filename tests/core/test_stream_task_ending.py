"""``StreamTask`` at its end: stop with savepoint, drain and the final checkpoint."""

from __future__ import annotations

import pytest
from test_stream_task import (
    SAVEPOINT,
    STOP,
    answer,
    commit,
    confirm,
    declined,
    drop,
    go_on,
    status,
    taken_ids,
)
from tests.kit.stream_task import VERTEX, TaskHarness, flushed, staged

from weir.core.messages.protocol import AcknowledgeCheckpoint
from weir.core.messages.task import (
    AnswerPlanning,
    BatchStaged,
    CloseOperators,
    OperatorsClosed,
    StartDrain,
    TaskErrored,
)
from weir.core.status import OperatorStatus, next_operator_status
from weir.core.types import TaskStatus
from weir.errors import InvariantError

WAITING = TaskStatus.WAITING_FOR_FINAL_CHECKPOINT
DRAIN = StartDrain(vertex=VERTEX, position=4)
CLOSE = CloseOperators(vertex=VERTEX)


# ---- stop with savepoint


def test_the_call_of_a_stop_is_held_until_the_savepoint_completed_and_then_the_task_finishes() -> (
    None
):
    """The call is never answered: the kernel stops the query. The savepoint is no base (PROTOCOL
    P34)."""
    harness = TaskHarness()
    harness.stage(0)
    harness.trigger(7, STOP)
    assert harness.plan(1, 0)[0] == status(WAITING)
    assert harness.sync_done(7) == [go_on(7)]
    (ack,) = harness.async_done(7)
    assert isinstance(ack, AcknowledgeCheckpoint)
    assert not ack.state.fully_finished
    assert harness.complete(7) == [confirm(7), commit(7, s1=(flushed(staged(0)),))]
    assert harness.committed(7) == [status(TaskStatus.FINISHED)]
    assert answer(1) not in harness.effects


@pytest.mark.parametrize("acknowledged", [False, True])
def test_no_record_flows_when_the_savepoint_of_a_stop_is_aborted(*, acknowledged: bool) -> None:
    """Consumers were notified that none will come. The job fails over and resumes with the next
    attempt (PROTOCOL P34)."""
    harness = TaskHarness()
    harness.trigger(7, STOP)
    harness.plan(1, 0)
    harness.sync_done(7)
    if acknowledged:
        harness.async_done(7)
        assert harness.abort(7) == [drop(7)]
    else:
        assert harness.abort(7) == []
        assert harness.async_done(7) == [drop(7)]


def test_no_record_flows_when_the_snapshot_of_a_stop_fails() -> None:
    """Its savepoint can no longer complete."""
    harness = TaskHarness()
    harness.trigger(7, STOP)
    harness.plan(1, 0)
    harness.sync_done(7)
    effects = harness.snapshot_failed(7)
    assert declined(effects) == [(7, "CHECKPOINT_ASYNC_EXCEPTION")]
    assert effects[1:] == [drop(7)]


def test_triggers_that_wait_when_the_final_epoch_is_committed_are_taken_first() -> None:
    """After them the task is closing and declines: CHECKPOINT_DECLINED_TASK_CLOSING (PROTOCOL
    P32)."""
    harness = TaskHarness(closes_at_once=False)
    harness.wait_for_final()
    harness.trigger(7)
    harness.acknowledge(7)
    harness.trigger(8)
    harness.trigger(9)
    harness.complete(7)
    assert harness.committed(7) == []
    assert taken_ids(harness.sync_done(8)) == [9]
    assert CLOSE not in harness.async_done(8), "checkpoint 9 is answered first"
    assert declined(harness.trigger(10)) == [(10, "CHECKPOINT_DECLINED_TASK_CLOSING")]
    harness.sync_done(9)
    assert harness.async_done(9)[-1] == CLOSE


def test_a_stop_that_finds_the_records_ended_is_taken_after_the_drain() -> None:
    """The input ended before the stop: windows fire, and their output is in the savepoint."""
    harness = TaskHarness()
    harness.trigger(7, STOP)
    assert harness.records_end(4) == [DRAIN]
    harness.stage(5)
    assert taken_ids(harness.drained(5)) == [7]
    assert harness.taken[7].finished
    harness.acknowledge(7)
    assert harness.complete(7) == [confirm(7), commit(7, s1=(flushed(staged(5)),))]
    assert harness.committed(7) == [status(TaskStatus.FINISHED)]


def test_a_stop_without_drain_starts_none() -> None:
    """No window fires and no operator finishes (MISSION E2)."""
    harness = TaskHarness()
    harness.plan(1, 0)
    harness.trigger(7, STOP)
    harness.plan(2, 1)
    harness.acknowledge(7)
    assert harness.task.operator_status is OperatorStatus.RUNNING
    assert not [effect for effect in harness.effects if isinstance(effect, StartDrain)]


# ---- stop with drain


def test_a_stop_with_drain_ends_the_input_and_takes_the_savepoint_after_the_last_window() -> None:
    """The held call is given up, the drain follows, and the savepoint marks everything finished
    (MISSION E1, E4)."""
    harness = TaskHarness()
    harness.stage(3)
    harness.trigger(7, STOP, drain=True)
    assert harness.plan(1, 3) == [StartDrain(vertex=VERTEX, position=3, call=1)]
    harness.stage(4)
    assert harness.drained(4)[0] == status(WAITING)
    take = harness.taken[7]
    assert (take.position, take.finished) == (4, True)
    assert [committable.position for committable in take.committables] == [3, 4]
    harness.acknowledge(7)
    harness.complete(7)
    assert harness.committed(7) == [status(TaskStatus.FINISHED)]


def test_a_stop_with_drain_waits_for_its_savepoint_even_without_a_final_checkpoint() -> None:
    """``requires_final_checkpoint`` concerns only the end of the input (PROTOCOL P36)."""
    harness = TaskHarness(requires_final_checkpoint=False)
    harness.trigger(7, STOP, drain=True)
    harness.plan(1, 3)
    harness.drained(4)
    assert harness.task.status is WAITING
    assert taken_ids(harness.effects) == [7]


def test_a_checkpoint_that_was_triggered_before_a_stop_is_taken_before_the_drain() -> None:
    """In id order, at the position before the drain."""
    harness = TaskHarness()
    harness.trigger(6)
    harness.trigger(7, STOP, drain=True)
    assert taken_ids(harness.plan(1, 3)) == [6]
    assert harness.sync_done(6) == [go_on(6), StartDrain(vertex=VERTEX, position=3, call=1)]
    assert (harness.taken[6].position, harness.taken[6].finished) == (3, False)


def test_a_drain_whose_savepoint_is_aborted_leaves_the_task_waiting() -> None:
    """It has reached its end already; the job fails over (PROTOCOL P34)."""
    harness = TaskHarness()
    harness.trigger(7, STOP, drain=True)
    harness.plan(1, 3)
    harness.abort(7)
    assert harness.drained(4) == [status(WAITING)]


# ---- operators


def test_operators_finish_with_the_drain_and_are_closed_after_the_last_commit() -> None:
    """RUNNING, FINISHED, CLOSED, and only then is the task FINISHED (MISSION E5, PROTOCOL P37)."""
    harness = TaskHarness(closes_at_once=False)
    assert harness.task.operator_status is OperatorStatus.RUNNING
    harness.wait_for_final()
    assert harness.task.operator_status is OperatorStatus.FINISHED
    harness.trigger(7)
    harness.acknowledge(7)
    harness.complete(7)
    assert harness.committed(7) == [CLOSE]
    assert harness.task.status is WAITING
    assert harness.send(OperatorsClosed()) == [status(TaskStatus.FINISHED)]
    assert harness.task.operator_status is OperatorStatus.CLOSED


def test_operators_of_a_stop_without_drain_are_closed_without_having_finished() -> None:
    """FINISHED needs finished=True (PROTOCOL P37)."""
    harness = TaskHarness(closes_at_once=False)
    harness.trigger(7, STOP)
    harness.plan(1, 0)
    harness.acknowledge(7)
    harness.complete(7)
    assert harness.committed(7) == [CLOSE]
    assert harness.task.operator_status is OperatorStatus.RUNNING
    harness.send(OperatorsClosed())
    assert harness.task.operator_status is OperatorStatus.CLOSED


@pytest.mark.parametrize("drained", [False, True])
def test_operators_fail_with_their_task(*, drained: bool) -> None:
    """From RUNNING and from FINISHED."""
    harness = TaskHarness()
    if drained:
        harness.wait_for_final()
    harness.send(TaskErrored(message="no space"))
    assert harness.task.operator_status is OperatorStatus.FAILED


MOVES = {
    OperatorStatus.RUNNING: {OperatorStatus.FINISHED, OperatorStatus.CLOSED, OperatorStatus.FAILED},
    OperatorStatus.FINISHED: {OperatorStatus.CLOSED, OperatorStatus.FAILED},
    OperatorStatus.CLOSED: set(),
    OperatorStatus.FAILED: set(),
}


@pytest.mark.parametrize("target", OperatorStatus)
@pytest.mark.parametrize("status", OperatorStatus)
def test_operators_change_their_status_only_towards_their_end(
    status: OperatorStatus, target: OperatorStatus
) -> None:
    """PROTOCOL P37: any other move raises."""
    if target in MOVES[status]:
        assert next_operator_status(status, target) is target
    else:
        said = f"operators cannot go from {status.name} to {target.name}"
        with pytest.raises(InvariantError, match=said):
            next_operator_status(status, target)


# ---- drain


def test_records_that_ended_are_drained_at_once_without_a_trigger() -> None:
    """MAX_WATERMARK follows the last record (MISSION E1)."""
    assert TaskHarness().records_end(4) == [DRAIN]


def test_waiting_triggers_are_taken_before_the_drain_starts() -> None:
    """It starts after the last trigger's synchronous part."""
    harness = TaskHarness()
    harness.trigger(7)
    harness.trigger(8)
    assert taken_ids(harness.records_end(4)) == [7]
    assert taken_ids(harness.sync_done(7)) == [8]
    assert harness.sync_done(8) == [go_on(8), DRAIN]
    assert {(harness.taken[n].position, harness.taken[n].finished) for n in (7, 8)} == {(4, False)}


def test_the_drain_starts_after_a_failed_snapshot_too() -> None:
    """A declined checkpoint does not block the task."""
    harness = TaskHarness()
    harness.trigger(7)
    harness.records_end(4)
    assert harness.snapshot_failed(7)[-1] == DRAIN


def test_a_trigger_during_the_drain_is_taken_at_once_at_the_position_before_it() -> None:
    """State is stable there (PROTOCOL P8); what the drain stages is not part of the snapshot."""
    harness = TaskHarness()
    harness.stage(4)
    harness.records_end(4)
    harness.stage(5)
    assert taken_ids(harness.trigger(7)) == [7]
    take = harness.taken[7]
    assert (take.position, take.finished, take.committables) == (4, False, (staged(4, barrier=7),))
    assert harness.sync_done(7) == [go_on(7)]


def test_a_drained_task_waits_for_its_final_checkpoint() -> None:
    """All windows and timers have fired (MISSION E3)."""
    harness = TaskHarness()
    harness.records_end(4)
    assert harness.drained(5) == [status(WAITING)]


def test_a_waiting_task_takes_triggers_at_once_as_finished() -> None:
    """At the drained position, and the acknowledgement marks its operators fully finished."""
    harness = TaskHarness()
    harness.wait_for_final()
    assert taken_ids(harness.trigger(7)) == [7]
    assert (harness.taken[7].position, harness.taken[7].finished) == (5, True)
    assert harness.sync_done(7) == [go_on(7)]
    (ack,) = harness.async_done(7)
    assert isinstance(ack, AcknowledgeCheckpoint)
    assert ack.state.fully_finished


def test_a_waiting_task_finishes_when_its_final_checkpoint_is_committed() -> None:
    """It first waits for the sinks' commits (PROTOCOL P16, P29)."""
    harness = TaskHarness()
    harness.records_end(4)
    harness.stage(5)
    harness.drained(5)
    harness.trigger(7)
    harness.acknowledge(7)
    assert harness.complete(7) == [confirm(7), commit(7, s1=(flushed(staged(5)),))]
    assert harness.task.status is WAITING
    assert harness.committed(7) == [status(TaskStatus.FINISHED)]


def test_a_checkpoint_from_before_the_drain_is_not_the_final_one() -> None:
    """Its barrier came before the last rows."""
    harness = TaskHarness()
    harness.records_end(4)
    harness.trigger(7)
    harness.acknowledge(7)
    harness.drained(5)
    harness.complete(7)
    assert harness.committed(7) == []
    assert harness.task.status is WAITING


def test_an_intermediate_savepoint_is_not_the_final_checkpoint() -> None:
    """It commits nothing."""
    harness = TaskHarness()
    harness.wait_for_final()
    harness.trigger(7, SAVEPOINT)
    harness.acknowledge(7)
    harness.complete(7)
    assert harness.task.status is WAITING


def test_the_savepoint_of_a_stop_serves_as_the_final_checkpoint() -> None:
    """For a task that is waiting for a final checkpoint."""
    harness = TaskHarness()
    harness.wait_for_final()
    harness.trigger(7, STOP)
    harness.acknowledge(7)
    assert harness.taken[7].finished
    assert harness.complete(7) == [confirm(7), commit(7)]
    assert harness.committed(7) == [status(TaskStatus.FINISHED)]


def test_a_task_that_needs_no_final_checkpoint_finishes_after_the_drain() -> None:
    """PROTOCOL P36."""
    harness = TaskHarness(requires_final_checkpoint=False)
    harness.records_end(4)
    assert harness.drained(5) == [status(TaskStatus.FINISHED)]


def test_a_task_that_is_released_answers_a_snapshot_under_way_first() -> None:
    """Checkpoint 8 is acknowledged before FINISHED, and no new trigger is taken (PROTOCOL P32)."""
    harness = TaskHarness()
    harness.wait_for_final()
    harness.trigger(7)
    harness.acknowledge(7)
    harness.complete(7)
    harness.trigger(8)
    assert not harness.closes
    assert harness.committed(7) == []
    assert harness.closes, "the job master triggers no more checkpoint"
    assert declined(harness.trigger(9)) == [(9, "CHECKPOINT_DECLINED_TASK_CLOSING")]
    harness.sync_done(8)
    ack, finished = harness.async_done(8)
    assert isinstance(ack, AcknowledgeCheckpoint)
    assert finished == status(TaskStatus.FINISHED)


def test_a_stop_that_completes_while_the_final_checkpoint_is_committed_is_committed_after_it() -> (
    None
):
    """Epochs stay in order to the very end (PROTOCOL P13)."""
    harness = TaskHarness()
    harness.wait_for_final()
    harness.trigger(7)
    harness.acknowledge(7)
    harness.complete(7)
    harness.trigger(8, STOP)
    harness.acknowledge(8)
    assert harness.complete(8) == [confirm(8)]
    assert harness.committed(7) == [commit(8)]
    assert harness.committed(8) == [status(TaskStatus.FINISHED)]


def test_a_finished_task_declines_triggers_as_closing_and_ignores_completions() -> None:
    """CHECKPOINT_DECLINED_TASK_CLOSING; a notification of an id without a snapshot has no
    effect."""
    harness = TaskHarness(requires_final_checkpoint=False)
    harness.wait_for_final()
    assert declined(harness.trigger(7)) == [(7, "CHECKPOINT_DECLINED_TASK_CLOSING")]
    assert harness.complete(7) == []


def test_a_task_finishes_only_when_an_aborted_snapshot_has_ended_and_is_deleted() -> None:
    """A part that ends after its abort deletes what it wrote (PROTOCOL P43); the job may end with
    the task."""
    harness = TaskHarness(requires_final_checkpoint=False)
    harness.records_end(4)
    harness.trigger(7)
    harness.sync_done(7)
    harness.abort(7)
    harness.drained(5)
    assert harness.task.status is TaskStatus.RUNNING
    assert harness.async_done(7)[0] == drop(7)
    assert harness.task.status is TaskStatus.FINISHED


def test_the_records_of_an_unbounded_task_do_not_end() -> None:
    """A query that ends on its own is a bug."""
    with pytest.raises(InvariantError, match="records of v ended, but its input is unbounded"):
        TaskHarness(bounded=False).records_end(4)


def test_an_ended_task_plans_no_more_batches() -> None:
    """A drained task has no query left."""
    harness = TaskHarness()
    harness.wait_for_final()
    with pytest.raises(InvariantError, match="v plans a batch after its records ended"):
        harness.plan(1, 5)


# ---- an input of which readers say that it has ended


def read_all(harness: TaskHarness, position: int) -> None:
    """Finish a step in which the last reader reports its end."""
    assert harness.send(BatchStaged(position=position, committables=(), input_ended=True)) == []


def test_records_end_with_the_batch_in_which_readers_say_so_and_the_call_is_held() -> None:
    """The query rests in its planning call, and the drain starts from there (MISSION E1)."""
    harness = TaskHarness(takes_barriers=True)
    harness.plan(1, -1)
    read_all(harness, 0)
    assert harness.plan(2, 0) == [StartDrain(vertex=VERTEX, position=0, call=2)]
    assert harness.drained(1) == [status(WAITING)]
    harness.trigger(7)
    assert harness.taken[7].finished


def test_a_checkpoint_that_waits_when_readers_end_has_its_barrier_batch_first() -> None:
    """Operators prepare for it as usual (PROTOCOL P6); it is taken before the drain, and not as
    finished."""
    harness = TaskHarness(takes_barriers=True)
    harness.plan(1, -1)
    harness.trigger(7)
    read_all(harness, 0)
    assert harness.plan(2, 0) == [AnswerPlanning(call=2, barrier=7)]
    harness.stage(1)
    assert taken_ids(harness.plan(3, 1)) == [7]
    assert not harness.taken[7].finished
    assert harness.sync_done(7)[-1] == StartDrain(vertex=VERTEX, position=1, call=3)


@pytest.mark.parametrize("drain", [False, True])
def test_a_stop_that_finds_readers_ended_is_taken_after_the_drain(*, drain: bool) -> None:
    """As when the query has ended on its own."""
    harness = TaskHarness(takes_barriers=True)
    harness.plan(1, -1)
    read_all(harness, 0)
    harness.trigger(7, STOP, drain=drain)
    assert harness.plan(2, 0) == [StartDrain(vertex=VERTEX, position=0, call=2)]
    assert taken_ids(harness.drained(1)) == [7]
    assert harness.taken[7].finished


def test_an_unbounded_input_does_not_end() -> None:
    """Readers that report an end are a bug."""
    harness = TaskHarness(bounded=False)
    harness.plan(1, -1)
    with pytest.raises(InvariantError, match="unbounded"):
        read_all(harness, 0)
