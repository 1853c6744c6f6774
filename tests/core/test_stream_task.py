"""The contract of ``StreamTask`` between two steps: triggers, snapshots, commits and failures."""

from __future__ import annotations

import pytest
from tests.kit.stream_task import VERTEX, TaskHarness, staged

from weir.core.messages.channel import ChannelAppended, CheckpointBarrier, Segment
from weir.core.messages.protocol import DeclineCheckpoint, TaskFailed, TaskStatusChanged
from weir.core.messages.task import (
    AnswerPlanning,
    BatchStaged,
    CommitSinks,
    ContinueSnapshot,
    DropSnapshot,
    ReportCompleted,
    TakeSnapshot,
    TaskErrored,
    TaskStarted,
)
from weir.core.status import next_task_status
from weir.core.types import SnapshotKind, TaskStatus
from weir.errors import InvariantError

SAVEPOINT = SnapshotKind.SAVEPOINT
STOP = SnapshotKind.SYNC_SAVEPOINT


def answer(call: int) -> AnswerPlanning:
    return AnswerPlanning(call=call)


def go_on(checkpoint_id: int) -> ContinueSnapshot:
    return ContinueSnapshot(vertex=VERTEX, checkpoint_id=checkpoint_id)


def drop(checkpoint_id: int) -> DropSnapshot:
    return DropSnapshot(vertex=VERTEX, checkpoint_id=checkpoint_id)


def status(value: TaskStatus) -> TaskStatusChanged:
    return TaskStatusChanged(vertex=VERTEX, attempt=3, status=value)


def commit(checkpoint_id: int, **payloads: tuple[dict[str, object], ...]) -> CommitSinks:
    return CommitSinks(
        vertex=VERTEX, checkpoint_id=checkpoint_id, payloads={"s1": (), "s2": (), **payloads}
    )


def confirm(checkpoint_id: int) -> ReportCompleted:
    return ReportCompleted(vertex=VERTEX, checkpoint_id=checkpoint_id)


def declined(effects: list[object]) -> list[tuple[int, str]]:
    return [(e.checkpoint_id, e.reason.name) for e in effects if isinstance(e, DeclineCheckpoint)]


def taken_ids(effects: list[object]) -> list[int]:
    return [e.checkpoint_id for e in effects if isinstance(e, TakeSnapshot)]


# ---- status


def test_a_task_runs_once_it_is_started() -> None:
    """INITIALIZING -> RUNNING on TaskStarted."""
    harness = TaskHarness(started=False)
    assert harness.task.status is TaskStatus.INITIALIZING
    assert harness.send(TaskStarted(position=4)) == [status(TaskStatus.RUNNING)]
    assert harness.task.status is TaskStatus.RUNNING


MOVES = {
    TaskStatus.INITIALIZING: {TaskStatus.RUNNING, TaskStatus.FAILED},
    TaskStatus.RUNNING: {
        TaskStatus.WAITING_FOR_FINAL_CHECKPOINT,
        TaskStatus.FINISHED,
        TaskStatus.FAILED,
    },
    TaskStatus.WAITING_FOR_FINAL_CHECKPOINT: {TaskStatus.FINISHED, TaskStatus.FAILED},
    TaskStatus.FINISHED: set(),
    TaskStatus.FAILED: set(),
}


@pytest.mark.parametrize("source", list(TaskStatus))
@pytest.mark.parametrize("target", list(TaskStatus))
def test_a_task_changes_its_status_only_towards_its_end(
    source: TaskStatus, target: TaskStatus
) -> None:
    """PROTOCOL P37: any other move raises."""
    if target in MOVES[source]:
        assert next_task_status(source, target) is target
    else:
        said = f"task cannot go from {source.name} to {target.name}"
        with pytest.raises(InvariantError, match=said):
            next_task_status(source, target)


def test_an_illegal_move_leaves_the_status() -> None:
    """A task cannot be started twice; it stays RUNNING."""
    harness = TaskHarness()
    with pytest.raises(InvariantError, match="task cannot go from RUNNING to RUNNING"):
        harness.send(TaskStarted(position=0))
    assert harness.task.status is TaskStatus.RUNNING


def test_an_error_fails_the_task() -> None:
    """The status comes with the message that makes the job fail over (PROTOCOL P39)."""
    harness = TaskHarness()
    assert harness.send(TaskErrored(message="boom")) == [
        status(TaskStatus.FAILED),
        TaskFailed(vertex=VERTEX, attempt=3, message="boom"),
    ]
    assert harness.task.status is TaskStatus.FAILED


# ---- planning calls


def test_a_planning_call_without_a_trigger_is_answered_at_once() -> None:
    """Records flow."""
    assert TaskHarness().plan(1, 0) == [answer(1)]


def test_a_planning_call_before_the_start_is_answered_with_the_start() -> None:
    """The query can plan its first step before its start is reported."""
    harness = TaskHarness(started=False)
    assert harness.plan(1, -1) == []
    assert harness.send(TaskStarted(position=-1)) == [status(TaskStatus.RUNNING), answer(1)]


def test_a_trigger_waits_for_the_planning_call() -> None:
    """Before the first batch is complete, a checkpoint would hold nothing new."""
    harness = TaskHarness()
    assert harness.trigger(7) == []
    (take,) = harness.plan(1, 4)
    assert take == TakeSnapshot(
        vertex=VERTEX,
        checkpoint_id=7,
        kind=SnapshotKind.CHECKPOINT,
        timestamp_ms=9,
        target=None,
        position=4,
        finished=False,
        committables=(),
    )


def test_a_source_does_not_wait_for_the_batch_under_way() -> None:
    """Its barrier goes after the last complete batch; the next call waits for the synchronous
    part."""
    harness = TaskHarness()
    harness.stage(0)
    assert harness.plan(1, 0) == [answer(1)]
    harness.stage(1)
    (take,) = harness.trigger(7)
    assert isinstance(take, TakeSnapshot)
    assert (take.position, take.committables) == (0, (staged(0, barrier=7),))
    assert harness.plan(2, 1) == []
    assert harness.sync_done(7) == [go_on(7), answer(2)]
    (take,) = harness.trigger(8)
    assert isinstance(take, TakeSnapshot)
    assert (take.position, take.committables[1]) == (1, staged(1, barrier=8))


def test_a_barrier_beside_a_batch_comes_before_what_that_stages() -> None:
    """The consumers align where the producer's snapshot is (P3)."""
    harness = TaskHarness(consumers=("c",))
    harness.plan(1, 0)
    segment = Segment(position=1, size=1, payload={})
    harness.send(BatchStaged(position=1, committables=(), segment=segment))
    (appended, _) = harness.trigger(7)
    assert isinstance(appended, ChannelAppended)
    assert [type(entry) for entry in appended.entries] == [CheckpointBarrier]
    harness.sync_done(7)
    (appended, *_) = harness.plan(2, 1)
    assert isinstance(appended, ChannelAppended)
    assert [type(entry) for entry in appended.entries] == [Segment]


def test_the_savepoint_of_a_stop_waits_for_the_batch_under_way() -> None:
    """No record is processed after its barrier (P34)."""
    harness = TaskHarness()
    harness.plan(1, 0)
    assert harness.trigger(7, STOP) == []


def test_a_task_whose_state_does_not_outlive_its_call_waits_for_the_batch_under_way() -> None:
    """What the query says after each batch decides."""
    harness = TaskHarness()
    harness.plan(1, 0, outlives_call=False)
    assert harness.trigger(7) == []
    assert len(harness.plan(2, 1, outlives_call=False)) == 1


@pytest.mark.parametrize("of", ["takes_barriers", "operators_take_part"])
def test_a_task_with_operators_waits_for_the_batch_under_way(of: str) -> None:
    """The batch changes their state in place."""
    harness = TaskHarness(**{of: True})  # type: ignore[arg-type]
    harness.plan(1, 0)
    assert harness.trigger(7) == []


def test_the_call_is_answered_after_the_synchronous_part() -> None:
    """No step starts earlier; the asynchronous part blocks nothing (MISSION B5)."""
    harness = TaskHarness()
    harness.trigger(7)
    harness.plan(1, 4)
    assert harness.sync_done(7) == [go_on(7), answer(1)]


def test_the_call_is_answered_after_a_failed_synchronous_part() -> None:
    """The checkpoint is declined and records flow again."""
    harness = TaskHarness()
    harness.trigger(7)
    harness.plan(1, 4)
    effects = harness.snapshot_failed(7)
    assert declined(effects) == [(7, "CHECKPOINT_DECLINED")]
    assert effects[1:] == [drop(7), answer(1)]


def test_a_trigger_during_a_synchronous_part_is_taken_before_the_call_is_answered() -> None:
    """Both snapshots are taken at one position."""
    harness = TaskHarness()
    harness.trigger(7)
    harness.plan(1, 4)
    assert harness.trigger(8) == []
    effects = harness.sync_done(7)
    assert effects[0] == go_on(7)
    assert taken_ids(effects) == [8]
    assert harness.taken[8].position == 4
    assert harness.sync_done(8) == [go_on(8), answer(1)]


def test_several_waiting_triggers_are_taken_in_id_order_one_after_the_other() -> None:
    """Only one synchronous part runs at a time."""
    harness = TaskHarness()
    harness.trigger(7)
    harness.trigger(8)
    assert taken_ids(harness.plan(1, 4)) == [7]
    assert taken_ids(harness.sync_done(7)) == [8]
    assert harness.sync_done(8)[-1] == answer(1)


def test_a_second_planning_call_while_one_is_unanswered_is_an_invariant_error() -> None:
    """A query plans one step at a time."""
    harness = TaskHarness()
    harness.trigger(7)
    harness.plan(1, 4)
    with pytest.raises(InvariantError, match="v plans while call 1 is unanswered"):
        harness.plan(2, 4)


def test_triggers_come_with_growing_ids() -> None:
    """A lower barrier would attribute rows to a checkpoint that does not contain them."""
    harness = TaskHarness()
    harness.trigger(8)
    with pytest.raises(InvariantError, match="checkpoint 7 triggered after checkpoint 8"):
        harness.trigger(7)


def test_a_position_never_goes_back() -> None:
    """A complete step stays complete."""
    harness = TaskHarness()
    harness.plan(1, 4)
    with pytest.raises(InvariantError, match="v goes back from position 4 to 3"):
        harness.plan(2, 3)


# ---- aborting


def test_an_abort_drops_a_waiting_trigger() -> None:
    """The next planning call is answered at once."""
    harness = TaskHarness()
    harness.trigger(7)
    assert harness.abort(7) == []
    assert harness.plan(1, 0) == [answer(1)]


def test_a_snapshot_aborted_in_its_synchronous_part_is_dropped_when_that_ends() -> None:
    """No asynchronous part begins, and the call is answered."""
    harness = TaskHarness()
    harness.trigger(7)
    harness.plan(1, 0)
    assert harness.abort(7) == []
    assert harness.sync_done(7) == [drop(7), answer(1)]


def test_a_snapshot_aborted_in_its_asynchronous_part_is_dropped_and_not_acknowledged() -> None:
    """A part that ends after its abort deletes what it wrote (PROTOCOL P43)."""
    harness = TaskHarness()
    harness.trigger(7)
    harness.plan(1, 0)
    harness.sync_done(7)
    assert harness.abort(7) == []
    assert harness.async_done(7) == [drop(7)]


def test_an_aborted_snapshot_that_fails_is_dropped_and_not_declined() -> None:
    """Its checkpoint has already been aborted."""
    harness = TaskHarness()
    harness.trigger(7)
    harness.plan(1, 0)
    harness.sync_done(7)
    harness.abort(7)
    assert harness.snapshot_failed(7) == [drop(7)]


def test_an_acknowledged_snapshot_is_dropped_with_its_abort() -> None:
    """Its asynchronous part has already finished."""
    harness = TaskHarness()
    harness.trigger(7)
    harness.plan(1, 0)
    harness.acknowledge(7)
    assert harness.abort(7) == [drop(7)]
    assert harness.abort(7) == []


# ---- after the end


def test_events_after_a_failure_have_no_effects() -> None:
    """Late results are harmless; work in progress is dropped when its part ends."""
    harness = TaskHarness()
    harness.stage(0)
    harness.trigger(7)
    harness.plan(1, 0)
    harness.sync_done(7)
    harness.send(TaskErrored(message="boom"))
    assert harness.plan(2, 0) == []
    assert harness.complete(7) == []
    assert harness.committed(7) == []
    assert harness.send(TaskErrored(message="again")) == []
    assert harness.async_done(7) == [drop(7)]
    assert harness.async_done(7) == []
