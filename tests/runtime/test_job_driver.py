"""The driver on real threads without Spark: order of effects, attempts, failures, deadlines."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
from tests.kit.clock import ManualClock
from tests.kit.running_job import FakePort, RunningWorld

from weir.coordinators.runner import CoordinatorRunner
from weir.core.job.master import JobMaster
from weir.core.messages.job import JobEnded, RecordCheckpoint, SuspendRequested
from weir.core.messages.task import (
    BatchStaged,
    CommitSinks,
    RecordsEnded,
    SyncPartDone,
    TakeSnapshot,
    TaskErrored,
)
from weir.core.status import JobStatus
from weir.core.types import Committable, TaskStatus
from weir.errors import InvariantError, PipelineError, StorageError
from weir.runtime.concurrency import ThreadWaits, ThreadWorkers
from weir.runtime.driver import JobDriver


def effect_of(port: FakePort, kind: type[Any]) -> Any:
    """The only effect of this kind that the port was given."""
    (found,) = [effect for effect in port.effects if isinstance(effect, kind)]
    return found


def test_the_calls_of_one_whole_checkpoint_come_in_their_order() -> None:
    """From the location to the commit, each after what must be durable first."""
    with RunningWorld() as world:
        port = world.port
        world.wait_running()
        future = world.job.trigger_checkpoint()
        world.wait_in_progress()
        port.step("v", 0)
        assert future.result().checkpoint_id == 1
        port.wait_for("commit_sinks 1")
        calls = [call for call in port.calls if call != "answer_planning 2"]
    assert calls == [
        "resume",
        "begin_attempt",
        "prepare_attempt 1",
        "start_task v",
        "started v",
        "answer_planning 1",
        "allocate",
        "take_snapshot 1",
        "taken 1",
        "continue_snapshot 1",
        "record_checkpoint 1",
        "checkpoint_completed 1",
        "commit_sinks 1",
    ]
    assert port.calls.index("taken 1") < port.calls.index("answer_planning 2")


def test_what_was_staged_travels_through_the_snapshot_to_the_commit() -> None:
    """The snapshot contains the staged step, the record the task's state, and the sink gets its
    payload."""
    with RunningWorld() as world:
        port = world.port
        world.wait_running()
        world.job.trigger_checkpoint()
        world.wait_in_progress()
        port.step("v", 0)
        port.wait_for("commit_sinks 1")
    taken: TakeSnapshot = effect_of(port, TakeSnapshot)
    assert (taken.position, [item.payload for item in taken.committables]) == (0, [{"step": 0}])
    recorded: RecordCheckpoint = effect_of(port, RecordCheckpoint)
    assert [task.position for task in recorded.tasks] == [0]
    assert effect_of(port, CommitSinks).payloads == {"v-sink": ({"step": 0},)}


def test_the_query_rests_until_the_synchronous_part_is_taken() -> None:
    """The planning call is held while the snapshot is pinned, and answered before it is copied."""
    with RunningWorld() as world:
        port = world.port
        world.wait_running()
        port.gates = {"take_snapshot": threading.Event(), "continue_snapshot": threading.Event()}
        world.job.trigger_checkpoint()
        world.wait_in_progress()
        port.step("v", 0)
        port.wait_for("take_snapshot 1")
        assert not port.seen_within("answer_planning 2", 1, 0.2)
        port.gates["take_snapshot"].set()
        port.wait_for("answer_planning 2")
        assert "record_checkpoint 1" not in port.calls


def test_a_checkpoint_waits_for_every_task() -> None:
    """With two vertices the record is written once, after both have acknowledged."""
    with RunningWorld("a", "b") as world:
        port = world.port
        world.wait_running(answers=2)
        world.job.trigger_checkpoint()
        world.wait_in_progress()
        port.step("a", 0)
        port.wait_for("continue_snapshot 1")
        assert not port.seen_within("record_checkpoint 1", 1, 0.2)
        port.step("b", 0)
        port.wait_for("commit_sinks 1", 2)
    assert {task.vertex for task in effect_of(port, RecordCheckpoint).tasks} == {"a", "b"}


def test_a_failed_snapshot_declines_the_checkpoint_and_is_dropped() -> None:
    """The requester gets the reason, nothing is recorded, and the written files are deleted (P9,
    P43)."""
    with RunningWorld(tolerable_failed_checkpoints=1) as world:
        port = world.port
        port.errors["take_snapshot"] = [StorageError("The disk is full.")]
        world.wait_running()
        future = world.job.trigger_checkpoint()
        world.wait_in_progress()
        port.step("v", 0)
        assert "The disk is full." in str(future.exception())
        port.wait_for("drop_snapshot 1")
        port.wait_for("checkpoint_aborted 1")
        port.wait_for("answer_planning 2")
        assert "record_checkpoint 1" not in port.calls
        assert world.job.view().status is JobStatus.RUNNING


def test_a_bounded_job_drains_takes_its_final_checkpoint_and_finishes() -> None:
    """The end of the records leads to the drain, the final checkpoint, its commit and the recorded
    end (P16)."""
    with RunningWorld(bounded=True) as world:
        port = world.port
        world.wait_running()
        post = port.posts["v", 1]
        item = Committable(sink="v-sink", position=0, payload={"step": 0})
        post(BatchStaged(position=0, committables=(item,)))
        post(RecordsEnded(position=0))
        ended = world.join()
    assert ended.status is JobStatus.FINISHED
    order = [
        "drain 0",
        "take_snapshot 1",
        "record_checkpoint 1",
        "commit_sinks 1",
        "record_end FINISHED",
    ]
    assert [call for call in port.calls if call in order] == order


# -- failing and restarting ------------------------------------------------------------------------


def test_an_attempt_that_cannot_start_is_tried_again() -> None:
    """The job starts once storage has recovered."""
    world = RunningWorld()
    world.port.errors["begin_attempt"] = [StorageError("The disk is away.")]
    with world:
        world.wait_running()
        view = world.look()
        assert (view.status, view.attempt) == (JobStatus.RUNNING, 1)
        assert world.port.calls.count("begin_attempt") == 2
        assert [failure.message for failure in view.exceptions] == ["The disk is away."]


def test_an_attempt_that_can_never_start_fails_the_job() -> None:
    """A wrong plan stays wrong and is not retried."""
    world = RunningWorld()
    world.port.errors["begin_attempt"] = [PipelineError("There is no such column.")]
    with world:
        ended = world.join()
    assert (ended.status, ended.failure) == (JobStatus.FAILED, "There is no such column.")
    assert world.port.calls.count("begin_attempt") == 1


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(PipelineError("Wrong."), 1), (StorageError("Full."), 3), (OSError("Odd."), 3)],
)
def test_a_task_that_cannot_start_fails_the_job_at_once_only_if_that_cannot_change(
    error: Exception, attempts: int
) -> None:
    """Weir's own error about the plan is final; others are retried as often as the strategy
    allows."""
    world = RunningWorld()
    world.port.errors["start_task"] = [error] * 3
    with world:
        ended = world.join()
    assert ended.status is JobStatus.FAILED
    assert str(error) in (ended.failure or "")
    assert world.port.calls.count("begin_attempt") == attempts


@pytest.mark.parametrize(
    ("gate", "reached"), [("taken", "taken 1"), ("continue_snapshot", "continue_snapshot 1")]
)
def test_an_attempt_has_stopped_only_when_its_snapshot_work_is_over(
    gate: str, reached: str
) -> None:
    """A snapshot still being written delays the next attempt, whose input it could overwrite."""
    with RunningWorld() as world:
        port = world.port
        world.wait_running()
        port.gates[gate] = threading.Event()
        world.job.trigger_checkpoint()
        world.wait_in_progress()
        port.step("v", 0)
        port.wait_for(reached)
        port.posts["v", 1](TaskErrored(message="boom"))
        port.wait_for("stop_tasks")
        assert not port.seen_within("begin_attempt", 2, 0.3)
        port.gates.pop(gate).set()
        port.wait_for("begin_attempt", 2)


def test_events_of_an_older_attempt_are_dropped() -> None:
    """What a thread of the first attempt still posts changes nothing in the second."""
    with RunningWorld() as world:
        port = world.port
        world.wait_running()
        port.posts["v", 1](TaskErrored(message="boom"))
        world.wait_running(answers=2)
        late = port.posts["v", 1]
        late(TaskErrored(message="late"))
        late(SyncPartDone(checkpoint_id=99))
        late(RecordsEnded(position=5))
        view = world.look()
        assert (view.status, view.attempt) == (JobStatus.RUNNING, 2)
        assert view.vertices[0].status is TaskStatus.RUNNING
        assert len(view.exceptions) == 1


def test_a_machine_that_raises_ends_the_run_with_its_error_and_stops_the_tasks() -> None:
    """An impossible event is a bug in Weir: the job stays resumable, so no end is recorded."""
    with RunningWorld() as world:
        port = world.port
        world.wait_running()
        future = world.job.trigger_checkpoint()
        world.wait_in_progress()
        port.posts["v", 1](SyncPartDone(checkpoint_id=99))
        assert isinstance(world.join_error(), InvariantError)
        assert port.calls[-1] == "stop_tasks"
        assert not any(call.startswith("record_end") for call in port.calls)
        assert "ended before the request was answered" in str(future.exception(1))


def test_tasks_that_cannot_be_stopped_end_the_run() -> None:
    """If a query may still be running, no other attempt may start in this process."""
    with RunningWorld() as world:
        world.wait_running()
        world.port.errors["stop_tasks"] = [RuntimeError("the JVM is gone")]
        world.port.posts["v", 1](TaskErrored(message="boom"))
        assert str(world.join_error()) == "the JVM is gone"
        assert world.port.calls.count("begin_attempt") == 1


def test_blocking_calls_never_run_on_the_main_thread() -> None:
    """Only quick calls do: answers to planning calls, new snapshot bases, the start of an
    attempt."""
    with RunningWorld() as world:
        world.wait_running()
        world.job.trigger_checkpoint()
        world.wait_in_progress()
        world.port.step("v", 0)
        world.port.wait_for("commit_sinks 1")
        main = world.port.threads["answer_planning"]
        quick = {name for name, thread in world.port.threads.items() if thread == main}
    assert quick == {"answer_planning", "checkpoint_completed", "resume"}


# -- the timer -------------------------------------------------------------------------------------


class TimedMaster:
    """A master with one deadline, at which it ends. If ``busy``, it answers events with events."""

    def __init__(self, deadline_ms: int, busy: list[JobDriver] | None = None) -> None:
        self._deadline_ms = deadline_ms
        self._busy = [] if busy is None else busy
        self.reported: list[int] = []
        self.events = 0

    def next_deadline(self) -> int:
        return self._deadline_ms

    def on_deadline(self, now_ms: int) -> list[object]:
        self.reported.append(now_ms)
        return [JobEnded(status=JobStatus.SUSPENDED)]

    def handle(self, event: object, now_ms: int) -> list[object]:
        self.events += 1
        for driver in self._busy:
            driver.post(SuspendRequested())
        return [JobEnded(status=JobStatus.FAILED)] if self.events > 1_000 else []


def driver_of(master: TimedMaster, clock: ManualClock) -> JobDriver:
    """A driver without tasks."""
    return JobDriver(
        master=cast(JobMaster, master),
        plans={},
        tasks=FakePort(),
        durable=FakePort(),
        coordinators=CoordinatorRunner({}, workers=ThreadWorkers(), waits=ThreadWaits()),
        clock=clock,
        patience_ms=20_000,
    )


def test_a_machine_never_sees_a_time_before_its_deadline() -> None:
    """Even if the clock lags behind the time that the queue has waited."""
    master = TimedMaster(20)
    driver_of(master, ManualClock(0, tick_ms=1)).run()
    assert len(master.reported) == 1
    assert master.reported[0] >= 20


def test_a_deadline_is_served_even_if_events_never_stop() -> None:
    """A queue that is never empty must not delay the timer."""
    drivers: list[JobDriver] = []
    master = TimedMaster(50, drivers)
    drivers.append(driver_of(master, ManualClock(0, tick_ms=1)))
    assert drivers[0].run().status is JobStatus.SUSPENDED
    assert master.reported[0] >= 50
