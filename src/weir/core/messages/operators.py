"""What operator coordinators, the job master and tasks say to each other (MISSION C; PROTOCOL P2,
P10, P41).

A coordinator runs in the driver, beside the data flow, and is known by the operator that it
coordinates. An event travels in either direction with an acknowledgement (C = the coordinator's
port, M = ``JobMaster``, S = ``StreamTask``)::

    C  CoordinatorSentEvent ... M  DeliverEvent ........... S  AnswerPlanning carries it; the step is complete
                                                            S  EventsConfirmed ........ M
    S  OperatorEventSent ...... M  HandleOperatorEvent .... C  the coordinator handles it
    C  OperatorEventHandled ... M  DeliverEvent(acknowledges=...) through the gateway .. S forgets the event

An event of an operator is state of its task until the acknowledgement comes. That comes through the
gateway like every other event, so of a checkpoint it holds: what the coordinator's snapshot has
handled, the task's has no more; what it has not, the task's has still, and a restored task sends it
again (P41).

How a coordinator's part of a checkpoint ended, and which subtask must fail over, are outcomes that
stay in the job master.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from weir.core.types import UNKNOWN, Cause, OperatorId, Payload, VertexId

# -- Effects of the job master, for the coordinator's port. They are carried out in their order, one
# after the other ---


@dataclass(frozen=True, kw_only=True)
class ResetCoordinator:
    """Effect: an attempt has begun. Bring the coordinator to a checkpoint, or to its begin (both
    None)."""

    operator: OperatorId
    attempt: int
    parallelism: int
    checkpoint_id: int | None
    state: Payload | None
    #: The checkpoint is of this job, whose ids it has.
    own: bool = True


@dataclass(frozen=True, kw_only=True)
class SnapshotCoordinator:
    """Effect: ask the coordinator for its snapshot. Owes ``CoordinatorSnapshotTaken`` or
    ``CoordinatorSnapshotFailed``."""

    operator: OperatorId
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class HandleOperatorEvent:
    """Effect: let the coordinator handle an event of its operator. Owes ``OperatorEventHandled``,
    or ``CoordinatorFailed`` if it raises."""

    operator: OperatorId
    subtask: int
    number: int
    payload: Payload


@dataclass(frozen=True, kw_only=True)
class NotifyCoordinator:
    """Effect: tell the coordinator that a checkpoint has completed, AFTER the tasks (PROTOCOL P13),
    or was aborted."""

    operator: OperatorId
    checkpoint_id: int
    completed: bool


@dataclass(frozen=True, kw_only=True)
class SubtasksReady:
    """Effect: tell the coordinator that every subtask runs."""

    operator: OperatorId


@dataclass(frozen=True, kw_only=True)
class SubtasksFailed:
    """Effect: tell the coordinator that every subtask has failed. Events that it sent since its
    last checkpoint are lost."""

    operator: OperatorId
    message: str


CoordinatorEffect: TypeAlias = (
    ResetCoordinator
    | SnapshotCoordinator
    | HandleOperatorEvent
    | NotifyCoordinator
    | SubtasksReady
    | SubtasksFailed
)

# -- Events of the coordinator's port, for the job master. Those of an older attempt change nothing
# ----------


@dataclass(frozen=True, kw_only=True)
class CoordinatorSentEvent:
    """The coordinator sends an event to one subtask. Comes before the answer of a snapshot that is
    taken later."""

    operator: OperatorId
    attempt: int
    subtask: int
    payload: Payload


@dataclass(frozen=True, kw_only=True)
class CoordinatorSnapshotTaken:
    """The coordinator has taken its snapshot; all that it sends from now on belongs to the next
    epoch (MISSION C3)."""

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
    """The coordinator has handled an event of its operator, and has sent what it answers."""

    operator: OperatorId
    attempt: int
    subtask: int
    number: int


@dataclass(frozen=True, kw_only=True)
class CoordinatorFailed:
    """The coordinator raised, or fails the job: the job is restored, unless trying again cannot
    help (``fatal``)."""

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

# -- Between job master and task
# -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DeliverEvent:
    """M -> S: bring the event to the subtask, behind all that was delivered to it before
    (MISSION C6). Owes ``EventsConfirmed``, or the task fails."""

    operator: OperatorId
    subtask: int
    #: Grows by one with each event of the operator.
    number: int
    payload: Payload
    #: It is no event of the coordinator's, but says that this one of the subtask's was handled.
    acknowledges: int | None = None


@dataclass(frozen=True, kw_only=True)
class EventsConfirmed:
    """S -> M: the step that carried these events is complete. (operator, number) each."""

    vertex: VertexId
    attempt: int
    events: tuple[tuple[OperatorId, int], ...]


@dataclass(frozen=True, kw_only=True)
class OperatorEventSent:
    """S -> M: an operator has sent an event, and the step in which it did is complete."""

    vertex: VertexId
    attempt: int
    operator: OperatorId
    subtask: int
    #: Grows by one with each event of the task in this attempt.
    number: int
    payload: Payload


@dataclass(frozen=True, kw_only=True)
class AcknowledgeCheckpointEvent:
    """S -> M: the synchronous part of the task's snapshot is taken, so events of the next epoch may
    come (PROTOCOL P10)."""

    vertex: VertexId
    attempt: int
    checkpoint_id: int


#: What a task says of events.
TaskOperatorEvent: TypeAlias = EventsConfirmed | OperatorEventSent | AcknowledgeCheckpointEvent

# -- Outcomes inside of the job master
# -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CoordinatorAcknowledged:
    """Outcome: the coordinator's part of the checkpoint is complete; ``state`` goes into the
    metadata."""

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


@dataclass(frozen=True, kw_only=True)
class FailJob:
    """Outcome: a coordinator failed, so the job must fail over, or for good (``fatal``)."""

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
