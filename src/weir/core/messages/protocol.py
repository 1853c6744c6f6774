"""Messages between the two core machines, ``JobMaster`` and ``StreamTask``.

Both machines have one entry point, ``handle(event, now_ms) -> list[Effect]``, and report their
``next_deadline()``. The runtime carries out the effects; the outcome of a blocking effect comes
back as another event. What each machine exchanges with the runtime is in ``job.py`` and
``task.py``. The messages in this file pass between the machines: an effect of one is an event of
the other, delivered in order.

The course of one checkpoint (S = ``StreamTask``, M = ``JobMaster``)::

    M  AllocateLocation ............. runtime takes the next id ......... LocationAllocated        M
    M  SnapshotCoordinator (if any)   the coordinator answers ........... CoordinatorSnapshotTaken M
    M  TriggerHook (if any) ......... runtime calls each hook ........... HookTriggered            M
    M  TriggerCheckpoint ............ delivered ......................... TriggerCheckpoint        S
    S  (next PlanningCalled) TakeSnapshot . runtime: synchronous part ... SyncPartDone             S
    S  AnswerPlanning, ContinueSnapshot ... runtime: asynchronous part .. AsyncPartDone            S
    S  AcknowledgeCheckpoint ........ delivered ......................... AcknowledgeCheckpoint    M
    M  RecordCheckpoint ............. runtime: _metadata, then the record CheckpointRecorded       M
    M  NotifyCheckpointComplete ..... delivered ......................... NotifyCheckpointComplete S
    S  CommitSinks .................. runtime: sinks commit, with retries SinksCommitted           S
    M  DiscardCheckpoint (subsumed) . runtime deletes it ................ CheckpointDiscarded      M

Every event from a task carries its attempt; the job master ignores events of older attempts.
"""

from __future__ import annotations

from dataclasses import dataclass

from weir.core.messages.channel import CheckpointBarrier
from weir.core.types import (
    UNKNOWN,
    Cause,
    CheckpointFailureReason,
    SnapshotKind,
    SnapshotMetrics,
    TaskState,
    TaskStatus,
    VertexId,
)


@dataclass(frozen=True, kw_only=True)
class TriggerCheckpoint:
    """M -> S: take checkpoint ``checkpoint_id`` before the next batch (MISSION B1)."""

    vertex: VertexId
    #: What goes downstream before the snapshot is taken.
    barrier: CheckpointBarrier
    #: For a stop with savepoint: end the input first, so that every window and timer fires
    #: (MISSION E1).
    drain: bool = False

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint's id."""
        return self.barrier.checkpoint_id

    @property
    def kind(self) -> SnapshotKind:
        """What is taken."""
        return self.barrier.kind


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
    """S -> M: the task takes no snapshot for this checkpoint."""

    vertex: VertexId
    attempt: int
    checkpoint_id: int
    reason: CheckpointFailureReason
    message: str


@dataclass(frozen=True, kw_only=True)
class NotifyCheckpointComplete:
    """M -> S: the checkpoint's record is durable; sinks commit what they staged for it (P13)."""

    vertex: VertexId
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class NotifyCheckpointAborted:
    """M -> S: the checkpoint was aborted.

    What sinks staged for it waits for the next checkpoint that completes (PROTOCOL P12).
    """

    vertex: VertexId
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class TaskStatusChanged:
    """S -> M: the task is now ``status``."""

    vertex: VertexId
    attempt: int
    status: TaskStatus


@dataclass(frozen=True, kw_only=True)
class TaskClosing:
    """S -> M: the task takes no more checkpoints, and is FINISHED soon (PROTOCOL P32)."""

    vertex: VertexId
    attempt: int


@dataclass(frozen=True, kw_only=True)
class CaughtUp:
    """S -> M: the task has read what its sources had when the attempt began, and reads no more."""

    vertex: VertexId
    attempt: int


@dataclass(frozen=True, kw_only=True)
class TaskFailed:
    """S -> M: the task failed.

    The whole job is restored (PROTOCOL P39), or fails for good if that cannot help.
    """

    vertex: VertexId
    attempt: int
    message: str
    #: Trying again cannot help, for example because the user's plan is wrong.
    fatal: bool = False
    cause: Cause = UNKNOWN
