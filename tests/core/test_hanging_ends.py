"""How the job master handles hangs: sinks that do not commit a stop, tasks that do not stop."""

from __future__ import annotations

import pytest
from tests.kit.job_master import MasterWorld, of, only

from weir.core.messages.job import (
    AnswerRequest,
    CancelRequested,
    EndRecorded,
    JobEnded,
    RecordEnd,
    RequestKind,
    StopTasks,
    SuspendRequested,
    TasksStopped,
)
from weir.core.settings import CheckpointConfig
from weir.core.status import JobStatus
from weir.core.types import Recorded, TaskStatus


def stopping() -> MasterWorld:
    """A job that is stopping and has taken its savepoint."""
    world = MasterWorld(config=CheckpointConfig(interval_ms=None, timeout_ms=1_000)).running()
    world.complete(world.ask(RequestKind.STOP))
    return world


def test_a_stop_whose_tasks_do_not_commit_in_time_fails_names_them_and_is_a_failover() -> None:
    """The caller does not wait forever, and the answer also names the savepoint (P34)."""
    world = stopping()
    world.status(TaskStatus.FINISHED, "a")
    assert world.pass_time(999) == []
    effects = world.pass_time(1)
    failure = only(effects, AnswerRequest).failure or ""
    assert "Created a savepoint at /savepoints/savepoint-1, but the job did not stop" in failure
    assert "did not end within 1000 ms" in failure
    assert failure.endswith("closed their sinks: 'b'.")
    assert world.master.status is JobStatus.FAILING
    assert only(effects, StopTasks).attempt == 1


def test_a_stop_whose_tasks_finish_in_time_no_longer_has_a_deadline() -> None:
    """However long recording the end takes."""
    world = stopping()
    assert world.master.next_deadline() == 1_000
    assert of(world.status(TaskStatus.FINISHED), RecordEnd)
    assert world.master.next_deadline() is None
    assert world.pass_time(10_000) == []
    assert of(world.handle(EndRecorded(outcome=Recorded.WON)), JobEnded)


def left(world: MasterWorld) -> list:
    """The outcome of stopping the tasks with one start still hanging."""
    return world.handle(TasksStopped(attempt=1, chance=0.0, left_running="the start (task 'a')"))


def test_a_job_is_not_restarted_where_a_query_may_still_run() -> None:
    """Two queries of one task would write to the same files, so the job fails and says why."""
    world = MasterWorld().running()
    world.fail("b")
    end = only(left(world), RecordEnd)
    assert end.status is JobStatus.FAILED
    assert "Task 'b' failed: out of memory (not restarted in this process" in (end.failure or "")
    assert "the start (task 'a')" in (end.failure or "")


@pytest.mark.parametrize(
    ("request_", "ends"),
    [(CancelRequested(request="c"), RecordEnd), (SuspendRequested(), JobEnded)],
    ids=["cancelled", "suspended"],
)
def test_a_job_that_ends_anyway_ends_though_a_query_may_still_run(
    request_: CancelRequested | SuspendRequested, ends: type[RecordEnd | JobEnded]
) -> None:
    """The query ends with the job's process."""
    world = MasterWorld().running()
    world.handle(request_)
    assert of(left(world), ends)
