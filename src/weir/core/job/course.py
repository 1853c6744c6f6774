"""``Course``: where a job is, and where it is heading.

The status changes by the table in ``core/status.py``. Beside it there is a *goal*, since most
statuses are reached only after waiting for tasks and records. A failure, for example::

    RUNNING, RUN            a task fails
    FAILING, RESTART        tasks are stopped
    RESTARTING, RUN         the restart is scheduled
    RUNNING, RUN            the next attempt has begun

A course never changes: each transition returns the next course, and raises ``InvariantError`` if
the tables do not allow it. ``JobMaster`` carries out what a transition asks for.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from weir.core.job.stop_with_savepoint import StopState, StopWithSavepoint
from weir.core.settings import RetainExternalized
from weir.core.status import JobStatus, next_state, next_status
from weir.errors import InvariantError, invariant


class Goal(enum.Enum):
    """What the job is heading for."""

    RUN = "RUN"
    FINISH = "FINISH"
    RESTART = "RESTART"
    FAIL = "FAIL"
    CANCEL = "CANCEL"
    SUSPEND = "SUSPEND"
    #: A newer attempt holds the job (PROTOCOL P17).
    FENCED = "FENCED"


#: A cancellation overrides everything but the driver's end. FINISH leads to RESTART or FAIL if the
#: end cannot be recorded, RESTART to FAIL if no attempt is left or a query still runs.
GOAL_TRANSITIONS: dict[Goal, frozenset[Goal]] = {
    Goal.RUN: frozenset(
        {Goal.FINISH, Goal.RESTART, Goal.FAIL, Goal.CANCEL, Goal.SUSPEND, Goal.FENCED}
    ),
    Goal.FINISH: frozenset({Goal.RESTART, Goal.FAIL, Goal.CANCEL, Goal.FENCED}),
    Goal.RESTART: frozenset({Goal.RUN, Goal.FAIL, Goal.CANCEL, Goal.SUSPEND, Goal.FENCED}),
    Goal.FAIL: frozenset({Goal.CANCEL, Goal.FENCED}),
    Goal.CANCEL: frozenset({Goal.FENCED}),
    Goal.SUSPEND: frozenset({Goal.CANCEL, Goal.FENCED}),
    Goal.FENCED: frozenset(),
}

#: The next goal of a job.
next_goal = partial(next_state, GOAL_TRANSITIONS, "job")

#: The status that is recorded once the job has reached its goal; for the other goals nothing is.
#: A job that was stopped with a checkpoint has reached FINISH, too, and is SUSPENDED.
END_STATUS: Mapping[Goal, JobStatus] = {
    Goal.FINISH: JobStatus.FINISHED,
    Goal.FAIL: JobStatus.FAILED,
    Goal.CANCEL: JobStatus.CANCELED,
}


@dataclass(frozen=True, kw_only=True)
class Course:
    """The status and the goal of a job, with what either depends on."""

    status: JobStatus = JobStatus.CREATED
    goal: Goal = Goal.RUN
    #: Why the job failed last; None if it never failed.
    failure: str | None = None
    #: A stop in progress. A goal other than RUN and FINISH keeps it only while the record of its
    #: savepoint is being written.
    stop: StopWithSavepoint | None = None
    #: Cancel requests to answer at the end. Law: empty until the goal is CANCEL.
    cancels: tuple[str, ...] = ()
    #: The job's end is being recorded. Law: the goal is in ``END_STATUS``.
    is_recording: bool = False

    # -- queries

    @property
    def is_running(self) -> bool:
        """Whether the job is RUNNING, and is to go on."""
        return self.status is JobStatus.RUNNING and self.goal is Goal.RUN

    @property
    def keeps_tasks(self) -> bool:
        """Whether tasks may come to their own end; otherwise they are stopped."""
        return self.goal in (Goal.RUN, Goal.FINISH)

    @property
    def can_suspend(self) -> bool:
        """Whether a suspension changes anything."""
        return self.goal in (Goal.RUN, Goal.RESTART)

    @property
    def end(self) -> JobStatus:
        """The status to be recorded; raises ``InvariantError`` if the goal has none."""
        if self.goal not in END_STATUS:
            raise InvariantError(f"the job's end was recorded, but its goal is {self.goal.name}")
        stop = self.stop if self.goal is Goal.FINISH else None
        if stop is not None and stop.resumes_at is not None:
            return JobStatus.SUSPENDED
        return END_STATUS[self.goal]

    def refuse_cancel(self) -> str | None:
        """Why a cancel request is refused; None if it is not."""
        if self.is_recording and self.goal is not Goal.CANCEL:
            return f"Cannot cancel the job: it is already {self.end.name}."
        if self.goal is Goal.FENCED:
            return f"Cannot cancel the job: {self.failure}"
        return None

    def refuse_snapshot(self, retention: RetainExternalized) -> str | None:
        """Why a snapshot request is refused, with what works instead; None if it is not."""
        if self.is_running:
            return None
        if self.goal not in (Goal.RUN, Goal.RESTART):
            return (
                f"The job is {self.status.name} and about to end: no more snapshots can be taken."
            )
        if self.status is JobStatus.CREATED:
            return "The job is CREATED and has not started yet: retry once it is RUNNING."
        return (
            f"The job is {self.status.name}, so no snapshot can be taken: retry once it is RUNNING,"
            " or end it with 'weir cancel', which"
            f" {'deletes' if retention.deletes_on_cancellation else 'keeps'} its completed"
            f" checkpoints. It failed because: {self.failure}"
        )

    # -- transitions

    def running(self) -> Course:
        """An attempt has begun."""
        return replace(self, status=next_status(self.status, JobStatus.RUNNING))

    def failing(self, goal: Goal, failure: str) -> Course:
        """The attempt has failed; ``goal`` is RESTART or FAIL."""
        status = next_status(self.status, JobStatus.FAILING)
        return replace(self, status=status, goal=next_goal(self.goal, goal), failure=failure)

    def giving_up(self, why: str) -> Course:
        """The job is not restarted after its failure, since ``why``."""
        return replace(self, goal=next_goal(self.goal, Goal.FAIL), failure=f"{self.failure}{why}")

    def restarting(self) -> Course:
        """The tasks have stopped, and a restart is scheduled."""
        status = next_status(self.status, JobStatus.RESTARTING)
        return replace(self, status=status, goal=next_goal(self.goal, Goal.RUN))

    def finishing(self) -> Course:
        """Every task is FINISHED."""
        return replace(self, goal=next_goal(self.goal, Goal.FINISH))

    def suspending(self) -> Course:
        """The driver was asked to exit."""
        return replace(self, goal=next_goal(self.goal, Goal.SUSPEND))

    def cancelling(self, request: str) -> Course:
        """A user cancels the job, or has done so before."""
        cancels = (*self.cancels, request)
        if self.goal is Goal.CANCEL:
            return replace(self, cancels=cancels)
        status = next_status(self.status, JobStatus.CANCELLING)
        return replace(self, status=status, goal=next_goal(self.goal, Goal.CANCEL), cancels=cancels)

    def fenced(self, failure: str) -> Course:
        """A newer attempt holds the job."""
        return replace(self, goal=next_goal(self.goal, Goal.FENCED), failure=failure)

    def recording(self) -> Course:
        """The job has reached its goal, and its end is being recorded."""
        stop = self.stop
        if self.goal is Goal.FINISH and stop is not None:
            stop = stop.tasks_finished()
        return replace(self, stop=stop, is_recording=True)

    def recorded(self) -> Course:
        """The outcome of the record is known."""
        invariant(self.is_recording, "the job's end was recorded without a request")
        return replace(self, is_recording=False)

    def not_recorded(self, message: str) -> Course:
        """The end of a cancelled or failed job could not be recorded."""
        how = "was cancelled" if self.goal is Goal.CANCEL else f"failed ({self.failure})"
        failure = f"The job {how}, but this could not be recorded: {message}"
        return replace(self, failure=failure)

    def ended(self, status: JobStatus) -> Course:
        """The job is over for this driver; every request is answered."""
        return replace(self, status=next_status(self.status, status), stop=None, cancels=())

    def with_stop(self, stop: StopWithSavepoint | None) -> Course:
        """A stop with savepoint begins, goes on, or is over (None)."""
        return replace(self, stop=stop)

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        invariant(
            not self.cancels or self.goal in (Goal.CANCEL, Goal.FENCED),
            f"a cancel request waits, but the job's goal is {self.goal.name}",
        )
        invariant(
            not self.is_recording or self.goal in END_STATUS,
            f"the job's end is being recorded, but its goal is {self.goal.name}",
        )
        if self.stop is not None:
            self.stop.validate()
            over = self.stop.state in (StopState.ENDED, StopState.FAILED)
            invariant(not over, "a stop that is over is still in progress")
        if self.status.is_terminal:
            invariant(
                self.stop is None and not self.cancels, "the job ended with an unanswered request"
            )
