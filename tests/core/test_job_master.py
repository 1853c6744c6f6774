"""The job as a whole: lifecycle, end, stop with savepoint, cancel and suspend."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.kit.job_master import (
    RESTART_DELAY_MS,
    MasterWorld,
    checkpoint,
    completed,
    of,
    only,
    task_state,
    with_interval,
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
    RecordCheckpoint,
    RecordEnd,
    RequestKind,
    SnapshotRequested,
    StopTasks,
    SuspendRequested,
)
from weir.core.messages.protocol import NotifyCheckpointComplete, TriggerCheckpoint
from weir.core.settings import (
    CheckpointConfig,
    RestartConfig,
    RestartStrategyType,
    RetainExternalized,
)
from weir.core.status import JobStatus, next_status
from weir.core.types import Cause, Recorded, SnapshotKind, TaskStatus
from weir.errors import InvariantError

WAITING = TaskStatus.WAITING_FOR_FINAL_CHECKPOINT


def fail_again(world: MasterWorld, cause: Cause, *, times: int) -> None:
    """Fail attempt after attempt with one cause, from the running one on, until the job ends."""
    for _ in range(times):
        world.fail(cause=cause)
        world.stopped()
        if world.master.status is not JobStatus.RESTARTING:
            return
        world.pass_time(RESTART_DELAY_MS)
        world.begin(world.master.attempt + 1)
        world.status(TaskStatus.RUNNING)


def test_a_submitted_job_starts_an_attempt_and_runs_when_that_has_started() -> None:
    """CREATED -> RUNNING, with every task INITIALIZING."""
    world = MasterWorld()
    assert world.handle(JobSubmitted()) == [BeginAttempt()]
    assert world.master.status is JobStatus.CREATED
    world.begin(1)
    assert world.master.status is JobStatus.RUNNING
    assert world.master.task_status("a") is TaskStatus.INITIALIZING


MOVES = {
    JobStatus.CREATED: "RUNNING FAILING CANCELLING SUSPENDED",
    JobStatus.RUNNING: "FAILING CANCELLING FINISHED SUSPENDED",
    JobStatus.FAILING: "RESTARTING FAILED CANCELLING SUSPENDED",
    JobStatus.RESTARTING: "RUNNING FAILING CANCELLING SUSPENDED",
    JobStatus.CANCELLING: "CANCELED FAILED SUSPENDED",
    JobStatus.FAILED: "",
    JobStatus.CANCELED: "",
    JobStatus.FINISHED: "",
    JobStatus.SUSPENDED: "",
}


@pytest.mark.parametrize("source", list(JobStatus))
@pytest.mark.parametrize("target", list(JobStatus))
def test_a_job_fails_through_failing_and_leaves_no_terminal_status(
    source: JobStatus, target: JobStatus
) -> None:
    """Any other move raises."""
    if target.name in MOVES[source].split():
        assert next_status(source, target) is target
    else:
        with pytest.raises(InvariantError, match=f"cannot go from {source.name} to {target.name}"):
            next_status(source, target)


def test_a_job_is_submitted_once() -> None:
    """Neither while its first attempt starts nor while a restart is due."""
    world = MasterWorld()
    world.handle(JobSubmitted())
    with pytest.raises(InvariantError, match="the job was submitted twice"):
        world.handle(JobSubmitted())
    world.begin(1)
    world.fail()
    world.stopped()
    assert world.master.status is JobStatus.RESTARTING
    with pytest.raises(InvariantError, match="the job was submitted twice"):
        world.handle(JobSubmitted())


def test_tasks_that_were_fully_finished_in_the_restored_checkpoint_are_finished() -> None:
    """MISSION D5: recovery does not start finished tasks."""
    world = MasterWorld()
    world.submit(checkpoint(3, task_state("a", finished=True), task_state("b")))
    assert world.master.task_status("a") is TaskStatus.FINISHED
    assert world.master.task_status("b") is TaskStatus.INITIALIZING


def test_a_job_restored_from_a_drained_savepoint_finishes_at_once() -> None:
    """PROTOCOL P35."""
    tasks = (task_state("a", finished=True), task_state("b", finished=True))
    world = MasterWorld()
    world.submit(checkpoint(3, *tasks, kind=SnapshotKind.SYNC_SAVEPOINT, job_id="e" * 32))
    assert only(world.effects, RecordEnd).status is JobStatus.FINISHED


def test_a_failed_task_restarts_the_whole_job_after_the_delay_of_the_strategy() -> None:
    """PROTOCOL P39: FAILING, tasks stopped, RESTARTING, a new attempt, RUNNING."""
    world = MasterWorld().running()
    assert only(world.fail(), StopTasks).attempt == 1
    assert world.master.status is JobStatus.FAILING
    assert world.stopped()
    assert world.master.status is JobStatus.RESTARTING
    assert world.pass_time(999) == []
    assert world.pass_time(1) == [BeginAttempt()]
    world.begin(2)
    assert (world.master.status, world.master.attempt) == (JobStatus.RUNNING, 2)


def test_a_task_that_failed_is_shown_as_failed_and_the_others_are_not() -> None:
    """Until the next attempt begins."""
    world = MasterWorld().running()
    world.fail("b")
    shown = [world.master.task_status(vertex) for vertex in ("a", "b")]
    assert shown == [TaskStatus.RUNNING, TaskStatus.FAILED]


def test_a_job_without_attempts_left_ends_as_failed() -> None:
    """The failure gives its cause and the strategy."""
    world = MasterWorld(restart=RestartConfig(type=RestartStrategyType.NONE)).running()
    world.fail()
    end = only(world.stopped(), RecordEnd)
    assert (end.status, end.delete_checkpoints) == (JobStatus.FAILED, False)
    assert "out of memory" in (end.failure or "")
    ended = only(world.handle(EndRecorded(outcome=Recorded.WON)), JobEnded)
    assert (ended.status, ended.failure) == (JobStatus.FAILED, end.failure)


def test_a_job_restarts_as_often_as_its_strategy_allows() -> None:
    """Three times here; every failure of an attempt counts."""
    world = MasterWorld("a").running()
    for _ in range(3):
        world.fail_over()
    world.fail()
    end = only(world.stopped(), RecordEnd)
    assert end.status is JobStatus.FAILED
    assert "not restarted: " in (end.failure or "")


def test_the_scheduler_runs_only_while_the_job_is_running() -> None:
    """MISSION A1: any other status stops it and aborts pending checkpoints."""
    world = MasterWorld(config=with_interval(100)).running()
    world.allocate(world.pass_time(0))
    world.fail()
    assert world.master.coordinator.pending == ()
    assert world.master.next_deadline() is None
    assert "Checkpoint Coordinator is suspending." in (
        world.master.stats(world.now_ms).history[0].failure_message or ""
    )


def test_files_of_checkpoints_aborted_by_a_failure_are_deleted_after_the_tasks_have_stopped() -> (
    None
):
    """A snapshot may write until then."""
    world = MasterWorld().running()
    n = world.trigger()
    assert not of(world.fail(), DiscardCheckpoint)
    assert only(world.stopped(), DiscardCheckpoint).checkpoint_id == n


def test_files_of_a_checkpoint_whose_record_fails_after_the_tasks_have_stopped_are_deleted() -> (
    None
):
    """At once, since nothing writes any more."""
    world = MasterWorld().running()
    recording = world.acknowledge(world.trigger())
    world.fail()
    world.stopped()
    assert of(world.record(recording, Recorded.FAILED), DiscardCheckpoint)


def test_a_checkpoint_that_fails_when_all_tasks_have_finished_does_not_fail_the_job() -> None:
    """Every row is committed by then, so a restart would achieve nothing."""
    world = MasterWorld("a").running()
    n = world.trigger()
    world.acknowledge(n, "a")
    world.status(TaskStatus.FINISHED, "a")
    effects = world.handle(
        CheckpointRecorded(checkpoint_id=n, outcome=Recorded.FAILED, message="disk full")
    )
    assert world.master.status is JobStatus.RUNNING
    assert only(effects, RecordEnd).status is JobStatus.FINISHED


def test_a_restart_waits_for_the_outcome_of_a_checkpoint_that_is_being_recorded() -> None:
    """PROTOCOL P11: the restart may use that checkpoint. No task is notified of it."""
    world = MasterWorld().running()
    n = world.trigger()
    recording = world.acknowledge(n)
    world.fail()
    assert world.stopped() == []
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
    world = MasterWorld(restart=PATIENT).running()
    fail_again(world, Cause(key="KeyError in lookup", trace="Traceback"), times=100)
    failing = [
        change
        for change in of(world.effects, JobStatusChanged)
        if change.status is JobStatus.FAILING
    ]
    assert [change.message for change in failing[:2]] == ["Task 'a' failed: out of memory"] * 2
    assert (
        "(failure 3 with the same cause in 2 s without a completed checkpoint;"
        in failing[2].message
    )
    assert {(change.trace, change.vertex) for change in failing} == {("Traceback", "a")}
    end = only(world.effects, RecordEnd)
    assert (end.status, len(failing)) == (JobStatus.FAILED, 11)
    assert end.failure == failing[-1].message


def test_a_job_whose_checkpoints_complete_between_two_failures_is_not_given_up() -> None:
    """It makes progress each time; an intermediate savepoint is no progress, since no restart uses
    it."""
    for kind, given_up in ((RequestKind.CHECKPOINT, False), (RequestKind.SAVEPOINT, True)):
        world = MasterWorld(restart=PATIENT).running()
        for _ in range(20):
            fail_again(world, Cause(key="KeyError in lookup"), times=1)
            if world.master.status is JobStatus.RUNNING:
                world.complete(world.ask(kind))
        assert bool(of(world.effects, RecordEnd)) is given_up


def test_a_job_that_fails_at_one_input_is_given_up_though_checkpoints_complete_before_it() -> None:
    """None of them contains the input; a job that gets past each input is not given up."""
    for same, given_up in ((True, True), (False, False)):
        world = MasterWorld(restart=PATIENT).running()
        for number in range(20):
            name = "file x" if same else f"file {number}"
            fail_again(world, Cause(key="KeyError in lookup", input=name), times=1)
            if world.master.status is JobStatus.RUNNING:
                world.complete(world.ask(RequestKind.CHECKPOINT))
        assert bool(of(world.effects, RecordEnd)) is given_up
    assert "failure 3" not in str(world.master.failure)


def test_a_checkpoint_that_is_recorded_while_the_job_fails_counts() -> None:
    """PROTOCOL P11: the next attempt restores from it, so the job is not given up."""
    world = MasterWorld(restart=PATIENT).running()
    cause = Cause(key="KeyError in lookup")
    fail_again(world, cause, times=10)
    n = world.trigger()
    recording = world.acknowledge(n)
    world.fail(cause=cause)
    world.stopped()
    world.record(recording)
    assert world.master.status is JobStatus.RESTARTING


def test_an_attempt_that_fails_fatally_ends_the_job_and_another_failure_restarts_it() -> None:
    """``fatal`` means that a retry cannot help."""
    for fatal, kind in ((True, RecordEnd), (False, BeginAttempt)):
        world = MasterWorld()
        world.handle(JobSubmitted())
        world.handle(AttemptFailed(message="no such table", fatal=fatal))
        world.pass_time(1_000)
        assert of(world.effects[1:], kind)


def test_a_checkpoint_triggered_before_the_last_task_waited_is_not_its_final_one() -> None:
    """PROTOCOL P29: a task waits for a checkpoint whose barrier follows its end."""
    world = MasterWorld(config=with_interval(1_000, max_concurrent_checkpoints=2)).running()
    world.trigger()
    world.status(WAITING, "a")
    assert only(world.status(WAITING, "b"), AllocateLocation).kind is SnapshotKind.CHECKPOINT


def test_a_checkpoint_triggered_after_all_tasks_waited_makes_another_unnecessary() -> None:
    """Only one final checkpoint runs at a time."""
    world = MasterWorld(config=with_interval(1_000_000)).running()
    world.status(WAITING, "a")
    world.allocate(world.status(WAITING, "b"))
    assert not of(world.status(WAITING, "a"), AllocateLocation)


def test_a_checkpoint_that_covers_a_waiting_task_does_not_cover_a_task_that_waits_later() -> None:
    """PROTOCOL P29: the later one gets a checkpoint of its own, after the pending one."""
    world = MasterWorld().running()
    n, _ = world.allocate(world.status(WAITING, "a"))
    assert not of(world.status(WAITING, "b"), AllocateLocation)
    assert of(world.record(world.acknowledge(n)), AllocateLocation)


def test_a_branch_that_ends_early_gets_a_checkpoint_at_once_if_there_is_no_interval() -> None:
    """PROTOCOL P29."""
    world = MasterWorld().running()
    assert of(world.status(WAITING, "a"), AllocateLocation)


def test_a_branch_that_ends_early_waits_for_the_next_periodic_checkpoint() -> None:
    """PROTOCOL P29."""
    world = MasterWorld(config=with_interval(100)).running(restored=None)
    n, _ = world.allocate(world.pass_time(0))
    world.record(world.acknowledge(n))
    assert world.status(WAITING, "a") == []
    assert of(world.pass_time(100), AllocateLocation)


def test_an_end_that_could_not_be_recorded_is_a_failure_of_the_attempt() -> None:
    """The restored attempt records the end again."""
    world = MasterWorld("a").running()
    world.complete(world.status(WAITING))
    world.status(TaskStatus.FINISHED)
    assert of(world.handle(EndRecorded(outcome=Recorded.FAILED, message="disk")), StopTasks)
    world.stopped()
    world.pass_time(1_000)
    world.effects.clear()
    world.begin(2, checkpoint(1, task_state("a", finished=True)))
    assert only(world.effects, RecordEnd).status is JobStatus.FINISHED


# -- stop with savepoint ---------------------------------------------------------------------------


def test_stop_with_savepoint_takes_it_waits_for_all_tasks_and_ends_the_job() -> None:
    """MISSION E4: the answer comes once the end is recorded, and names the savepoint."""
    world = MasterWorld(config=with_interval(100)).running()
    n, effects = world.allocate(world.ask(RequestKind.STOP))
    assert {t.kind for t in of(effects, TriggerCheckpoint)} == {SnapshotKind.SYNC_SAVEPOINT}
    assert world.master.next_deadline() == world.now_ms + world.config.timeout_ms
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
    world = MasterWorld("a").running()
    effects = world.ask(RequestKind.STOP, "1")
    assert world.ask(RequestKind.STOP, "2") == []
    world.complete(effects)
    world.status(TaskStatus.FINISHED)
    answers = of(world.handle(EndRecorded(outcome=Recorded.WON)), AnswerRequest)
    assert [a.request for a in answers] == ["1", "2"]
    assert answers[0].checkpoint == answers[1].checkpoint


def test_stop_aborts_what_is_pending_and_waits_for_what_is_being_recorded() -> None:
    """PROTOCOL P34."""
    config = CheckpointConfig(interval_ms=None, max_concurrent_checkpoints=2)
    world = MasterWorld("a", config=config).running()
    first = world.trigger(name="1")
    world.trigger(name="2")
    recording = world.acknowledge(first)
    effects = world.ask(RequestKind.STOP, "stop")
    assert only(effects, AnswerRequest).request == "2"
    assert not of(effects, AllocateLocation)
    assert only(world.record(recording), AllocateLocation).kind is SnapshotKind.SYNC_SAVEPOINT


def test_a_stop_that_fails_before_any_task_was_triggered_lets_the_job_continue() -> None:
    """No task knows about it, so no failover is needed."""
    world = MasterWorld(config=with_interval(100)).running()
    allocation = only(world.ask(RequestKind.STOP), AllocateLocation).allocation
    effects = world.handle(
        LocationFailed(allocation=allocation, message="no space", timestamp_ms=1)
    )
    assert "no space" in (only(effects, AnswerRequest).failure or "")
    assert world.master.status is JobStatus.RUNNING
    assert world.master.coordinator.trigger.scheduling


def test_a_task_that_fails_after_the_savepoint_fails_the_stop_and_names_the_savepoint() -> None:
    """The savepoint still exists."""
    world = MasterWorld("a").running()
    n, _ = world.complete(world.ask(RequestKind.STOP))
    answer = only(world.fail(), AnswerRequest)
    assert f"/savepoints/savepoint-{n}" in (answer.failure or "")


def test_a_task_that_fails_while_the_stop_savepoint_is_recorded_answers_after_the_outcome() -> None:
    """PROTOCOL P11: only the outcome shows whether there is a savepoint to name."""
    world = MasterWorld("a").running()
    n = world.trigger(RequestKind.STOP)
    recording = world.acknowledge(n)
    assert not of(world.fail(), AnswerRequest)
    assert f"savepoint-{n}" in (only(world.record(recording), AnswerRequest).failure or "")


def test_an_attempt_starts_from_a_checkpoint_whose_record_landed_after_it_was_aborted() -> None:
    """PROTOCOL P11, P17: an object store carries out a request that was given up."""
    world = MasterWorld("a").running()
    recording = world.acknowledge(world.trigger())
    world.record(recording, Recorded.FAILED)
    late = completed(only(recording, RecordCheckpoint))
    world.fail_over(late)
    world.master.validate()
    assert world.master.coordinator.store.ids == (late.checkpoint_id,)


def test_a_stop_savepoint_that_is_not_recorded_after_a_task_failed_is_not_a_second_failure() -> (
    None
):
    """PROTOCOL P34: the stop is answered, and the failover that has begun goes on."""
    world = MasterWorld("a").running()
    recording = world.acknowledge(world.trigger(RequestKind.STOP))
    world.fail()
    first = world.master.failure
    world.stopped()
    effects = world.record(recording, Recorded.FAILED)
    answer = only(effects, AnswerRequest)
    assert "Failure to finalize checkpoint." in (answer.failure or "")
    assert [change.status for change in of(effects, JobStatusChanged)] == [JobStatus.RESTARTING]
    assert world.master.failure == first


@pytest.mark.parametrize(("drain", "how"), [(False, "without draining"), (True, "with draining")])
def test_other_requests_are_refused_while_the_job_is_being_stopped(drain: bool, how: str) -> None:
    """The stop's savepoint is the last snapshot, and a stop that drains is another stop."""
    world = MasterWorld("a").running()
    stop = SnapshotRequested(request="stop", kind=RequestKind.STOP, drain=drain)
    world.handle(stop)
    refused = only(world.ask(RequestKind.SAVEPOINT), AnswerRequest).failure
    assert "already being stopped with a savepoint" in (refused or "")
    other = replace(stop, request="other", drain=not drain)
    refused = only(world.handle(other), AnswerRequest).failure
    assert f"already being stopped {how}" in (refused or "")


@pytest.mark.parametrize(
    ("retention", "does"),
    [
        (RetainExternalized.RETAIN_ON_CANCELLATION, "keeps"),
        (RetainExternalized.DELETE_ON_CANCELLATION, "deletes"),
    ],
)
def test_a_refusal_that_names_cancel_says_what_becomes_of_the_checkpoints(
    retention: RetainExternalized, does: str
) -> None:
    """The user would not want to lose them."""
    world = MasterWorld(config=CheckpointConfig(interval_ms=None, retention=retention)).running()
    world.fail()
    refused = only(world.ask(), AnswerRequest).failure
    assert f"'weir cancel', which {does} its completed checkpoints" in (refused or "")


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((), "is CREATED and has not started yet"),
        ((CancelRequested(request="c"),), "is CANCELLING and about to end"),
    ],
)
def test_a_snapshot_before_the_start_or_at_the_end_is_refused_with_the_reason(
    events: tuple[CancelRequested, ...], said: str
) -> None:
    """What helps differs: to ask again, or not to."""
    world = MasterWorld()
    world.handle(JobSubmitted())
    for event in events:
        world.handle(event)
    assert said in (only(world.ask(), AnswerRequest).failure or "")


def test_a_savepoint_without_a_directory_says_how_to_give_one() -> None:
    """Having neither a default directory nor a given one is an error."""
    world = MasterWorld(savepoint_directory=None).running()
    for kind in (RequestKind.SAVEPOINT, RequestKind.STOP):
        answer = only(world.ask(kind), AnswerRequest)
        assert "execution.checkpointing.savepoint-dir" in (answer.failure or "")
    given = SnapshotRequested(request="x", kind=RequestKind.SAVEPOINT, target="/there")
    assert only(world.handle(given), AllocateLocation).target == "/there"


# -- cancel, suspend, fencing ----------------------------------------------------------------------


@pytest.mark.parametrize("retention", list(RetainExternalized))
def test_cancel_stops_the_tasks_and_deletes_checkpoints_only_where_configured(
    retention: RetainExternalized,
) -> None:
    """``externalized-checkpoint-retention``."""
    world = MasterWorld(config=CheckpointConfig(interval_ms=None, retention=retention)).running()
    assert of(world.handle(CancelRequested(request="c")), StopTasks)
    assert world.master.status is JobStatus.CANCELLING
    end = only(world.stopped(), RecordEnd)
    assert end.delete_checkpoints == (retention is not RetainExternalized.RETAIN_ON_CANCELLATION)
    effects = world.handle(EndRecorded(outcome=Recorded.WON))
    assert only(effects, AnswerRequest) == AnswerRequest(request="c")
    assert only(effects, JobEnded).status is JobStatus.CANCELED


def test_cancel_overrides_a_stop_with_savepoint() -> None:
    """PROTOCOL P34: the stop gets a failure as its answer."""
    world = MasterWorld("a").running()
    world.trigger(RequestKind.STOP, "stop")
    answer = only(world.handle(CancelRequested(request="c")), AnswerRequest)
    assert answer.request == "stop"
    assert (answer.failure or "").startswith("The job was not stopped with a savepoint: ")
    assert world.master.status is JobStatus.CANCELLING


def test_a_job_that_is_ending_cannot_be_cancelled() -> None:
    """Its end is being recorded: all it had to commit is committed."""
    world = MasterWorld("a").running()
    world.complete(world.status(WAITING))
    assert of(world.status(TaskStatus.FINISHED), RecordEnd)
    refused = only(world.handle(CancelRequested(request="c")), AnswerRequest)
    assert refused.failure == "Cannot cancel the job: it is already FINISHED."
    assert world.master.status is JobStatus.RUNNING


def test_cancel_while_an_attempt_starts_waits_for_its_outcome() -> None:
    """Tasks that are still starting are stopped as well."""
    world = MasterWorld()
    world.handle(JobSubmitted())
    assert not of(world.handle(CancelRequested(request="c")), RecordEnd)
    world.begin(1)
    assert of(world.effects, StopTasks)
    assert of(world.stopped(), RecordEnd)


def test_cancel_while_a_restart_is_due_ends_the_job_without_another_attempt() -> None:
    """The restart's timer is cancelled."""
    world = MasterWorld().running()
    world.fail()
    world.stopped()
    assert of(world.handle(CancelRequested(request="c")), RecordEnd)
    assert world.master.next_deadline() is None


def test_suspend_stops_the_tasks_and_leaves_the_job_resumable() -> None:
    """SIGTERM: the job's end is not recorded."""
    world = MasterWorld().running()
    assert of(world.handle(SuspendRequested()), StopTasks)
    effects = world.stopped()
    assert not of(effects, RecordEnd)
    assert only(effects, JobEnded).status is JobStatus.SUSPENDED


def test_a_fenced_checkpoint_ends_the_driver_without_touching_a_file() -> None:
    """PROTOCOL P17."""
    world = MasterWorld().running()
    n = world.trigger()
    effects = world.record(world.acknowledge(n), Recorded.FENCED)
    assert of(effects, StopTasks)
    assert only(effects, AnswerRequest).failure
    refused = only(world.handle(CancelRequested(request="c")), AnswerRequest).failure or ""
    assert "A newer attempt holds the job" in refused
    ended = only(world.stopped(), JobEnded)
    assert ended.fenced
    assert not of(world.effects, DiscardCheckpoint)
    assert not of(world.effects, RecordEnd)


def test_a_fenced_end_ends_the_driver_as_fenced() -> None:
    """PROTOCOL P17."""
    world = MasterWorld().running()
    world.handle(CancelRequested(request="c"))
    world.stopped()
    effects = world.handle(EndRecorded(outcome=Recorded.FENCED))
    assert only(effects, JobEnded).fenced
    assert only(effects, AnswerRequest).failure


def test_requests_are_refused_at_once_when_the_job_is_not_running() -> None:
    """Also once it has ended."""
    world = MasterWorld().running()
    world.fail()
    assert "FAILING" in (only(world.ask(), AnswerRequest).failure or "")
    world.stopped()
    refused = only(world.ask(RequestKind.STOP), AnswerRequest).failure
    assert (
        refused
        == "The job is RESTARTING, so no snapshot can be taken: retry once it is RUNNING, or"
        " end it with 'weir cancel', which keeps its completed checkpoints. It failed because:"
        " Task 'a' failed: out of memory"
    )
    world.pass_time(1_000)
    world.begin(2)
    world.handle(SuspendRequested())
    world.stopped()
    assert "SUSPENDED" in (only(world.ask(), AnswerRequest).failure or "")
    assert only(world.handle(CancelRequested(request="c")), AnswerRequest).failure


def test_the_store_is_seeded_with_the_restored_checkpoint_but_not_with_a_savepoint() -> None:
    """A savepoint belongs to its user."""
    for kind, ids in ((SnapshotKind.CHECKPOINT, (3,)), (SnapshotKind.SAVEPOINT, ())):
        world = MasterWorld("a")
        world.submit(checkpoint(3, task_state("a"), kind=kind))
        assert world.master.coordinator.store.ids == ids
