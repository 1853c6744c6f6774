"""Events and effects of ``StreamTask``, except those it exchanges with the job master
(``messages/protocol.py``).

An *event* says what has happened; an *effect* is what the machine wants done. If an effect blocks,
its docstring names the event that it owes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from weir.core.messages.channel import (
    Admission,
    ChannelAppended,
    ReleaseSegments,
    Segment,
    SegmentsConsumed,
)
from weir.core.messages.operators import DeliverEvent, TaskOperatorEvent
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TaskFailed,
    TaskStatusChanged,
    TriggerCheckpoint,
)
from weir.core.types import (
    UNKNOWN,
    Cause,
    Committable,
    InFlightSegment,
    OperatorId,
    Payload,
    SentEvent,
    SnapshotKind,
    SnapshotMetrics,
    TaskState,
    VertexId,
)

# -- Events
# -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TaskStarted:
    """The task's query runs; ``position`` is the restored one, or -1."""

    position: int


@dataclass(frozen=True, kw_only=True)
class PlanningCalled:
    """Between two steps: all steps up to ``position`` are complete and no other has begun. The task
    owes exactly one ``AnswerPlanning(call)``; until then the query rests."""

    call: int
    position: int
    #: Of a task with channels: how far each has been read by the steps up to ``position``, by the
    #: query's own offsets; a restored query may leave out a channel until it reads it. Exactly what
    #: was admitted, else the task fails (PROTOCOL P7).
    consumed: dict[VertexId, int] = field(default_factory=dict)
    #: Of a task with consumers: the watermark of what it has put out, if it has one (PROTOCOL P25).
    watermark_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class StepStaged:
    """The sinks staged what step ``position`` put out. Comes before that step is complete."""

    position: int
    committables: tuple[Committable, ...]
    #: What it put out for the task's consumers; None if it has none, or put out nothing.
    segment: Segment | None = None
    #: What operators sent to their coordinators in it.
    sent_events: tuple[SentEvent, ...] = ()
    #: Of a step that carried a barrier: the operator that could not take its snapshot, and why
    #: (PROTOCOL P6, P9).
    declined: tuple[OperatorId, str] | None = None
    #: The readers of its source have said that nothing is left to be read: with this step its
    #: records end.
    input_ended: bool = False


@dataclass(frozen=True, kw_only=True)
class RecordsEnded:
    """The bounded input is used up: the query has ended by itself after step ``position``."""

    position: int


@dataclass(frozen=True, kw_only=True)
class Drained:
    """The step that carries MAX_WATERMARK is complete: all windows and timers have fired, and every
    operator of the chain has finished, in order (MISSION E1, E2)."""

    position: int


@dataclass(frozen=True, kw_only=True)
class OperatorsClosed:
    """Every operator of the chain is closed (MISSION E5)."""


@dataclass(frozen=True, kw_only=True)
class SyncPartDone:
    """The synchronous part of the snapshot is taken: records may flow again (MISSION B5)."""

    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class AsyncPartDone:
    """The snapshot is durable. Committables and segments in ``state`` replace those that
    ``TakeSnapshot`` named: flushing may have added to the payloads of the ones, and the others are
    named by their files in the checkpoint now."""

    checkpoint_id: int
    state: TaskState
    metrics: SnapshotMetrics


@dataclass(frozen=True, kw_only=True)
class SnapshotFailed:
    """The synchronous or asynchronous part failed; what it wrote is removed with the checkpoint
    (PROTOCOL P9)."""

    checkpoint_id: int
    message: str
    #: The operator whose part failed (MISSION B6); None for the task's last one.
    operator: OperatorId | None = None


@dataclass(frozen=True, kw_only=True)
class SinksCommitted:
    """Every sink of the task has committed this epoch."""

    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class SinkCommitFailed:
    """A sink could not commit this epoch and retries are used up: the task fails (PROTOCOL P13).
    ``fatal`` means that trying again cannot help."""

    checkpoint_id: int
    message: str
    fatal: bool = False
    cause: Cause = UNKNOWN


@dataclass(frozen=True, kw_only=True)
class TaskErrored:
    """The task's query failed. ``fatal`` means that trying again cannot help."""

    message: str
    fatal: bool = False
    cause: Cause = UNKNOWN


StreamTaskEvent: TypeAlias = (
    TriggerCheckpoint
    | NotifyCheckpointComplete
    | NotifyCheckpointAborted
    | TaskStarted
    | PlanningCalled
    | StepStaged
    | RecordsEnded
    | Drained
    | OperatorsClosed
    | SyncPartDone
    | AsyncPartDone
    | SnapshotFailed
    | SinksCommitted
    | SinkCommitFailed
    | TaskErrored
    | ChannelAppended
    | SegmentsConsumed
    | DeliverEvent
)

# -- Effects
# ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AnswerPlanning:
    """Let planning call ``call`` return, so that the next step can begin."""

    call: int
    #: What that step reads of the task's channels, no more and no less. With anything, there is a
    #: step.
    admitted: tuple[Admission, ...] = ()
    #: The watermark of each channel that has one, as of what the steps before it have read
    #: (PROTOCOL P25).
    watermarks_ms: dict[VertexId, int] = field(default_factory=dict)
    #: What operators handle before the step's records. With any, there is a step, be it without
    #: records.
    events: tuple[DeliverEvent, ...] = ()
    #: The checkpoint whose barrier follows the step: operators prepare for it behind the records
    #: (PROTOCOL P6). With one, there is a step.
    barrier: int | None = None


@dataclass(frozen=True, kw_only=True)
class TakeSnapshot:
    """Take the synchronous part for the state after ``position``: small entries are read, new files
    pinned (PROTOCOL P3). Owes ``SyncPartDone`` or ``SnapshotFailed``. No step begins before
    that."""

    vertex: VertexId
    checkpoint_id: int
    kind: SnapshotKind
    timestamp_ms: int
    target: str | None
    position: int
    #: Every operator of the task is fully finished: no entries and no files are needed.
    finished: bool
    committables: tuple[Committable, ...]
    #: No file of an earlier checkpoint may be referred to: everything is written anew
    #: (PROTOCOL P40).
    full: bool = False
    #: Segments of the task's channels that are part of the snapshot. They live until its last part
    #: has ended (P27).
    in_flight: tuple[InFlightSegment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ContinueSnapshot:
    """Start the asynchronous part: copy, flush staged output, sync. Owes ``AsyncPartDone`` or
    ``SnapshotFailed``."""

    vertex: VertexId
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class DropSnapshot:
    """Forget the snapshot and delete what it wrote: its checkpoint is over (PROTOCOL P43)."""

    vertex: VertexId
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class ConfirmBase:
    """The checkpoint completed: its files are the base of the task's next incremental snapshot
    (PROTOCOL P4)."""

    vertex: VertexId
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class StartDrain:
    """Run one more, empty step with MAX_WATERMARK after ``position``, and finish every operator of
    the chain, in order. Owes ``Drained`` or ``TaskErrored``."""

    vertex: VertexId
    position: int
    #: The planning call that is held, of a task whose records end because its channels do, its
    #: readers say so or the job is stopped; None if its query has ended.
    call: int | None = None
    #: What operators handle before they finish.
    events: tuple[DeliverEvent, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CloseOperators:
    """Close every operator of the chain: all is committed, and nobody needs the task any more
    (MISSION E5). Owes ``OperatorsClosed`` or ``TaskErrored``."""

    vertex: VertexId


@dataclass(frozen=True, kw_only=True)
class CommitSinks:
    """Let every sink of the task commit one epoch, with retries, then tell its checkpoint
    listeners. ``payloads`` names every sink, with an empty tuple for one that staged nothing
    (PROTOCOL P15). Owes ``SinksCommitted`` or ``SinkCommitFailed``. Never issued before the record
    of ``checkpoint_id`` is durable."""

    vertex: VertexId
    checkpoint_id: int
    payloads: dict[OperatorId, tuple[Payload, ...]]


@dataclass(frozen=True, kw_only=True)
class TellAborted:
    """Tell the task's checkpoint listeners that the checkpoint is over. Owes ``TaskErrored`` if one
    raises."""

    vertex: VertexId
    checkpoint_id: int


#: What the task's ports carry out.
TaskWork: TypeAlias = (
    AnswerPlanning
    | TakeSnapshot
    | ContinueSnapshot
    | DropSnapshot
    | ConfirmBase
    | StartDrain
    | CloseOperators
    | CommitSinks
    | TellAborted
    | ReleaseSegments
)

StreamTaskEffect: TypeAlias = (
    TaskWork
    | AcknowledgeCheckpoint
    | DeclineCheckpoint
    | TaskStatusChanged
    | TaskFailed
    | ChannelAppended
    | SegmentsConsumed
    | TaskOperatorEvent
)
