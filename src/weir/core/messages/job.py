"""Events and effects of ``JobMaster``, except those it exchanges with the tasks
(``messages/protocol.py``).

An *event* says what has happened; an *effect* is what the machine wants done. If an effect blocks,
its docstring names the event that it owes.

*Requests of users* (``SnapshotRequested``, ``CancelRequested``, ``SuspendRequested``) are answered
with ``AnswerRequest``.

*Master hooks* (Flink's ``MasterTriggerRestoreHook``; MISSION A8, PROTOCOL P44) let something
outside the data flow take part in every checkpoint: a system that a source reads from can take a
snapshot of its own, for example. The core knows a hook by its identifier only. A hook has a trigger
and a restore, and is not notified of completion. Hooks run after the location is allocated and
before the tasks are triggered::

    M  TriggerHook, one for each hook .... runtime calls it ........... HookTriggered or HookFailed   M
    M  (all hooks are done) TriggerCheckpoint, one for each task

What a hook returns becomes part of the metadata (``CompletedCheckpoint.hook_states``) and is handed
back to it by the attempt that is restored from it, before any task starts.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TypeAlias

from weir.core.messages.operators import (
    CoordinatorEffect,
    CoordinatorEvent,
    DeliverEvent,
    TaskOperatorEvent,
)
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
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
    #: Stop with savepoint at a clean point between two steps (MISSION E2).
    STOP = "STOP"


@dataclass(frozen=True, kw_only=True)
class SnapshotRequested:
    """A user asks for a checkpoint, a savepoint or a stop. Answered once, by ``AnswerRequest``."""

    request: str
    kind: RequestKind
    #: Parent directory of the savepoint; None for the configured one.
    target: str | None = None
    #: Of a stop: let every window and timer fire first (MISSION E1).
    drain: bool = False
    #: Of a checkpoint; a savepoint is always full.
    checkpoint_type: CheckpointType = CheckpointType.CONFIGURED


@dataclass(frozen=True, kw_only=True)
class CancelRequested:
    """A user asks the job to be cancelled: no savepoint, nothing more is committed."""

    request: str


@dataclass(frozen=True, kw_only=True)
class SuspendRequested:
    """The driver is told to go (SIGINT, SIGTERM): stop the tasks and leave the job resumable."""


@dataclass(frozen=True, kw_only=True)
class AnswerRequest:
    """Answer a user's request: exactly one of ``checkpoint`` and ``failure`` is set, or neither for
    a cancel."""

    request: str
    checkpoint: CompletedCheckpoint | None = None
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class TriggerHook:
    """Effect: call the trigger of one master hook. Owes ``HookTriggered`` or ``HookFailed``.

    The checkpoint's id and location are ours BEFORE this. No task is triggered while a hook has not
    answered.
    """

    identifier: str
    checkpoint_id: int
    #: Milliseconds since the Unix epoch, the same for every hook and task of the checkpoint.
    timestamp_ms: int


@dataclass(frozen=True, kw_only=True)
class HookTriggered:
    """Event: the hook has done its part. ``state`` is what it wants back on restore; None for
    nothing."""

    identifier: str
    checkpoint_id: int
    state: Payload | None


@dataclass(frozen=True, kw_only=True)
class HookFailed:
    """Event: the hook could not do its part, so the checkpoint is aborted (MISSION A9)."""

    identifier: str
    checkpoint_id: int
    message: str


# -- Events
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JobSubmitted:
    """The job is to run. Answered by ``BeginAttempt``."""


@dataclass(frozen=True, kw_only=True)
class AttemptBegan:
    """The attempt's record is durable, what ``restored`` had pending is committed again, and tasks
    are starting.

    ``chance`` in [0, 1) places the first periodic trigger (MISSION A2). ``timestamp_ms`` is the
    wall clock's.
    """

    attempt: int
    restored: CompletedCheckpoint | None
    chance: float
    timestamp_ms: int
    #: Retained checkpoints of this job that are older than ``restored`` and whose metadata can be
    #: read, in order.
    older: tuple[CompletedCheckpoint, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AttemptFailed:
    """The attempt could not begin. ``fatal`` means that trying again cannot help."""

    message: str
    fatal: bool
    timestamp_ms: int
    cause: Cause = UNKNOWN


@dataclass(frozen=True, kw_only=True)
class TasksStopped:
    """All tasks of the attempt have ended and none of their threads or snapshots is under way. What
    hangs was left behind.

    ``chance`` in [0, 1) is the jitter of the restart strategy.
    """

    attempt: int
    chance: float
    #: What may still run a query of the attempt, so that no other one can begin in this process;
    #: empty if nothing does.
    left_running: str = ""


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
    """One ``DiscardCheckpoint`` was carried out, or failed: it is over either way. One event for
    each such effect."""

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

# -- Effects
# -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BeginAttempt:
    """Win the record "attempt began", restore the newest completed checkpoint, hand each master
    hook its state (P44), commit again what was pending, start every task not fully finished in it.
    Owes ``AttemptBegan`` or ``AttemptFailed``."""


@dataclass(frozen=True, kw_only=True)
class AbandonAttempt:
    """The attempt that is being begun is not wanted any more: give up whatever it waits for. Owes
    nothing itself."""


@dataclass(frozen=True, kw_only=True)
class StopTasks:
    """Stop every task of the attempt, wherever it is. Owes ``TasksStopped``."""

    attempt: int


@dataclass(frozen=True, kw_only=True)
class AllocateLocation:
    """Take the next checkpoint id and make its location. Owes ``LocationAllocated`` or
    ``LocationFailed``."""

    allocation: int
    kind: SnapshotKind
    target: str | None


@dataclass(frozen=True, kw_only=True)
class RecordCheckpoint:
    """Write ``_metadata`` (last of all files), then win the record. Owes ``CheckpointRecorded``.

    Every state file named here is durable BEFORE this. ``retained`` are the ids that stay in the
    store with it.
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
    """Delete what only this checkpoint has: its directory, and ``files`` (paths below the job's
    directory). Owes ``CheckpointDiscarded``: no checkpoint starts while too many of these are under
    way.

    Issued for an aborted checkpoint, with no files (all that it wrote is its own), and, AFTER a
    record that this attempt won, for a subsumed one, with the files that no retained or pending
    checkpoint needs (PROTOCOL P17).
    """

    checkpoint_id: int
    #: Directory of an aborted savepoint; None for a checkpoint of the job's directory.
    target: str | None
    files: tuple[str, ...]
    subsumed: bool


@dataclass(frozen=True, kw_only=True)
class RecordEnd:
    """Record how the job ended, AFTER the last sink has committed (PROTOCOL P16). Owes
    ``EndRecorded``.

    ``savepoint`` is the path of the savepoint with which the job was stopped. With
    ``delete_checkpoints`` the job's retained checkpoints are deleted once the record is won
    (``externalized-checkpoint-retention``).
    """

    status: JobStatus
    savepoint: str | None
    failure: str | None
    delete_checkpoints: bool


@dataclass(frozen=True, kw_only=True)
class JobStatusChanged:
    """The job is now ``status``; for logs, progress and REST. FAILING says why, and which task it
    was, if it was one."""

    status: JobStatus
    message: str = ""
    trace: str = field(default="", repr=False)
    vertex: VertexId | None = None


@dataclass(frozen=True, kw_only=True)
class JobEnded:
    """Nothing more will happen: the driver can exit. ``fenced`` means that it must touch no
    file."""

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
