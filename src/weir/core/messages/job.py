"""Events and effects of ``JobMaster``; those shared with tasks are in ``messages/protocol.py``.

An *event* says what has happened; an *effect* is what the machine wants done. If an effect blocks,
its docstring names the event that it owes.

*User requests* (``SnapshotRequested``, ``CancelRequested``) are answered with ``AnswerRequest``;
``SuspendRequested`` is not answered.

*Master hooks* (Flink's ``MasterTriggerRestoreHook``; MISSION A8, PROTOCOL P44) let something
outside the data flow take part in every checkpoint: for example, a system that a source reads from
can take its own snapshot. The core knows a hook only by its identifier. A hook has a trigger and a
restore, and is not notified of completion. Hooks run after the location is allocated and before the
tasks are triggered::

    M  TriggerHook, one per hook ....... runtime calls it ....... HookTriggered or HookFailed   M
    M  (all hooks are done) TriggerCheckpoint, one per root task

What a hook returns becomes part of the metadata (``CompletedCheckpoint.hook_states``). An attempt
that is restored from the checkpoint hands it back to the hook before any task starts.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from weir.core.messages.coordination import (
    CoordinatorEffect,
    CoordinatorEvent,
    DeliverEvent,
    TaskOperatorEvent,
)
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
from weir.core.status import JobStatus
from weir.core.types import (
    UNKNOWN,
    Cause,
    CheckpointType,
    CompletedCheckpoint,
    OperatorId,
    Payload,
    Recorded,
    SnapshotKind,
    TaskState,
    VertexId,
)


class RequestKind(enum.Enum):
    """What a user asks for."""

    CHECKPOINT = "CHECKPOINT"
    SAVEPOINT = "SAVEPOINT"
    #: Stop with savepoint at a clean point between two batches (MISSION E2).
    STOP = "STOP"
    #: The same with a checkpoint of the job in place of the savepoint: running the command again
    #: resumes the job.
    STOP_WITH_CHECKPOINT = "STOP_WITH_CHECKPOINT"


@dataclass(frozen=True, kw_only=True)
class SnapshotRequested:
    """A user asks for a checkpoint, a savepoint or a stop. Answered once, by ``AnswerRequest``."""

    request: str
    kind: RequestKind
    #: Parent directory of the savepoint; None: as configured.
    target: str | None = None
    #: For a stop: let every window and timer fire first (MISSION E1).
    drain: bool = False
    #: For a checkpoint; a savepoint is always full.
    checkpoint_type: CheckpointType = CheckpointType.CONFIGURED


@dataclass(frozen=True, kw_only=True)
class CancelRequested:
    """A user asks to cancel the job: no savepoint is taken and nothing more is committed."""

    request: str


@dataclass(frozen=True, kw_only=True)
class SuspendRequested:
    """The driver must exit (SIGINT, SIGTERM): stop the tasks and leave the job resumable."""


@dataclass(frozen=True, kw_only=True)
class AnswerRequest:
    """Answer a user's request.

    Exactly one of ``checkpoint`` and ``failure`` is set; neither if a cancel succeeded.
    """

    request: str
    checkpoint: CompletedCheckpoint | None = None
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class TriggerHook:
    """Effect: call the trigger of one master hook. Owes ``HookTriggered`` or ``HookFailed``.

    The checkpoint's id and location are ours BEFORE this. No task is triggered until every hook has
    answered.
    """

    identifier: str
    checkpoint_id: int
    #: Milliseconds since the Unix epoch, the same for every hook and task of the checkpoint.
    timestamp_ms: int


@dataclass(frozen=True, kw_only=True)
class HookTriggered:
    """Event: the hook has done its part; ``state`` is returned to it on restore unless None."""

    identifier: str
    checkpoint_id: int
    state: Payload | None


@dataclass(frozen=True, kw_only=True)
class HookFailed:
    """Event: the hook could not do its part, so the checkpoint is aborted (MISSION A9)."""

    identifier: str
    checkpoint_id: int
    message: str


# -- events


@dataclass(frozen=True, kw_only=True)
class JobSubmitted:
    """The job was submitted to run. Answered by ``BeginAttempt``."""


@dataclass(frozen=True, kw_only=True)
class AttemptBegan:
    """The attempt has begun and its tasks are starting.

    Its record is durable, and the pending commits of ``restored`` have been committed again.
    ``chance`` in [0, 1) places the first periodic trigger (MISSION A2). ``timestamp_ms`` is wall
    clock time.
    """

    attempt: int
    restored: CompletedCheckpoint | None
    #: The state in ``restored`` of each vertex of this job; vertices without state are missing.
    states: Mapping[VertexId, TaskState]
    chance: float
    timestamp_ms: int
    #: This job's retained checkpoints older than ``restored`` whose metadata is readable, in order.
    older: tuple[CompletedCheckpoint, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AttemptFailed:
    """The attempt could not begin. ``fatal`` means that trying again cannot help."""

    message: str
    fatal: bool
    cause: Cause = UNKNOWN


@dataclass(frozen=True, kw_only=True)
class TasksStopped:
    """All tasks of the attempt have ended, and none of their threads or snapshots is running.

    What hangs was left behind (``left_running``). ``chance`` in [0, 1) places the jitter of the
    restart strategy.
    """

    attempt: int
    chance: float
    #: What may still be running a query of the attempt, so that no other attempt can begin in this
    #: process; empty if nothing is.
    left_running: str = ""


@dataclass(frozen=True, kw_only=True)
class LocationAllocated:
    """Checkpoint id and location are ours (MISSION A6). All pre-checks are now repeated."""

    allocation: int
    checkpoint_id: int
    #: Directory of a savepoint; None for a checkpoint.
    target: str | None
    timestamp_ms: int


@dataclass(frozen=True, kw_only=True)
class LocationFailed:
    """No id or location could be allocated."""

    allocation: int
    message: str
    timestamp_ms: int


@dataclass(frozen=True, kw_only=True)
class CheckpointRecorded:
    """The outcome of recording the checkpoint. On WON, ``checkpoint`` is what was recorded."""

    checkpoint_id: int
    outcome: Recorded
    checkpoint: CompletedCheckpoint | None = None
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckpointDiscarded:
    """One ``DiscardCheckpoint`` was carried out or has failed; it is done either way.

    There is one such event per effect.
    """

    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class EndRecorded:
    """The outcome of recording the job's end."""

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
    | TaskClosing
    | CaughtUp
    | TaskFailed
    | TaskOperatorEvent
    | CoordinatorEvent
)

# -- effects


@dataclass(frozen=True, kw_only=True)
class BeginAttempt:
    """Begin the next attempt. Owes ``AttemptBegan`` or ``AttemptFailed``.

    Win the record "attempt began", restore the newest completed checkpoint, hand each master hook
    its state (P44), commit again what was pending, and start every task that is not fully finished
    in the checkpoint.
    """


@dataclass(frozen=True, kw_only=True)
class AbandonAttempt:
    """The attempt being started is no longer wanted: give up whatever it waits for.

    Owes no event of its own.
    """


@dataclass(frozen=True, kw_only=True)
class StopTasks:
    """Stop every task of the attempt, whatever its state. Owes ``TasksStopped``."""

    attempt: int


@dataclass(frozen=True, kw_only=True)
class AllocateLocation:
    """Take the next checkpoint id and create its location.

    Owes ``LocationAllocated`` or ``LocationFailed``.
    """

    allocation: int
    kind: SnapshotKind
    target: str | None


@dataclass(frozen=True, kw_only=True)
class RecordCheckpoint:
    """Write ``_metadata`` (last of all files), then win the record. Owes ``CheckpointRecorded``.

    Every state file named here is durable BEFORE this. ``retained`` are the ids that the store
    keeps along with it.
    """

    checkpoint_id: int
    kind: SnapshotKind
    target: str | None
    timestamp_ms: int
    attempt: int
    tasks: tuple[TaskState, ...]
    retained: tuple[int, ...]
    #: By identifier or operator, sorted; copied to ``CompletedCheckpoint``.
    hook_states: dict[str, Payload] = field(default_factory=dict)
    coordinator_states: dict[OperatorId, Payload] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DiscardCheckpoint:
    """Delete what only this checkpoint uses. Owes ``CheckpointDiscarded``.

    That is its directory, and ``files`` (paths below the job's directory). No checkpoint starts
    while too many of these deletions are in progress.

    Issued for an aborted checkpoint, with no files (everything it wrote is in its own directory),
    and, AFTER a record that this attempt won, for a subsumed one, with the files that no retained
    or pending checkpoint needs (PROTOCOL P17).
    """

    checkpoint_id: int
    #: Directory of an aborted savepoint; None for a checkpoint of the job's directory.
    target: str | None
    files: tuple[str, ...]
    subsumed: bool


@dataclass(frozen=True, kw_only=True)
class RecordEnd:
    """Record how the job ended. Owes ``EndRecorded``.

    FINISHED, and SUSPENDED after a stop with checkpoint, are recorded only AFTER the last sink has
    committed (PROTOCOL P16). ``savepoint`` is the
    path of the savepoint with which the job was stopped. With ``delete_checkpoints`` the job's
    retained checkpoints are deleted once the record is won (``externalized-checkpoint-retention``).
    """

    status: JobStatus
    savepoint: str | None
    failure: str | None
    delete_checkpoints: bool


@dataclass(frozen=True, kw_only=True)
class JobStatusChanged:
    """The job is now ``status``; for logs, progress and REST.

    FAILING carries the reason, and the task that failed if it was a task.
    """

    status: JobStatus
    message: str = ""
    trace: str = field(default="", repr=False)
    vertex: VertexId | None = None


@dataclass(frozen=True, kw_only=True)
class JobEnded:
    """Nothing more will happen: the driver can exit. If ``fenced``, it must touch no file."""

    status: JobStatus
    failure: str | None = None
    savepoint: str | None = None
    #: The job was stopped with a drain: there is nothing left to resume.
    drained: bool = False
    #: The checkpoint with which the job was stopped: running the command again resumes from it.
    checkpoint_id: int | None = None
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
