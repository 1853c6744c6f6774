"""Tests of ``Course``: goals follow each other by the table, and keep what they depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from weir.core.job.course import END_STATUS, Course, Goal, next_goal
from weir.core.job.stop_with_savepoint import StopWithSavepoint
from weir.core.settings import RetainExternalized
from weir.core.status import JobStatus
from weir.errors import InvariantError

MOVES = {
    Goal.RUN: "FINISH RESTART FAIL CANCEL SUSPEND FENCED",
    Goal.FINISH: "RESTART FAIL CANCEL FENCED",
    Goal.RESTART: "RUN FAIL CANCEL SUSPEND FENCED",
    Goal.FAIL: "CANCEL FENCED",
    Goal.CANCEL: "FENCED",
    Goal.SUSPEND: "CANCEL FENCED",
    Goal.FENCED: "",
}
RUNNING = Course().running()
FAILING = RUNNING.failing(Goal.RESTART, "disk full")


@pytest.mark.parametrize("source", list(Goal))
@pytest.mark.parametrize("target", list(Goal))
def test_a_cancelled_job_is_neither_restarted_nor_suspended(source: Goal, target: Goal) -> None:
    """Any move that is not listed raises."""
    if target.name in MOVES[source].split():
        assert next_goal(source, target) is target
    else:
        with pytest.raises(InvariantError, match=f"cannot go from {source.name} to {target.name}"):
            next_goal(source, target)


def test_a_restarted_job_remembers_its_failure() -> None:
    """A user who asks while it restarts learns why."""
    restarting = FAILING.restarting()
    assert (restarting.status, restarting.goal) == (JobStatus.RESTARTING, Goal.RUN)
    assert restarting.failure == "disk full"
    assert not restarting.is_running
    assert restarting.running().is_running


def test_a_job_that_gives_up_says_why() -> None:
    """The reason follows the failure."""
    failed = FAILING.giving_up(" (no attempt is left)")
    assert (failed.goal, failed.failure) == (Goal.FAIL, "disk full (no attempt is left)")


def test_the_end_that_is_recorded_follows_from_the_goal() -> None:
    """It is recorded once, and only for a goal that has an end."""
    for course, end in (
        (RUNNING.finishing(), JobStatus.FINISHED),
        (FAILING.giving_up(""), JobStatus.FAILED),
        (RUNNING.cancelling("c"), JobStatus.CANCELED),
    ):
        recording = course.recording()
        recording.validate()
        assert recording.end is end
        assert not recording.recorded().is_recording
    for course in (RUNNING, FAILING, RUNNING.suspending(), RUNNING.fenced("gone")):
        assert course.goal not in END_STATUS
        with pytest.raises(InvariantError, match="its goal is"):
            course.recording().validate()
    with pytest.raises(InvariantError, match="without a request"):
        RUNNING.recorded()


def test_a_job_is_cancelled_once_for_all_requests() -> None:
    """Later requests wait for the same end, also if the driver is fenced before it."""
    cancelling = RUNNING.cancelling("c1").cancelling("c2")
    assert (cancelling.status, cancelling.cancels) == (JobStatus.CANCELLING, ("c1", "c2"))
    assert cancelling.refuse_cancel() is None
    assert cancelling.fenced("gone").cancels == ("c1", "c2")
    assert cancelling.ended(JobStatus.CANCELED).cancels == ()


def test_a_job_whose_end_is_being_recorded_is_not_cancelled() -> None:
    """The record may already be durable."""
    finishing = RUNNING.finishing()
    assert finishing.refuse_cancel() is None
    assert finishing.recording().refuse_cancel() == (
        "Cannot cancel the job: it is already FINISHED."
    )


def test_the_savepoint_of_a_stop_is_kept_until_the_end_is_recorded() -> None:
    """A stop whose tasks have finished cannot be overdue any more."""
    stop = StopWithSavepoint(requests=("r",), target="/s", drain=False)
    course = RUNNING.with_stop(stop).finishing()
    with pytest.raises(InvariantError, match="stop-with-savepoint cannot go"):
        course.recording()
    assert RUNNING.finishing().recording().stop is None


@pytest.mark.parametrize(
    "break_law",
    [
        lambda: replace(RUNNING, cancels=("c",)),
        lambda: replace(RUNNING, is_recording=True),
        lambda: replace(
            RUNNING, stop=StopWithSavepoint(requests=("r",), target="/s", drain=False).failed()
        ),
        lambda: replace(RUNNING, status=JobStatus.CANCELED, goal=Goal.CANCEL, cancels=("c",)),
    ],
    ids=["a cancellation", "a record", "a stop that is over", "an unanswered request"],
)
def test_a_course_that_breaks_a_law_is_noticed(break_law: Callable[[], Course]) -> None:
    """The laws stand beside the fields."""
    with pytest.raises(InvariantError):
        break_law().validate()


def test_a_snapshot_is_refused_with_what_works_instead() -> None:
    """Only a running job takes a snapshot."""
    keeps = RetainExternalized.RETAIN_ON_CANCELLATION
    assert RUNNING.refuse_snapshot(keeps) is None
    assert "has not started yet" in (Course().refuse_snapshot(keeps) or "")
    assert "keeps its completed" in (FAILING.refuse_snapshot(keeps) or "")
    assert "about to end" in (RUNNING.suspending().refuse_snapshot(keeps) or "")
