"""The REST server's answers on checkpoints: pure functions of ``CheckpointStatsSnapshot``.

Every vertex counts as one subtask with index 0, since one streaming query acknowledges for all of
its Spark tasks (MISSION A10).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from weir.config import Configuration
from weir.config.options import CHECKPOINT_ALIGNED_TIMEOUT
from weir.core.checkpoints.stats import (
    CheckpointStats,
    TaskCheckpointStats,
)
from weir.core.settings import RetainExternalized
from weir.core.types import SnapshotKind
from weir.monitoring.views import JobView
from weir.rest.flink.job_answers import names_vertex, vertex_id
from weir.rest.handling.answering import answers
from weir.rest.schema import checkpoints


@answers(checkpoints.CHECKPOINTS)
def checkpoints_info(view: JobView) -> checkpoints.CheckpointsInfo:
    """Counts, figures, the latest of each kind, and the history."""
    snapshot = view.checkpoints
    counts = snapshot.counts
    restored = snapshot.latest_restored
    return checkpoints.CheckpointsInfo(
        counts=checkpoints.CheckpointCountsInfo(
            restored=counts.restored,
            total=counts.total,
            in_progress=counts.in_progress,
            completed=counts.completed,
            failed=counts.failed,
        ),
        summary=checkpoints.CheckpointSummaryInfo(
            checkpointed_size=_percentiles_of_history(snapshot.checkpointed_sizes),
            state_size=_percentiles_of_history(snapshot.state_sizes),
            duration_ms=_percentiles_of_history(snapshot.durations_ms),
        ),
        latest=checkpoints.LatestCheckpointsInfo(
            completed=_optional(snapshot.latest_completed),
            savepoint=_optional(snapshot.latest_savepoint),
            failed=_optional(snapshot.latest_failed),
            restored=None
            if restored is None
            else checkpoints.RestoredCheckpointInfo(
                checkpoint_id=restored.checkpoint_id,
                restore_timestamp_ms=restored.restore_timestamp_ms,
                is_savepoint=restored.is_savepoint,
                external_path=restored.external_path,
            ),
        ),
        history=tuple(_checkpoint_info(stats) for stats in snapshot.history),
        latest_trigger_failure=snapshot.latest_trigger_failure,
        waits_because=None if snapshot.waits_because is None else snapshot.waits_because.value,
        unsuccessful_triggers=snapshot.unsuccessful_triggers,
    )


@answers(checkpoints.CHECKPOINT_DETAILS)
def checkpoint_details(stats: CheckpointStats) -> checkpoints.CheckpointInfo:
    """One checkpoint, with each vertex's part in it."""
    tasks = {vertex_id(task.vertex): _task_info(stats, task) for task in stats.tasks}
    return _checkpoint_info(stats, tasks)


def find_task(stats: CheckpointStats, vertex: str) -> TaskCheckpointStats | None:
    """The statistics of one vertex, given by Flink's 32 digits or by its own name."""
    return next((task for task in stats.tasks if names_vertex(vertex, task.vertex)), None)


def subtasks_info(stats: CheckpointStats, task: TaskCheckpointStats) -> checkpoints.SubtasksInfo:
    """A vertex's part in a checkpoint, with its single subtask."""
    acknowledged = [task] if task.ack_timestamp_ms is not None else []
    metrics = [ack.metrics for ack in acknowledged]
    return checkpoints.SubtasksInfo(
        **_figures(stats, task),
        summary=checkpoints.SubtasksSummary(
            checkpointed_size=percentiles(metric.checkpointed_size for metric in metrics),
            state_size=percentiles(ack.state_size for ack in acknowledged),
            duration_ms=percentiles(_ack_duration_ms(stats, ack) for ack in acknowledged),
            checkpoint_duration=checkpoints.DurationsSummary(
                sync_ms=percentiles(metric.sync_duration_ms for metric in metrics),
                async_ms=percentiles(metric.async_duration_ms for metric in metrics),
            ),
            alignment=checkpoints.AlignmentSummary(
                persisted=percentiles(metric.persisted_size for metric in metrics),
                duration_ms=percentiles(metric.alignment_duration_ms for metric in metrics),
            ),
            start_delay_ms=percentiles(metric.start_delay_ms for metric in metrics),
        ),
        subtasks=(_subtask_info(stats, task),),
    )


@answers(checkpoints.CHECKPOINT_CONFIG)
def checkpoint_config(view: JobView) -> checkpoints.CheckpointConfigInfo:
    """The configuration in force, with defaults; all of them if the configuration is not known."""
    if not view.configuration:
        return checkpoints.CheckpointConfigInfo()
    configuration = Configuration(view.configuration)
    config = configuration.checkpoint_config()
    return checkpoints.CheckpointConfigInfo(
        interval=checkpoints.NO_INTERVAL_MS if config.interval_ms is None else config.interval_ms,
        timeout=config.timeout_ms,
        min_pause=config.min_pause_ms,
        max_concurrent=config.max_concurrent_checkpoints,
        externalization=checkpoints.Externalization(
            enabled=config.retention is not RetainExternalized.NO_EXTERNALIZED_CHECKPOINTS,
            delete_on_cancellation=config.retention.deletes_on_cancellation,
        ),
        unaligned_checkpoints=config.aligned_timeout_ms is not None,
        tolerable_failed_checkpoints=config.tolerable_failed_checkpoints,
        aligned_checkpoint_timeout=configuration.value(CHECKPOINT_ALIGNED_TIMEOUT),
    )


def _checkpoint_info(
    stats: CheckpointStats, tasks: dict[str, checkpoints.TaskCheckpointInfo] | None = None
) -> checkpoints.CheckpointInfo:
    is_unaligned = any(task.metrics.unaligned for task in stats.tasks)
    is_completed, is_failed = stats.status == "COMPLETED", stats.status == "FAILED"
    return checkpoints.CheckpointInfo(
        class_name=stats.status.lower(),
        checkpoint_id=stats.checkpoint_id,
        status=stats.status,
        is_savepoint=stats.kind.is_savepoint,
        savepoint_format="NATIVE" if stats.kind.is_savepoint else None,
        trigger_timestamp_ms=stats.trigger_timestamp_ms,
        latest_ack_timestamp=_or_minus_one(stats.latest_ack_timestamp_ms),
        checkpointed_size=stats.checkpointed_size,
        state_size=stats.state_size,
        duration_ms=stats.end_to_end_duration_ms,
        alignment_buffered=0,
        processed_data=0,
        persisted_data=sum(task.metrics.persisted_size for task in stats.tasks),
        num_subtasks=len(stats.tasks),
        num_acknowledged_subtasks=sum(task.ack_timestamp_ms is not None for task in stats.tasks),
        checkpoint_type="UNALIGNED_CHECKPOINT" if is_unaligned else _type(stats.kind),
        tasks=tasks or {},
        external_path=stats.external_path if is_completed else None,
        discarded=stats.discarded if is_completed else None,
        failure_timestamp=_or_minus_one(stats.failure_timestamp_ms) if is_failed else None,
        failure_message=stats.failure_message if is_failed else None,
    )


def _task_info(stats: CheckpointStats, task: TaskCheckpointStats) -> checkpoints.TaskCheckpointInfo:
    return checkpoints.TaskCheckpointInfo(**_figures(stats, task))


def _figures(stats: CheckpointStats, task: TaskCheckpointStats) -> dict[str, Any]:
    """The fields of ``TaskCheckpointInfo``, which ``SubtasksInfo`` has too."""
    acknowledged = task.ack_timestamp_ms is not None
    return {
        "checkpoint_id": stats.checkpoint_id,
        "status": "COMPLETED" if acknowledged and stats.status == "IN_PROGRESS" else stats.status,
        "latest_ack_timestamp": _or_minus_one(task.ack_timestamp_ms),
        "checkpointed_size": task.metrics.checkpointed_size,
        "state_size": task.state_size,
        "duration_ms": _ack_duration_ms(stats, task),
        "persisted_data": task.metrics.persisted_size,
        "num_acknowledged_subtasks": int(acknowledged),
    }


def _subtask_info(stats: CheckpointStats, task: TaskCheckpointStats) -> checkpoints.SubtaskInfo:
    metrics = task.metrics
    if task.ack_timestamp_ms is None:
        return checkpoints.SubtaskInfo(class_name="pending", index=0, status="pending_or_failed")
    return checkpoints.SubtaskInfo(
        class_name="completed",
        index=0,
        status="completed",
        ack_timestamp_ms=task.ack_timestamp_ms,
        duration_ms=_ack_duration_ms(stats, task),
        checkpointed_size=metrics.checkpointed_size,
        state_size=task.state_size,
        checkpoint=checkpoints.SnapshotDurations(
            sync_ms=metrics.sync_duration_ms, async_ms=metrics.async_duration_ms
        ),
        alignment=checkpoints.Alignment(
            persisted=metrics.persisted_size, duration_ms=metrics.alignment_duration_ms
        ),
        start_delay_ms=metrics.start_delay_ms,
        unaligned_checkpoint=metrics.unaligned,
        aborted=False,
    )


def _ack_duration_ms(stats: CheckpointStats, task: TaskCheckpointStats) -> int:
    if task.ack_timestamp_ms is None:
        return -1
    return max(0, task.ack_timestamp_ms - stats.trigger_timestamp_ms)


def _optional(stats: CheckpointStats | None) -> checkpoints.CheckpointInfo | None:
    return None if stats is None else _checkpoint_info(stats)


def _or_minus_one(timestamp_ms: int | None) -> int:
    return -1 if timestamp_ms is None else timestamp_ms


@lru_cache(maxsize=3)
def _percentiles_of_history(values: tuple[int, ...]) -> checkpoints.Percentiles:
    """Cached: it sorts thousands of values, which change per checkpoint, not per request."""
    return percentiles(values)


def percentiles(values: Iterable[int]) -> checkpoints.Percentiles:
    """Minimum, maximum, average and percentiles of ``values``, computed as by Flink.

    The percentile p of n sorted values is at position p * (n + 1), counted from 1, interpolated
    between its neighbours and clamped to the range of the values. It is rounded, since values are
    whole milliseconds and bytes: the dashboard would show the interpolation's fractions.
    """
    ordered = sorted(values)
    if not ordered:
        return checkpoints.Percentiles()
    return checkpoints.Percentiles(
        min=ordered[0],
        max=ordered[-1],
        average=sum(ordered) // len(ordered),
        p50=_percentile(ordered, 0.5),
        p90=_percentile(ordered, 0.9),
        p95=_percentile(ordered, 0.95),
        p99=_percentile(ordered, 0.99),
        p999=_percentile(ordered, 0.999),
    )


def _percentile(ordered: Sequence[int], fraction: float) -> float:
    place = fraction * (len(ordered) + 1)
    below = math.floor(place)
    if below < 1:
        return float(ordered[0])
    if below >= len(ordered):
        return float(ordered[-1])
    found = ordered[below - 1] + (place - below) * (ordered[below] - ordered[below - 1])
    return float(round(found))


def _type(kind: SnapshotKind) -> str:
    """The name of a kind in Flink's REST API, which has no checkpoint that ends a job."""
    shown = SnapshotKind.CHECKPOINT if kind is SnapshotKind.SYNC_CHECKPOINT else kind
    return str(shown.value)
