"""What the job master says to operator coordinators and their subtasks, and what comes back (MISSION C; PROTOCOL P2, P10).

A coordinator runs in the driver, beside the data flow; the core knows it by the operator that it coordinates, and the kernel
calls it. An event goes to one subtask, is carried there with its records, and is confirmed when the state that has seen it
is stable (P2)::

    coordinator  SendEvent(3)   K -> M    DeliverEvent(3, number 17)   M -> S    EventConfirmed(17)   S -> M

In a checkpoint the coordinators come first::

    M  SnapshotCoordinator ......... kernel calls it ......... CoordinatorSnapshotTaken or CoordinatorSnapshotFailed  M
    M  (every event that was sent before is confirmed) then hooks, then TriggerCheckpoint
    S  AcknowledgeCheckpointEvent, at the end of its synchronous part: events for the next epoch may come
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from weir.core.types import OperatorId, Payload


@dataclass(frozen=True, kw_only=True)
class SendEvent:
    """Event: the coordinator of ``operator`` sends something to one of its subtasks."""

    operator: OperatorId
    subtask: int
    payload: Payload


@dataclass(frozen=True, kw_only=True)
class CoordinatorSnapshotTaken:
    """Event: the coordinator has snapshotted itself. What it sends from here on belongs to the next epoch (MISSION C3)."""

    operator: OperatorId
    checkpoint_id: int
    #: None for nothing to keep.
    state: Payload | None


@dataclass(frozen=True, kw_only=True)
class CoordinatorSnapshotFailed:
    """Event: the coordinator takes no snapshot for this checkpoint."""

    operator: OperatorId
    checkpoint_id: int
    message: str


@dataclass(frozen=True, kw_only=True)
class EventConfirmed:
    """Event: the subtask has handled the event, in a step that is complete."""

    operator: OperatorId
    subtask: int
    number: int


@dataclass(frozen=True, kw_only=True)
class EventLost:
    """Event: the event did not reach its subtask."""

    operator: OperatorId
    subtask: int
    number: int
    message: str


@dataclass(frozen=True, kw_only=True)
class AcknowledgeCheckpointEvent:
    """Event: the subtask has the barrier and has taken the synchronous part of its snapshot (PROTOCOL P10)."""

    operator: OperatorId
    subtask: int
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class SnapshotCoordinator:
    """Effect: ask the coordinator for its snapshot. Owes ``CoordinatorSnapshotTaken`` or ``CoordinatorSnapshotFailed``."""

    operator: OperatorId
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class DeliverEvent:
    """Effect: bring the event to the subtask, behind all that was delivered to it before (MISSION C6). Owes
    ``EventConfirmed`` or ``EventLost``, or the subtask fails."""

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
