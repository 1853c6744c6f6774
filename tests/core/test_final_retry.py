"""Retries of a failed final checkpoint, driven through ``JobMaster``.

MISSION A9, E3; PROTOCOL P29.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.kit.job_master import MasterWorld, of, only

from weir.core.job.restart import LAST_RETRY_MS, final_retry_ms
from weir.core.messages.job import (
    AllocateLocation,
    CancelRequested,
    EndRecorded,
    HookFailed,
    HookTriggered,
    JobMasterEffect,
    LocationFailed,
    RequestKind,
)
from weir.core.settings import CheckpointConfig
from weir.core.status import JobStatus
from weir.core.types import Recorded, TaskStatus

WAITING = TaskStatus.WAITING_FOR_FINAL_CHECKPOINT
Fail = Callable[[MasterWorld, list[JobMasterEffect]], list[JobMasterEffect]]


def hook_fails(world: MasterWorld, effects: list[JobMasterEffect]) -> list[JobMasterEffect]:
    n, _ = world.allocate(effects)
    return world.handle(HookFailed(identifier="h", checkpoint_id=n, message="not now"))


def location_fails(world: MasterWorld, effects: list[JobMasterEffect]) -> list[JobMasterEffect]:
    allocation = only(effects, AllocateLocation).allocation
    return world.handle(
        LocationFailed(allocation=allocation, message="no space left", timestamp_ms=1)
    )


def triggered(world: MasterWorld, effects: list[JobMasterEffect]) -> int:
    """Answer the hook of the one requested checkpoint; return the checkpoint's id."""
    n, _ = world.allocate(effects)
    world.handle(HookTriggered(identifier="h", checkpoint_id=n, state=None))
    return n


def task_declines(world: MasterWorld, effects: list[JobMasterEffect]) -> list[JobMasterEffect]:
    return world.decline(triggered(world, effects), "a")


def record_fails(world: MasterWorld, effects: list[JobMasterEffect]) -> list[JobMasterEffect]:
    return world.record(world.acknowledge(triggered(world, effects)), Recorded.FAILED)


def at_the_end(
    *others: str, tolerable: int, interval_ms: int | None = None
) -> tuple[MasterWorld, list[JobMasterEffect]]:
    """A task whose records have ended, beside others, and the request for its final checkpoint."""
    config = CheckpointConfig(interval_ms=interval_ms, tolerable_failed_checkpoints=tolerable)
    world = MasterWorld("a", *others, config=config, hooks=("h",)).running()
    return world, world.status(WAITING, "a")


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
    assert [final_retry_ms(failures) for failures in (1, 2, 7, 8, 1_000_000)] == [
        100,
        200,
        6_400,
        10_000,
        10_000,
    ]
    world, effects = at_the_end(tolerable=1_000)
    for _ in range(20):
        hook_fails(world, effects)
        effects = world.pass_time(LAST_RETRY_MS)
    begun = len(of(world.effects, AllocateLocation))
    hook_fails(world, effects)
    assert len(of(world.pass_time(LAST_RETRY_MS), AllocateLocation)) == 1
    assert len(of(world.effects, AllocateLocation)) == begun + 1


def test_a_final_checkpoint_that_fails_for_a_minute_is_requested_twelve_times() -> None:
    """At the end of the input without an interval, when only the delay limits the requests."""
    world, effects = at_the_end(tolerable=1_000)
    hook_fails(world, effects)
    while world.now_ms < 60_000:
        for effect in of(world.pass_time(100), AllocateLocation):
            hook_fails(world, [effect])
    assert len(of(world.effects, AllocateLocation)) == 12


def test_a_users_checkpoint_that_completes_serves_as_the_final_one() -> None:
    """It has the last records, so nothing is requested again."""
    world, effects = at_the_end(tolerable=1_000)
    hook_fails(world, effects)
    asked = world.ask()
    world.record(world.acknowledge(triggered(world, asked)))
    assert world.pass_time(10_000) == []
    assert world.master.next_deadline() is None


def test_failures_before_a_completed_checkpoint_neither_count_nor_delay_the_next_try() -> None:
    """Five failures at a tolerance of four fail the job only if they are consecutive."""
    world, effects = at_the_end("b", tolerable=4)
    for _ in range(3):
        hook_fails(world, effects)
        effects = world.pass_time(1_000)
    hook_fails(world, effects)
    asked = world.ask()
    world.record(world.acknowledge(triggered(world, asked)))
    effects = world.status(WAITING, "b")
    hook_fails(world, effects)
    assert world.master.status is JobStatus.RUNNING
    assert of(world.pass_time(100), AllocateLocation)


def test_an_attempt_starts_without_the_delay_of_the_one_before_it() -> None:
    """The restart may have fixed the cause."""
    world, effects = at_the_end(tolerable=1_000)
    for _ in range(4):
        hook_fails(world, effects)
        effects = world.pass_time(1_000)
    hook_fails(world, effects)
    delayed_until_ms = world.master.next_deadline()
    world.fail_over()
    assert delayed_until_ms is not None
    assert world.now_ms < delayed_until_ms
    assert of(world.status(WAITING), AllocateLocation)


def test_a_stop_whose_savepoint_a_hook_fails_is_not_followed_by_tries_without_a_pause() -> None:
    """The job runs on, and its final checkpoint is requested once and then retried as usual
    (P34)."""
    world, effects = at_the_end(tolerable=1_000, interval_ms=3_600_000)
    hook_fails(world, effects)
    effects = world.ask(RequestKind.STOP)
    effects = hook_fails(world, effects)
    assert not of(effects, AllocateLocation)
    assert of(world.pass_time(100), AllocateLocation)


def test_a_job_that_is_cancelled_before_the_next_try_has_no_deadline_left() -> None:
    """Its driver would wait for it after the end."""
    world, effects = at_the_end(tolerable=1_000)
    hook_fails(world, effects)
    assert world.master.next_deadline() is not None
    world.handle(CancelRequested(request="c"))
    world.stopped()
    world.handle(EndRecorded(outcome=Recorded.WON))
    assert world.master.status is JobStatus.CANCELED
    assert world.master.next_deadline() is None
