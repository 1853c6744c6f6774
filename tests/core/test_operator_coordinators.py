"""Operator coordinators in the job master: asked first, notified last, failing the job once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.kit.job_master import (
    JOB_ID,
    RESTART_DELAY_MS,
    MasterWorld,
    checkpoint,
    completed,
    of,
    only,
    task_state,
)

from weir.core.coordination.coordinators import CoordinatedOperator
from weir.core.messages.coordination import (
    AcknowledgeCheckpointEvent,
    CoordinatorFailed,
    CoordinatorSentEvent,
    CoordinatorSnapshotFailed,
    CoordinatorSnapshotTaken,
    DeliverEvent,
    EventsConfirmed,
    HandleOperatorEvent,
    NotifyCoordinator,
    OperatorEventHandled,
    OperatorEventSent,
    ResetCoordinator,
    SnapshotCoordinator,
    SubtasksFailed,
    SubtasksReady,
)
from weir.core.messages.job import (
    AnswerRequest,
    AttemptFailed,
    HookTriggered,
    JobMasterEffect,
    JobStatusChanged,
    RecordCheckpoint,
    RequestKind,
    TriggerHook,
)
from weir.core.messages.protocol import NotifyCheckpointComplete, TriggerCheckpoint
from weir.core.settings import CheckpointConfig
from weir.core.status import JobStatus
from weir.core.types import OperatorState, Payload, SentEvent, TaskStatus

OPERATORS = {
    "x": CoordinatedOperator(vertex="a", parallelism=2),
    "y": CoordinatedOperator(vertex="b", parallelism=1),
}


def world(**options: object) -> MasterWorld:
    subject = MasterWorld(coordinated=OPERATORS, **options)  # type: ignore[arg-type]
    subject.submit()
    subject.status(TaskStatus.RUNNING)
    return subject


def taken(
    subject: MasterWorld, operator: str, n: int, state: Payload | None = None, attempt: int = 1
) -> list[JobMasterEffect]:
    return subject.handle(
        CoordinatorSnapshotTaken(operator=operator, attempt=attempt, checkpoint_id=n, state=state)
    )


def send(
    subject: MasterWorld, operator: str, subtask: int = 0, attempt: int = 1
) -> list[JobMasterEffect]:
    return subject.handle(
        CoordinatorSentEvent(
            operator=operator, attempt=attempt, subtask=subtask, payload={"go": True}
        )
    )


def test_every_coordinator_is_reset_with_an_attempt_and_learns_when_its_subtasks_run() -> None:
    """C1."""
    subject = world()
    assert [effect.operator for effect in of(subject.effects, ResetCoordinator)] == ["x", "y"]
    assert of(subject.effects, SubtasksReady) == [
        SubtasksReady(operator="x"),
        SubtasksReady(operator="y"),
    ]


def test_coordinators_are_asked_before_the_hooks_and_the_hooks_before_the_tasks() -> None:
    """C2, A8."""
    subject = world(hooks=("h",))
    n, effects = subject.allocate(subject.ask())
    assert effects == [SnapshotCoordinator(operator=name, checkpoint_id=n) for name in ("x", "y")]
    assert taken(subject, "x", n) == []
    hooks = taken(subject, "y", n)
    assert [type(effect) for effect in hooks] == [TriggerHook]
    tasks = subject.handle(HookTriggered(identifier="h", checkpoint_id=n, state=None))
    assert len(of(tasks, TriggerCheckpoint)) == 2


def test_no_task_is_triggered_before_the_events_that_came_first_are_confirmed() -> None:
    """P2."""
    subject = world()
    [event] = send(subject, "x")
    assert isinstance(event, DeliverEvent)
    n = subject.trigger()
    taken(subject, "y", n)
    assert taken(subject, "x", n) == []
    confirmed = EventsConfirmed(vertex="a", attempt=1, events=(("x", event.number),))
    assert len(of(subject.handle(confirmed), TriggerCheckpoint)) == 2


def test_the_states_of_coordinators_are_in_the_record_and_come_back() -> None:
    """C1: a coordinator that returned nothing has no entry."""
    subject = world()
    n = subject.trigger()
    taken(subject, "x", n, {"sent": 3})
    taken(subject, "y", n)
    record = only(subject.acknowledge(n), RecordCheckpoint)
    assert record.coordinator_states == {"x": {"sent": 3}}
    restored = MasterWorld(coordinated=OPERATORS)
    restored.submit(completed(record))
    resets = {
        reset.operator: (reset.checkpoint_id, reset.state)
        for reset in of(restored.effects, ResetCoordinator)
    }
    assert resets == {"x": (n, {"sent": 3}), "y": (n, None)}


def test_events_of_the_next_epoch_come_with_the_acknowledgement_of_their_task() -> None:
    """C4: another task's acknowledgement does not release them."""
    subject = world()
    n = subject.trigger()
    taken(subject, "x", n)
    taken(subject, "y", n)
    assert send(subject, "x") == send(subject, "y") == []
    opened = subject.handle(AcknowledgeCheckpointEvent(vertex="a", attempt=1, checkpoint_id=n))
    assert [effect.operator for effect in of(opened, DeliverEvent)] == ["x"]


def test_a_coordinator_that_declines_aborts_the_checkpoint() -> None:
    """It is notified of the abort like the others."""
    subject = world()
    n = subject.trigger()
    effects = subject.handle(
        CoordinatorSnapshotFailed(operator="x", attempt=1, checkpoint_id=n, message="not now")
    )
    assert "The coordinator of 'x': not now" in (only(effects, AnswerRequest).failure or "")
    assert [(effect.operator, effect.completed) for effect in of(effects, NotifyCoordinator)] == [
        ("x", False),
        ("y", False),
    ]


@pytest.mark.parametrize(("tolerable", "status"), [(1, JobStatus.RUNNING), (0, JobStatus.FAILING)])
def test_a_snapshot_that_a_coordinator_fails_counts_as_a_failed_checkpoint(
    tolerable: int, status: JobStatus
) -> None:
    """P9: a job whose coordinator can never be saved must not run on without checkpoints."""
    config = CheckpointConfig(interval_ms=None, tolerable_failed_checkpoints=tolerable)
    subject = world(config=config)
    n = subject.trigger()
    subject.handle(
        CoordinatorSnapshotFailed(operator="x", attempt=1, checkpoint_id=n, message="no disk")
    )
    assert subject.master.status is status


def test_a_checkpoint_expires_while_a_coordinator_does_not_answer() -> None:
    """C3: what comes later changes nothing, and the gateways stay open."""
    config = CheckpointConfig(interval_ms=None, tolerable_failed_checkpoints=1, timeout_ms=1_000)
    subject = world(config=config)
    n = subject.trigger()
    taken(subject, "y", n)
    assert send(subject, "y") == []
    expired = subject.pass_time(1_000)
    assert "Checkpoint expired before completing." in (only(expired, AnswerRequest).failure or "")
    assert [effect.operator for effect in of(expired, DeliverEvent)] == ["y"]
    assert taken(subject, "x", n) == []
    assert of(send(subject, "x"), DeliverEvent)


def test_coordinators_are_notified_of_completion_after_the_tasks() -> None:
    """P13."""
    subject = world()
    n = subject.trigger()
    taken(subject, "x", n)
    taken(subject, "y", n)
    effects = subject.record(subject.acknowledge(n))
    kinds = [
        type(effect)
        for effect in effects
        if isinstance(effect, NotifyCheckpointComplete | NotifyCoordinator)
    ]
    assert kinds == [NotifyCheckpointComplete] * 2 + [NotifyCoordinator] * 2


def test_an_event_of_an_operator_is_acknowledged_through_the_gateway() -> None:
    """C7: the coordinator's snapshot lacks the event, so its acknowledgement waits for the task's
    own snapshot."""
    subject = world()
    sent = OperatorEventSent(vertex="a", attempt=1, operator="x", subtask=1, number=5, payload={})
    assert subject.handle(sent) == [
        HandleOperatorEvent(operator="x", subtask=1, number=5, payload={})
    ]
    n = subject.trigger()
    taken(subject, "x", n)
    handled = OperatorEventHandled(operator="x", attempt=1, subtask=1, number=5)
    assert subject.handle(handled) == []
    taken(subject, "y", n)
    opened = subject.handle(AcknowledgeCheckpointEvent(vertex="a", attempt=1, checkpoint_id=n))
    assert [effect.acknowledges for effect in of(opened, DeliverEvent)] == [5]


def test_a_coordinator_that_throws_fails_the_job_once() -> None:
    """35: ``testFailingJobMultipleTimesNotCauseCascadingJobFailure``; later failures belong to an
    attempt that has ended."""
    subject = world()
    failed = CoordinatorFailed(operator="x", attempt=1, message="ValueError: 7")
    effects = subject.handle(failed)
    assert "The coordinator of 'x' failed: ValueError: 7" in only(effects, JobStatusChanged).message
    assert {effect.operator for effect in of(effects, SubtasksFailed)} == {"x", "y"}
    assert subject.handle(failed) == subject.handle(failed) == []
    subject.stopped()
    subject.pass_time(RESTART_DELAY_MS)
    subject.begin(2)
    assert send(subject, "x", attempt=1) == []
    assert len(send(subject, "x", attempt=2)) == 1


def test_subtasks_fail_once_though_the_attempt_after_them_cannot_begin() -> None:
    """No subtask runs by then, and the coordinator still knows them by the attempt before."""
    subject = world()
    subject.handle(CoordinatorFailed(operator="x", attempt=1, message="no"))
    subject.stopped()
    subject.pass_time(RESTART_DELAY_MS)
    failed = subject.handle(AttemptFailed(message="disk full", fatal=False))
    assert subject.master.status is JobStatus.RESTARTING
    assert of(failed, SubtasksFailed) == []


def test_nothing_that_was_held_reaches_the_next_attempt() -> None:
    """C5: the coordinator is reset to its checkpoint and sends again, so no checkpoint waits for
    what it had sent before."""
    subject = world()
    send(subject, "x")
    n = subject.trigger()
    taken(subject, "x", n)
    assert send(subject, "x", subtask=1) == []
    subject.handle(CoordinatorFailed(operator="y", attempt=1, message="no"))
    subject.stopped()
    subject.pass_time(RESTART_DELAY_MS)
    subject.effects.clear()
    subject.begin(2)
    subject.status(TaskStatus.RUNNING)
    assert len(send(subject, "x", subtask=0, attempt=2)) == 1
    assert len(send(subject, "x", subtask=1, attempt=2)) == 1
    sent = of(subject.effects, DeliverEvent)
    assert [event.subtask for event in sent] == [0, 1]
    confirmed = tuple(("x", event.number) for event in sent)
    subject.handle(EventsConfirmed(vertex="a", attempt=2, events=confirmed))
    m = subject.trigger()
    taken(subject, "x", m, attempt=2)
    assert len(of(taken(subject, "y", m, attempt=2), TriggerCheckpoint)) == 2


def test_a_checkpoint_does_not_wait_for_events_to_an_operator_that_has_finished() -> None:
    """No one will ever confirm them."""
    subject = world()
    send(subject, "x")
    subject.status(TaskStatus.FINISHED, "a")
    assert send(subject, "x") == []
    n = subject.trigger()
    taken(subject, "x", n)
    assert [effect.vertex for effect in of(taken(subject, "y", n), TriggerCheckpoint)] == ["b"]


def test_an_event_of_a_subtask_that_is_gone_is_handled_all_the_same() -> None:
    """P41: a job restored with fewer subtasks resends what the removed ones had sent."""
    subject = world()
    sent = OperatorEventSent(vertex="a", attempt=1, operator="x", subtask=5, number=1, payload={})
    assert subject.handle(sent) == [
        HandleOperatorEvent(operator="x", subtask=1, number=1, payload={})
    ]
    handled = OperatorEventHandled(operator="x", attempt=1, subtask=1, number=1)
    assert [effect.acknowledges for effect in of(subject.handle(handled), DeliverEvent)] == [1]


def test_an_event_to_a_coordinator_that_is_gone_goes_nowhere() -> None:
    """The operator was removed after the event had become part of a checkpoint."""
    subject = world()
    sent = OperatorEventSent(
        vertex="a", attempt=1, operator="gone", subtask=0, number=1, payload={}
    )
    assert subject.handle(sent) == []


def test_what_tasks_send_while_they_are_being_stopped_is_not_handled() -> None:
    """C5: the coordinator is reset, and what the restored task sends again is handled once."""
    subject = world()
    subject.fail()
    sent = OperatorEventSent(vertex="a", attempt=1, operator="x", subtask=0, number=1, payload={})
    assert subject.handle(sent) == []


def test_coordinators_are_not_notified_of_an_intermediate_savepoint() -> None:
    """PROTOCOL P14: it commits nothing, so nobody may act on it."""
    subject = world()
    n = subject.trigger(RequestKind.SAVEPOINT)
    taken(subject, "x", n)
    taken(subject, "y", n)
    assert not of(subject.record(subject.acknowledge(n)), NotifyCoordinator)


@pytest.mark.parametrize(("job_id", "own"), [(JOB_ID, True), ("f" * 32, False)])
def test_a_coordinator_is_notified_whether_its_state_is_from_its_own_job(
    job_id: str, own: bool
) -> None:
    """Ids of another job's checkpoint mean nothing in this one (PROTOCOL P19)."""
    subject = MasterWorld(coordinated=OPERATORS)
    subject.submit(checkpoint(3, task_state("a"), job_id=job_id))
    assert {effect.own for effect in of(subject.effects, ResetCoordinator)} == {own}


LATE = (
    SentEvent(operator="x", subtask=1, payload={"late": True}),
    SentEvent(operator="gone", subtask=0, payload={"late": True}),
)


def restored_from(*, finished: bool) -> MasterWorld:
    """A job restored from a checkpoint in which events of task a were not handled yet."""
    operator = OperatorState(operator_id="x", name="x", fully_finished=finished)
    state = replace(task_state("a"), operators=(operator,), sent_events=LATE)
    subject = MasterWorld(coordinated=OPERATORS)
    subject.next_id = 4
    subject.submit(checkpoint(3, state))
    return subject


def test_a_coordinator_gets_what_a_finished_task_had_sent() -> None:
    """P41: the task is not started again, so no one else would send it."""
    handled = of(restored_from(finished=True).effects, HandleOperatorEvent)
    assert [(effect.operator, effect.subtask, effect.payload) for effect in handled] == [
        ("x", 1, {"late": True})
    ]


def test_a_task_that_is_restored_running_sends_by_itself_what_was_not_handled() -> None:
    """P41: the coordinator would handle it twice."""
    assert not of(restored_from(finished=False).effects, HandleOperatorEvent)


def test_events_to_a_task_that_was_restored_as_finished_are_dropped() -> None:
    """No checkpoint may wait for them."""
    subject = restored_from(finished=True)
    subject.status(TaskStatus.RUNNING, "b")
    assert send(subject, "x") == []
    n = subject.trigger()
    taken(subject, "x", n)
    assert [effect.vertex for effect in of(taken(subject, "y", n), TriggerCheckpoint)] == ["b"]
