"""Stop with checkpoint: the job ends with a checkpoint from which the same command resumes it.

It is stop with savepoint (P34) with a checkpoint in place of the savepoint. A job whose sources are
read up to what is available now stops so by itself.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.kit.job_master import MasterWorld, checkpoint, of, only, task_state, with_interval

from weir.core.messages.job import (
    AllocateLocation,
    AnswerRequest,
    EndRecorded,
    JobEnded,
    JobMasterEffect,
    LocationFailed,
    RecordEnd,
    RequestKind,
    SnapshotRequested,
    StopTasks,
)
from weir.core.messages.protocol import NotifyCheckpointComplete, TriggerCheckpoint
from weir.core.settings import UntilIdle
from weir.core.status import JobStatus
from weir.core.types import Recorded, SnapshotKind, TaskStatus

STOP = RequestKind.STOP_WITH_CHECKPOINT
WAITING = TaskStatus.WAITING_FOR_FINAL_CHECKPOINT


def until_idle(
    *vertices: str, drain: bool = False, periodic: bool = True, **producers: tuple[str, ...]
) -> MasterWorld:
    """A running job that stops by itself; ``producers`` are the channels that tasks read."""
    world = MasterWorld(
        *vertices,
        config=with_interval() if periodic else replace(with_interval(), interval_ms=None),
        producers=producers,
        until_idle=UntilIdle(drain=drain),
    )
    return world.running()


def ended(world: MasterWorld) -> list[JobMasterEffect]:
    """Finish all tasks, and record the end."""
    world.status(TaskStatus.FINISHED)
    return world.handle(EndRecorded(outcome=Recorded.WON))


def test_the_job_is_suspended_once_its_last_checkpoint_is_committed_everywhere() -> None:
    """Tasks commit and finish before the end is recorded (P16); the checkpoint is retained."""
    world = MasterWorld(config=with_interval(100)).running()
    effects = world.ask(STOP)
    assert only(effects, AllocateLocation).kind is SnapshotKind.SYNC_CHECKPOINT
    n, effects = world.allocate(effects)
    triggers = of(effects, TriggerCheckpoint)
    assert [(t.barrier.target, t.drain) for t in triggers] == [(None, False)] * 2
    effects = world.record(world.acknowledge(n))
    assert len(of(effects, NotifyCheckpointComplete)) == 2
    assert world.master.coordinator.store.ids == (n,)
    assert not of(world.effects, RecordEnd)
    world.status(TaskStatus.FINISHED, "a")
    end = only(world.status(TaskStatus.FINISHED, "b"), RecordEnd)
    assert (end.status, end.savepoint, end.failure) == (JobStatus.SUSPENDED, None, None)
    effects = world.handle(EndRecorded(outcome=Recorded.WON))
    answer = only(effects, AnswerRequest).checkpoint
    assert answer is not None
    assert answer.checkpoint_id == n
    how = only(effects, JobEnded)
    assert (how.status, how.checkpoint_id) == (JobStatus.SUSPENDED, n)
    assert (how.savepoint, how.drained) == (None, False)


def test_a_stop_of_the_other_kind_is_refused_and_one_of_the_same_kind_joins() -> None:
    """One way to end at a time (P34)."""
    world = MasterWorld("a").running()
    effects = world.ask(STOP, "1")
    refused = only(world.ask(RequestKind.STOP, "2"), AnswerRequest)
    assert "already being stopped with a checkpoint" in (refused.failure or "")
    assert world.ask(STOP, "3") == []
    world.complete(effects)
    assert [answer.request for answer in of(ended(world), AnswerRequest)] == ["1", "3"]


def test_a_stop_with_savepoint_refuses_a_stop_with_checkpoint() -> None:
    """The other order."""
    world = MasterWorld("a").running()
    world.ask(RequestKind.STOP, "1")
    refused = only(world.ask(STOP, "2"), AnswerRequest)
    assert "already being stopped with a savepoint" in (refused.failure or "")


def test_a_job_whose_input_had_ended_when_it_was_stopped_is_finished() -> None:
    """A natural end wins over the stop: nothing is left to go on with."""
    world = MasterWorld("a").running()
    world.complete(world.ask(STOP), task_state("a", finished=True))
    world.status(TaskStatus.FINISHED)
    assert only(world.effects, RecordEnd).status is JobStatus.FINISHED


def test_a_stop_with_checkpoint_that_tasks_know_of_is_a_failover_if_it_fails() -> None:
    """P34: there is no way back once consumers know that no more records come."""
    world = MasterWorld("a").running()
    n = world.trigger(STOP)
    effects = world.decline(n, "a")
    assert "was not stopped with a checkpoint" in (only(effects, AnswerRequest).failure or "")
    assert of(effects, StopTasks)


def test_a_job_stops_by_itself_once_every_source_is_read_up_to_what_was_there() -> None:
    """Tasks that read channels are not asked: barriers follow the last rows through them."""
    world = until_idle("a", "b", "c", c=("a", "b"))
    assert not of(world.caught_up("a"), AllocateLocation)
    effects = world.caught_up("b")
    assert only(effects, AllocateLocation).kind is SnapshotKind.SYNC_CHECKPOINT
    assert world.master.coordinator.trigger.next_trigger_ms is None
    world.complete(effects)
    how = only(ended(world), JobEnded)
    assert (how.status, how.checkpoint_id) == (JobStatus.SUSPENDED, 1)
    assert not of(world.effects, AnswerRequest)


def test_with_a_drain_the_job_is_finished_without_a_savepoint() -> None:
    """Windows and timers fire first; the result says that it was drained."""
    world = until_idle("a", drain=True)
    n, effects = world.allocate(world.caught_up())
    assert only(effects, TriggerCheckpoint).drain
    world.record(world.acknowledge(n, task_state("a", finished=True)))
    how = only(ended(world), JobEnded)
    assert (how.status, how.drained) == (JobStatus.FINISHED, True)
    assert (how.savepoint, how.checkpoint_id) == (None, None)


def test_bounded_sources_are_read_to_their_end_first() -> None:
    """A job of both kinds stops when nothing is left to be read."""
    world = until_idle("now", "bounded")
    assert not of(world.caught_up("now"), AllocateLocation)
    effects = world.status(WAITING, "bounded")
    assert only(effects, AllocateLocation).kind is SnapshotKind.SYNC_CHECKPOINT


def test_a_job_whose_bounded_sources_had_finished_stops_with_the_others() -> None:
    """A restored task that has finished does not run again."""
    world = MasterWorld(
        "now", "bounded", config=with_interval(), until_idle=UntilIdle()
    )  # fmt: skip
    world.submit(checkpoint(3, task_state("now"), task_state("bounded", finished=True)))
    world.status(TaskStatus.RUNNING, "now")
    world.next_id = 4
    n, effects = world.allocate(world.caught_up("now"))
    assert [trigger.vertex for trigger in of(effects, TriggerCheckpoint)] == ["now"]
    world.record(world.acknowledge(n, "now"))
    world.status(TaskStatus.FINISHED, "now")
    assert only(world.effects, RecordEnd).status is JobStatus.SUSPENDED


def test_the_stop_waits_until_all_tasks_run() -> None:
    """A source with nothing to read may have caught up before another task has started."""
    world = MasterWorld("a", "b", producers={"b": ("a",)}, until_idle=UntilIdle())
    world.submit()
    world.status(TaskStatus.RUNNING, "a")
    assert not of(world.caught_up("a"), AllocateLocation)
    assert of(world.status(TaskStatus.RUNNING, "b"), AllocateLocation)


def test_each_attempt_catches_up_anew() -> None:
    """What was there for the attempt before says nothing about this one."""
    world = until_idle("a", "b")
    world.caught_up("a")
    world.fail_over()
    assert not of(world.caught_up("b"), AllocateLocation)
    assert of(world.caught_up("a"), AllocateLocation)


def test_a_stop_of_its_own_that_no_task_knows_of_is_tried_again_after_a_delay() -> None:
    """As a final checkpoint: not thousands of times while the disk is full."""
    world = until_idle("a", periodic=False)
    allocation = only(world.caught_up(), AllocateLocation).allocation
    failed = LocationFailed(allocation=allocation, message="no space", timestamp_ms=1)
    assert not of(world.handle(failed), AllocateLocation)
    assert world.master.status is JobStatus.RUNNING
    assert not of(world.pass_time(99), AllocateLocation)
    effects = world.pass_time(1)
    assert only(effects, AllocateLocation).kind is SnapshotKind.SYNC_CHECKPOINT


def test_a_drain_that_a_user_asks_for_meanwhile_is_refused() -> None:
    """The job ends with what it has begun."""
    world = until_idle("a")
    world.caught_up()
    drain = SnapshotRequested(request="r", kind=RequestKind.STOP, drain=True)
    refused = only(world.handle(drain), AnswerRequest)
    assert "already being stopped with a checkpoint" in (refused.failure or "")


@pytest.mark.parametrize("outcome", [Recorded.FAILED, Recorded.FENCED])
def test_an_end_that_is_not_recorded_does_not_suspend_the_job(outcome: Recorded) -> None:
    """It fails over and ends again, or another driver has it."""
    world = until_idle("a")
    world.complete(world.caught_up())
    world.status(TaskStatus.FINISHED)
    effects = world.handle(EndRecorded(outcome=outcome, message="disk"))
    assert bool(of(effects, StopTasks)) == (outcome is Recorded.FAILED or not of(effects, JobEnded))
    assert not any(how.checkpoint_id for how in of(effects, JobEnded))
