"""Events and effects of ``StreamTask``; those shared with ``JobMaster`` are in ``protocol.py``.

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
from weir.core.messages.coordination import DeliverEvent, TaskOperatorEvent
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    CaughtUp,
    DeclineCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TaskClosing,
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

# -- events


@dataclass(frozen=True, kw_only=True)
class TaskStarted:
    """The task's query is running; ``position`` is the restored position, or -1."""

    position: int


@dataclass(frozen=True, kw_only=True)
class PlanningCalled:
    """Between two batches: all up to ``position`` have ended and no other has begun.

    The task owes exactly one ``AnswerPlanning(call)``; until then the query rests.
    """

    call: int
    position: int
    #: For a task with channels: how far the batches up to ``position`` have read each, according to
    #: the query's own offsets; a restored query may omit a channel until it reads it. Must be
    #: exactly what was admitted, or the task fails (PROTOCOL P7).
    consumed: dict[VertexId, int] = field(default_factory=dict)
    #: For a task with consumers: its output watermark, if any (PROTOCOL P25).
    watermark_ms: int | None = None
    #: How long until operators have a processing-time timer due; None: they have none.
    timer_in_ms: int | None = None
    #: Whether all of the state can still be read while the next batch runs.
    outlives_call: bool = True
    #: For a task that reads what is available now: whether Spark has read all of it. The next batch
    #: may read rows that have come since.
    caught_up: bool = False


@dataclass(frozen=True)
class InducedCheckpoint:
    """A checkpoint whose point readers have reached (MISSION B4); they read nothing more for now.

    The newest, if they have reached several; 0 if all that they have reached are over.
    """

    checkpoint_id: int
    #: No reader has anything to read before it.
    by_all: bool


@dataclass(frozen=True, kw_only=True)
class BatchStaged:
    """The sinks staged the output of batch ``position``. Comes before that batch ends."""

    position: int
    committables: tuple[Committable, ...]
    #: Its output for the task's consumers; None without consumers or without output.
    segment: Segment | None = None
    #: What operators sent to their coordinators during it.
    sent_events: tuple[SentEvent, ...] = ()
    #: The readers of the task's source reported that nothing is left to read: its records end with
    #: this batch or, if it reads what is available now, it has caught up.
    input_ended: bool = False
    #: How far readers that induce checkpoints are; None without such readers.
    induced: InducedCheckpoint | None = None
    #: Whether it may have read rows of the task's source.
    read_source: bool = True


@dataclass(frozen=True, kw_only=True)
class RecordsEnded:
    """The bounded input is exhausted: the query has ended on its own after batch ``position``."""

    position: int


@dataclass(frozen=True, kw_only=True)
class Drained:
    """The batch that carries MAX_WATERMARK has ended.

    All windows and timers have fired, and every operator of the chain has finished, in order
    (MISSION E1, E2).
    """

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
    """The snapshot is durable.

    Committables and segments in ``state`` replace those that ``TakeSnapshot`` named: flushing may
    have added to the payloads of committables, and left out those whose epoch was committed in
    between; segments now name their files in the checkpoint.
    """

    checkpoint_id: int
    state: TaskState
    metrics: SnapshotMetrics


@dataclass(frozen=True, kw_only=True)
class SnapshotFailed:
    """The synchronous or asynchronous part failed (PROTOCOL P9).

    What it wrote is removed with the checkpoint.
    """

    checkpoint_id: int
    message: str
    #: The operator whose part failed (MISSION B6); None: reported for the task's last operator.
    operator: OperatorId | None = None


@dataclass(frozen=True, kw_only=True)
class SinksCommitted:
    """Every sink of the task has committed this epoch."""

    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class SinkCommitFailed:
    """A sink could not commit this epoch and retries are exhausted: the task fails (PROTOCOL P13).

    ``fatal`` means that trying again cannot help.
    """

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
    | BatchStaged
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

# -- effects


@dataclass(frozen=True, kw_only=True)
class AnswerPlanning:
    """Let planning call ``call`` return, so that the next batch can begin."""

    call: int
    #: What that batch reads from the task's channels, no more and no less. Any admission forces a
    #: batch.
    admitted: tuple[Admission, ...] = ()
    #: The watermarks of the channels, as of what earlier batches have read (PROTOCOL P25).
    watermarks_ms: dict[VertexId, int] = field(default_factory=dict)
    #: Events that operators handle before the batch's records. Any event forces a batch, even
    #: without records.
    events: tuple[DeliverEvent, ...] = ()
    #: The checkpoint whose barrier follows the batch: operators prepare for it after the records
    #: (PROTOCOL P6). A barrier forces a batch.
    barrier: int | None = None
    #: A consumer lags too far, or the records have ended before a first batch: the batch only
    #: carries events. It reads no segment and gets no watermark, and Weir's own readers must not
    #: read in it (PROTOCOL P2).
    only_events: bool = False
    #: Readers that induce checkpoints go on from the points of all checkpoints up to this id
    #: (MISSION B4); None without such readers.
    induced_over: int | None = None


@dataclass(frozen=True, kw_only=True)
class TakeSnapshot:
    """Take the snapshot's synchronous part. Owes ``SyncPartDone`` or ``SnapshotFailed``.

    It captures the state after ``position``: small entries are read, new files pinned
    (PROTOCOL P3). No batch begins before it is done.
    """

    vertex: VertexId
    checkpoint_id: int
    kind: SnapshotKind
    timestamp_ms: int
    target: str | None
    position: int
    #: Every operator of the task is fully finished: nothing is needed but the state of operators
    #: that still have something to commit.
    finished: bool
    committables: tuple[Committable, ...]
    #: Refer to no file of an earlier checkpoint: everything is written again (PROTOCOL P40).
    full: bool = False
    #: Segments of the task's channels that belong to the snapshot. They live until its last part
    #: has ended (P27).
    in_flight: tuple[InFlightSegment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ContinueSnapshot:
    """Start the asynchronous part: copy, flush staged output, sync.

    Owes ``AsyncPartDone`` or ``SnapshotFailed``.
    """

    vertex: VertexId
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class DropSnapshot:
    """Forget the snapshot and delete what it wrote: its checkpoint was aborted (PROTOCOL P43)."""

    vertex: VertexId
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class ReportCompleted:
    """The checkpoint, or the savepoint with which the job stops, is complete.

    Operators are notified, and the task's next incremental snapshot is based on it (PROTOCOL P4).
    """

    vertex: VertexId
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class StartDrain:
    """Run a last, empty batch with MAX_WATERMARK. Owes ``Drained`` or ``TaskErrored``.

    It follows ``position``, and finishes every operator of the chain, in order.
    """

    vertex: VertexId
    position: int
    #: The planning call being held, if the records ended because the channels' did, because the
    #: readers said so or because the job is being stopped; None if the query has ended.
    call: int | None = None
    #: What operators handle before they finish.
    events: tuple[DeliverEvent, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CloseOperators:
    """Close every operator of the chain. Owes ``OperatorsClosed`` or ``TaskErrored``.

    Everything is committed, and the task is not needed any more (MISSION E5).
    """

    vertex: VertexId


@dataclass(frozen=True, kw_only=True)
class CommitSinks:
    """Commit an epoch in the sinks of the task. Owes ``SinksCommitted`` or ``SinkCommitFailed``.

    Failed commits are retried; afterwards the task's checkpoint listeners are notified.
    ``payloads`` names every sink that does not leave the epoch out, with an empty tuple if it
    staged nothing (PROTOCOL P15).
    Never issued before the record of ``checkpoint_id`` is durable.
    """

    vertex: VertexId
    checkpoint_id: int
    payloads: dict[OperatorId, tuple[Payload, ...]]


@dataclass(frozen=True, kw_only=True)
class ReportAborted:
    """Notify the task's checkpoint listeners that the checkpoint was aborted.

    Owes ``TaskErrored`` if a listener raises.
    """

    vertex: VertexId
    checkpoint_id: int


#: What the task's ports carry out.
TaskWork: TypeAlias = (
    AnswerPlanning
    | TakeSnapshot
    | ContinueSnapshot
    | DropSnapshot
    | ReportCompleted
    | StartDrain
    | CloseOperators
    | CommitSinks
    | ReportAborted
    | ReleaseSegments
)

StreamTaskEffect: TypeAlias = (
    TaskWork
    | AcknowledgeCheckpoint
    | DeclineCheckpoint
    | TaskStatusChanged
    | TaskClosing
    | CaughtUp
    | TaskFailed
    | ChannelAppended
    | SegmentsConsumed
    | TaskOperatorEvent
)
