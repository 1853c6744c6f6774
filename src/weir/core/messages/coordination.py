"""Messages of operator coordinators, job master and tasks (MISSION C; PROTOCOL P2, P10, P41).

A coordinator runs in the driver, beside the data flow, and is identified by the operator that it
coordinates. Events travel in both directions and are acknowledged (C = the coordinator's port,
M = ``JobMaster``, S = ``StreamTask``)::

    C  CoordinatorSentEvent ... M  DeliverEvent ........... S  AnswerPlanning carries it; batch ends
                                                            S  EventsConfirmed ........ M
    S  OperatorEventSent ...... M  HandleOperatorEvent .... C  the coordinator handles it
    C  OperatorEventHandled ... M  DeliverEvent(acknowledges=...) through the gateway
                                                            S  forgets the event

An operator's event is part of its task's state until it is acknowledged. The acknowledgement goes
through the gateway like every other event. So in every checkpoint, an event that the coordinator
handled before its snapshot is missing from the task's snapshot; an event that it did not handle is
still there, and a restored task sends it again (P41).

How a coordinator's part of a checkpoint ended, and which subtask must fail over, are outcomes that
stay inside the job master.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from weir.core.types import UNKNOWN, Cause, OperatorId, Payload, VertexId

# -- effects of the job master for the coordinator's port, carried out in order, one at a time


@dataclass(frozen=True, kw_only=True)
class ResetCoordinator:
    """Effect: an attempt has begun; reset the coordinator to a checkpoint.

    If ``checkpoint_id`` and ``state`` are None, the coordinator starts from scratch.
    """

    operator: OperatorId
    attempt: int
    parallelism: int
    checkpoint_id: int | None
    state: Payload | None
    #: The checkpoint is this job's own, so its id is one of this job's ids.
    own: bool = True


@dataclass(frozen=True, kw_only=True)
class SnapshotCoordinator:
    """Effect: ask the coordinator for its snapshot.

    Owes ``CoordinatorSnapshotTaken`` or ``CoordinatorSnapshotFailed``.
    """

    operator: OperatorId
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class HandleOperatorEvent:
    """Effect: let the coordinator handle an event of its operator.

    Owes ``OperatorEventHandled``, or ``CoordinatorFailed`` if it raises.
    """

    operator: OperatorId
    subtask: int
    number: int
    payload: Payload


@dataclass(frozen=True, kw_only=True)
class NotifyCoordinator:
    """Effect: notify the coordinator that a checkpoint has completed or was aborted.

    Of a completion it is notified AFTER the tasks (PROTOCOL P13).
    """

    operator: OperatorId
    checkpoint_id: int
    completed: bool


@dataclass(frozen=True, kw_only=True)
class SubtasksReady:
    """Effect: notify the coordinator that every subtask runs."""

    operator: OperatorId


@dataclass(frozen=True, kw_only=True)
class SubtasksFailed:
    """Effect: notify the coordinator that every subtask has failed.

    Events that it sent since its last checkpoint are lost.
    """

    operator: OperatorId
    message: str


@dataclass(frozen=True, kw_only=True)
class EventReceipt:
    """Effect: notify the coordinator that a subtask has handled an event, or never will (C5)."""

    operator: OperatorId
    receipt: int
    handled: bool


CoordinatorEffect: TypeAlias = (
    ResetCoordinator
    | SnapshotCoordinator
    | HandleOperatorEvent
    | NotifyCoordinator
    | SubtasksReady
    | SubtasksFailed
    | EventReceipt
)

# -- events of the coordinator's port for the job master; those of an older attempt are ignored


@dataclass(frozen=True, kw_only=True)
class CoordinatorSentEvent:
    """The coordinator sent an event to one subtask.

    Comes before the answer of any snapshot that is taken later.
    """

    operator: OperatorId
    attempt: int
    subtask: int
    payload: Payload
    #: Owed as ``EventReceipt`` when the subtask has handled or lost the event; None: not at all.
    receipt: int | None = None


@dataclass(frozen=True, kw_only=True)
class CoordinatorSnapshotTaken:
    """The coordinator has taken its snapshot.

    Everything it sends from now on belongs to the next epoch (MISSION C3).
    """

    operator: OperatorId
    attempt: int
    checkpoint_id: int
    state: Payload | None


@dataclass(frozen=True, kw_only=True)
class CoordinatorSnapshotFailed:
    """The coordinator takes no snapshot for this checkpoint."""

    operator: OperatorId
    attempt: int
    checkpoint_id: int
    message: str


@dataclass(frozen=True, kw_only=True)
class OperatorEventHandled:
    """The coordinator has handled an event of its operator and has sent its replies."""

    operator: OperatorId
    attempt: int
    subtask: int
    number: int


@dataclass(frozen=True, kw_only=True)
class CoordinatorFailed:
    """The coordinator raised or failed the job.

    The job is restored, unless trying again cannot help (``fatal``).
    """

    operator: OperatorId
    attempt: int
    message: str
    fatal: bool = False
    cause: Cause = UNKNOWN


CoordinatorEvent: TypeAlias = (
    CoordinatorSentEvent
    | CoordinatorSnapshotTaken
    | CoordinatorSnapshotFailed
    | OperatorEventHandled
    | CoordinatorFailed
)

# -- between job master and task


@dataclass(frozen=True, kw_only=True)
class DeliverEvent:
    """M -> S: deliver the event to the subtask, after all earlier events (MISSION C6).

    Owes ``EventsConfirmed``, or the task fails.
    """

    operator: OperatorId
    subtask: int
    #: Grows by one with each event sent to the operator.
    number: int
    payload: Payload
    #: Not an event of the coordinator: acknowledges that the coordinator has handled the subtask's
    #: event of this number.
    acknowledges: int | None = None


@dataclass(frozen=True, kw_only=True)
class EventsConfirmed:
    """S -> M: the batch that carried these events has ended."""

    vertex: VertexId
    attempt: int
    #: (operator, number) of each.
    events: tuple[tuple[OperatorId, int], ...]


@dataclass(frozen=True, kw_only=True)
class OperatorEventSent:
    """S -> M: an operator has sent an event, and the batch in which it did has ended."""

    vertex: VertexId
    attempt: int
    operator: OperatorId
    subtask: int
    #: Grows by one with each event of the task in this attempt.
    number: int
    payload: Payload


@dataclass(frozen=True, kw_only=True)
class AcknowledgeCheckpointEvent:
    """S -> M: the synchronous part of the task's snapshot is taken.

    Events of the next epoch may now be delivered (PROTOCOL P10).
    """

    vertex: VertexId
    attempt: int
    checkpoint_id: int


#: What a task reports about events.
TaskOperatorEvent: TypeAlias = EventsConfirmed | OperatorEventSent | AcknowledgeCheckpointEvent

# -- outcomes inside the job master


@dataclass(frozen=True, kw_only=True)
class CoordinatorAcknowledged:
    """Outcome: the coordinator's part of the checkpoint is complete.

    ``state`` goes into the metadata.
    """

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
    """Outcome: the subtask must fail over because it has lost an event."""

    operator: OperatorId
    subtask: int
    message: str


@dataclass(frozen=True, kw_only=True)
class FailJob:
    """Outcome: a coordinator failed, so the job must fail over, or fail for good (``fatal``)."""

    message: str
    fatal: bool = False
    cause: Cause = UNKNOWN


HolderOutput: TypeAlias = (
    CoordinatorEffect
    | DeliverEvent
    | CoordinatorAcknowledged
    | CoordinatorDeclined
    | FailSubtask
    | FailJob
)
