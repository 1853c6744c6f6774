"""Flink's ``CheckpointFailureManagerTest``: which failed checkpoints fail the job.

The counted reasons are listed here a second time, as read from Flink 2.3.0, so that a change on one
side alone is noticed.
"""

from __future__ import annotations

import pytest
from tests.kit.job_master import of, only, running_job
from tests.spec.scenario import complete, status

from weir.core.checkpoints.failures import UNLIMITED_TOLERABLE_FAILURES, CheckpointFailureManager
from weir.core.messages.job import AnswerRequest, StopTasks
from weir.core.status import JobStatus
from weir.core.types import CheckpointFailureReason as Reason

COUNTED = (
    Reason.IO_EXCEPTION,
    Reason.CHECKPOINT_ASYNC_EXCEPTION,
    Reason.CHECKPOINT_DECLINED,
    Reason.CHECKPOINT_EXPIRED,
    Reason.FINALIZE_CHECKPOINT_FAILURE,
)
UNCOUNTED = tuple(reason for reason in Reason if reason not in COUNTED)


def failures(tolerable: int, *reports: tuple[Reason, int]) -> list[bool]:
    """For each report, whether the job must fail."""
    manager = CheckpointFailureManager(tolerable_failures=tolerable)
    verdicts = []
    for reason, checkpoint_id in reports:
        verdicts.append(manager.handle_failure(reason, checkpoint_id))
        manager.validate()
    return verdicts


# -- 7: testIgnoresPastCheckpoints -----------------------------------------------------------------


def test_failures_of_checkpoints_up_to_the_last_completed_one_are_ignored() -> None:
    """CheckpointFailureManagerTest.testIgnoresPastCheckpoints (MISSION A7): they no longer
    matter."""
    manager = CheckpointFailureManager(tolerable_failures=2)
    manager.handle_failure(Reason.CHECKPOINT_EXPIRED, 1)
    manager.handle_failure(Reason.CHECKPOINT_EXPIRED, 2)
    manager.handle_success(5)
    for old in (1, 2, 3, 4, 5):
        assert not manager.handle_failure(Reason.CHECKPOINT_EXPIRED, old)
    assert [manager.handle_failure(Reason.CHECKPOINT_EXPIRED, new) for new in (6, 7, 8)] == [
        False,
        False,
        True,
    ]


# -- 8: testContinuousFailure ----------------------------------------------------------------------


@pytest.mark.parametrize("uncounted", UNCOUNTED)
def test_the_third_counted_failure_in_a_row_fails_the_job_that_tolerates_two_whatever_lies_between(
    uncounted: Reason,
) -> None:
    """CheckpointFailureManagerTest.testContinuousFailure (PROTOCOL P9): an uncounted reason does
    not break the streak."""
    declined, expired, io = (
        Reason.CHECKPOINT_DECLINED,
        Reason.CHECKPOINT_EXPIRED,
        Reason.IO_EXCEPTION,
    )
    reports = ((declined, 1), (uncounted, 2), (expired, 3), (uncounted, 4), (io, 5))
    assert failures(2, *reports) == [False, False, False, False, True]


def test_a_job_that_tolerates_two_failed_checkpoints_fails_over_with_the_third() -> None:
    """CheckpointFailureManagerTest.testContinuousFailure (PROTOCOL P9), in the job master."""
    world = running_job(tolerable_failed_checkpoints=2)
    for _ in range(2):
        world.decline(world.trigger(), "a")
    world.decline(world.trigger(), "a", Reason.CHECKPOINT_DECLINED_TASK_NOT_READY)
    assert status(world) is JobStatus.RUNNING
    effects = world.decline(world.trigger(), "a")
    assert status(world) is JobStatus.FAILING
    assert only(effects, StopTasks).attempt == 1
    assert "Exceeded checkpoint tolerable failure threshold." in (world.master.failure or "")


# -- 9: testBreakContinuousFailure -----------------------------------------------------------------


def test_a_completed_checkpoint_restarts_the_count() -> None:
    """CheckpointFailureManagerTest.testBreakContinuousFailure (PROTOCOL P9)."""
    manager = CheckpointFailureManager(tolerable_failures=2)
    for checkpoint_id in range(1, 30, 3):
        assert not manager.handle_failure(Reason.CHECKPOINT_DECLINED, checkpoint_id)
        assert not manager.handle_failure(Reason.CHECKPOINT_EXPIRED, checkpoint_id + 1)
        manager.handle_success(checkpoint_id + 2)


def test_a_job_survives_any_number_of_failed_checkpoints_with_a_completed_one_between() -> None:
    """CheckpointFailureManagerTest.testBreakContinuousFailure (PROTOCOL P9), in the job master."""
    world = running_job(tolerable_failed_checkpoints=1)
    for _ in range(5):
        world.decline(world.trigger(), "a")
        complete(world)
    assert status(world) is JobStatus.RUNNING


def test_a_new_attempt_restarts_the_count() -> None:
    """PROTOCOL P9: what failed before it says nothing about the restored tasks."""
    world = running_job(tolerable_failed_checkpoints=1)
    world.decline(world.trigger(), "a")
    world.fail_over()
    world.decline(world.trigger(), "a")
    assert status(world) is JobStatus.RUNNING


# -- 10: testTotalCountValue -----------------------------------------------------------------------


def test_of_all_reasons_exactly_the_five_of_flink_count() -> None:
    """CheckpointFailureManagerTest.testTotalCountValue (PROTOCOL P9): one manager gets every
    existing reason."""
    reports = tuple((reason, number) for number, reason in enumerate(Reason, start=1))
    verdicts = failures(0, *reports)
    assert len(verdicts) == 18
    assert {reason for (reason, _), fails in zip(reports, verdicts, strict=True) if fails} == set(
        COUNTED
    )


@pytest.mark.parametrize("reason", list(Reason))
def test_a_job_without_tolerance_fails_exactly_for_a_decline_whose_reason_counts(
    reason: Reason,
) -> None:
    """CheckpointFailureManagerTest.testTotalCountValue (PROTOCOL P9), in the job master; the user
    is always informed."""
    world = running_job(tolerable_failed_checkpoints=0)
    effects = world.decline(world.trigger(), "a", reason)
    assert reason.message in (only(effects, AnswerRequest).failure or "")
    assert bool(of(effects, StopTasks)) == (reason in COUNTED)


@pytest.mark.parametrize("reason", COUNTED)
def test_no_failed_checkpoint_fails_a_job_that_tolerates_any_number(reason: Reason) -> None:
    """CheckpointFailureManager.UNLIMITED_TOLERABLE_FAILURE_NUMBER (PROTOCOL P9)."""
    reports = ((reason, number) for number in range(1, 1_000))
    assert not any(failures(UNLIMITED_TOLERABLE_FAILURES, *reports))


# -- 11: testIgnoreOneCheckpointRepeatedlyCountMultiTimes ------------------------------------------


def test_a_checkpoint_that_every_task_declines_counts_once() -> None:
    """CheckpointFailureManagerTest.testIgnoreOneCheckpointRepeatedlyCountMultiTimes (MISSION A7),
    in the job master."""
    world = running_job("a", "b", "c", tolerable_failed_checkpoints=1)
    declined = world.trigger()
    for vertex in world.vertices:
        world.decline(declined, vertex)
    assert status(world) is JobStatus.RUNNING
    world.decline(world.trigger(), "a")
    assert status(world) is JobStatus.FAILING
