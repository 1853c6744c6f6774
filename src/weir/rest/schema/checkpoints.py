"""Messages and endpoints of checkpoints and savepoints."""

from __future__ import annotations

import enum
from typing import ClassVar

import msgspec

from weir.core.types import CheckpointType
from weir.rest.schema.base import (
    JOB_PATH,
    Endpoint,
    Message,
    Operation,
    Path,
    Request,
    Triggered,
    endpoints_in,
)
from weir.rest.schema.failure_cause import FailureCause, Outcome

#: How Flink shows that there are no periodic checkpoints: Java's largest long.
NO_INTERVAL_MS = 2**63 - 1


class SavepointFormat(enum.Enum):
    """The values of ``flink savepoint -type``. Weir has one format, so both mean the same."""

    CANONICAL = "CANONICAL"
    NATIVE = "NATIVE"


class CheckpointRequest(Request, frozen=True, kw_only=True, rename="camel"):
    """Take a checkpoint. An absent type is CONFIGURED; null is refused."""

    FIELDS: ClassVar[str] = "checkpointType is CONFIGURED, FULL or INCREMENTAL"

    checkpoint_type: CheckpointType = CheckpointType.CONFIGURED


class SavepointRequest(Request, frozen=True, kw_only=True):
    """Take a savepoint. Without a directory, the configured directory is used."""

    FIELDS: ClassVar[str] = (
        "target-directory is a path or null, formatType CANONICAL or NATIVE, cancel-job true or"
        " false"
    )

    target_directory: Path | None = msgspec.field(name="target-directory", default=None)
    #: End the job with the savepoint, exactly like ``StopRequest`` without draining.
    cancel_job: bool = msgspec.field(name="cancel-job", default=False)
    format_type: SavepointFormat | None = msgspec.field(name="formatType", default=None)


class StopRequest(Request, frozen=True, kw_only=True, rename="camel"):
    """Stop the job with a savepoint. Flink spells the directory unlike ``SavepointRequest``."""

    FIELDS: ClassVar[str] = (
        "targetDirectory is a path or null, formatType CANONICAL or NATIVE, drain true or false"
    )

    target_directory: Path | None = None
    drain: bool = False
    format_type: SavepointFormat | None = None


class DisposalRequest(Request, frozen=True, kw_only=True):
    """Delete a savepoint."""

    FIELDS: ClassVar[str] = "savepoint-path is a path"

    savepoint_path: Path = msgspec.field(name="savepoint-path")


class CheckpointTaken(Outcome, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of a ``CheckpointRequest``."""

    #: Missing if it failed.
    checkpoint_id: int = msgspec.field(name="checkpointId", default=0)
    #: Why it failed; missing if it did not.
    failure_cause: FailureCause | None = msgspec.field(name="failureCause", default=None)


class SavepointTaken(Outcome, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of a ``SavepointRequest`` or ``StopRequest``."""

    #: Missing if it failed.
    location: str = ""


class TaskCheckpointInfo(Message, frozen=True, kw_only=True):
    """One vertex's part in a checkpoint."""

    checkpoint_id: int = msgspec.field(name="id")
    status: str
    #: -1 until it has acknowledged.
    latest_ack_timestamp: int
    checkpointed_size: int
    state_size: int
    #: From the trigger to the acknowledgement; -1 until it has acknowledged.
    duration_ms: int = msgspec.field(name="end_to_end_duration")
    alignment_buffered: int = 0
    processed_data: int = 0
    persisted_data: int
    num_subtasks: int = 1
    num_acknowledged_subtasks: int


class CheckpointInfo(Message, frozen=True, kw_only=True, omit_defaults=True):
    """One checkpoint or savepoint."""

    #: Flink's discriminator: in_progress, completed or failed.
    class_name: str = msgspec.field(name="className")
    checkpoint_id: int = msgspec.field(name="id")
    #: IN_PROGRESS, COMPLETED or FAILED.
    status: str
    is_savepoint: bool
    #: NATIVE for a savepoint.
    savepoint_format: str | None = msgspec.field(name="savepointFormat")
    trigger_timestamp_ms: int = msgspec.field(name="trigger_timestamp")
    #: -1 until a task has acknowledged.
    latest_ack_timestamp: int
    #: Bytes that this checkpoint wrote itself.
    checkpointed_size: int
    #: The whole state, including files shared with earlier checkpoints.
    state_size: int
    duration_ms: int = msgspec.field(name="end_to_end_duration")
    alignment_buffered: int
    processed_data: int
    #: Bytes of records that an unaligned barrier overtook.
    persisted_data: int
    num_subtasks: int
    num_acknowledged_subtasks: int
    checkpoint_type: str
    #: By vertex id; empty in a list of checkpoints.
    tasks: dict[str, TaskCheckpointInfo]
    #: Only of a completed checkpoint.
    external_path: str | None = None
    #: Whether it has been deleted; only of a completed checkpoint.
    discarded: bool | None = None
    #: Only of a failed checkpoint.
    failure_timestamp: int | None = None
    #: Only of a failed checkpoint.
    failure_message: str | None = None


class RestoredCheckpointInfo(Message, frozen=True, kw_only=True):
    """The checkpoint or savepoint that the newest attempt was restored from."""

    checkpoint_id: int = msgspec.field(name="id")
    restore_timestamp_ms: int = msgspec.field(name="restore_timestamp")
    is_savepoint: bool
    external_path: str | None


class CheckpointCountsInfo(Message, frozen=True, kw_only=True):
    """The number of checkpoints since the driver started."""

    restored: int
    total: int
    in_progress: int
    completed: int
    failed: int


class LatestCheckpointsInfo(Message, frozen=True, kw_only=True):
    """The newest checkpoint of each kind; None if there was none."""

    completed: CheckpointInfo | None
    savepoint: CheckpointInfo | None
    failed: CheckpointInfo | None
    restored: RestoredCheckpointInfo | None


class Percentiles(Message, frozen=True, kw_only=True):
    """The distribution of a figure; all zero if there are no values."""

    min: int = 0
    max: int = 0
    average: int = msgspec.field(name="avg", default=0)
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    p999: float = 0.0


class CheckpointSummaryInfo(Message, frozen=True, kw_only=True):
    """Figures over the completed checkpoints."""

    checkpointed_size: Percentiles
    state_size: Percentiles
    duration_ms: Percentiles = msgspec.field(name="end_to_end_duration")
    alignment_buffered: Percentiles = Percentiles()
    processed_data: Percentiles = Percentiles()
    persisted_data: Percentiles = Percentiles()


class CheckpointsInfo(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The checkpoints of a job; ``history`` is bounded and newest first."""

    counts: CheckpointCountsInfo
    summary: CheckpointSummaryInfo
    latest: LatestCheckpointsInfo
    history: tuple[CheckpointInfo, ...]
    #: Weir's own: why the newest failed checkpoint failed, if it failed before it had an id.
    latest_trigger_failure: str | None = None
    #: Weir's own: why queued requests wait, such as TOO_MANY_CONCURRENT_CHECKPOINTS.
    waits_because: str | None = None
    #: Weir's own: consecutive triggers that failed on the way to their tasks.
    unsuccessful_triggers: int = 0


class SnapshotDurations(Message, frozen=True, kw_only=True):
    """How long the two parts of a snapshot took."""

    sync_ms: int = msgspec.field(name="sync")
    async_ms: int = msgspec.field(name="async")


class Alignment(Message, frozen=True, kw_only=True):
    """How long the inputs' barriers waited for each other."""

    buffered: int = 0
    processed: int = 0
    #: Bytes of records that an unaligned barrier overtook.
    persisted: int
    duration_ms: int = msgspec.field(name="duration")


class SubtaskInfo(Message, frozen=True, kw_only=True, omit_defaults=True):
    """One subtask in one checkpoint; what is None is known once it has acknowledged."""

    #: Flink's discriminator: pending or completed.
    class_name: str = msgspec.field(name="className")
    index: int
    #: pending_or_failed or completed.
    status: str
    ack_timestamp_ms: int | None = msgspec.field(name="ack_timestamp", default=None)
    #: From the trigger to the acknowledgement.
    duration_ms: int | None = msgspec.field(name="end_to_end_duration", default=None)
    checkpointed_size: int | None = None
    state_size: int | None = None
    checkpoint: SnapshotDurations | None = None
    alignment: Alignment | None = None
    #: From the trigger to the start of the synchronous part.
    start_delay_ms: int | None = msgspec.field(name="start_delay", default=None)
    unaligned_checkpoint: bool | None = None
    aborted: bool | None = None


class DurationsSummary(Message, frozen=True, kw_only=True):
    """``SnapshotDurations`` over the subtasks."""

    sync_ms: Percentiles = msgspec.field(name="sync")
    async_ms: Percentiles = msgspec.field(name="async")


class AlignmentSummary(Message, frozen=True, kw_only=True):
    """``Alignment`` over the subtasks."""

    buffered: Percentiles = Percentiles()
    processed: Percentiles = Percentiles()
    persisted: Percentiles
    duration_ms: Percentiles = msgspec.field(name="duration")


class SubtasksSummary(Message, frozen=True, kw_only=True):
    """Figures over the subtasks that have acknowledged."""

    checkpointed_size: Percentiles
    state_size: Percentiles
    duration_ms: Percentiles = msgspec.field(name="end_to_end_duration")
    checkpoint_duration: DurationsSummary
    alignment: AlignmentSummary
    start_delay_ms: Percentiles = msgspec.field(name="start_delay")


class SubtasksInfo(TaskCheckpointInfo, frozen=True, kw_only=True):
    """One vertex's part in a checkpoint, with its subtasks."""

    summary: SubtasksSummary
    subtasks: tuple[SubtaskInfo, ...]


class Externalization(Message, frozen=True, kw_only=True):
    """Whether checkpoints outlive the job."""

    enabled: bool
    delete_on_cancellation: bool


class CheckpointConfigInfo(Message, frozen=True, kw_only=True):
    """Checkpoint settings in force. A history server has null for what only a driver knows."""

    mode: str = "exactly_once"
    #: Milliseconds; Java's largest long if there are no periodic checkpoints.
    interval: int | None = None
    timeout: int | None = None
    min_pause: int | None = None
    max_concurrent: int | None = None
    externalization: Externalization | None = None
    state_backend: str = "Spark state store"
    checkpoint_storage: str = "FileSystemCheckpointStorage"
    unaligned_checkpoints: bool | None = None
    tolerable_failed_checkpoints: int | None = None
    #: Milliseconds.
    aligned_checkpoint_timeout: int | None = None
    checkpoints_after_tasks_finish: bool = True
    state_changelog_enabled: bool = False
    changelog_periodic_materialization_interval: int = 0
    changelog_storage: str = ""


_CHECKPOINTS = f"{JOB_PATH}/checkpoints"
_DETAILS = f"{_CHECKPOINTS}/details/{{checkpoint_id}}"

CHECKPOINTS = Endpoint(
    "GET", _CHECKPOINTS, CheckpointsInfo, "Checkpoints: counts, figures, latest, history."
)
TRIGGER_CHECKPOINT = Endpoint(
    "POST", _CHECKPOINTS, Triggered, "Take a checkpoint.", body=CheckpointRequest
)
CHECKPOINT_CONFIG = Endpoint(
    "GET", f"{_CHECKPOINTS}/config", CheckpointConfigInfo, "The configuration of checkpoints."
)
CHECKPOINT_DETAILS = Endpoint(
    "GET", _DETAILS, CheckpointInfo, "One checkpoint of the history, by vertex."
)
CHECKPOINT_SUBTASKS = Endpoint(
    "GET",
    f"{_DETAILS}/subtasks/{{vertex}}",
    SubtasksInfo,
    "One checkpoint at one vertex, given by its id or name.",
)
CHECKPOINT_OUTCOME = Endpoint(
    "GET",
    f"{_CHECKPOINTS}/{{trigger_id}}",
    Operation[CheckpointTaken],
    "Whether a triggered checkpoint is complete.",
)
TRIGGER_SAVEPOINT = Endpoint(
    "POST", f"{JOB_PATH}/savepoints", Triggered, "Take a savepoint.", body=SavepointRequest
)
SAVEPOINT_OUTCOME = Endpoint(
    "GET",
    f"{JOB_PATH}/savepoints/{{trigger_id}}",
    Operation[SavepointTaken],
    "Whether a savepoint is complete, also that of a stop.",
)
STOP = Endpoint(
    "POST",
    f"{JOB_PATH}/stop",
    Triggered,
    "Stop or drain the job with a savepoint.",
    body=StopRequest,
)
DISPOSE_SAVEPOINT = Endpoint(
    "POST", "/savepoint-disposal", Triggered, "Delete a savepoint.", body=DisposalRequest
)
DISPOSAL_OUTCOME = Endpoint(
    "GET", "/savepoint-disposal/{trigger_id}", Operation[Outcome], "Whether it is deleted."
)

ENDPOINTS = endpoints_in(globals())
