"""Flink's ``DefaultCheckpointPlanCalculatorTest``: which tasks take part in a checkpoint.

Each table row is a job: the status of every task, and which tasks are triggered, waited for,
notified of the completion and recorded as finished. A vertex of Weir has its own source and no edge
to another one, so every running task is a root.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.kit.job_master import MasterWorld, execution, of, only, running_job
from tests.spec.scenario import pending_ids

from weir.core.checkpoints.plan import calculate_plan
from weir.core.checkpoints.stats import CheckpointCounts
from weir.core.messages.job import (
    AllocateLocation,
    AnswerRequest,
    DiscardCheckpoint,
    HookTriggered,
    RecordCheckpoint,
)
from weir.core.messages.protocol import NotifyCheckpointComplete, TriggerCheckpoint
from weir.core.types import TaskStatus

RUNNING, FINISHED = TaskStatus.RUNNING, TaskStatus.FINISHED
WAITING = TaskStatus.WAITING_FOR_FINAL_CHECKPOINT
NOT_READY = [status for status in TaskStatus if status not in (RUNNING, FINISHED, WAITING)]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A job and its plan."""

    name: str
    statuses: tuple[TaskStatus, ...]
    #: The triggered tasks, by their places in ``statuses``.
    triggers: tuple[int, ...]
    #: Which of these were waiting for their final checkpoint.
    waiting: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.name

    @property
    def tasks(self) -> dict[str, TaskStatus]:
        """The tasks by name."""
        return {f"task-{place}": status for place, status in enumerate(self.statuses)}

    def names(self, *places: int) -> tuple[str, ...]:
        """The names of the tasks at these places."""
        return tuple(f"task-{place}" for place in places)


TABLE = (
    Row(name="one source", statuses=(RUNNING,), triggers=(0,)),
    Row(name="all sources run", statuses=(RUNNING, RUNNING, RUNNING), triggers=(0, 1, 2)),
    Row(
        name="the first source has finished", statuses=(FINISHED, RUNNING, RUNNING), triggers=(1, 2)
    ),
    Row(
        name="some sources have finished",
        statuses=(FINISHED, RUNNING, FINISHED, RUNNING, RUNNING),
        triggers=(1, 3, 4),
    ),
    Row(name="only the last source runs", statuses=(FINISHED, FINISHED, RUNNING), triggers=(2,)),
    Row(
        name="a source waits for its final checkpoint",
        statuses=(RUNNING, WAITING),
        triggers=(0, 1),
        waiting=(1,),
    ),
    Row(
        name="one source has finished, one waits, one runs",
        statuses=(FINISHED, WAITING, RUNNING),
        triggers=(1, 2),
        waiting=(1,),
    ),
    Row(name="all sources wait", statuses=(WAITING, WAITING), triggers=(0, 1), waiting=(0, 1)),
)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_exactly_the_active_tasks_are_triggered_and_the_others_are_recorded_as_finished(
    row: Row,
) -> None:
    """DefaultCheckpointPlanCalculatorTest.testComputeAllRunningGraph,
    testAllToAllEdgeWithSomeSourcesFinished (D1, P31)."""
    plan = calculate_plan(execution(row.tasks))
    assert plan is not None
    finished = tuple(place for place, status in enumerate(row.statuses) if status is FINISHED)
    assert plan.tasks_to_trigger == row.names(*row.triggers)
    assert plan.tasks_to_wait_for == row.names(*row.triggers)
    assert plan.finished_tasks == row.names(*finished)
    assert plan.waiting_tasks == frozenset(row.names(*row.waiting))


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_the_coordinator_triggers_waits_for_and_notifies_the_tasks_of_the_plan_and_no_other(
    row: Row,
) -> None:
    """DefaultCheckpointPlanCalculatorTest, with the plan carried out by the coordinator (MISSION
    D1, D4)."""
    # The statuses change while the location is allocated, so that waiting tasks request no
    # checkpoint of their own.
    world = running_job(*row.tasks)
    asked = world.ask()
    for task, status in row.tasks.items():
        world.status(status, task)
    n, effects = world.allocate(asked)
    triggered = [effect.vertex for effect in of(effects, TriggerCheckpoint)]
    assert tuple(triggered) == row.names(*row.triggers)
    recording = world.acknowledge(n, *triggered)
    record = only(recording, RecordCheckpoint)
    assert {task.vertex: task.fully_finished for task in record.tasks} == {
        task: status is FINISHED for task, status in row.tasks.items()
    }
    notified = {effect.vertex for effect in of(world.record(recording), NotifyCheckpointComplete)}
    assert notified == set(triggered)


@pytest.mark.parametrize("status", NOT_READY)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_there_is_no_plan_while_one_task_neither_runs_nor_has_finished(
    status: TaskStatus, place: int
) -> None:
    """DefaultCheckpointPlanCalculatorTest.testWithTriggeredTasksNotRunning, also a cancelled source
    (MISSION A4)."""
    statuses = dict.fromkeys(("a", "b", "c"), RUNNING)
    task = tuple(statuses)[place]
    subject = execution(statuses | {task: status})
    assert calculate_plan(subject) is None
    assert subject.not_ready == (task,)


@pytest.mark.parametrize("status", NOT_READY)
def test_a_finished_task_does_not_make_up_for_a_task_that_does_not_run(status: TaskStatus) -> None:
    """DefaultCheckpointPlanCalculatorTest.testWithTriggeredTasksNotRunning (MISSION A4), after
    tasks have finished."""
    assert calculate_plan(execution({"a": RUNNING, "b": FINISHED, "c": status})) is None


def test_there_is_no_plan_when_every_task_has_finished() -> None:
    """DefaultCheckpointPlanCalculator (MISSION D1): there is no task to trigger."""
    subject = execution({"a": FINISHED, "b": FINISHED})
    assert calculate_plan(subject) is None
    assert subject.not_ready == ("a", "b")


@pytest.mark.parametrize("status", NOT_READY)
def test_a_checkpoint_without_a_plan_fails_because_not_all_required_tasks_run_and_names_the_task(
    status: TaskStatus,
) -> None:
    """DefaultCheckpointPlanCalculatorTest.testWithTriggeredTasksNotRunning,
    CheckpointCoordinatorTest.testCheckpointAbortsIfTriggerTasksAreNotExecuted (MISSION A4): in the
    coordinator, where it is neither a failed checkpoint nor an unsuccessful trigger (A9)."""
    world = MasterWorld("a", "b", "c")
    world.submit()
    world.status(RUNNING, "a", "c")
    world.status(status, "b")
    effects = world.ask()
    failure = only(effects, AnswerRequest).failure or ""
    assert "Not all required tasks are currently running." in failure
    assert f"Task 'b' is {status.name}." in failure
    assert not of(effects, AllocateLocation)
    assert pending_ids(world) == []
    stats = world.master.stats(world.now_ms)
    assert (stats.unsuccessful_triggers, stats.counts) == (0, CheckpointCounts())


def test_a_plan_that_no_longer_holds_when_the_location_is_allocated_fails_the_checkpoint() -> None:
    """DefaultCheckpointPlanCalculatorTest.testWithTriggeredTasksNotRunning (MISSION A6): the
    pre-checks are repeated."""
    world = running_job("a", "b", "c")
    asked = world.ask()
    world.status(TaskStatus.FAILED, "c")
    n, effects = world.allocate(asked)
    assert not of(effects, TriggerCheckpoint)
    assert only(effects, DiscardCheckpoint).checkpoint_id == n
    assert "Task 'c' is FAILED." in (only(effects, AnswerRequest).failure or "")
    assert pending_ids(world) == []


def test_a_request_that_the_repeated_pre_checks_decline_is_no_unsuccessful_trigger() -> None:
    """CheckpointCoordinator.triggerCheckpoint counts what threw (MISSION A9): a request that is
    declined after its location is allocated, or while hooks are triggered, is not."""
    world = running_job("a", "b", "c")
    asked = world.ask()
    world.status(TaskStatus.FAILED, "c")
    world.allocate(asked)
    assert world.master.stats(world.now_ms).unsuccessful_triggers == 0
    hooked = MasterWorld("a", "b", hooks=("h",)).running()
    n, _ = hooked.allocate(hooked.ask())
    hooked.status(FINISHED, "b")
    hooked.handle(HookTriggered(identifier="h", checkpoint_id=n, state=None))
    assert pending_ids(hooked) == []
    assert hooked.master.stats(hooked.now_ms).unsuccessful_triggers == 0
