"""When a final checkpoint is triggered beside others, driven through ``JobMaster`` (P29)."""

from __future__ import annotations

import pytest
from tests.kit.job_master import MasterWorld, of, only, task_state, with_interval

from weir.core.checkpoints.request_decider import Verdict
from weir.core.messages.job import (
    AllocateLocation,
    AnswerRequest,
    DiscardCheckpoint,
    JobMasterEffect,
    RequestKind,
)
from weir.core.messages.protocol import TaskClosing, TriggerCheckpoint
from weir.core.types import TaskStatus

WAITING = TaskStatus.WAITING_FOR_FINAL_CHECKPOINT


def branches(**changes: int) -> MasterWorld:
    """Two branches of a job with periodic checkpoints; the first one is due at once."""
    world = MasterWorld("a", "b", config=with_interval(1_000, **changes))
    world.submit(chance=0.0)
    world.status(TaskStatus.RUNNING)
    return world


def test_a_final_checkpoint_waits_for_the_one_checkpoint_that_may_be_pending() -> None:
    """Two branches that end one after the other: nothing fails, and each end is covered."""
    world = branches()
    world.status(WAITING, "a")
    first, _ = world.allocate(world.pass_time(0))
    assert not of(world.status(WAITING, "b"), AllocateLocation)
    second, _ = world.allocate(world.record(world.acknowledge(first)))
    world.status(TaskStatus.FINISHED, "a")
    assert world.master.stats(world.now_ms).counts.failed == 0
    assert (first, second) == (1, 2)


def test_a_final_checkpoint_does_not_wait_for_the_minimum_pause() -> None:
    """The pause is for periodic checkpoints: the end of a job is not held up by it."""
    world = branches(min_pause_ms=1_000)
    world.complete(world.ask())
    world.pass_time(1)
    world.status(WAITING, "a")
    assert of(world.status(WAITING, "b"), AllocateLocation)


def test_a_final_checkpoint_waits_for_a_pending_savepoint() -> None:
    """It counts as one of those that may be pending, as for any request that is not forced."""
    world = branches()
    savepoint = world.trigger(RequestKind.SAVEPOINT)
    world.status(WAITING, "a")
    assert not of(world.status(WAITING, "b"), AllocateLocation)
    assert of(world.record(world.acknowledge(savepoint)), AllocateLocation)


def test_a_final_checkpoint_is_dropped_if_the_pending_checkpoint_has_covered_all_that_wait() -> (
    None
):
    """Both tasks ended their records between its trigger and their barriers."""
    world = branches()
    first, _ = world.allocate(world.pass_time(0))
    world.status(WAITING, "a")
    assert not of(world.status(WAITING, "b"), AllocateLocation)
    ended = [task_state(vertex, finished=True) for vertex in ("a", "b")]
    assert not of(world.record(world.acknowledge(first, *ended)), AllocateLocation)
    world.status(TaskStatus.FINISHED)
    assert world.master.stats(world.now_ms).counts.failed == 0


def test_a_checkpoint_that_met_a_task_that_finished_is_in_the_history_and_has_not_failed() -> None:
    """Nothing went wrong: it neither counts, nor is it the newest failure."""
    world = branches(tolerable_failed_checkpoints=0)
    n, _ = world.allocate(world.pass_time(0))
    world.status(TaskStatus.FINISHED, "a")
    stats = world.master.stats(world.now_ms)
    assert [(entry.checkpoint_id, entry.status) for entry in stats.history] == [(n, "FAILED")]
    assert stats.history[0].met_ending_tasks
    assert (stats.counts.total, stats.counts.failed, stats.newest_failure) == (1, 0, None)


def closing(world: MasterWorld, vertex: str) -> list[JobMasterEffect]:
    return world.handle(TaskClosing(vertex=vertex, attempt=world.master.attempt))


@pytest.mark.parametrize("kind", list(RequestKind))
def test_no_checkpoint_is_triggered_while_a_task_is_about_to_finish(kind: RequestKind) -> None:
    """The task would decline it (P32). It is triggered as soon as the task has finished."""
    world = branches()
    world.complete(world.pass_time(0))
    world.status(WAITING, "a")
    closing(world, "a")
    assert not of(world.ask(kind, "mine"), AllocateLocation)
    assert world.master.stats(world.now_ms).waits_because is Verdict.TASKS_ARE_CLOSING
    _, effects = world.allocate(world.status(TaskStatus.FINISHED, "a"))
    assert [effect.vertex for effect in of(effects, TriggerCheckpoint)] == ["b"]


def test_a_checkpoint_whose_location_is_allocated_as_a_task_closes_waits_for_another() -> None:
    """Nothing fails: the request takes its place in the queue again, also the periodic one."""
    for request in ("periodic", "mine"):
        world = branches()
        asked = world.pass_time(0) if request == "periodic" else world.ask(name=request)
        world.status(WAITING, "a")
        closing(world, "a")
        n, effects = world.allocate(asked)
        assert only(effects, DiscardCheckpoint).checkpoint_id == n
        assert not of(effects, AnswerRequest)
        assert of(world.status(TaskStatus.FINISHED, "a"), AllocateLocation)
        assert world.master.stats(world.now_ms).history == ()


def test_the_next_attempt_is_not_held_up_by_a_task_that_was_closing() -> None:
    """Nor by a report of the attempt before it that comes late."""
    world = branches()
    world.status(WAITING, "a")
    closing(world, "a")
    attempt = world.master.attempt
    world.fail_over()
    world.handle(TaskClosing(vertex="a", attempt=attempt))
    assert of(world.ask(name="mine"), AllocateLocation)
