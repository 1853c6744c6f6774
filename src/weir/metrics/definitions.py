"""The table of metrics: name and meaning of each, and how its value is read.

Names, units and labels follow Prometheus' conventions (base units: seconds, bytes). Where Flink has
the metric, ``flink`` is its name in Flink's REST API, whose times are milliseconds. Every series
has the labels ``job_name`` and ``job_id``, which stay the same when a job is run again.

The number of series is bounded by the job's graph and inputs: a metric has one series, or a series
for each vertex, step, rule, channel, partition of a topic, status or memory pool. No label holds a
path, an error or a checkpoint's id.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from weir.core.checkpoints.stats import CheckpointStats, TaskCheckpointStats
from weir.core.status import JobStatus
from weir.core.types import Counted, TaskStatus
from weir.metrics.readings import Readings, VertexReading

#: A value with the values of the metric's labels; a value of None is left out.
Series = tuple[tuple[str, ...], float | None]


class Kind(enum.Enum):
    """Prometheus' types. A counter starts again with the driver."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric: its name, its labels and how its value is read."""

    #: Prometheus' name; a counter's has ``_total`` at its end.
    name: str
    kind: Kind
    help: str
    #: Besides ``job_name`` and ``job_id``.
    labels: tuple[str, ...] = ()
    #: Its name in Flink; "" if Flink does not have it. ``{}`` stands for the value of its label.
    flink: str = ""
    #: Flink's unit by Prometheus': 1000 for times.
    flink_scale: float = 1
    read: Callable[[Readings], Iterator[Series]]


def _of_job(
    value: Callable[[Readings], float | None],
) -> Callable[[Readings], Iterator[Series]]:
    def read(readings: Readings) -> Iterator[Series]:
        yield (), value(readings)

    return read


def _of_vertices(
    value: Callable[[VertexReading], float | None],
) -> Callable[[Readings], Iterator[Series]]:
    def read(readings: Readings) -> Iterator[Series]:
        for vertex in readings.vertices:
            yield (vertex.view.vertex,), value(vertex)

    return read


def _of_newest(
    value: Callable[[CheckpointStats], float | None],
) -> Callable[[Readings], Iterator[Series]]:
    """Of the newest checkpoint that this driver completed."""

    def read(readings: Readings) -> Iterator[Series]:
        newest = readings.view.checkpoints.latest_completed
        yield (), None if newest is None else value(newest)

    return read


def _job(
    name: str,
    help: str,
    value: Callable[[Readings], float | None],
    *,
    kind: Kind = Kind.GAUGE,
    flink: str = "",
    flink_scale: float = 1,
) -> Metric:
    return Metric(
        name=f"weir_{name}",
        kind=kind,
        help=help,
        flink=flink,
        flink_scale=flink_scale,
        read=_of_job(value),
    )


def _newest(
    name: str,
    help: str,
    value: Callable[[CheckpointStats], float | None],
    *,
    flink: str = "",
    flink_scale: float = 1,
) -> Metric:
    return Metric(
        name=f"weir_checkpoint_{name}",
        kind=Kind.GAUGE,
        help=help,
        flink=flink,
        flink_scale=flink_scale,
        read=_of_newest(value),
    )


def _vertex(
    name: str,
    help: str,
    value: Callable[[VertexReading], float | None],
    *,
    kind: Kind = Kind.GAUGE,
    flink: str = "",
    flink_scale: float = 1,
) -> Metric:
    return Metric(
        name=f"weir_task_{name}",
        kind=kind,
        help=help,
        labels=("vertex",),
        flink=flink,
        flink_scale=flink_scale,
        read=_of_vertices(value),
    )


def _statuses(readings: Readings) -> Iterator[Series]:
    for status in JobStatus:
        yield (status.value,), float(readings.view.status is status)


def _uptime_s(readings: Readings) -> float:
    """As Flink: 0 while the job does not run."""
    view = readings.view
    since_ms = view.timestamps_ms.get(JobStatus.RUNNING.name)
    if view.status is not JobStatus.RUNNING or since_ms is None:
        return 0.0
    return max(0, readings.now_ms - since_ms) / 1000


def _completed_at_s(readings: Readings) -> float | None:
    newest = readings.view.latest_completed
    return None if newest is None else newest.completion_timestamp_ms / 1000


def _age_s(readings: Readings) -> float | None:
    view = readings.view
    if view.status.is_terminal:
        return None
    newest = view.latest_completed
    since_ms = view.start_time_ms if newest is None else newest.completion_timestamp_ms
    return max(0, readings.now_ms - since_ms) / 1000


def _lag_s(readings: Readings) -> Iterator[Series]:
    for vertex in readings.vertices:
        watermark_ms = vertex.view.watermark_ms
        lag = None if watermark_ms is None else (readings.now_ms - watermark_ms) / 1000
        yield (vertex.view.vertex,), lag


def _channels(field: str) -> Callable[[Readings], Iterator[Series]]:
    def read(readings: Readings) -> Iterator[Series]:
        for vertex in readings.vertices:
            for channel in vertex.view.outputs:
                yield (vertex.view.vertex, channel.consumer), float(getattr(channel, field))

    return read


def _lags(readings: Readings) -> Iterator[Series]:
    for vertex in readings.vertices:
        for topic, partitions in vertex.view.lags.items():
            for partition, records in partitions.items():
                yield (vertex.view.vertex, topic, partition), float(records)


def _counted(kind: Counted) -> Callable[[Readings], Iterator[Series]]:
    def read(readings: Readings) -> Iterator[Series]:
        for vertex in readings.vertices:
            for one in vertex.view.counted:
                if one.kind is kind:
                    rule = (one.rule,) if kind is Counted.BROKEN else ()
                    yield (vertex.view.vertex, one.by, *rule), float(one.rows)

    return read


def _part(
    value: Callable[[TaskCheckpointStats], float],
) -> Callable[[VertexReading], float | None]:
    """Of the vertex's part in the newest checkpoint that this driver completed."""
    return lambda vertex: None if vertex.snapshot is None else value(vertex.snapshot)


def _jvm(field: str) -> Callable[[Readings], float | None]:
    return lambda readings: None if readings.jvm is None else float(getattr(readings.jvm, field))


def _jvm_memory(what: str) -> Callable[[Readings], Iterator[Series]]:
    def read(readings: Readings) -> Iterator[Series]:
        if readings.jvm is not None:
            for area in ("heap", "non_heap"):
                value = getattr(readings.jvm, f"{area}_{what}")
                yield (area,), None if value < 0 else float(value)

    return read


def _buffers(readings: Readings) -> Iterator[Series]:
    buffers: Mapping[str, tuple[int, int, int]] = (
        {} if readings.jvm is None else readings.jvm.buffers
    )
    for pool in ("direct", "mapped"):
        if pool in buffers:
            yield (pool,), float(buffers[pool][1])


def _collections(place: int, scale: float) -> Callable[[Readings], Iterator[Series]]:
    def read(readings: Readings) -> Iterator[Series]:
        if readings.jvm is not None:
            for name, figures in readings.jvm.collectors.items():
                yield (name,), figures[place] * scale

    return read


#: Every metric, in the order of the documentation.
METRICS: tuple[Metric, ...] = (
    Metric(
        name="weir_job_status",
        kind=Kind.GAUGE,
        help="1 for the status that the job has, 0 for the others.",
        labels=("status",),
        read=_statuses,
    ),
    _job(
        "job_uptime_seconds",
        "For how long the job has been running without an interruption.",
        _uptime_s,
        flink="uptime",
        flink_scale=1000,
    ),
    _job(
        "job_attempt",
        "Number of the attempt, counted over all drivers of the job.",
        lambda readings: readings.view.attempt,
    ),
    _job(
        "job_restarts_total",
        "Restarts since the driver started.",
        lambda readings: readings.view.restarts,
        kind=Kind.COUNTER,
        flink="numRestarts",
    ),
    _job(
        "checkpoints_triggered_total",
        "Checkpoints and savepoints that were triggered.",
        lambda readings: readings.view.checkpoints.counts.total,
        kind=Kind.COUNTER,
        flink="totalNumberOfCheckpoints",
    ),
    _job(
        "checkpoints_completed_total",
        "Checkpoints and savepoints that completed.",
        lambda readings: readings.view.checkpoints.counts.completed,
        kind=Kind.COUNTER,
        flink="numberOfCompletedCheckpoints",
    ),
    _job(
        "checkpoints_failed_total",
        "Checkpoints and savepoints that failed.",
        lambda readings: readings.view.checkpoints.counts.failed,
        kind=Kind.COUNTER,
        flink="numberOfFailedCheckpoints",
    ),
    _job(
        "checkpoints_in_progress",
        "Checkpoints and savepoints in progress.",
        lambda readings: readings.view.checkpoints.counts.in_progress,
        flink="numberOfInProgressCheckpoints",
    ),
    _job(
        "checkpoint_age_seconds",
        "Age of the newest completed checkpoint, of whichever driver; of the start if there is"
        " none. A crash now would cost this much work.",
        _age_s,
    ),
    _job(
        "checkpoint_completed_timestamp_seconds",
        "When the newest completed checkpoint completed.",
        _completed_at_s,
        flink="lastCheckpointCompletedTimestamp",
        flink_scale=1000,
    ),
    _newest(
        "id",
        "Id of the newest checkpoint that this driver completed.",
        lambda stats: stats.checkpoint_id,
        flink="lastCompletedCheckpointId",
    ),
    _newest(
        "duration_seconds",
        "Its time from the trigger to its completion.",
        lambda stats: stats.end_to_end_duration_ms / 1000,
        flink="lastCheckpointDuration",
        flink_scale=1000,
    ),
    _newest(
        "size_bytes",
        "What it wrote itself.",
        lambda stats: stats.checkpointed_size,
        flink="lastCheckpointSize",
    ),
    _newest(
        "full_size_bytes",
        "The whole state, including files of earlier checkpoints.",
        lambda stats: stats.state_size,
        flink="lastCheckpointFullSize",
    ),
    _newest(
        "persisted_bytes",
        "Records that its barrier overtook.",
        lambda stats: sum(part.metrics.persisted_size for part in stats.tasks),
        flink="lastCheckpointPersistedData",
    ),
    _job(
        "checkpoint_restore_timestamp_seconds",
        "When the job was last restored from a checkpoint.",
        lambda readings: (
            None
            if readings.view.checkpoints.latest_restored is None
            else readings.view.checkpoints.latest_restored.restore_timestamp_ms / 1000
        ),
        flink="lastCheckpointRestoreTimestamp",
        flink_scale=1000,
    ),
    _vertex(
        "running",
        "Whether the task runs.",
        lambda vertex: float(vertex.view.status is TaskStatus.RUNNING),
    ),
    _vertex(
        "records_in_total",
        "Rows that the task has read.",
        lambda vertex: vertex.view.records_in,
        kind=Kind.COUNTER,
        flink="numRecordsIn",
    ),
    Metric(
        name="weir_source_backlog_records",
        kind=Kind.GAUGE,
        help="Records that the task's sources had beyond its newest batch, if they say so (Kafka"
        " does).",
        labels=("vertex",),
        flink="pendingRecords",
        read=_of_vertices(lambda vertex: vertex.view.pending_records),
    ),
    Metric(
        name="weir_source_lag_records",
        kind=Kind.GAUGE,
        help="The same by topic and partition.",
        labels=("vertex", "topic", "partition"),
        read=_lags,
    ),
    _vertex(
        "late_records_dropped_total",
        "Rows that its stateful operators have dropped, since the watermark had passed them.",
        lambda vertex: vertex.view.late,
        kind=Kind.COUNTER,
        flink="numLateRecordsDropped",
    ),
    Metric(
        name="weir_operator_late_records_dropped_total",
        kind=Kind.COUNTER,
        help="The same by Spark's stateful operator: its number in the query, and Spark's name.",
        labels=("vertex", "operator"),
        read=_counted(Counted.LATE),
    ),
    _vertex(
        "records_committed_total",
        "Rows that its sinks have committed.",
        lambda vertex: vertex.view.records_committed,
        kind=Kind.COUNTER,
        flink="numRecordsOut",
    ),
    _vertex(
        "batches_total",
        "Batches that have ended.",
        lambda vertex: vertex.view.batches,
        kind=Kind.COUNTER,
    ),
    _vertex(
        "batch_duration_seconds",
        "How long the newest batch took.",
        lambda vertex: vertex.view.batch_ms / 1000,
    ),
    _vertex(
        "busy_seconds_total",
        "Time in batches.",
        lambda vertex: vertex.view.busy_ms / 1000,
        kind=Kind.COUNTER,
        flink="accumulateBusyTimeMs",
        flink_scale=1000,
    ),
    _vertex(
        "idle_seconds_total",
        "Time with nothing to read.",
        lambda vertex: vertex.view.rested_ms / 1000,
        kind=Kind.COUNTER,
        flink="accumulateIdleTimeMs",
        flink_scale=1000,
    ),
    _vertex(
        "backpressured_seconds_total",
        "Time in which a consumer that lags held the task up.",
        lambda vertex: vertex.view.held_ms / 1000,
        kind=Kind.COUNTER,
        flink="accumulateBackPressuredTimeMs",
        flink_scale=1000,
    ),
    _vertex(
        "watermark_timestamp_seconds",
        "The watermark of its newest batch.",
        lambda vertex: (
            None if vertex.view.watermark_ms is None else vertex.view.watermark_ms / 1000
        ),
        flink="currentInputWatermark",
        flink_scale=1000,
    ),
    Metric(
        name="weir_task_watermark_lag_seconds",
        kind=Kind.GAUGE,
        help="How far the watermark lies behind the clock.",
        labels=("vertex",),
        read=_lag_s,
    ),
    _vertex(
        "commits_total",
        "Epochs that its sinks have committed.",
        lambda vertex: vertex.view.commits,
        kind=Kind.COUNTER,
    ),
    _vertex(
        "commit_duration_seconds",
        "How long the newest commit took, in all of its sinks.",
        lambda vertex: vertex.view.commit_ms / 1000 if vertex.view.commits else None,
    ),
    _vertex(
        "state_bytes",
        "Its state in the newest checkpoint.",
        _part(lambda part: part.state_size),
    ),
    _vertex(
        "checkpoint_start_delay_seconds",
        "From the newest checkpoint's trigger to the task's synchronous part.",
        _part(lambda part: part.metrics.start_delay_ms / 1000),
        flink="checkpointStartDelayNanos",
        flink_scale=1e9,
    ),
    _vertex(
        "checkpoint_alignment_seconds",
        "How long its barriers waited for each other in the newest checkpoint.",
        _part(lambda part: part.metrics.alignment_duration_ms / 1000),
        flink="checkpointAlignmentTime",
        flink_scale=1e9,
    ),
    _vertex(
        "checkpoint_sync_seconds",
        "The synchronous part of its newest snapshot, in which no batch starts.",
        _part(lambda part: part.metrics.sync_duration_ms / 1000),
    ),
    _vertex(
        "checkpoint_async_seconds",
        "The asynchronous part of its newest snapshot.",
        _part(lambda part: part.metrics.async_duration_ms / 1000),
    ),
    Metric(
        name="weir_step_rejects_total",
        kind=Kind.COUNTER,
        help="Rows that a step with on_error has set aside. As all counters, it starts with the"
        " driver, and counts rows again that are processed again after a failure.",
        labels=("vertex", "step"),
        read=_counted(Counted.REJECTED),
    ),
    Metric(
        name="weir_step_broken_rules_total",
        kind=Kind.COUNTER,
        help="Rows that break a rule of weir.expect, whatever becomes of them.",
        labels=("vertex", "step", "rule"),
        read=_counted(Counted.BROKEN),
    ),
    Metric(
        name="weir_channel_segments",
        kind=Kind.GAUGE,
        help="Segments of the channel from a vertex that the consumer has not processed yet.",
        labels=("vertex", "consumer"),
        read=_channels("segments"),
    ),
    Metric(
        name="weir_channel_bytes",
        kind=Kind.GAUGE,
        help="Their bytes.",
        labels=("vertex", "consumer"),
        read=_channels("size"),
    ),
    Metric(
        name="weir_jvm_memory_used_bytes",
        kind=Kind.GAUGE,
        help="Used memory of the driver's JVM.",
        labels=("area",),
        flink="Status.JVM.Memory.{}.Used",
        read=_jvm_memory("used"),
    ),
    Metric(
        name="weir_jvm_memory_committed_bytes",
        kind=Kind.GAUGE,
        help="Memory that the driver's JVM has taken.",
        labels=("area",),
        flink="Status.JVM.Memory.{}.Committed",
        read=_jvm_memory("committed"),
    ),
    Metric(
        name="weir_jvm_memory_max_bytes",
        kind=Kind.GAUGE,
        help="Memory that the driver's JVM may take, if there is a limit.",
        labels=("area",),
        flink="Status.JVM.Memory.{}.Max",
        read=_jvm_memory("max"),
    ),
    Metric(
        name="weir_jvm_buffer_used_bytes",
        kind=Kind.GAUGE,
        help="Buffers of the driver's JVM outside of its heap.",
        labels=("pool",),
        flink="Status.JVM.Memory.{}.MemoryUsed",
        read=_buffers,
    ),
    Metric(
        name="weir_jvm_gc_collections_total",
        kind=Kind.COUNTER,
        help="Garbage collections of the driver's JVM.",
        labels=("collector",),
        flink="Status.JVM.GarbageCollector.{}.Count",
        read=_collections(0, 1),
    ),
    Metric(
        name="weir_jvm_gc_seconds_total",
        kind=Kind.COUNTER,
        help="Time in garbage collections of the driver's JVM.",
        labels=("collector",),
        flink="Status.JVM.GarbageCollector.{}.Time",
        flink_scale=1000,
        read=_collections(1, 0.001),
    ),
    _job(
        "jvm_threads",
        "Threads of the driver's JVM.",
        _jvm("threads"),
        flink="Status.JVM.Threads.Count",
    ),
    _job(
        "jvm_classes_loaded",
        "Classes that the driver's JVM has loaded.",
        _jvm("classes_loaded"),
        flink="Status.JVM.ClassLoader.ClassesLoaded",
    ),
    _job(
        "jvm_resident_memory_bytes",
        "Resident memory of the driver's JVM process.",
        lambda readings: (
            None if readings.jvm_process is None else readings.jvm_process.resident_bytes
        ),
    ),
    _job(
        "jvm_cpu_seconds_total",
        "CPU time of the driver's JVM process.",
        lambda readings: None if readings.jvm_process is None else readings.jvm_process.cpu_s,
        kind=Kind.COUNTER,
        flink="Status.JVM.CPU.Time",
        flink_scale=1e9,
    ),
)
