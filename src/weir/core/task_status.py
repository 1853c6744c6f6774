"""The status of a task and its legal moves, as one table (PROTOCOL P37; Flink's ``ExecutionState``), and ``Records``.

The table is the machine: a move that is not listed raises and leaves the status as it was.
"""

from __future__ import annotations

import enum

from weir.core.types import TaskStatus
from weir.errors import invariant

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
        target in TASK_STATUS_TRANSITIONS[status], f"a task cannot go from {status.name} to {target.name}"
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
    #: Follows FLOWING: the job is stopped without a drain. Windows and timers stay in the state (MISSION E2).
    STOPPED = "STOPPED"

    @property
    def may_step(self) -> bool:
        """Whether a step can be under way or planned."""
        return self in (Records.FLOWING, Records.DRAINING)
