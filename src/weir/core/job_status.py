"""The status of a job and its legal moves, as one table (Flink's ``JobStatus``).

The table is the machine: a move that is not listed raises and leaves the status as it was. ``docs/ARCHITECTURE.md``
draws its diagram from ``JOB_STATUS_TRANSITIONS``.
"""

from __future__ import annotations

import enum

from weir.errors import invariant


class JobStatus(enum.Enum):
    """Where a job stands. Names are those of Flink's REST API."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FAILING = "FAILING"
    RESTARTING = "RESTARTING"
    CANCELLING = "CANCELLING"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    #: The driver went away on request; running the command again resumes the job.
    SUSPENDED = "SUSPENDED"

    @property
    def is_terminal(self) -> bool:
        """Whether this driver has nothing more to do for the job."""
        return not JOB_STATUS_TRANSITIONS[self]


#: CREATED -> FAILED: the first attempt cannot begin at all. RUNNING -> SUSPENDED etc.: SIGTERM at any time.
JOB_STATUS_TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.CREATED: frozenset(
        {JobStatus.RUNNING, JobStatus.FAILING, JobStatus.CANCELLING, JobStatus.SUSPENDED, JobStatus.FAILED}
    ),
    JobStatus.RUNNING: frozenset(
        {JobStatus.FAILING, JobStatus.CANCELLING, JobStatus.FINISHED, JobStatus.SUSPENDED}
    ),
    JobStatus.FAILING: frozenset(
        {JobStatus.RESTARTING, JobStatus.FAILED, JobStatus.CANCELLING, JobStatus.SUSPENDED}
    ),
    JobStatus.RESTARTING: frozenset(
        {JobStatus.RUNNING, JobStatus.FAILING, JobStatus.FAILED, JobStatus.CANCELLING, JobStatus.SUSPENDED}
    ),
    JobStatus.CANCELLING: frozenset({JobStatus.CANCELED, JobStatus.FAILED, JobStatus.SUSPENDED}),
    JobStatus.FAILED: frozenset(),
    JobStatus.CANCELED: frozenset(),
    JobStatus.FINISHED: frozenset(),
    JobStatus.SUSPENDED: frozenset(),
}


def next_status(status: JobStatus, target: JobStatus) -> JobStatus:
    """``target``, if the table lists the move from ``status`` to it; else an ``InvariantError``."""
    invariant(
        target in JOB_STATUS_TRANSITIONS[status], f"a job cannot go from {status.name} to {target.name}"
    )
    return target
