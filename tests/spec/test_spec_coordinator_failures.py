"""Flink's ``CheckpointCoordinatorTest`` where something fails or is shut down.

A stop whose savepoint is discarded, ids and records that cannot be obtained, and requests that
arrive around a shutdown.
"""

from __future__ import annotations

import pytest
from tests.kit.job_master import (
    JOB_ID,
    RESTART_DELAY_MS,
    MasterWorld,
    execution,
    of,
    only,
    running_job,
)
from tests.spec.scenario import pending_ids, status, tick

from weir.core.checkpoints.coordinator import CheckpointCoordinator
from weir.core.checkpoints.outputs import CheckpointOutput, RequestFailed
from weir.core.checkpoints.request_decider import CheckpointRequest, RequestOrigin
from weir.core.coordination.coordinators import OperatorCoordinators
from weir.core.messages.job import (
    AllocateLocation,
    AnswerRequest,
    CancelRequested,
    DiscardCheckpoint,
    EndRecorded,
    JobEnded,
    JobMasterEffect,
    LocationAllocated,
    LocationFailed,
    RecordEnd,
    RequestKind,
    StopTasks,
)
from weir.core.messages.protocol import NotifyCheckpointComplete, TriggerCheckpoint
from weir.core.settings import CheckpointConfig
from weir.core.status import JobStatus
from weir.core.types import CheckpointFailureReason as Reason
from weir.core.types import Recorded, TaskStatus

PERIODIC = CheckpointRequest(origin=RequestOrigin.PERIODIC)


def refused(outputs: list[CheckpointOutput]) -> list[Reason]:
    """The coordinator's reasons for refusing requests."""
    return [output.reason for output in outputs if isinstance(output, RequestFailed)]


def location_failed(world: MasterWorld, effects: list[JobMasterEffect]) -> list[JobMasterEffect]:
    """Fail the allocation for the one checkpoint that is being triggered."""
    allocation = only(effects, AllocateLocation).allocation
    event = LocationFailed(allocation=allocation, message="no space left", timestamp_ms=2_000_000)
    return world.handle(event)


# -- 21: jobFailsIfInFlightSynchronousSavepointIsDiscarded -----------------------------------------


@pytest.mark.parametrize(
    ("end", "cause"),
    [("declined", "the disk is full"), ("expired", "tasks that did not acknowledge: b")],
)
def test_a_discarded_stop_savepoint_fails_the_stop_and_the_job_and_both_keep_the_root_cause(
    end: str, cause: str
) -> None:
    """CheckpointCoordinatorTest.jobFailsIfInFlightSynchronousSavepointIsDiscarded (MISSION E4,
    PROTOCOL P34): a failover follows, after which the scheduler runs again."""
    world = running_job(interval_ms=100, timeout_ms=1_000)
    savepoint = world.trigger(RequestKind.STOP, name="stop")
    world.acknowledge(savepoint, "a")
    effects = world.decline(savepoint, "b") if end == "declined" else world.pass_time(1_000)
    answer = only(effects, AnswerRequest)
    assert (answer.request, answer.checkpoint) == ("stop", None)
    assert cause in (answer.failure or "")
    assert status(world) is JobStatus.FAILING
    assert cause in (world.master.failure or "")
    assert only(effects, StopTasks).attempt == 1
    world.stopped()
    world.pass_time(RESTART_DELAY_MS)
    world.begin(2)
    world.status(TaskStatus.RUNNING)
    assert world.master.coordinator.trigger.scheduling


def test_a_discarded_stop_savepoint_fails_the_job_whatever_number_of_failures_is_tolerated() -> (
    None
):
    """CheckpointCoordinatorTest.jobFailsIfInFlightSynchronousSavepointIsDiscarded (PROTOCOL P34):
    it cannot continue."""
    world = running_job(tolerable_failed_checkpoints=2**31 - 1)
    world.decline(world.trigger(RequestKind.STOP), "a", Reason.CHECKPOINT_DECLINED_TASK_NOT_READY)
    assert status(world) is JobStatus.FAILING


# -- 22: testTriggerCheckpointAfterStopping, ...WithCounterIOException, testExceptionInStoring...


def test_a_checkpoint_whose_id_arrives_after_the_scheduler_stopped_is_not_made() -> None:
    """CheckpointCoordinatorTest.testTriggerCheckpointAfterStopping (MISSION A3, A6): its location
    is removed."""
    world = running_job(interval_ms=10)
    allocation = only(world.pass_time(0), AllocateLocation).allocation
    world.fail()
    location = LocationAllocated(
        allocation=allocation, checkpoint_id=1, target=None, timestamp_ms=1
    )
    effects = world.handle(location) + world.stopped()
    assert only(effects, DiscardCheckpoint).checkpoint_id == 1
    assert not of(effects, TriggerCheckpoint)
    assert pending_ids(world) == []


def test_a_periodic_trigger_after_the_scheduler_stopped_is_refused_as_such() -> None:
    """CheckpointCoordinatorTest.testTriggerCheckpointAfterStopping (MISSION A4):
    PERIODIC_SCHEDULER_SHUTDOWN."""
    coordinator = running_job(interval_ms=10).master.coordinator
    coordinator.stop_scheduler(0)
    assert refused(coordinator.submit(PERIODIC, 0)) == [Reason.PERIODIC_SCHEDULER_SHUTDOWN]
    assert coordinator.trigger.in_progress is None
    coordinator.validate()


@pytest.mark.parametrize("origin", list(RequestOrigin))
def test_every_trigger_after_the_shutdown_is_refused_as_such(origin: RequestOrigin) -> None:
    """CheckpointCoordinatorTest.testTriggerCheckpointAfterStopping (MISSION A4):
    CHECKPOINT_COORDINATOR_SHUTDOWN."""
    coordinator = running_job(interval_ms=10).master.coordinator
    coordinator.shut_down(0)
    outputs = coordinator.submit(CheckpointRequest(origin=origin), 0)
    assert refused(outputs) == [Reason.CHECKPOINT_COORDINATOR_SHUTDOWN]
    assert coordinator.stats(0).waits_because is None
    coordinator.validate()


def test_an_id_counter_that_fails_makes_a_failed_checkpoint_but_not_a_pending_checkpoint() -> None:
    """CheckpointCoordinatorTest.testTriggerCheckpointWithCounterIOException (MISSION A9):
    IO_EXCEPTION."""
    world = running_job(interval_ms=10)
    location_failed(world, world.pass_time(0))
    found = world.master.stats(world.now_ms)
    assert (found.counts.total, found.counts.failed, found.counts.in_progress) == (1, 1, 0)
    assert found.history == ()
    assert pending_ids(world) == []
    assert world.master.stats(world.now_ms).unsuccessful_triggers == 1
    assert tick(world, 10) == [1]
    assert world.master.stats(world.now_ms).unsuccessful_triggers == 0


def test_an_id_counter_that_fails_counts_against_the_tolerable_failures() -> None:
    """CheckpointCoordinatorTest.testTriggerCheckpointWithCounterIOException (PROTOCOL P9): the
    second failure exceeds the tolerance, and the user who asked hears why."""
    world = running_job(interval_ms=10, tolerable_failed_checkpoints=1)
    location_failed(world, world.pass_time(0))
    assert status(world) is JobStatus.RUNNING
    effects = location_failed(world, world.ask())
    assert "no space left" in (only(effects, AnswerRequest).failure or "")
    assert status(world) is JobStatus.FAILING
    assert "no space left" in (world.master.failure or "")
    assert "Exceeded checkpoint tolerable failure threshold." in (world.master.failure or "")


def test_a_completed_checkpoint_that_cannot_be_stored_is_reported_to_the_failure_manager() -> None:
    """CheckpointCoordinatorTest.testExceptionInStoringCompletedCheckpointIsReportedToFailureManager
    (PROTOCOL P11)."""
    world = running_job(tolerable_failed_checkpoints=0)
    effects = world.record(world.acknowledge(world.trigger()), Recorded.FAILED)
    assert "Failure to finalize checkpoint." in (only(effects, AnswerRequest).failure or "")
    assert not of(effects, NotifyCheckpointComplete)
    assert world.master.coordinator.store.ids == ()
    assert world.master.stats(world.now_ms).counts.failed == 1
    assert status(world) is JobStatus.FAILING
    assert "Exceeded checkpoint tolerable failure threshold." in (world.master.failure or "")


# -- 23: testScheduleTriggerRequestDuringShutdown, testPeriodicSchedulingWithInactiveTasks ---------


def test_a_timer_that_fires_during_or_after_the_shutdown_does_nothing() -> None:
    """CheckpointCoordinatorTest.testScheduleTriggerRequestDuringShutdown (MISSION A3): it is not an
    error."""
    world = running_job(interval_ms=10)
    world.handle(CancelRequested(request="cancel"))
    assert world.master.next_deadline() is None
    assert world.master.on_deadline(20) == []
    assert only(world.stopped(), RecordEnd).status is JobStatus.CANCELED
    assert world.master.on_deadline(30) == []
    assert of(world.handle(EndRecorded(outcome=Recorded.WON)), JobEnded)
    assert world.master.on_deadline(40) == []
    assert world.master.next_deadline() is None


def test_a_location_that_arrives_after_the_job_ended_does_nothing() -> None:
    """CheckpointCoordinatorTest.testScheduleTriggerRequestDuringShutdown (MISSION A6): nobody is
    waiting for it."""
    world = running_job(interval_ms=10)
    allocation = only(world.pass_time(0), AllocateLocation).allocation
    world.handle(CancelRequested(request="cancel"))
    world.stopped()
    world.handle(EndRecorded(outcome=Recorded.WON))
    late = LocationAllocated(allocation=allocation, checkpoint_id=1, target=None, timestamp_ms=1)
    assert world.handle(late) == []


def test_a_timer_that_fires_while_a_task_is_inactive_goes_on_and_triggers_once_it_runs() -> None:
    """CheckpointCoordinatorTest.testPeriodicSchedulingWithInactiveTasks (MISSION A4): the job
    master starts the timer later, so this drives the coordinator itself."""
    tasks = execution({"a": TaskStatus.RUNNING, "b": TaskStatus.INITIALIZING})
    coordinator = CheckpointCoordinator(
        job_id=JOB_ID,
        config=CheckpointConfig(interval_ms=10, tolerable_failed_checkpoints=0),
        execution=tasks,
        hooks=(),
        coordinators=OperatorCoordinators({}),
    )
    coordinator.start_scheduler(0, 0.0)
    for now_ms in (0, 10, 20):
        assert coordinator.next_deadline() == now_ms
        assert refused(coordinator.on_deadline(now_ms)) == [Reason.NOT_ALL_REQUIRED_TASKS_RUNNING]
    assert coordinator.stats(20).counts.failed == 0
    tasks.set_status("b", TaskStatus.RUNNING)
    only(coordinator.on_deadline(30), AllocateLocation)


@pytest.mark.parametrize("kind", [RequestKind.CHECKPOINT, RequestKind.SAVEPOINT])
def test_a_user_who_asks_during_the_shutdown_is_answered_with_a_refusal(kind: RequestKind) -> None:
    """CheckpointCoordinatorTest.testTriggerCheckpointAfterStopping (MISSION A4), seen by the
    user."""
    world = running_job()
    world.handle(CancelRequested(request="cancel"))
    assert only(world.ask(kind, name="late"), AnswerRequest).failure
    world.stopped()
    world.handle(EndRecorded(outcome=Recorded.WON))
    assert only(world.ask(kind, name="later"), AnswerRequest).failure
