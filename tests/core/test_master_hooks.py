"""Master hooks in a checkpoint (MISSION A8, PROTOCOL P44), driven through ``JobMaster``."""

from __future__ import annotations

import pytest
from tests.kit.job_master import JOB_ID, MasterWorld, execution, of, only

from weir.core.checkpoints.coordinator import CheckpointCoordinator
from weir.core.checkpoints.outputs import RequestFailed
from weir.core.checkpoints.pending import PendingState
from weir.core.checkpoints.request_decider import CheckpointRequest, RequestOrigin, Verdict
from weir.core.coordination.coordinators import OperatorCoordinators
from weir.core.messages.job import (
    AllocateLocation,
    AnswerRequest,
    DiscardCheckpoint,
    HookFailed,
    HookTriggered,
    LocationAllocated,
    RecordCheckpoint,
    RequestKind,
    TriggerHook,
)
from weir.core.messages.protocol import NotifyCheckpointAborted, TriggerCheckpoint
from weir.core.settings import CheckpointConfig
from weir.core.status import JobStatus
from weir.core.types import CheckpointFailureReason as Reason
from weir.core.types import TaskStatus
from weir.errors import InvariantError

CONFIG = CheckpointConfig(interval_ms=None, timeout_ms=1_000, tolerable_failed_checkpoints=5)


def world(*vertices: str, hooks: tuple[str, ...] = ("broker", "audit")) -> MasterWorld:
    return MasterWorld(*vertices, config=CONFIG, hooks=hooks).running()


def answer(subject: MasterWorld, n: int, identifier: str, state: dict | None = None) -> list:
    return subject.handle(HookTriggered(identifier=identifier, checkpoint_id=n, state=state))


def fail(subject: MasterWorld, n: int, identifier: str) -> list:
    return subject.handle(HookFailed(identifier=identifier, checkpoint_id=n, message="no answer"))


def test_hooks_are_triggered_after_the_location_is_ours_and_before_any_task() -> None:
    """Flink's order: location, hooks, tasks. All hooks are called at once, in their order."""
    subject = world()
    asked = subject.ask()
    assert not of(asked, TriggerHook)
    n, effects = subject.allocate(asked)
    timestamp_ms = subject.master.coordinator.pending[0].timestamp_ms
    assert effects == [
        TriggerHook(identifier=identifier, checkpoint_id=n, timestamp_ms=timestamp_ms)
        for identifier in ("broker", "audit")
    ]
    assert answer(subject, n, "audit") == []
    triggers = answer(subject, n, "broker")
    assert [type(effect) for effect in triggers] == [TriggerCheckpoint, TriggerCheckpoint]
    assert {trigger.barrier.timestamp_ms for trigger in triggers} == {timestamp_ms}


def test_a_checkpoint_knows_which_hooks_have_not_answered() -> None:
    """MISSION A7."""
    subject = world()
    n = subject.trigger()
    answer(subject, n, "audit")
    (pending,) = subject.master.coordinator.pending
    assert pending.state is PendingState.TRIGGERING
    assert pending.not_yet_acknowledged_hooks == ("broker",)
    assert pending.not_yet_acknowledged == ("a", "b")
    assert not pending.fully_acknowledged


@pytest.mark.parametrize("kind", [RequestKind.CHECKPOINT, RequestKind.SAVEPOINT])
def test_what_hooks_returned_is_recorded_by_identifier(kind: RequestKind) -> None:
    """Sorted, without hooks that returned nothing; savepoints too."""
    subject = world(hooks=("z", "quiet", "a"))
    n = subject.trigger(kind)
    answer(subject, n, "z", {"offset": 3})
    answer(subject, n, "quiet", None)
    answer(subject, n, "a", {})
    record = only(subject.acknowledge(n), RecordCheckpoint)
    assert list(record.hook_states.items()) == [("a", {}), ("z", {"offset": 3})]


def test_without_hooks_tasks_are_triggered_at_once() -> None:
    """The record contains no hook states."""
    subject = world(hooks=())
    n, effects = subject.allocate(subject.ask())
    assert of(effects, TriggerCheckpoint)
    assert only(subject.acknowledge(n), RecordCheckpoint).hook_states == {}


def test_a_failing_hook_aborts_the_checkpoint_and_counts_as_an_unsuccessful_trigger() -> None:
    """MISSION A9: its location is removed, the requester is informed, no task hears of it; success
    resets the count."""
    subject = world()
    n = subject.trigger()
    effects = fail(subject, n, "broker")
    assert not of(effects, NotifyCheckpointAborted)
    assert only(effects, DiscardCheckpoint).checkpoint_id == n
    failure = only(effects, AnswerRequest).failure or ""
    assert "Trigger checkpoint failure." in failure
    assert "'broker': no answer" in failure
    assert subject.master.coordinator.pending == ()
    assert subject.master.stats(subject.now_ms).unsuccessful_triggers == 1
    entry = subject.master.stats(subject.now_ms).history[0]
    assert (entry.status, "no answer" in (entry.failure_message or "")) == ("FAILED", True)
    n = subject.trigger(name="2")
    answer(subject, n, "broker")
    assert subject.master.stats(subject.now_ms).unsuccessful_triggers == 1
    answer(subject, n, "audit")
    assert subject.master.stats(subject.now_ms).unsuccessful_triggers == 0


def test_a_failing_hook_does_not_count_against_the_tolerance() -> None:
    """TRIGGER_CHECKPOINT_FAILURE is not one of the counted reasons."""
    subject = MasterWorld(config=CheckpointConfig(interval_ms=None), hooks=("h",)).running()
    n = subject.trigger()
    fail(subject, n, "h")
    assert subject.master.status is JobStatus.RUNNING


def test_late_answers_of_hooks_for_an_aborted_checkpoint_are_ignored() -> None:
    """Whether they succeeded or failed."""
    subject = world()
    n = subject.trigger()
    fail(subject, n, "broker")
    assert answer(subject, n, "audit", {"x": 1}) == []
    assert fail(subject, n, "audit") == []
    assert subject.master.stats(subject.now_ms).unsuccessful_triggers == 1


def test_a_hook_that_answers_twice_is_a_bug() -> None:
    """The kernel calls a hook once per effect."""
    subject = world()
    n = subject.trigger()
    answer(subject, n, "audit")
    with pytest.raises(InvariantError, match="does not wait for master hook 'audit'"):
        answer(subject, n, "audit")


def test_a_checkpoint_expires_while_a_hook_does_not_answer_and_names_it() -> None:
    """The timeout covers the whole of TRIGGERING, and counts as an unsuccessful trigger."""
    subject = world()
    n = subject.trigger()
    answer(subject, n, "audit")
    assert subject.pass_time(999) == []
    failure = only(subject.pass_time(1), AnswerRequest).failure or ""
    assert "Checkpoint expired before completing." in failure
    assert "master hooks that did not acknowledge: broker." in failure
    assert subject.master.stats(subject.now_ms).unsuccessful_triggers == 1
    assert answer(subject, n, "broker") == []


def test_no_other_checkpoint_is_triggered_while_hooks_have_not_answered() -> None:
    """Not even a forced one: triggers run one after the other."""
    subject = world()
    n = subject.trigger(name="1")
    assert subject.ask(RequestKind.SAVEPOINT, "2") == []
    assert subject.master.stats(subject.now_ms).waits_because is Verdict.TRIGGER_IN_PROGRESS
    answer(subject, n, "audit")
    assert of(answer(subject, n, "broker"), AllocateLocation)


def test_a_request_that_waits_for_a_trigger_runs_when_a_hook_fails() -> None:
    """MISSION A5."""
    subject = world()
    n = subject.trigger(name="1")
    subject.ask(name="2")
    assert of(fail(subject, n, "audit"), AllocateLocation)


def test_a_task_that_finishes_while_hooks_run_aborts_the_checkpoint_as_closing() -> None:
    """The plan contained it, and it can no longer take a snapshot."""
    subject = world()
    n = subject.trigger()
    effects = subject.status(TaskStatus.FINISHED, "b")
    assert "task is closing" in (only(effects, AnswerRequest).failure or "")
    assert not of(effects, NotifyCheckpointAborted)
    assert answer(subject, n, "audit") == []


def test_the_pre_check_of_the_plan_is_repeated_after_the_hooks() -> None:
    """A task that can no longer be triggered aborts the checkpoint, even if its end went
    unnoticed: the job master reports each, so this drives the coordinator itself."""
    tasks = execution({"a": TaskStatus.RUNNING, "b": TaskStatus.RUNNING})
    coordinator = CheckpointCoordinator(
        job_id=JOB_ID,
        config=CONFIG,
        execution=tasks,
        hooks=("broker",),
        coordinators=OperatorCoordinators({}),
    )
    asked = coordinator.submit(CheckpointRequest(origin=RequestOrigin.USER_CHECKPOINT), 0)
    allocation = only(asked, AllocateLocation).allocation
    located = LocationAllocated(allocation=allocation, checkpoint_id=1, target=None, timestamp_ms=1)
    coordinator.location_allocated(located, 0)
    tasks.set_status("b", TaskStatus.FAILED)
    triggered = HookTriggered(identifier="broker", checkpoint_id=1, state=None)
    effects = coordinator.hook_triggered(triggered, 0)
    assert not of(effects, TriggerCheckpoint)
    assert only(effects, RequestFailed).reason is Reason.NOT_ALL_REQUIRED_TASKS_RUNNING
    assert only(effects, DiscardCheckpoint).checkpoint_id == 1


def test_a_task_that_starts_to_wait_while_hooks_run_is_covered_by_the_checkpoint() -> None:
    """PROTOCOL P29: its barrier follows the task's end, so no other final checkpoint is needed."""
    subject = world("a")
    n = subject.trigger()
    assert subject.status(TaskStatus.WAITING_FOR_FINAL_CHECKPOINT) == []
    answer(subject, n, "audit")
    answer(subject, n, "broker")
    subject.record(subject.acknowledge(n))
    assert len(of(subject.effects, AllocateLocation)) == 1


def test_a_final_checkpoint_follows_when_the_one_with_hooks_under_way_fails() -> None:
    """No checkpoint covers the waiting task any longer."""
    subject = world("a")
    n = subject.trigger()
    subject.status(TaskStatus.WAITING_FOR_FINAL_CHECKPOINT)
    assert of(fail(subject, n, "audit"), AllocateLocation)


def test_stopping_the_scheduler_aborts_a_checkpoint_whose_hooks_run_and_resets_the_count() -> None:
    """MISSION A3."""
    subject = world()
    n = subject.trigger()
    effects = subject.ask(RequestKind.STOP, "stop")
    assert "Checkpoint Coordinator is suspending." in (of(effects, AnswerRequest)[0].failure or "")
    assert subject.master.stats(subject.now_ms).unsuccessful_triggers == 0
    stop, _ = subject.allocate(effects)
    assert answer(subject, n, "broker") == []
    assert subject.master.coordinator.pending[0].checkpoint_id == stop


def test_a_job_whose_stop_savepoint_a_hook_fails_runs_on() -> None:
    """No task knows about the savepoint yet, so nothing has to be undone."""
    subject = world()
    n = subject.trigger(RequestKind.STOP)
    effects = fail(subject, n, "broker")
    assert "no answer" in (only(effects, AnswerRequest).failure or "")
    assert subject.master.status is JobStatus.RUNNING
    assert subject.master.coordinator.trigger.scheduling


def test_two_hooks_with_one_identifier_are_refused() -> None:
    """Their states would be indistinguishable."""
    with pytest.raises(InvariantError, match="duplicate master hook identifiers"):
        MasterWorld(hooks=("h", "h"))
