"""The runtime's ports: tasks (``TaskPort``), durable state (``DurablePort``), coordinators.

Rules. Every method may block and is called on a pool thread, except those marked *quick*, which the
main thread calls itself. Failures are exceptions; the dispatcher turns them into events, so no
method swallows them. In production the tasks are Spark queries (``spark/query/task_port.py``). The
durable part (``weir/durable/job.py``) is the same in the simulator, over a file system and sinks
that fail on command.

Storage and Spark are two ports: the durable part is protocol, so the simulator must be able to run
it; the Spark part is a binding, so the simulator must not. Neither knows the other; the dispatcher
uses both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from weir.core.messages.channel import ReleaseSegments
from weir.core.messages.coordination import CoordinatorEffect, CoordinatorEvent
from weir.core.messages.job import (
    AllocateLocation,
    CheckpointRecorded,
    DiscardCheckpoint,
    RecordCheckpoint,
    RecordEnd,
    TriggerHook,
)
from weir.core.messages.task import (
    AnswerPlanning,
    CommitSinks,
    ContinueSnapshot,
    DropSnapshot,
    ReportAborted,
    StartDrain,
    StreamTaskEvent,
    TakeSnapshot,
)
from weir.core.task.plan import TaskPlan
from weir.core.types import (
    CompletedCheckpoint,
    Count,
    Counted,
    OperatorId,
    Payload,
    Recorded,
    SnapshotMetrics,
    TaskState,
    VertexId,
)

#: Posts an event of one task, from any thread.
PostToTask = Callable[[StreamTaskEvent], None]


@dataclass(frozen=True, kw_only=True)
class AttemptStart:
    """An attempt whose record was won."""

    attempt: int
    restored: CompletedCheckpoint | None
    #: The state in ``restored`` of each vertex of this job; vertices without state are missing.
    states: Mapping[VertexId, TaskState] = field(default_factory=dict)
    #: Older retained checkpoints whose metadata can be read.
    older: tuple[CompletedCheckpoint, ...] = ()
    #: The newest checkpoint id that the job had before it; 0 if none.
    allocated: int = 0


@dataclass(frozen=True, kw_only=True)
class CoordinatorAnswer:
    """An operator coordinator's answer to a request from outside the job."""

    answer: Payload | None
    #: A completed checkpoint that contains the changes the request made.
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class StateView:
    """The state of one of the engine's stateful operators after the newest batch."""

    #: The engine's name for it, such as ``stateStoreSave``.
    name: str
    rows: Count
    #: Bytes of memory.
    size: Count


class RowsOf(NamedTuple):
    """What rows are counted by."""

    kind: Counted
    #: The step, or the engine's operator, such as ``0 stateStoreSave``.
    by: str
    #: The name of the rule that they broke.
    rule: str = ""


@dataclass(frozen=True, kw_only=True)
class SubtaskView:
    """A subtask in the longest part of a vertex's newest batch: under Spark, a Spark task."""

    #: What the batch calls the part: under Spark, the number of a stage.
    stage: int
    #: The partition.
    index: int
    host: str
    #: RUNNING, SUCCESS, FAILED or KILLED.
    status: str
    duration_ms: int
    #: Rows and bytes that it read.
    rows: int
    size: int


@dataclass(frozen=True, kw_only=True)
class VertexMetrics:
    """Counters of a vertex since the driver started."""

    position: int = -1
    records_in: int = 0
    records_in_per_second: float = 0.0
    records_committed: int = 0
    parallelism: int = 1
    #: Records that its sources had beyond its newest batch; None if unknown.
    pending_records: int | None = None
    #: The same by topic and partition, for sources that have them.
    lags: Mapping[str, Mapping[str, Count]] = field(default_factory=dict)
    #: The query's watermark as of its newest batch; None if it has none.
    watermark_ms: int | None = None
    state: tuple[StateView, ...] = ()
    counted: Counter[RowsOf] = field(default_factory=Counter)
    #: How long each sink staged the newest batch, by name, the computation of its rows included.
    staging_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Unread:
    """What a drained vertex has left of its sources."""

    #: Splits that Weir's own readers have and that may have rows, by source.
    splits: Mapping[OperatorId, int] = field(default_factory=dict)
    #: Records that Spark's sources say they have; None if none does.
    records: int | None = None


class TaskPort(Protocol):
    """Where the tasks of one job run."""

    def prepare_attempt(self, start: AttemptStart) -> None:
        """The attempt is recorded: clean up after older attempts, and be ready for its tasks."""
        ...

    def start_task(
        self, plan: TaskPlan, attempt: int, restored: TaskState | None, post: PostToTask
    ) -> None:
        """Start the task's query; its events come through ``post``."""
        ...

    def stop_tasks(self) -> None:
        """Stop every task; return when none of their threads is running."""
        ...

    def answer_planning(self, effect: AnswerPlanning) -> None:
        """Let a planning call return. *Quick.*"""
        ...

    def take_snapshot(self, effect: TakeSnapshot) -> None:
        """Run the synchronous part of a snapshot."""
        ...

    def continue_snapshot(self, effect: ContinueSnapshot) -> tuple[TaskState, SnapshotMetrics]:
        """Run the asynchronous part of a snapshot."""
        ...

    def drop_snapshot(self, effect: DropSnapshot) -> None:
        """Forget a snapshot and delete its files."""
        ...

    def checkpoint_completed(self, vertex: VertexId, checkpoint_id: int) -> None:
        """The checkpoint is now the base of the vertex's next incremental snapshot. *Quick.*"""
        ...

    def checkpoint_aborted(self, vertex: VertexId, checkpoint_id: int) -> None:
        """Notify the task's Python operators that a checkpoint was aborted. *Quick.*

        The checkpoint may be unknown to the task.
        """
        ...

    def drain(self, effect: StartDrain) -> None:
        """Start the batch with MAX_WATERMARK and finish the operators.

        ``Drained`` comes through the task's ``post``.
        """
        ...

    def close_operators(self, vertex: VertexId) -> None:
        """Close the operators of the task's chain, in order, after its last commit."""
        ...

    def release_segments(self, effect: ReleaseSegments) -> None:
        """Delete files of segments that every consumer has read."""
        ...

    def metrics(self, vertex: VertexId) -> VertexMetrics:
        """The vertex's counters. Called on the thread that reads all counters."""
        ...

    def subtasks(self, vertex: VertexId) -> tuple[SubtaskView, ...]:
        """How the newest batch of the vertex was spread over its subtasks; may take a while."""
        ...


class CoordinatorPort(Protocol):
    """Where the operator coordinators of one job run (MISSION C1)."""

    def submit(self, effect: CoordinatorEffect, post: Callable[[CoordinatorEvent], None]) -> None:
        """Queue an effect for the coordinator, after all earlier effects. *Quick.*

        The events that the coordinator sends, and its answer, are posted in order.
        """
        ...

    def request(
        self, operator: OperatorId, request: Payload, answer: Future[CoordinatorAnswer]
    ) -> None:
        """Pass a request from outside the job to the coordinator. From any thread. *Quick.*

        ``answer`` is done once a completed checkpoint contains the changes of the request.
        """
        ...

    def close(self) -> None:
        """The driver ends: close every coordinator."""
        ...


class DurablePort(Protocol):
    """The durable state of one job."""

    def begin_attempt(self) -> AttemptStart:
        """Win the record "attempt began", restore, and repeat the commits.

        Raises ``JobFencedError`` or other errors.
        """
        ...

    def resume(self) -> None:
        """An attempt is about to start: undo ``stop``. *Quick.*"""
        ...

    def stop(self) -> None:
        """The attempt has ended or is unwanted: stop waiting between commit retries. *Quick.*"""
        ...

    def commit_sinks(self, effect: CommitSinks) -> None:
        """Commit the epoch in every sink of the task, with retries; then notify its listeners."""
        ...

    def report_aborted(self, effect: ReportAborted) -> None:
        """Notify the task's checkpoint listeners that a checkpoint was aborted."""
        ...

    def allocate(self, effect: AllocateLocation) -> tuple[int, str | None]:
        """Allocate the next checkpoint id and, for a savepoint, its directory."""
        ...

    def trigger_hook(self, effect: TriggerHook) -> Payload | None:
        """Ask a master hook for its state."""
        ...

    def record_checkpoint(self, effect: RecordCheckpoint) -> CheckpointRecorded:
        """Write the metadata, then win the record."""
        ...

    def discard(self, effect: DiscardCheckpoint) -> None:
        """Delete the files that only this checkpoint uses."""
        ...

    def record_end(self, effect: RecordEnd) -> Recorded:
        """Record how the job ended, then delete files that are no longer needed."""
        ...
