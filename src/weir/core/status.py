"""The status of a job, of a task, of its operators and of its records.

The tables are the state machines: a transition that is not listed raises and leaves the status
unchanged. The diagrams in ``docs/ARCHITECTURE.md`` are drawn from ``JOB_STATUS_TRANSITIONS``,
``TASK_STATUS_TRANSITIONS`` and ``OPERATOR_STATUS_TRANSITIONS`` (PROTOCOL P37; Flink's ``JobStatus``
and ``ExecutionState``).

To the protocol, the operators of a chain change status together: the port finishes and closes them
one after another, in chain order, and reports when the last is done. An operator becomes
FINISHED only if its input has ended or the job is drained; a stop without a drain closes it as it
is, with its windows and timers kept in the state.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import partial
from typing import TypeVar

from weir.core.types import TaskStatus
from weir.errors import invariant

State = TypeVar("State", bound=enum.Enum)


def next_state(
    table: Mapping[State, frozenset[State]], what: str, state: State, target: State
) -> State:
    """``target``; raises ``InvariantError`` unless the table allows it from ``state``.

    ``what`` names the machine.
    """
    invariant(target in table[state], f"{what} cannot go from {state.name} to {target.name}")
    return target


class JobStatus(enum.Enum):
    """The status of a job, named as in Flink's REST API."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FAILING = "FAILING"
    RESTARTING = "RESTARTING"
    CANCELLING = "CANCELLING"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    #: The driver exited on request; running the command again resumes the job.
    SUSPENDED = "SUSPENDED"

    @property
    def is_terminal(self) -> bool:
        """Whether this driver is done with the job."""
        return not JOB_STATUS_TRANSITIONS[self]


#: Every failure passes through FAILING, also if no attempt could begin. SIGTERM may come at any
#: time, and suspends the job.
JOB_STATUS_TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.CREATED: frozenset(
        {
            JobStatus.RUNNING,
            JobStatus.FAILING,
            JobStatus.CANCELLING,
            JobStatus.SUSPENDED,
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


#: The next status of a job: raises ``InvariantError`` unless the table allows it.
next_status = partial(next_state, JOB_STATUS_TRANSITIONS, "job")


#: RUNNING -> FINISHED: no final checkpoint is needed (PROTOCOL P36).
TASK_STATUS_TRANSITIONS: dict[TaskStatus, frozenset[TaskStatus]] = {
    TaskStatus.INITIALIZING: frozenset({TaskStatus.RUNNING, TaskStatus.FAILED}),
    TaskStatus.RUNNING: frozenset(
        {TaskStatus.WAITING_FOR_FINAL_CHECKPOINT, TaskStatus.FINISHED, TaskStatus.FAILED}
    ),
    TaskStatus.WAITING_FOR_FINAL_CHECKPOINT: frozenset({TaskStatus.FINISHED, TaskStatus.FAILED}),
    TaskStatus.FINISHED: frozenset(),
    TaskStatus.FAILED: frozenset(),
}


#: The next status of a task.
next_task_status = partial(next_state, TASK_STATUS_TRANSITIONS, "task")


def has_ended(status: TaskStatus) -> bool:
    """Whether no transition leads out of ``status``."""
    return not TASK_STATUS_TRANSITIONS[status]


class Records(enum.Enum):
    """How far a task is with its records; each but STOPPED follows its predecessor."""

    FLOWING = "FLOWING"
    #: The input is exhausted; the drain has not begun.
    ENDED = "ENDED"
    DRAINING = "DRAINING"
    DRAINED = "DRAINED"
    #: Follows FLOWING: the job is being stopped without a drain. Windows and timers stay in the
    #: state (MISSION E2).
    STOPPED = "STOPPED"

    @property
    def may_run_batch(self) -> bool:
        """Whether a batch can be running or planned."""
        return self in (Records.FLOWING, Records.DRAINING)


class OperatorStatus(enum.Enum):
    """The status of a chain's operators."""

    RUNNING = "RUNNING"
    #: ``finish`` is done: everything they buffered is emitted.
    FINISHED = "FINISHED"
    #: ``close`` is done: their resources are released.
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

#: The next status of a chain's operators.
next_operator_status = partial(next_state, OPERATOR_STATUS_TRANSITIONS, "operators")
