"""The frozen values that REST and progress output read: the job, its vertices, its failures.

A ``JobView`` outlives its driver in an archive, so names and numbers have types that say what may
be read back (``weir/core/types.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weir.core.checkpoints.stats import CheckpointStatsSnapshot
from weir.core.status import JobStatus
from weir.core.types import (
    CompletedCheckpoint,
    Count,
    Counted,
    EndTimestamp,
    JobId,
    OperatorId,
    OperatorLabel,
    Position,
    RowCount,
    TaskStatus,
    Timestamp,
    VertexId,
)
from weir.runtime.ports import StateView


@dataclass(frozen=True, kw_only=True)
class ChannelView:
    """What a consumer of a vertex has not processed yet."""

    consumer: VertexId
    segments: Count
    #: Bytes.
    size: Count


@dataclass(frozen=True, kw_only=True)
class CoordinatorView:
    """An operator that has a coordinator."""

    operator: OperatorId
    #: The vertex that runs it.
    vertex: VertexId
    parallelism: Count


@dataclass(frozen=True, kw_only=True)
class VertexView:
    """A vertex of the running job."""

    vertex: VertexId
    #: Names of its steps, from sources to sinks.
    operators: tuple[OperatorLabel, ...]
    parallelism: Count
    status: TaskStatus
    #: The vertices whose channels it reads, in order.
    inputs: tuple[VertexId, ...] = ()
    position: Position = -1
    #: Since the driver started.
    records_in: Count = 0
    #: Rows per second in the newest batch.
    records_in_per_second: float = 0.0
    #: Records that its sources had beyond the newest batch; None if they do not say.
    pending_records: Count | None = None
    #: The same by topic and partition, for sources that have them.
    lags: Mapping[str, Mapping[str, Count]] = field(default_factory=dict)
    #: Rows that sinks committed since the driver started.
    records_committed: Count = 0
    #: Batches that have ended since the driver started, and how long the newest took.
    batches: Count = 0
    batch_ms: Count = 0
    #: Milliseconds since the driver started: in batches, with nothing to read, and held up by a
    #: consumer that lags.
    busy_ms: Count = 0
    rested_ms: Count = 0
    held_ms: Count = 0
    #: Commits of all its sinks since the driver started, and how long the newest took.
    commits: Count = 0
    commit_ms: Count = 0
    #: Its query's watermark as of the newest batch; None if it has none.
    watermark_ms: int | None = None
    #: What the engine's stateful operators hold; Python operators keep theirs in checkpoints only.
    state: tuple[StateView, ...] = ()
    #: Rows dropped as late, rows set aside, and rows that broke a rule, since the driver started.
    counted: tuple[RowCount, ...] = ()
    #: How long each sink staged the newest batch, by name, the computation of its rows included.
    staging_ms: Mapping[str, Count] = field(default_factory=dict)
    #: Its channels, each with what the consumer has yet to process.
    outputs: tuple[ChannelView, ...] = ()

    @property
    def late(self) -> int:
        """Rows that its stateful operators have dropped as late."""
        return sum(one.rows for one in self.counted if one.kind is Counted.LATE)


@dataclass(frozen=True, kw_only=True)
class ExceptionView:
    """Why an attempt failed."""

    #: Milliseconds since the Unix epoch.
    timestamp_ms: Timestamp
    message: str
    #: Of bounded length; "" without a trace.
    trace: str = ""
    #: The task that failed; None if it was not a task.
    vertex: VertexId | None = None
    #: The attempt that failed.
    attempt: Count = 0


@dataclass(frozen=True, kw_only=True)
class DriverView:
    """The driver that holds a job's lease."""

    #: Name of its machine.
    host: str
    #: Where this machine can reach its REST server; None if it cannot.
    address: str | None


@dataclass(frozen=True, kw_only=True)
class JobBrief:
    """A job as a line of a list."""

    job_id: str
    name: str
    #: None if its record cannot be read; then its times are 0.
    status: JobStatus | None
    #: Milliseconds since the Unix epoch.
    start_time_ms: int
    #: -1 while the job runs.
    end_time_ms: int
    #: The newest completed checkpoint, and when it completed; None if that is not known.
    checkpoint_id: int | None
    checkpoint_time_ms: int | None
    #: Why it failed, or what cannot be read; "" for neither.
    problem: str
    driver: DriverView | None


@dataclass(frozen=True, kw_only=True)
class JobView:
    """The job as a whole."""

    job_id: JobId
    name: str
    status: JobStatus
    attempt: Count
    #: Milliseconds since the Unix epoch.
    start_time_ms: Timestamp
    #: -1 while the job runs.
    end_time_ms: EndTimestamp
    last_modification_ms: Timestamp
    #: When the job entered each status, by status name.
    timestamps_ms: dict[str, Timestamp]
    vertices: tuple[VertexView, ...]
    checkpoints: CheckpointStatsSnapshot
    failure: str | None = None
    savepoint: str | None = None
    #: How often the job was restarted since the driver started.
    restarts: Count = 0
    #: Why restarts happened, newest last, bounded.
    exceptions: tuple[ExceptionView, ...] = ()
    #: Flink's configuration keys in force, as text.
    configuration: dict[str, str] = field(default_factory=dict)
    #: This job's newest completed checkpoint, in full.
    latest_completed: CompletedCheckpoint | None = None
    coordinators: tuple[CoordinatorView, ...] = ()
    #: Of a job that is read from its directory: the driver that runs it now.
    driver: DriverView | None = None
    #: What cannot be read there, in sentences.
    damage: tuple[str, ...] = ()

    @property
    def brief(self) -> JobBrief:
        """The job as a line of a list."""
        newest = self.latest_completed
        return JobBrief(
            job_id=self.job_id,
            name=self.name,
            status=self.status if self.is_readable else None,
            start_time_ms=self.start_time_ms,
            end_time_ms=self.end_time_ms,
            checkpoint_id=None if newest is None else newest.checkpoint_id,
            checkpoint_time_ms=None if newest is None else newest.completion_timestamp_ms,
            problem=self.failure or " ".join(self.damage),
            driver=self.driver,
        )

    @property
    def is_readable(self) -> bool:
        """Whether the job's newest record is known; if not, nothing is but ``damage``."""
        return bool(self.timestamps_ms)
