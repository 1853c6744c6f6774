"""The job as a whole: lifecycle, end, stop with savepoint, cancel and suspend."""

from __future__ import annotations

import pytest
from master_harness import World, checkpoint, of, only, task_state, with_interval

from weir.core.config import (
    CheckpointConfig,
    RestartConfig,
    RestartStrategyType,
    RetainExternalized,
)
from weir.core.messages.job import (
    AllocateLocation,
    AnswerRequest,
    AttemptFailed,
    BeginAttempt,
    CancelRequested,
    CheckpointRecorded,
    DiscardCheckpoint,
    EndRecorded,
    JobEnded,
    JobStatusChanged,
    JobSubmitted,
    LocationFailed,
    RecordEnd,
    RequestKind,
    SnapshotRequested,
    StopTasks,
    SuspendRequested,
    TasksStopped,
)
from weir.core.messages.protocol import NotifyCheckpointComplete, TaskFailed, TriggerCheckpoint
from weir.core.status import JobStatus
from weir.core.types import UNKNOWN, Cause, Recorded, SnapshotKind, TaskStatus

WAITING = TaskStatus.WAITING_FOR_FINAL_CHECKPOINT


def snapshot(world: World, kind: RequestKind = RequestKind.CHECKPOINT, name: str = "r") -> list:
    return world.handle(SnapshotRequested(request=name, kind=kind))


def fail(world: World, vertex: str = "a", cause: Cause = UNKNOWN) -> list:
    failed = TaskFailed(
        vertex=vertex, attempt=world.master.attempt, message="out of memory", cause=cause
    )
    return world.handle(failed)


def fail_again(world: World, cause: Cause, *, times: int) -> None:
    """Fail attempt after attempt with one cause, from the running one on, until the job ends."""
    for _ in range(times):
        fail(world, cause=cause)
        stopped(world)
        if world.master.status is not JobStatus.RESTARTING:
            return
        world.pass_time(1_000)
        world.begin(world.master.attempt + 1)
        world.status(TaskStatus.RUNNING)


def stopped(world: World) -> list:
    return world.handle(TasksStopped(attempt=world.master.attempt, chance=0.0))


def test_a_submitted_job_starts_an_attempt_and_runs_when_that_has_started() -> None:
    """CREATED -> RUNNING, with every task INITIALIZING."""
    world = World()
    assert world.handle(JobSubmitted()) == [BeginAttempt()]
    assert world.master.status is JobStatus.CREATED
    world.begin(1)
    assert world.master.status is JobStatus.RUNNING
    assert world.master.task_status("a") is TaskStatus.INITIALIZING


def test_tasks_that_were_fully_finished_in_the_restored_checkpoint_are_finished() -> None:
    """MISSION D5: recovery does not start finished tasks."""
    world = World()
    world.submit(checkpoint(3, task_state("a", finished=True), task_state("b")))
    assert world.master.task_status("a") is TaskStatus.FINISHED
    assert world.master.task_status("b") is TaskStatus.INITIALIZING


def test_a_job_restored_from_a_drained_savepoint_finishes_at_once() -> None:
    """PROTOCOL P35."""
    tasks = (task_state("a", finished=True), task_state("b", finished=True))
    world = World()
    world.submit(checkpoint(3, *tasks, kind=SnapshotKind.SYNC_SAVEPOINT, job_id="e" * 32))
    assert only(world.effects, RecordEnd).status is JobStatus.FINISHED


def test_a_failed_task_restarts_the_whole_job_after_the_delay_of_the_strategy() -> None:
    """PROTOCOL P39: FAILING, tasks stopped, RESTARTING, a new attempt, RUNNING."""
    world = World().running()
    assert only(fail(world), StopTasks).attempt == 1
    assert world.master.status is JobStatus.FAILING
    assert stopped(world)
    assert world.master.status is JobStatus.RESTARTING
    assert world.pass_time(999) == []
    assert world.pass_time(1) == [BeginAttempt()]
    world.begin(2)
    assert (world.master.status, world.master.attempt) == (JobStatus.RUNNING, 2)


def test_a_job_without_attempts_left_ends_as_failed() -> None:
    """The failure gives its cause and the strategy."""
    world = World(restart=RestartConfig(type=RestartStrategyType.NONE)).running()
    fail(world)
    end = only(stopped(world), RecordEnd)
    assert (end.status, end.delete_checkpoints) == (JobStatus.FAILED, False)
    assert "out of memory" in (end.failure or "")
    ended = only(world.handle(EndRecorded(outcome=Recorded.WON)), JobEnded)
    assert (ended.status, ended.failure) == (JobStatus.FAILED, end.failure)


def test_the_scheduler_runs_only_while_the_job_is_running() -> None:
    """MISSION A1: any other status stops it and aborts pending checkpoints."""
    world = World(config=with_interval(100)).running()
    world.allocate(world.pass_time(0))
    fail(world)
    assert world.master.coordinator.pending == ()
    assert world.master.next_deadline() is None
    assert "Checkpoint Coordinator is suspending." in (
        world.master.stats(world.now_ms).history[0].failure_message or ""
    )


def test_files_of_checkpoints_aborted_by_a_failure_are_deleted_after_the_tasks_have_stopped() -> (
    None
):
    """A snapshot may write until then."""
    world = World().running()
    n, _ = world.allocate(snapshot(world))
    assert not of(fail(world), DiscardCheckpoint)
    assert only(stopped(world), DiscardCheckpoint).checkpoint_id == n


def test_too_many_failed_checkpoints_fail_the_job() -> None:
    """The job fails when consecutive failures exceed the tolerance."""
    world = World().running()
    n, _ = world.allocate(snapshot(world))
    effects = world.decline(n, "a")
    assert world.master.status is JobStatus.FAILING
    assert "Exceeded checkpoint tolerable failure threshold." in (world.master.failure or "")
    assert of(effects, StopTasks)


def test_a_checkpoint_that_fails_when_all_tasks_have_finished_does_not_fail_the_job() -> None:
    """Every row is committed by then, so a restart would achieve nothing."""
    world = World("a").running()
    n, _ = world.allocate(snapshot(world))
    world.acknowledge(n, "a")
    world.status(TaskStatus.FINISHED, "a")
    effects = world.handle(
        CheckpointRecorded(checkpoint_id=n, outcome=Recorded.FAILED, message="disk full")
    )
    assert world.master.status is JobStatus.RUNNING
    assert only(effects, RecordEnd).status is JobStatus.FINISHED


def test_a_restart_waits_for_the_outcome_of_a_checkpoint_that_is_being_recorded() -> None:
    """PROTOCOL P11: the restart may use that checkpoint. No task is notified of it."""
    world = World().running()
    n, _ = world.allocate(snapshot(world))
    recording = world.acknowledge(n)
    fail(world)
    assert stopped(world) == []
    assert world.master.status is JobStatus.FAILING
    effects = world.record(recording)
    assert not of(effects, NotifyCheckpointComplete)
    assert world.master.status is JobStatus.RESTARTING
    assert world.master.coordinator.store.ids == (n,)


PATIENT = RestartConfig(
    type=RestartStrategyType.FIXED_DELAY,
    fixed_delay_attempts=1_000,
    fixed_delay_ms=1_000,
    give_up_after_ms=10_000,
)


def test_a_job_that_fails_of_the_same_cause_again_and_again_is_given_up_with_that_cause() -> None:
    """The third failure reports the repetition; after ``weir.restart.give-up-after`` the job fails
    for good."""
    world = World(restart=PATIENT).running()
    fail_again(world, Cause(key="KeyError in lookup", trace="Traceback"), times=100)
    failing = [
        one for one in of(world.effects, JobStatusChanged) if one.status is JobStatus.FAILING
    ]
    assert [one.message for one in failing[:2]] == ["Task 'a' failed: out of memory"] * 2
    assert (
        "(failure 3 with the same cause in 2 s without a completed checkpoint;"
        in failing[2].message
    )
    assert {(one.trace, one.vertex) for one in failing} == {("Traceback", "a")}
    end = only(world.effects, RecordEnd)
    assert (end.status, len(failing)) == (JobStatus.FAILED, 11)
    assert end.failure == failing[-1].message


def test_a_job_whose_checkpoints_complete_between_two_failures_is_not_given_up() -> None:
    """It makes progress each time; an intermediate savepoint is no progress, since no restart uses
    it."""
    for kind, given_up in ((RequestKind.CHECKPOINT, False), (RequestKind.SAVEPOINT, True)):
        world = World(restart=PATIENT).running()
        for _ in range(20):
            fail_again(world, Cause(key="KeyError in lookup"), times=1)
            if world.master.status is JobStatus.RUNNING:
                world.complete(snapshot(world, kind))
        assert bool(of(world.effects, RecordEnd)) is given_up


def test_a_checkpoint_that_is_recorded_while_the_job_fails_counts() -> None:
    """PROTOCOL P11: the next attempt restores from it, so the job is not given up."""
    world = World(restart=PATIENT).running()
    cause = Cause(key="KeyError in lookup")
    fail_again(world, cause, times=10)
    n, _ = world.allocate(snapshot(world))
    recording = world.acknowledge(n)
    fail(world, cause=cause)
    stopped(world)
    world.record(recording)
    assert world.master.status is JobStatus.RESTARTING


def test_an_attempt_that_fails_fatally_ends_the_job_and_another_failure_restarts_it() -> None:
    """``fatal`` means that a retry cannot help."""
    for fatal, kind in ((True, RecordEnd), (False, BeginAttempt)):
        world = World()
        world.handle(JobSubmitted())
        world.handle(AttemptFailed(message="no such table", fatal=fatal, timestamp_ms=1))
        world.pass_time(1_000)
        assert of(world.effects[1:], kind)


def test_a_final_checkpoint_is_triggered_at_once_when_all_tasks_wait() -> None:
    """MISSION E3: whatever the interval; the job then finishes."""
    world = World(config=with_interval(1_000_000))
    world.submit(chance=0.9)
    world.status(TaskStatus.RUNNING)
    assert not of(world.status(WAITING, "a"), AllocateLocation)
    n, effects = world.complete(world.status(WAITING, "b"))
    assert {e.checkpoint_id for e in of(effects, NotifyCheckpointComplete)} == {n}
    assert not of(effects, AllocateLocation)
    end = only(world.status(TaskStatus.FINISHED), RecordEnd)
    assert (end.status, end.savepoint, world.master.status) == (
        JobStatus.FINISHED,
        None,
        JobStatus.RUNNING,
    )
    ended = only(world.handle(EndRecorded(outcome=Recorded.WON)), JobEnded)
    assert (ended.status, ended.fenced) == (JobStatus.FINISHED, False)


def test_a_checkpoint_triggered_before_the_last_task_waited_is_not_its_final_one() -> None:
    """PROTOCOL P29: a task waits for a checkpoint whose barrier follows its end."""
    world = World(config=with_interval(1_000, max_concurrent_checkpoints=2)).running()
    world.allocate(snapshot(world))
    world.status(WAITING, "a")
    assert only(world.status(WAITING, "b"), AllocateLocation).kind is SnapshotKind.CHECKPOINT


def test_a_checkpoint_triggered_after_all_tasks_waited_makes_another_unnecessary() -> None:
    """Only one final checkpoint runs at a time."""
    world = World(config=with_interval(1_000_000)).running()
    world.status(WAITING, "a")
    world.allocate(world.status(WAITING, "b"))
    assert not of(world.status(WAITING, "a"), AllocateLocation)


def test_a_checkpoint_that_covers_one_waiting_task_does_not_cover_one_that_waits_later() -> None:
    """PROTOCOL P29: the later one gets a checkpoint of its own."""
    world = World().running()
    world.allocate(world.status(WAITING, "a"))
    assert of(world.status(WAITING, "b"), AllocateLocation)


def test_a_branch_that_ends_early_gets_a_checkpoint_at_once_if_there_is_no_interval() -> None:
    """PROTOCOL P29."""
    world = World().running()
    assert of(world.status(WAITING, "a"), AllocateLocation)


def test_a_branch_that_ends_early_waits_for_the_next_periodic_checkpoint() -> None:
    """PROTOCOL P29."""
    world = World(config=with_interval(100)).running(restored=None)
    n, _ = world.allocate(world.pass_time(0))
    world.record(world.acknowledge(n))
    assert world.status(WAITING, "a") == []
    assert of(world.pass_time(100), AllocateLocation)


def test_a_failed_final_checkpoint_is_triggered_again_within_the_tolerance() -> None:
    """It counts like any other checkpoint, and the next one follows after a delay."""
    config = CheckpointConfig(interval_ms=None, tolerable_failed_checkpoints=1)
    world = World("a", config=config).running()
    n, _ = world.allocate(world.status(WAITING))
    world.decline(n, "a")
    n, _ = world.allocate(world.pass_time(100))
    world.decline(n, "a")
    assert world.master.status is JobStatus.FAILING


def test_an_end_that_could_not_be_recorded_is_a_failure_of_the_attempt() -> None:
    """The restored attempt records the end again."""
    world = World("a").running()
    world.complete(world.status(WAITING))
    world.status(TaskStatus.FINISHED)
    assert of(world.handle(EndRecorded(outcome=Recorded.FAILED, message="disk")), StopTasks)
    stopped(world)
    world.pass_time(1_000)
    world.effects.clear()
    world.begin(2, checkpoint(1, task_state("a", finished=True)))
    assert only(world.effects, RecordEnd).status is JobStatus.FINISHED


# -- stop with savepoint ---------------------------------------------------------------------------


def test_stop_with_savepoint_takes_it_waits_for_all_tasks_and_ends_the_job() -> None:
    """MISSION E4: the answer comes once the end is recorded, and names the savepoint."""
    world = World(config=with_interval(100)).running()
    n, effects = world.allocate(snapshot(world, RequestKind.STOP))
    assert {t.kind for t in of(effects, TriggerCheckpoint)} == {SnapshotKind.SYNC_SAVEPOINT}
    assert world.master.next_deadline() == world.now_ms + world.master._config.timeout_ms
    effects = world.record(world.acknowledge(n))
    assert len(of(effects, NotifyCheckpointComplete)) == 2
    assert world.master.coordinator.store.ids == ()
    world.status(TaskStatus.FINISHED, "a")
    end = only(world.status(TaskStatus.FINISHED, "b"), RecordEnd)
    assert (end.status, end.savepoint) == (JobStatus.FINISHED, f"/savepoints/savepoint-{n}")
    assert not of(world.effects, AnswerRequest)
    effects = world.handle(EndRecorded(outcome=Recorded.WON))
    answer = only(effects, AnswerRequest).checkpoint
    assert answer is not None
    assert answer.external_path == only(effects, JobEnded).savepoint == end.savepoint


def test_a_second_stop_joins_the_first_and_gets_the_same_answer() -> None:
    """PROTOCOL P34."""
    world = World("a").running()
    effects = snapshot(world, RequestKind.STOP, "1")
    assert snapshot(world, RequestKind.STOP, "2") == []
    world.complete(effects)
    world.status(TaskStatus.FINISHED)
    answers = of(world.handle(EndRecorded(outcome=Recorded.WON)), AnswerRequest)
    assert [a.request for a in answers] == ["1", "2"]
    assert answers[0].checkpoint == answers[1].checkpoint


def test_stop_aborts_what_is_pending_and_waits_for_what_is_being_recorded() -> None:
    """PROTOCOL P34."""
    config = CheckpointConfig(interval_ms=None, max_concurrent_checkpoints=2)
    world = World("a", config=config).running()
    first, _ = world.allocate(snapshot(world, name="1"))
    world.allocate(snapshot(world, name="2"))
    recording = world.acknowledge(first)
    effects = snapshot(world, RequestKind.STOP, "stop")
    assert only(effects, AnswerRequest).request == "2"
    assert not of(effects, AllocateLocation)
    assert only(world.record(recording), AllocateLocation).kind is SnapshotKind.SYNC_SAVEPOINT


def test_a_declined_stop_savepoint_answers_the_stop_and_fails_the_job_over() -> None:
    """A global failover follows, its cause is kept, and the scheduler restarts afterwards."""
    world = World(config=with_interval(100)).running()
    n, _ = world.allocate(snapshot(world, RequestKind.STOP))
    effects = world.decline(n, "b")
    assert "the disk is full" in (only(effects, AnswerRequest).failure or "")
    assert "the disk is full" in (world.master.failure or "")
    stopped(world)
    world.pass_time(1_000)
    world.begin(2)
    world.status(TaskStatus.RUNNING)
    assert world.master.coordinator.trigger.scheduling


def test_a_stop_savepoint_that_expires_fails_the_stop() -> None:
    """As if it had been declined."""
    world = World("a", config=CheckpointConfig(interval_ms=None, timeout_ms=100)).running()
    world.allocate(snapshot(world, RequestKind.STOP))
    effects = world.pass_time(100)
    assert "expired" in (only(effects, AnswerRequest).failure or "")
    assert world.master.status is JobStatus.FAILING


def test_a_stop_that_fails_before_any_task_was_triggered_lets_the_job_continue() -> None:
    """No task knows about it, so no failover is needed."""
    world = World(config=with_interval(100)).running()
    allocation = only(snapshot(world, RequestKind.STOP), AllocateLocation).allocation
    effects = world.handle(
        LocationFailed(allocation=allocation, message="no space", timestamp_ms=1)
    )
    assert "no space" in (only(effects, AnswerRequest).failure or "")
    assert world.master.status is JobStatus.RUNNING
    assert world.master.coordinator.trigger.scheduling


def test_a_task_that_fails_after_the_savepoint_fails_the_stop_and_names_the_savepoint() -> None:
    """The savepoint still exists."""
    world = World("a").running()
    n, _ = world.complete(snapshot(world, RequestKind.STOP))
    answer = only(fail(world), AnswerRequest)
    assert f"/savepoints/savepoint-{n}" in (answer.failure or "")


def test_a_task_that_fails_while_the_stop_savepoint_is_recorded_answers_after_the_outcome() -> None:
    """PROTOCOL P11: only the outcome shows whether there is a savepoint to name."""
    world = World("a").running()
    n, _ = world.allocate(snapshot(world, RequestKind.STOP))
    recording = world.acknowledge(n)
    assert not of(fail(world), AnswerRequest)
    assert f"savepoint-{n}" in (only(world.record(recording), AnswerRequest).failure or "")


def test_other_requests_are_refused_while_the_job_is_being_stopped() -> None:
    """The stop's savepoint is the last snapshot."""
    world = World("a").running()
    snapshot(world, RequestKind.STOP, "1")
    assert only(snapshot(world, RequestKind.SAVEPOINT, "2"), AnswerRequest).failure


def test_a_savepoint_without_a_directory_says_how_to_give_one() -> None:
    """Having neither a default directory nor a given one is an error."""
    world = World(savepoint_directory=None).running()
    for kind in (RequestKind.SAVEPOINT, RequestKind.STOP):
        answer = only(snapshot(world, kind), AnswerRequest)
        assert "execution.checkpointing.savepoint-dir" in (answer.failure or "")
    given = SnapshotRequested(request="x", kind=RequestKind.SAVEPOINT, target="/there")
    assert only(world.handle(given), AllocateLocation).target == "/there"


# -- cancel, suspend, fencing ----------------------------------------------------------------------


@pytest.mark.parametrize("retention", list(RetainExternalized))
def test_cancel_stops_the_tasks_and_deletes_checkpoints_only_where_configured(
    retention: RetainExternalized,
) -> None:
    """``externalized-checkpoint-retention``."""
    world = World(config=CheckpointConfig(interval_ms=None, retention=retention)).running()
    assert of(world.handle(CancelRequested(request="c")), StopTasks)
    assert world.master.status is JobStatus.CANCELLING
    end = only(stopped(world), RecordEnd)
    assert end.delete_checkpoints == (retention is not RetainExternalized.RETAIN_ON_CANCELLATION)
    effects = world.handle(EndRecorded(outcome=Recorded.WON))
    assert only(effects, AnswerRequest) == AnswerRequest(request="c")
    assert only(effects, JobEnded).status is JobStatus.CANCELED


def test_cancel_overrides_a_stop_with_savepoint() -> None:
    """PROTOCOL P34: the stop gets a failure as its answer."""
    world = World("a").running()
    world.allocate(snapshot(world, RequestKind.STOP, "stop"))
    answer = only(world.handle(CancelRequested(request="c")), AnswerRequest)
    assert (answer.request, bool(answer.failure)) == ("stop", True)
    assert world.master.status is JobStatus.CANCELLING


def test_cancel_while_an_attempt_starts_waits_for_its_outcome() -> None:
    """Tasks that are still starting are stopped as well."""
    world = World()
    world.handle(JobSubmitted())
    assert not of(world.handle(CancelRequested(request="c")), RecordEnd)
    world.begin(1)
    assert of(world.effects, StopTasks)
    assert of(stopped(world), RecordEnd)


def test_cancel_while_a_restart_is_due_ends_the_job_without_another_attempt() -> None:
    """The restart's timer is cancelled."""
    world = World().running()
    fail(world)
    stopped(world)
    assert of(world.handle(CancelRequested(request="c")), RecordEnd)
    assert world.master.next_deadline() is None


def test_suspend_stops_the_tasks_and_leaves_the_job_resumable() -> None:
    """SIGTERM: the job's end is not recorded."""
    world = World().running()
    assert of(world.handle(SuspendRequested()), StopTasks)
    effects = stopped(world)
    assert not of(effects, RecordEnd)
    assert only(effects, JobEnded).status is JobStatus.SUSPENDED


def test_a_fenced_checkpoint_ends_the_driver_without_touching_a_file() -> None:
    """PROTOCOL P17."""
    world = World().running()
    n, _ = world.allocate(snapshot(world))
    effects = world.record(world.acknowledge(n), Recorded.FENCED)
    assert of(effects, StopTasks)
    assert only(effects, AnswerRequest).failure
    ended = only(stopped(world), JobEnded)
    assert ended.fenced
    assert not of(world.effects, DiscardCheckpoint)
    assert not of(world.effects, RecordEnd)


def test_a_fenced_end_ends_the_driver_as_fenced() -> None:
    """PROTOCOL P17."""
    world = World().running()
    world.handle(CancelRequested(request="c"))
    stopped(world)
    effects = world.handle(EndRecorded(outcome=Recorded.FENCED))
    assert only(effects, JobEnded).fenced
    assert only(effects, AnswerRequest).failure


def test_requests_are_refused_at_once_when_the_job_is_not_running() -> None:
    """Also once it has ended."""
    world = World().running()
    fail(world)
    assert "FAILING" in (only(snapshot(world), AnswerRequest).failure or "")
    stopped(world)
    refused = only(snapshot(world, RequestKind.STOP), AnswerRequest).failure
    assert (
        refused
        == "The job is RESTARTING, so no snapshot can be taken: retry once it is RUNNING, or"
        " end it with 'weir cancel', which keeps its completed checkpoints. It failed because:"
        " Task 'a' failed: out of memory"
    )
    world.pass_time(1_000)
    world.begin(2)
    world.handle(SuspendRequested())
    stopped(world)
    assert "SUSPENDED" in (only(snapshot(world), AnswerRequest).failure or "")
    assert only(world.handle(CancelRequested(request="c")), AnswerRequest).failure


def test_the_store_is_seeded_with_the_restored_checkpoint_but_not_with_a_savepoint() -> None:
    """A savepoint belongs to its user."""
    for kind, ids in ((SnapshotKind.CHECKPOINT, (3,)), (SnapshotKind.SAVEPOINT, ())):
        world = World("a")
        world.submit(checkpoint(3, task_state("a"), kind=kind))
        assert world.master.coordinator.store.ids == ids
