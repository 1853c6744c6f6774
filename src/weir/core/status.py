"""The status of a job, of a task and of a task's operators, and how far a task's records are.

The tables are the machines: a move that is not listed raises and leaves the status as it was. The
diagrams in ``docs/ARCHITECTURE.md`` are drawn from ``JOB_STATUS_TRANSITIONS``,
``TASK_STATUS_TRANSITIONS`` and ``OPERATOR_STATUS_TRANSITIONS`` (PROTOCOL P37; Flink's ``JobStatus``
and ``ExecutionState``).

The operators of a chain move together as the protocol sees them: the port finishes and closes them
one after another, in the order of the chain, and reports when the last one is done. An operator is
FINISHED only where its input has ended or the job is drained; a stop without a drain closes it as
it is, with its windows and timers in the state.
"""

from __future__ import annotations

import enum

from weir.core.types import TaskStatus
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


#: CREATED -> FAILED: the first attempt cannot begin at all. RUNNING -> SUSPENDED etc.: SIGTERM at
#: any time.
JOB_STATUS_TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.CREATED: frozenset(
        {
            JobStatus.RUNNING,
            JobStatus.FAILING,
            JobStatus.CANCELLING,
            JobStatus.SUSPENDED,
            JobStatus.FAILED,
        }
    ),
    JobStatus.RUNNING: frozenset(
        {JobStatus.FAILING, JobStatus.CANCELLING, JobStatus.FINISHED, JobStatus.SUSPENDED}
    ),
    JobStatus.FAILING: frozenset(
        {JobStatus.RESTARTING, JobStatus.FAILED, JobStatus.CANCELLING, JobStatus.SUSPENDED}
    ),
    JobStatus.RESTARTING: frozenset(
        {
            JobStatus.RUNNING,
            JobStatus.FAILING,
            JobStatus.FAILED,
            JobStatus.CANCELLING,
            JobStatus.SUSPENDED,
        }
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
        target in JOB_STATUS_TRANSITIONS[status],
        f"a job cannot go from {status.name} to {target.name}",
    )
    return target


class Goal(enum.Enum):
    """Where the job is going."""

    RUN = "RUN"
    FINISH = "FINISH"
    RESTART = "RESTART"
    FAIL = "FAIL"
    CANCEL = "CANCEL"
    SUSPEND = "SUSPEND"
    #: A newer attempt holds the job (PROTOCOL P17).
    FENCED = "FENCED"


#: RUNNING -> FINISHED: no final checkpoint is needed (PROTOCOL P36).
TASK_STATUS_TRANSITIONS: dict[TaskStatus, frozenset[TaskStatus]] = {
    TaskStatus.INITIALIZING: frozenset({TaskStatus.RUNNING, TaskStatus.FAILED}),
    TaskStatus.RUNNING: frozenset(
        {TaskStatus.WAITING_FOR_FINAL_CHECKPOINT, TaskStatus.FINISHED, TaskStatus.FAILED}
    ),
    TaskStatus.WAITING_FOR_FINAL_CHECKPOINT: frozenset({TaskStatus.FINISHED, TaskStatus.FAILED}),
    TaskStatus.FINISHED: frozenset(),
    TaskStatus.FAILED: frozenset(),
    TaskStatus.CANCELED: frozenset(),
}


def next_task_status(status: TaskStatus, target: TaskStatus) -> TaskStatus:
    """``target``, if the table lists the move from ``status`` to it; else an ``InvariantError``."""
    invariant(
        target in TASK_STATUS_TRANSITIONS[status],
        f"a task cannot go from {status.name} to {target.name}",
    )
    return target


def has_ended(status: TaskStatus) -> bool:
    """Whether no move leads on from ``status``."""
    return not TASK_STATUS_TRANSITIONS[status]


class Records(enum.Enum):
    """How far a task is with its records; each but STOPPED follows the one before."""

    FLOWING = "FLOWING"
    #: The input is used up; the drain has not begun.
    ENDED = "ENDED"
    DRAINING = "DRAINING"
    DRAINED = "DRAINED"
    #: Follows FLOWING: the job is stopped without a drain. Windows and timers stay in the state
    #: (MISSION E2).
    STOPPED = "STOPPED"

    @property
    def may_step(self) -> bool:
        """Whether a step can be under way or planned."""
        return self in (Records.FLOWING, Records.DRAINING)


class OperatorStatus(enum.Enum):
    """Where the operators of a chain stand."""

    RUNNING = "RUNNING"
    #: ``finish`` is done: all that they held back is put out.
    FINISHED = "FINISHED"
    #: ``close`` is done: what they held is given back.
    CLOSED = "CLOSED"
    #: The task failed before they were closed.
    FAILED = "FAILED"


#: RUNNING -> CLOSED: stop with savepoint, without a drain.
OPERATOR_STATUS_TRANSITIONS: dict[OperatorStatus, frozenset[OperatorStatus]] = {
    OperatorStatus.RUNNING: frozenset(
        {OperatorStatus.FINISHED, OperatorStatus.CLOSED, OperatorStatus.FAILED}
    ),
    OperatorStatus.FINISHED: frozenset({OperatorStatus.CLOSED, OperatorStatus.FAILED}),
    OperatorStatus.CLOSED: frozenset(),
    OperatorStatus.FAILED: frozenset(),
}


def next_operator_status(status: OperatorStatus, target: OperatorStatus) -> OperatorStatus:
    """``target``, if the table lists the move from ``status`` to it; else an ``InvariantError``."""
    invariant(
        target in OPERATOR_STATUS_TRANSITIONS[status],
        f"operators cannot go from {status.name} to {target.name}",
    )
    return target
