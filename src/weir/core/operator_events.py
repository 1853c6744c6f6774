"""What the holder of an operator coordinator asks for, and what it tells (MISSION C; PROTOCOL P2).

A coordinator runs in the driver, beside the data flow, and is known by the operator that it coordinates. What it is asked
and what its subtasks get are effects; how its part of a checkpoint ended, and which subtask must fail over, are outcomes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from weir.core.types import OperatorId, Payload


@dataclass(frozen=True, kw_only=True)
class SnapshotCoordinator:
    """Effect: ask the coordinator for its snapshot. Owes ``snapshot_taken`` or ``snapshot_failed``."""

    operator: OperatorId
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class DeliverEvent:
    """Effect: bring the event to the subtask, behind all that was delivered to it before (MISSION C6). Owes
    ``confirmed`` or ``lost``, or the subtask fails."""

    operator: OperatorId
    subtask: int
    #: Grows by one with each event of the operator.
    number: int
    payload: Payload


@dataclass(frozen=True, kw_only=True)
class CoordinatorAcknowledged:
    """Outcome: the coordinator's part of the checkpoint is complete; ``state`` goes into the metadata."""

    operator: OperatorId
    checkpoint_id: int
    state: Payload | None


@dataclass(frozen=True, kw_only=True)
class CoordinatorDeclined:
    """Outcome: the coordinator's part of the checkpoint has failed, and so has the checkpoint."""

    operator: OperatorId
    checkpoint_id: int
    message: str


@dataclass(frozen=True, kw_only=True)
class FailSubtask:
    """Outcome: the subtask must fail over, since it has lost an event."""

    operator: OperatorId
    subtask: int
    message: str


HolderOutput: TypeAlias = (
    SnapshotCoordinator | DeliverEvent | CoordinatorAcknowledged | CoordinatorDeclined | FailSubtask
)
