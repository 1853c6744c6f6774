"""Operator coordinators in the job master: asked first, notified last, failing the job once."""

from __future__ import annotations

from dataclasses import replace

from tests.core.master_harness import World, checkpoint, completed, of, only, task_state

from weir.core.messages.job import (
    AnswerRequest,
    HookTriggered,
    JobMasterEffect,
    JobStatusChanged,
    RecordCheckpoint,
    RequestKind,
    SnapshotRequested,
    StopTasks,
    TasksStopped,
    TriggerHook,
)
from weir.core.messages.operators import (
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
from weir.core.messages.protocol import NotifyCheckpointComplete, TriggerCheckpoint
from weir.core.operators.coordinators import CoordinatedOperator
from weir.core.status import JobStatus
from weir.core.types import OperatorState, Payload, SentEvent, TaskStatus

OPERATORS = {
    "x": CoordinatedOperator(vertex="a", parallelism=2),
    "y": CoordinatedOperator(vertex="b", parallelism=1),
}


def world(**options: object) -> World:
    subject = World(coordinated=OPERATORS, **options)  # type: ignore[arg-type]
    subject.submit()
    subject.status(TaskStatus.RUNNING)
    return subject


def ask(subject: World) -> tuple[int, list[JobMasterEffect]]:
    """Request a checkpoint and allocate its location."""
    return subject.allocate(
        subject.handle(SnapshotRequested(request="r", kind=RequestKind.CHECKPOINT))
    )


def taken(
    subject: World, operator: str, n: int, state: Payload | None = None, attempt: int = 1
) -> list[JobMasterEffect]:
    return subject.handle(
        CoordinatorSnapshotTaken(operator=operator, attempt=attempt, checkpoint_id=n, state=state)
    )


def send(
    subject: World, operator: str, subtask: int = 0, attempt: int = 1
) -> list[JobMasterEffect]:
    return subject.handle(
        CoordinatorSentEvent(
            operator=operator, attempt=attempt, subtask=subtask, payload={"go": True}
        )
    )


def test_every_coordinator_is_reset_with_an_attempt_and_learns_when_its_subtasks_run() -> None:
    """C1."""
    subject = world()
    assert [one.operator for one in of(subject.effects, ResetCoordinator)] == ["x", "y"]
    assert of(subject.effects, SubtasksReady) == [
        SubtasksReady(operator="x"),
        SubtasksReady(operator="y"),
    ]


def test_coordinators_are_asked_before_the_hooks_and_the_hooks_before_the_tasks() -> None:
    """C2, A8."""
    subject = world(hooks=("h",))
    n, effects = ask(subject)
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
    n, _ = ask(subject)
    taken(subject, "y", n)
    assert taken(subject, "x", n) == []
    confirmed = EventsConfirmed(vertex="a", attempt=1, events=(("x", event.number),))
    assert len(of(subject.handle(confirmed), TriggerCheckpoint)) == 2


def test_the_states_of_coordinators_are_in_the_record_and_come_back() -> None:
    """C1: a coordinator that returned nothing has no entry."""
    subject = world()
    n, _ = ask(subject)
    taken(subject, "x", n, {"sent": 3})
    taken(subject, "y", n)
    record = only(subject.acknowledge(n), RecordCheckpoint)
    assert record.coordinator_states == {"x": {"sent": 3}}
    restored = World(coordinated=OPERATORS)
    restored.submit(completed(record))
    resets = {
        one.operator: (one.checkpoint_id, one.state)
        for one in of(restored.effects, ResetCoordinator)
    }
    assert resets == {"x": (n, {"sent": 3}), "y": (n, None)}


def test_events_of_the_next_epoch_come_with_the_acknowledgement_of_their_task() -> None:
    """C4: another task's acknowledgement does not release them."""
    subject = world()
    n, _ = ask(subject)
    taken(subject, "x", n)
    taken(subject, "y", n)
    assert send(subject, "x") == send(subject, "y") == []
    opened = subject.handle(AcknowledgeCheckpointEvent(vertex="a", attempt=1, checkpoint_id=n))
    assert [one.operator for one in of(opened, DeliverEvent)] == ["x"]


def test_a_coordinator_that_declines_aborts_the_checkpoint() -> None:
    """It is notified of the abort like the others."""
    subject = world()
    n, _ = ask(subject)
    effects = subject.handle(
        CoordinatorSnapshotFailed(operator="x", attempt=1, checkpoint_id=n, message="not now")
    )
    assert "The coordinator of 'x': not now" in (only(effects, AnswerRequest).failure or "")
    assert [(one.operator, one.completed) for one in of(effects, NotifyCoordinator)] == [
        ("x", False),
        ("y", False),
    ]


def test_coordinators_are_notified_of_completion_after_the_tasks() -> None:
    """P13."""
    subject = world()
    n, _ = ask(subject)
    taken(subject, "x", n)
    taken(subject, "y", n)
    effects = subject.record(subject.acknowledge(n))
    kinds = [
        type(one)
        for one in effects
        if isinstance(one, NotifyCheckpointComplete | NotifyCoordinator)
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
    n, _ = ask(subject)
    taken(subject, "x", n)
    handled = OperatorEventHandled(operator="x", attempt=1, subtask=1, number=5)
    assert subject.handle(handled) == []
    taken(subject, "y", n)
    opened = subject.handle(AcknowledgeCheckpointEvent(vertex="a", attempt=1, checkpoint_id=n))
    assert [one.acknowledges for one in of(opened, DeliverEvent)] == [5]


def test_a_coordinator_that_throws_fails_the_job_once() -> None:
    """35: ``testFailingJobMultipleTimesNotCauseCascadingJobFailure``; later failures belong to an
    attempt that has ended."""
    subject = world()
    failed = CoordinatorFailed(operator="x", attempt=1, message="ValueError: 7")
    effects = subject.handle(failed)
    assert "The coordinator of 'x' failed: ValueError: 7" in only(effects, JobStatusChanged).message
    assert {one.operator for one in of(effects, SubtasksFailed)} == {"x", "y"}
    assert subject.handle(failed) == subject.handle(failed) == []
    subject.handle(TasksStopped(attempt=only(effects, StopTasks).attempt, chance=0.5))
    subject.pass_time(100_000)
    subject.begin(2)
    assert send(subject, "x", attempt=1) == []
    assert len(send(subject, "x", attempt=2)) == 1


def test_nothing_that_was_held_reaches_the_next_attempt() -> None:
    """C5: the coordinator is reset to its checkpoint and sends again."""
    subject = world()
    n, _ = ask(subject)
    taken(subject, "x", n)
    send(subject, "x")
    effects = subject.handle(CoordinatorFailed(operator="y", attempt=1, message="no"))
    subject.handle(TasksStopped(attempt=only(effects, StopTasks).attempt, chance=0.5))
    subject.pass_time(100_000)
    subject.begin(2)
    subject.status(TaskStatus.RUNNING)
    assert subject.master.status is JobStatus.RUNNING
    m, _ = ask(subject)
    assert m == n + 1
    assert of(taken(subject, "x", m, attempt=2), DeliverEvent) == []


def test_a_checkpoint_does_not_wait_for_events_to_an_operator_that_has_finished() -> None:
    """No one will ever confirm them."""
    subject = world()
    send(subject, "x")
    n, _ = ask(subject)
    taken(subject, "x", n)
    taken(subject, "y", n)
    subject.status(TaskStatus.FINISHED, "a")
    assert send(subject, "x") == []


def test_an_event_of_a_subtask_that_is_gone_is_handled_all_the_same() -> None:
    """P41: a job restored with fewer subtasks resends what the removed ones had sent."""
    subject = world()
    sent = OperatorEventSent(vertex="a", attempt=1, operator="x", subtask=5, number=1, payload={})
    assert subject.handle(sent) == [
        HandleOperatorEvent(operator="x", subtask=1, number=1, payload={})
    ]
    handled = OperatorEventHandled(operator="x", attempt=1, subtask=1, number=1)
    assert [one.acknowledges for one in of(subject.handle(handled), DeliverEvent)] == [1]


def test_an_event_to_a_coordinator_that_is_gone_goes_nowhere() -> None:
    """The operator was removed after the event had become part of a checkpoint."""
    subject = world()
    sent = OperatorEventSent(
        vertex="a", attempt=1, operator="gone", subtask=0, number=1, payload={}
    )
    assert subject.handle(sent) == []


def test_a_coordinator_gets_what_a_finished_task_had_sent() -> None:
    """P41: the task is not started again, so no one else would send it."""
    state = replace(
        task_state("a"),
        operators=(OperatorState(operator_id="x", name="x", fully_finished=True),),
        sent_events=(SentEvent(operator="x", subtask=1, payload={"late": True}),),
    )
    subject = World(coordinated=OPERATORS)
    subject.submit(checkpoint(3, state))
    told = of(subject.effects, HandleOperatorEvent)
    assert [(one.operator, one.subtask, one.payload) for one in told] == [("x", 1, {"late": True})]
