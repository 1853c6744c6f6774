"""What the outside may see of a running job: frozen values that the kernel publishes and REST and progress read.

Field names follow Flink's REST API (``weir/rest`` only renames to its JSON spelling). Reading a view needs no lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weir.core.job_status import JobStatus
from weir.core.types import CompletedCheckpoint, SnapshotKind, SnapshotMetrics, TaskStatus, VertexId


@dataclass(frozen=True, kw_only=True)
class TaskCheckpointStats:
    """One task in one checkpoint."""

    vertex: VertexId
    #: Milliseconds since the Unix epoch; None until it acknowledged.
    ack_timestamp_ms: int | None = None
    #: Bytes of the full state.
    state_size: int = 0
    metrics: SnapshotMetrics = field(default_factory=SnapshotMetrics)


@dataclass(frozen=True, kw_only=True)
class CheckpointStats:
    """One checkpoint attempt. ``status`` is IN_PROGRESS, COMPLETED or FAILED (Flink: CheckpointStatsStatus)."""

    checkpoint_id: int
    kind: SnapshotKind
    status: str
    trigger_timestamp_ms: int
    #: From trigger to completion or failure, up to now while in progress.
    end_to_end_duration_ms: int = 0
    latest_ack_timestamp_ms: int | None = None
    checkpointed_size: int = 0
    state_size: int = 0
    tasks: tuple[TaskCheckpointStats, ...] = ()
    external_path: str | None = None
    discarded: bool = False
    failure_timestamp_ms: int | None = None
    failure_message: str | None = None


@dataclass(frozen=True, kw_only=True)
class RestoredCheckpointStats:
    """The checkpoint that the newest attempt was restored from."""

    checkpoint_id: int
    restore_timestamp_ms: int
    is_savepoint: bool
    external_path: str


@dataclass(frozen=True, kw_only=True)
class CheckpointCounts:
    """How many checkpoints there were since the driver started."""

    restored: int = 0
    total: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, kw_only=True)
class CheckpointStatsSnapshot:
    """What ``CheckpointStatsTracker`` knows: newest first in ``history``."""

    counts: CheckpointCounts = field(default_factory=CheckpointCounts)
    history: tuple[CheckpointStats, ...] = ()
    latest_completed: CheckpointStats | None = None
    latest_savepoint: CheckpointStats | None = None
    latest_failed: CheckpointStats | None = None
    latest_restored: RestoredCheckpointStats | None = None
    #: Why the newest failed checkpoint failed, if that was before it had an id; else ``latest_failed`` says it.
    latest_trigger_failure: str | None = None
    #: Of completed checkpoints and savepoints since the driver started, in order of completion (bounded): end-to-end
    #: durations, bytes of the full state, and bytes that each wrote itself. ``stats.summarize`` makes figures of them.
    durations_ms: tuple[int, ...] = ()
    state_sizes: tuple[int, ...] = ()
    checkpointed_sizes: tuple[int, ...] = ()

    @property
    def newest_failure(self) -> str | None:
        """Why the newest failed checkpoint failed; None if none did."""
        if self.latest_trigger_failure is not None:
            return self.latest_trigger_failure
        return None if self.latest_failed is None else self.latest_failed.failure_message


@dataclass(frozen=True, kw_only=True)
class VertexView:
    """One vertex of the running job."""

    vertex: VertexId
    #: Names of its steps, from source to sinks.
    operators: tuple[str, ...]
    parallelism: int
    status: TaskStatus
    position: int = -1
    #: Since the driver started.
    records_in: int = 0
    #: Rows a second over the newest step.
    records_in_per_second: float = 0.0
    #: Rows that sinks committed since the driver started.
    records_committed: int = 0


@dataclass(frozen=True, kw_only=True)
class ExceptionView:
    """Why an attempt failed."""

    #: Milliseconds since the Unix epoch.
    timestamp_ms: int
    message: str
    #: Bounded by whoever made it; "" if there is none.
    trace: str = ""
    #: Whose task it was; None if it was none.
    vertex: VertexId | None = None


@dataclass(frozen=True, kw_only=True)
class JobView:
    """The job as a whole."""

    job_id: str
    name: str
    status: JobStatus
    attempt: int
    #: Milliseconds since the Unix epoch.
    start_time_ms: int
    #: -1 while it runs.
    end_time_ms: int
    last_modification_ms: int
    #: When the job entered each status, by status name.
    timestamps_ms: dict[str, int]
    vertices: tuple[VertexView, ...]
    checkpoints: CheckpointStatsSnapshot
    failure: str | None = None
    savepoint: str | None = None
    #: Why restarts happened, newest last, bounded.
    exceptions: tuple[ExceptionView, ...] = ()
    #: Flink's configuration keys in force, as text.
    configuration: dict[str, str] = field(default_factory=dict)
    #: The newest completed checkpoint of this job, whole.
    latest_completed: CompletedCheckpoint | None = None
