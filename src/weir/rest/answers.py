"""The answers of a job's REST server as values, returned by ``weir.rest.client``.

They are decoded from Flink's JSON and keep only the fields that people ask for. Times are
milliseconds since the Unix epoch, durations milliseconds, sizes bytes.
"""

from __future__ import annotations

import msgspec

#: The default address of a driver's REST server.
DEFAULT_ADDRESS = "http://127.0.0.1:8081"


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a server (Flink: ``JobDetails``)."""

    job_id: str = msgspec.field(name="jid")
    name: str
    state: str
    start_time_ms: int = msgspec.field(name="start-time")
    #: -1 while the job runs.
    end_time_ms: int = msgspec.field(name="end-time")
    duration_ms: int = msgspec.field(name="duration")
    #: Tasks by lower-case state, and their ``total``.
    tasks: dict[str, int]


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint or savepoint."""

    checkpoint_id: int = msgspec.field(name="id")
    #: IN_PROGRESS, COMPLETED or FAILED.
    status: str
    is_savepoint: bool
    trigger_timestamp_ms: int = msgspec.field(name="trigger_timestamp")
    duration_ms: int = msgspec.field(name="end_to_end_duration")
    #: Bytes that this checkpoint wrote itself.
    checkpointed_size: int
    #: The whole state, including files shared with earlier checkpoints.
    state_size: int
    external_path: str | None = None
    discarded: bool = False
    failure_message: str | None = None


class RestoredCheckpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint or savepoint that the newest attempt was restored from."""

    checkpoint_id: int = msgspec.field(name="id")
    restore_timestamp_ms: int = msgspec.field(name="restore_timestamp")
    is_savepoint: bool
    external_path: str | None = None


class CheckpointCountsInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The number of checkpoints since the driver started."""

    restored: int
    total: int
    in_progress: int
    completed: int
    failed: int


class LatestCheckpointsInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The newest checkpoint of each kind; None if there was none."""

    completed: CheckpointInfo | None = None
    savepoint: CheckpointInfo | None = None
    failed: CheckpointInfo | None = None
    restored: RestoredCheckpointInfo | None = None


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of a figure over completed checkpoints; all zero if there are none."""

    min: int
    max: int
    average: int = msgspec.field(name="avg")
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float


class CheckpointSummaryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Figures over the completed checkpoints."""

    duration_ms: Percentiles = msgspec.field(name="end_to_end_duration")
    checkpointed_size: Percentiles
    state_size: Percentiles


class CheckpointsInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints of a job; ``history`` is bounded and newest first."""

    counts: CheckpointCountsInfo
    summary: CheckpointSummaryInfo
    latest: LatestCheckpointsInfo
    history: tuple[CheckpointInfo, ...]
    #: Why the newest failed checkpoint failed, if it failed before it had an id.
    latest_trigger_failure: str | None = None


class SubtaskDurations(msgspec.Struct, frozen=True, kw_only=True):
    """How long the two parts of a snapshot took."""

    sync_ms: int = msgspec.field(name="sync")
    async_ms: int = msgspec.field(name="async")


class SubtaskAlignment(msgspec.Struct, frozen=True, kw_only=True):
    """How long the inputs' barriers waited for each other."""

    duration_ms: int = msgspec.field(name="duration")


class SubtaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One subtask in one checkpoint; all but the index is None until it has acknowledged."""

    index: int
    ack_timestamp_ms: int | None = msgspec.field(name="ack_timestamp", default=None)
    #: From the trigger to the acknowledgement.
    duration_ms: int | None = msgspec.field(name="end_to_end_duration", default=None)
    checkpoint: SubtaskDurations | None = None
    alignment: SubtaskAlignment | None = None
    #: From the trigger to the start of the synchronous part.
    start_delay_ms: int | None = msgspec.field(name="start_delay", default=None)
    checkpointed_size: int | None = None
    state_size: int | None = None


class VertexCheckpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One vertex in one checkpoint."""

    name: str
    subtasks: tuple[SubtaskInfo, ...]


class CheckpointDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint with its vertices, in graph order."""

    checkpoint: CheckpointInfo
    vertices: tuple[VertexCheckpointInfo, ...]
