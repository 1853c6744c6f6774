"""What the runtime asks of the outside: where tasks run (``TaskPort``), and what must last
(``DurablePort``).

Rules. Every method may block and is called on a pool thread, but for those marked *quick*, which
the main thread calls itself. Failures are exceptions; the dispatcher turns them into events, so no
method swallows one. In production the tasks are Spark queries (``weir/spark/task_port.py``). The
durable part (``weir/durable/job.py``) is the same in the simulator, over a file system and sinks
that fail as told.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from weir.core.messages.channel import ReleaseSegments
from weir.core.messages.job import (
    AllocateLocation,
    CheckpointRecorded,
    DiscardCheckpoint,
    RecordCheckpoint,
    RecordEnd,
    TriggerHook,
)
from weir.core.messages.operators import CoordinatorEffect, CoordinatorEvent
from weir.core.messages.task import (
    AnswerPlanning,
    CommitSinks,
    ContinueSnapshot,
    DropSnapshot,
    StartDrain,
    StreamTaskEvent,
    TakeSnapshot,
    TellAborted,
)
from weir.core.task.output_channels import DEFAULT_BOUND, ChannelBound
from weir.core.types import (
    CompletedCheckpoint,
    OperatorId,
    OperatorState,
    Payload,
    Recorded,
    SnapshotMetrics,
    TaskState,
    VertexId,
)

#: Posts an event of one task, from any thread.
PostToTask = Callable[[StreamTaskEvent], None]


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """What the driver needs to know of a vertex to make its ``StreamTask``."""

    vertex: VertexId
    operators: tuple[OperatorState, ...]
    sinks: tuple[OperatorId, ...]
    bounded: bool
    requires_final_checkpoint: bool
    #: Tasks whose channels it reads.
    inputs: tuple[VertexId, ...] = ()
    #: How far those that read its channel may be behind.
    bound: ChannelBound = DEFAULT_BOUND
    #: How long after a checkpoint's first barrier one may overtake records; None: it never may.
    aligned_timeout_ms: int | None = None
    #: Whether operators of it prepare for a barrier in the step before it (PROTOCOL P6).
    prepares_for_barriers: bool = False
    #: Whether operators of it have coordinators.
    coordinated: bool = False


@dataclass(frozen=True, kw_only=True)
class AttemptStart:
    """An attempt whose record was won."""

    attempt: int
    restored: CompletedCheckpoint | None
    #: Older retained checkpoints whose metadata can be read.
    older: tuple[CompletedCheckpoint, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CoordinatorAnswer:
    """What an operator coordinator has answered somebody outside of the job."""

    answer: Payload | None
    #: A completed checkpoint that has what the request has changed.
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class VertexMetrics:
    """Counters of a vertex since the driver started."""

    position: int = -1
    records_in: int = 0
    records_in_per_second: float = 0.0
    records_committed: int = 0
    parallelism: int = 1


class TaskPort(Protocol):
    """Where the tasks of one job run."""

    def prepare_attempt(self, start: AttemptStart) -> None:
        """The attempt is on record: clear away what older ones left, and be ready for its tasks."""
        ...

    def start_task(
        self, plan: TaskPlan, attempt: int, restored: TaskState | None, post: PostToTask
    ) -> None:
        """Start the task's query; its events come through ``post``."""
        ...

    def stop_tasks(self) -> None:
        """Stop every task; returns when none of their threads runs any more."""
        ...

    def answer_planning(self, effect: AnswerPlanning) -> None:
        """Let a planning call return. *Quick.*"""
        ...

    def take_snapshot(self, effect: TakeSnapshot) -> None:
        """The synchronous part."""
        ...

    def continue_snapshot(self, effect: ContinueSnapshot) -> tuple[TaskState, SnapshotMetrics]:
        """The asynchronous part."""
        ...

    def drop_snapshot(self, effect: DropSnapshot) -> None:
        """Forget a snapshot and delete its files."""
        ...

    def confirm_base(self, vertex: VertexId, checkpoint_id: int) -> None:
        """The checkpoint is the base of the vertex's next incremental snapshot. *Quick.*"""
        ...

    def checkpoint_aborted(self, vertex: VertexId, checkpoint_id: int) -> None:
        """A checkpoint is over, whether or not the task had heard of it: its Python operators are
        told. *Quick.*"""
        ...

    def drain(self, effect: StartDrain) -> None:
        """Begin the step with MAX_WATERMARK and finish the operators; ``Drained`` comes through the
        task's ``post``."""
        ...

    def close_operators(self, vertex: VertexId) -> None:
        """Close every operator of the task's chain, in order: it has processed and committed
        all."""
        ...

    def release_segments(self, effect: ReleaseSegments) -> None:
        """Delete files of segments that every consumer has read."""
        ...

    def metrics(self, vertex: VertexId) -> VertexMetrics:
        """The vertex's counters. Called on the threads of those who look."""
        ...


class CoordinatorPort(Protocol):
    """Where the operator coordinators of one job run (MISSION C1)."""

    def tell(self, effect: CoordinatorEffect, post: Callable[[CoordinatorEvent], None]) -> None:
        """Let the coordinator do this after all that it was told before; what it sends meanwhile,
        and its answer, are posted in their order. *Quick.*"""
        ...

    def request(
        self, operator: OperatorId, request: Payload, answer: Future[CoordinatorAnswer]
    ) -> None:
        """Let the coordinator handle what somebody outside of the job asks for. ``answer`` is done
        once a checkpoint has it. From any thread. *Quick.*"""
        ...

    def close(self) -> None:
        """The driver ends: let every coordinator close."""
        ...


class DurablePort(Protocol):
    """What of one job must last."""

    def begin_attempt(self) -> AttemptStart:
        """Win the record "attempt began", restore and commit again. Raises ``JobFencedError`` or
        other errors."""
        ...

    def resume(self) -> None:
        """An attempt is about to begin: what ``stop`` said is over. *Quick.*"""
        ...

    def stop(self) -> None:
        """The attempt is over, or not wanted: give up waiting between two tries of a commit.
        *Quick.*"""
        ...

    def commit_sinks(self, effect: CommitSinks) -> None:
        """Let every sink of the task commit the epoch, with retries; then tell its checkpoint
        listeners."""
        ...

    def tell_aborted(self, effect: TellAborted) -> None:
        """Tell the task's checkpoint listeners that a checkpoint is over."""
        ...

    def allocate(self, effect: AllocateLocation) -> tuple[int, str | None]:
        """The next checkpoint id, and the directory of a savepoint."""
        ...

    def trigger_hook(self, effect: TriggerHook) -> Payload | None:
        """Ask one master hook for its state."""
        ...

    def record_checkpoint(self, effect: RecordCheckpoint) -> CheckpointRecorded:
        """Write the metadata, then win the record."""
        ...

    def discard(self, effect: DiscardCheckpoint) -> None:
        """Delete what only this checkpoint has."""
        ...

    def record_end(self, effect: RecordEnd) -> Recorded:
        """Record how the job ended, then delete what nobody needs any more."""
        ...
