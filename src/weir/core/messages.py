"""Everything that goes in and out of the two core machines, ``JobMaster`` and ``StreamTask``.

Both have one entry, ``handle(event, now_ms) -> list[Effect]``, and answer ``next_deadline()``. The kernel carries effects
out; the outcome of a blocking one comes back as another event. Messages pass between the machines (section "Between job
master and task"): an effect of one is an event of the other, delivered in order.

How one checkpoint travels (S = ``StreamTask``, M = ``JobMaster``)::

    M  AllocateLocation ............ kernel takes the next id .......... LocationAllocated      M
    M  SnapshotCoordinator (if any)  the coordinator answers ........... CoordinatorSnapshotTaken M
    M  TriggerHook (if there are any) kernel calls each hook ........... HookTriggered          M
    M  TriggerCheckpoint ........... delivered ......................... TriggerCheckpoint      S
    S  (next PlanningCalled) TakeSnapshot .. kernel: synchronous part .. SyncPartDone           S
    S  AnswerPlanning, ContinueSnapshot .... kernel: asynchronous part . AsyncPartDone          S
    S  AcknowledgeCheckpoint ....... delivered ......................... AcknowledgeCheckpoint  M
    M  RecordCheckpoint ............ kernel: _metadata, then the record  CheckpointRecorded     M
    M  NotifyCheckpointComplete .... delivered ......................... NotifyCheckpointComplete S
    S  CommitSinks ................. kernel: sinks commit, with retries  SinksCommitted         S
    M  DiscardCheckpoint (subsumed)  kernel deletes it ................. CheckpointDiscarded    M

Attempts: every event from a task carries the attempt it belongs to; the job master ignores those of older attempts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from weir.core.channel import ChannelAppended, ReleaseSegments, Segment, SegmentsConsumed
from weir.core.input_gate import Admission
from weir.core.job_status import JobStatus
from weir.core.master_hooks import HookFailed, HookTriggered, TriggerHook
from weir.core.operator_events import CoordinatorEffect, CoordinatorEvent, DeliverEvent, TaskOperatorEvent
from weir.core.requests import AnswerRequest, CancelRequested, SnapshotRequested, SuspendRequested
from weir.core.types import (
    Committable,
    CompletedCheckpoint,
    InFlightSegment,
    OperatorId,
    Payload,
    Recorded,
    SentEvent,
    SnapshotKind,
    SnapshotMetrics,
    TaskState,
    TaskStatus,
    VertexId,
)

# -- Between job master and task ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TriggerCheckpoint:
    """M -> S: take checkpoint ``checkpoint_id`` at the next point between two steps (MISSION B1)."""

    vertex: VertexId
    checkpoint_id: int
    kind: SnapshotKind
    timestamp_ms: int
    #: Where the snapshot goes: a savepoint's directory, or None for the job's checkpoint directory.
    target: str | None = None
    #: The snapshot must not refer to a file of any earlier checkpoint (PROTOCOL P40).
    full: bool = False
    #: Of a stop with savepoint: end the input first, so that every window and timer fires (MISSION E1).
    drain: bool = False


@dataclass(frozen=True, kw_only=True)
class AcknowledgeCheckpoint:
    """S -> M: the task's snapshot for the checkpoint is durable."""

    vertex: VertexId
    attempt: int
    checkpoint_id: int
    state: TaskState
    metrics: SnapshotMetrics


@dataclass(frozen=True, kw_only=True)
class DeclineCheckpoint:
    """S -> M: the task takes no snapshot for this checkpoint. ``reason`` is a ``CheckpointFailureReason`` name."""

    vertex: VertexId
    attempt: int
    checkpoint_id: int
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class NotifyCheckpointComplete:
    """M -> S: the checkpoint's record is durable; sinks commit what they staged for it (PROTOCOL P13)."""

    vertex: VertexId
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class NotifyCheckpointAborted:
    """M -> S: the checkpoint is over. What sinks staged stays for the next one that completes (PROTOCOL P12)."""

    vertex: VertexId
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class TaskStatusChanged:
    """S -> M: the task is now ``status``."""

    vertex: VertexId
    attempt: int
    status: TaskStatus


@dataclass(frozen=True, kw_only=True)
class TaskFailed:
    """S -> M: the task failed; the whole job is restored (PROTOCOL P39), or fails for good if that cannot help."""

    vertex: VertexId
    attempt: int
    message: str
    #: Trying again cannot help: the user's plan is wrong.
    fatal: bool = False


# -- StreamTask: events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TaskStarted:
    """The task's query runs; ``position`` is the restored one, or -1."""

    position: int


@dataclass(frozen=True, kw_only=True)
class PlanningCalled:
    """Between two steps: all steps up to ``position`` are complete and no other has begun. The task owes exactly one
    ``AnswerPlanning(call)``; until then the query rests."""

    call: int
    position: int
    #: Of a task with channels: how far each has been read by the steps up to ``position``.
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
    #: Of a step that carried a barrier: the operator that could not take its snapshot, and why (PROTOCOL P6, P9).
    declined: tuple[OperatorId, str] | None = None
    #: The readers of its source have said that nothing is left to be read: with this step its records end.
    input_ended: bool = False


@dataclass(frozen=True, kw_only=True)
class RecordsEnded:
    """The bounded input is used up: the query has ended by itself after step ``position``."""

    position: int


@dataclass(frozen=True, kw_only=True)
class Drained:
    """The step that carries MAX_WATERMARK is complete: timers have fired, operators have finished (MISSION E1, E2)."""

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
    """The snapshot is durable. Committables and segments in ``state`` replace those that ``TakeSnapshot`` named: flushing
    may have added to the payloads of the ones, and the others are named by their files in the checkpoint now."""

    checkpoint_id: int
    state: TaskState
    metrics: SnapshotMetrics


@dataclass(frozen=True, kw_only=True)
class SnapshotFailed:
    """The synchronous or asynchronous part failed; what it wrote is removed with the checkpoint (PROTOCOL P9)."""

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
    """A sink could not commit this epoch and retries are used up: the task fails (PROTOCOL P13)."""

    checkpoint_id: int
    message: str


@dataclass(frozen=True, kw_only=True)
class TaskErrored:
    """The task's query failed. ``fatal`` means that trying again cannot help."""

    message: str
    fatal: bool = False


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

# -- StreamTask: effects ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AnswerPlanning:
    """Let planning call ``call`` return, so that the next step can begin."""

    call: int
    #: What that step may read of the task's channels.
    admitted: tuple[Admission, ...] = ()
    #: The watermark of each channel that has one, as of what the steps before it have read (PROTOCOL P25).
    watermarks_ms: dict[VertexId, int] = field(default_factory=dict)
    #: What operators handle before the records; for which checkpoint they prepare behind them (P6). Either forces a step.
    events: tuple[DeliverEvent, ...] = ()
    barrier: int | None = None


@dataclass(frozen=True, kw_only=True)
class TakeSnapshot:
    """Take the synchronous part for the state after ``position``: small entries are read, new files pinned (PROTOCOL P3).
    Owes ``SyncPartDone`` or ``SnapshotFailed``. No step begins before that."""

    vertex: VertexId
    checkpoint_id: int
    kind: SnapshotKind
    timestamp_ms: int
    target: str | None
    position: int
    #: Every operator of the task is fully finished: no entries and no files are needed.
    finished: bool
    committables: tuple[Committable, ...]
    #: No file of an earlier checkpoint may be referred to: everything is written anew (PROTOCOL P40).
    full: bool = False
    #: Segments of the task's channels that are part of the snapshot. They live until its last part has ended (P27).
    in_flight: tuple[InFlightSegment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ContinueSnapshot:
    """Start the asynchronous part: copy, flush staged output, sync. Owes ``AsyncPartDone`` or ``SnapshotFailed``."""

    vertex: VertexId
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class DropSnapshot:
    """Forget the snapshot and delete what it wrote: its checkpoint is over (PROTOCOL P43)."""

    vertex: VertexId
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class ConfirmBase:
    """The checkpoint completed: its files are the base of the task's next incremental snapshot (PROTOCOL P4)."""

    vertex: VertexId
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class StartDrain:
    """Run one more, empty step with MAX_WATERMARK after ``position``, and finish the operators. Owes ``Drained``."""

    vertex: VertexId
    position: int
    #: The planning call that is held; None if the task's query has ended.
    call: int | None = None
    #: What operators handle before they finish.
    events: tuple[DeliverEvent, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CloseOperators:
    """Close every operator: all is committed, nobody needs the task any more (MISSION E5). Owes ``OperatorsClosed``."""

    vertex: VertexId


@dataclass(frozen=True, kw_only=True)
class CommitSinks:
    """Let every sink of the task commit one epoch, with retries, then tell its checkpoint listeners, AFTER the record of the
    checkpoint. ``payloads`` names every sink (PROTOCOL P15). Owes ``SinksCommitted`` or ``SinkCommitFailed``."""

    vertex: VertexId
    checkpoint_id: int
    payloads: dict[OperatorId, tuple[Payload, ...]]


@dataclass(frozen=True, kw_only=True)
class TellAborted:
    """Tell the task's checkpoint listeners that the checkpoint is over. Owes ``TaskErrored`` if one raises."""

    vertex: VertexId
    checkpoint_id: int


StreamTaskEffect: TypeAlias = (
    AcknowledgeCheckpoint
    | DeclineCheckpoint
    | TaskStatusChanged
    | TaskFailed
    | AnswerPlanning
    | TakeSnapshot
    | ContinueSnapshot
    | DropSnapshot
    | ConfirmBase
    | StartDrain
    | CloseOperators
    | CommitSinks
    | TellAborted
    | ChannelAppended
    | SegmentsConsumed
    | ReleaseSegments
    | TaskOperatorEvent
)

# -- JobMaster: events --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JobSubmitted:
    """The job is to run. Answered by ``BeginAttempt``."""


@dataclass(frozen=True, kw_only=True)
class AttemptBegan:
    """The attempt's record is durable, what ``restored`` had pending is committed again, and tasks are starting. ``chance``
    in [0, 1) places the first periodic trigger (MISSION A2). ``timestamp_ms`` is the wall clock's."""

    attempt: int
    restored: CompletedCheckpoint | None
    chance: float
    timestamp_ms: int
    #: Retained checkpoints of this job that are older than ``restored`` and whose metadata can be read, in order.
    older: tuple[CompletedCheckpoint, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AttemptFailed:
    """The attempt could not begin. ``fatal`` means that trying again cannot help."""

    message: str
    fatal: bool
    timestamp_ms: int


@dataclass(frozen=True, kw_only=True)
class TasksStopped:
    """All tasks of the attempt have ended and none of their threads or snapshots is under way.

    ``chance`` in [0, 1) is the jitter of the restart strategy.
    """

    attempt: int
    chance: float


@dataclass(frozen=True, kw_only=True)
class LocationAllocated:
    """Checkpoint id and location are ours (MISSION A6). All pre-checks are repeated on it."""

    allocation: int
    checkpoint_id: int
    #: Directory of a savepoint; None for a checkpoint.
    target: str | None
    timestamp_ms: int


@dataclass(frozen=True, kw_only=True)
class LocationFailed:
    """No id or location could be had."""

    allocation: int
    message: str
    timestamp_ms: int


@dataclass(frozen=True, kw_only=True)
class CheckpointRecorded:
    """How recording the checkpoint ended. On WON, ``checkpoint`` is what was recorded."""

    checkpoint_id: int
    outcome: Recorded
    checkpoint: CompletedCheckpoint | None = None
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckpointDiscarded:
    """One ``DiscardCheckpoint`` was carried out, or failed: it is over either way. One event for each such effect."""

    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class EndRecorded:
    """How recording the job's end ended."""

    outcome: Recorded
    message: str = ""


JobMasterEvent: TypeAlias = (
    JobSubmitted
    | AttemptBegan
    | AttemptFailed
    | TasksStopped
    | SnapshotRequested
    | CancelRequested
    | SuspendRequested
    | LocationAllocated
    | LocationFailed
    | HookTriggered
    | HookFailed
    | CheckpointRecorded
    | CheckpointDiscarded
    | EndRecorded
    | AcknowledgeCheckpoint
    | DeclineCheckpoint
    | TaskStatusChanged
    | TaskFailed
    | TaskOperatorEvent
    | CoordinatorEvent
)

# -- JobMaster: effects -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BeginAttempt:
    """Win the record "attempt began", restore the newest completed checkpoint, hand each master hook its state (P44), commit
    again what was pending, start every task not fully finished in it. Owes ``AttemptBegan`` or ``AttemptFailed``."""


@dataclass(frozen=True, kw_only=True)
class AbandonAttempt:
    """The attempt that is being begun is not wanted any more: give up whatever it waits for. Owes nothing itself."""


@dataclass(frozen=True, kw_only=True)
class StopTasks:
    """Stop every task of the attempt, wherever it is. Owes ``TasksStopped``."""

    attempt: int


@dataclass(frozen=True, kw_only=True)
class AllocateLocation:
    """Take the next checkpoint id and make its location. Owes ``LocationAllocated`` or ``LocationFailed``."""

    allocation: int
    kind: SnapshotKind
    target: str | None


@dataclass(frozen=True, kw_only=True)
class RecordCheckpoint:
    """Write ``_metadata`` (last of all files), then win the record. Owes ``CheckpointRecorded``.

    Every state file named here is durable BEFORE this. ``retained`` are the ids that stay in the store with it.
    """

    checkpoint_id: int
    kind: SnapshotKind
    target: str | None
    timestamp_ms: int
    attempt: int
    tasks: tuple[TaskState, ...]
    retained: tuple[int, ...]
    #: By identifier or operator, sorted: they become those of ``CompletedCheckpoint``.
    hook_states: dict[str, Payload] = field(default_factory=dict)
    coordinator_states: dict[OperatorId, Payload] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DiscardCheckpoint:
    """Delete what only this checkpoint has: its directory, and ``files`` (paths below the job's directory). Owes
    ``CheckpointDiscarded``: no checkpoint starts while too many of these are under way.

    Issued for an aborted checkpoint, with no files (all that it wrote is its own), and, AFTER a record that this
    attempt won, for a subsumed one, with the files that no retained or pending checkpoint needs (PROTOCOL P17).
    """

    checkpoint_id: int
    #: Directory of an aborted savepoint; None for a checkpoint of the job's directory.
    target: str | None
    files: tuple[str, ...]
    subsumed: bool


@dataclass(frozen=True, kw_only=True)
class RecordEnd:
    """Record how the job ended, AFTER the last sink has committed (PROTOCOL P16). Owes ``EndRecorded``.

    ``savepoint`` is the path of the savepoint with which the job was stopped. With ``delete_checkpoints`` the job's
    retained checkpoints are deleted once the record is won (``externalized-checkpoint-retention``).
    """

    status: JobStatus
    savepoint: str | None
    failure: str | None
    delete_checkpoints: bool


@dataclass(frozen=True, kw_only=True)
class JobStatusChanged:
    """The job is now ``status``; for logs, progress and REST."""

    status: JobStatus
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class JobEnded:
    """Nothing more will happen: the driver can exit. ``fenced`` means that it must touch no file."""

    status: JobStatus
    failure: str | None = None
    savepoint: str | None = None
    #: It was stopped with a drain: there is nothing to go on with.
    drained: bool = False
    fenced: bool = False


JobMasterEffect: TypeAlias = (
    TriggerCheckpoint
    | NotifyCheckpointComplete
    | NotifyCheckpointAborted
    | BeginAttempt
    | AbandonAttempt
    | StopTasks
    | AllocateLocation
    | TriggerHook
    | RecordCheckpoint
    | DiscardCheckpoint
    | AnswerRequest
    | RecordEnd
    | JobStatusChanged
    | JobEnded
    | CoordinatorEffect
    | DeliverEvent
)
