"""Retries of a failed final checkpoint, driven through ``JobMaster``.

MISSION A9, E3; PROTOCOL P29.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from master_harness import World, of, only

from weir.core.config import CheckpointConfig
from weir.core.job.restart import MAX_DELAY_MS, delay_ms
from weir.core.messages.job import (
    AllocateLocation,
    HookFailed,
    HookTriggered,
    JobMasterEffect,
    LocationFailed,
    RequestKind,
    SnapshotRequested,
    TasksStopped,
)
from weir.core.status import JobStatus
from weir.core.types import Recorded, TaskStatus

WAITING = TaskStatus.WAITING_FOR_FINAL_CHECKPOINT
Fail = Callable[[World, list[JobMasterEffect]], list[JobMasterEffect]]


def hook_fails(world: World, effects: list[JobMasterEffect]) -> list[JobMasterEffect]:
    n, _ = world.allocate(effects)
    return world.handle(HookFailed(identifier="h", checkpoint_id=n, message="not now"))


def location_fails(world: World, effects: list[JobMasterEffect]) -> list[JobMasterEffect]:
    allocation = only(effects, AllocateLocation).allocation
    return world.handle(
        LocationFailed(allocation=allocation, message="no space left", timestamp_ms=1)
    )


def triggered(world: World, effects: list[JobMasterEffect]) -> int:
    """Answer the hook of the one requested checkpoint; return the checkpoint's id."""
    n, _ = world.allocate(effects)
    world.handle(HookTriggered(identifier="h", checkpoint_id=n, state=None))
    return n


def task_declines(world: World, effects: list[JobMasterEffect]) -> list[JobMasterEffect]:
    return world.decline(triggered(world, effects), "a")


def record_fails(world: World, effects: list[JobMasterEffect]) -> list[JobMasterEffect]:
    return world.record(world.acknowledge(triggered(world, effects)), Recorded.FAILED)


def at_the_end(
    *, tolerable: int, interval_ms: int | None = None
) -> tuple[World, list[JobMasterEffect]]:
    """A job of one task whose records have ended, and the request for its final checkpoint."""
    config = CheckpointConfig(interval_ms=interval_ms, tolerable_failed_checkpoints=tolerable)
    world = World("a", config=config, hooks=("h",)).running()
    return world, world.status(WAITING)


@pytest.mark.parametrize("fail", [hook_fails, location_fails, task_declines, record_fails])
def test_a_final_checkpoint_that_fails_is_requested_again_with_a_growing_delay(fail: Fail) -> None:
    """Wherever it failed: the delays are 100 ms, 200 ms and so on."""
    world, effects = at_the_end(tolerable=1_000)
    for expected_ms in (100, 200, 400, 800):
        assert not of(fail(world, effects), AllocateLocation)
        assert world.pass_time(expected_ms - 1) == []
        effects = world.pass_time(1)
    assert of(effects, AllocateLocation)


@pytest.mark.parametrize("fail", [hook_fails, location_fails, task_declines, record_fails])
def test_a_final_checkpoint_that_fails_counts_against_the_tolerance(fail: Fail) -> None:
    """Even if its trigger failed, unlike any other checkpoint: the job would retry forever."""
    world, effects = at_the_end(tolerable=2)
    for _ in range(2):
        fail(world, effects)
        assert world.master.status is JobStatus.RUNNING
        effects = world.pass_time(1_000)
    fail(world, effects)
    assert world.master.status is JobStatus.FAILING
    assert "Exceeded checkpoint tolerable failure threshold." in (world.master.failure or "")
    assert world.master.stats(world.now_ms).counts.failed == 3


def test_the_delay_grows_to_ten_seconds_and_no_further() -> None:
    """However often it has failed."""
    assert [delay_ms(failures) for failures in (1, 2, 7, 8, 1_000_000)] == [
        100,
        200,
        6_400,
        10_000,
        10_000,
    ]
    world, effects = at_the_end(tolerable=1_000)
    for _ in range(20):
        hook_fails(world, effects)
        effects = world.pass_time(MAX_DELAY_MS)
    begun = len(of(world.effects, AllocateLocation))
    hook_fails(world, effects)
    assert len(of(world.pass_time(MAX_DELAY_MS), AllocateLocation)) == 1
    assert len(of(world.effects, AllocateLocation)) == begun + 1


def test_a_hook_that_fails_for_a_minute_is_not_asked_a_thousand_times() -> None:
    """At the end of the input without an interval, twelve retries are made."""
    world, effects = at_the_end(tolerable=1_000)
    hook_fails(world, effects)
    while world.now_ms < 60_000:
        for one in of(world.pass_time(100), AllocateLocation):
            hook_fails(world, [one])
    assert len(of(world.effects, AllocateLocation)) == 12


def test_what_a_user_requests_meanwhile_serves_too_and_restarts_the_count() -> None:
    """A checkpoint that completes has the last records; after it, a failure waits the first delay
    again."""
    world, effects = at_the_end(tolerable=1_000)
    for _ in range(3):
        hook_fails(world, effects)
        effects = world.pass_time(1_000)
    hook_fails(world, effects)
    asked = world.handle(SnapshotRequested(request="r", kind=RequestKind.CHECKPOINT))
    world.record(world.acknowledge(triggered(world, asked)))
    assert world.pass_time(10_000) == []
    assert world.master.next_deadline() is None


def test_an_attempt_starts_without_the_delay_of_the_one_before_it() -> None:
    """The restart may have fixed the cause."""
    world, effects = at_the_end(tolerable=0)
    hook_fails(world, effects)
    assert world.master.status is JobStatus.FAILING
    world.handle(TasksStopped(attempt=1, chance=0.0))
    world.pass_time(1_000)
    world.begin(2)
    world.status(TaskStatus.RUNNING)
    assert of(world.status(WAITING), AllocateLocation)


def test_a_stop_whose_savepoint_a_hook_fails_is_not_followed_by_tries_without_a_pause() -> None:
    """The job runs on, and its final checkpoint is requested once and then retried as usual
    (P34)."""
    world, effects = at_the_end(tolerable=1_000, interval_ms=3_600_000)
    hook_fails(world, effects)
    effects = world.handle(SnapshotRequested(request="stop", kind=RequestKind.STOP))
    effects = hook_fails(world, effects)
    assert not of(effects, AllocateLocation)
    assert of(world.pass_time(100), AllocateLocation)
