"""The status of the operators of a task and its legal moves, as one table (PROTOCOL P37).

All operators of a chain move together as the protocol sees it: the port finishes and closes them one after the other, in
the order of the chain, and the machine is told when the last one is done. An operator is FINISHED only where its input has
ended or the job is drained; a stop without a drain closes it as it is, with its windows and timers in the state.
"""

from __future__ import annotations

import enum

from weir.errors import invariant


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
