"""Checkpoint statistics in the JSON of Flink's REST API (MISSION A10).

Pure functions from ``CheckpointStatsSnapshot`` to dictionaries. Two conventions of Flink's clients
shape them: the property ``className`` names the object's class, and -1 stands for a time that is
not yet known. Every vertex counts as one subtask with index 0, since one streaming query
acknowledges for all of its Spark tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from weir.config import Configuration
from weir.config.options import CHECKPOINT_ALIGNED_TIMEOUT
from weir.core.checkpoints.stats import (
    CheckpointStats,
    CheckpointStatsSnapshot,
    JobView,
    TaskCheckpointStats,
    summarize,
)
from weir.core.config import RetainExternalized
from weir.rest.job_json import Json, vertex_id

#: Discriminator of Flink's ``CheckpointStatistics``, by status.
_CLASS_NAMES = {"IN_PROGRESS": "in_progress", "COMPLETED": "completed", "FAILED": "failed"}

#: How Flink shows that there are no periodic checkpoints: Java's largest long.
NO_INTERVAL_MS = 2**63 - 1


def checkpoints_json(snapshot: CheckpointStatsSnapshot) -> Json:
    """``GET /jobs/:jobid/checkpoints``.

    ``latest_trigger_failure`` is Weir's own field, present only if there is one: Flink counts a
    checkpoint that fails before it has an id, but nowhere shows why.
    """
    counts = snapshot.counts
    restored = snapshot.latest_restored
    no_id = snapshot.latest_trigger_failure
    return {
        **({} if no_id is None else {"latest_trigger_failure": no_id}),
        "counts": {
            "restored": counts.restored,
            "total": counts.total,
            "in_progress": counts.in_progress,
            "completed": counts.completed,
            "failed": counts.failed,
        },
        "summary": {
            "checkpointed_size": _summary_of_history(snapshot.checkpointed_sizes),
            "state_size": _summary_of_history(snapshot.state_sizes),
            "end_to_end_duration": _summary_of_history(snapshot.durations_ms),
            "alignment_buffered": _summary(()),
            "processed_data": _summary(()),
            "persisted_data": _summary(()),
        },
        "latest": {
            "completed": _optional(snapshot.latest_completed),
            "savepoint": _optional(snapshot.latest_savepoint),
            "failed": _optional(snapshot.latest_failed),
            "restored": None
            if restored is None
            else {
                "id": restored.checkpoint_id,
                "restore_timestamp": restored.restore_timestamp_ms,
                "is_savepoint": restored.is_savepoint,
                "external_path": restored.external_path,
            },
        },
        "history": [_statistics(stats) for stats in snapshot.history],
    }


def find_checkpoint(
    snapshot: CheckpointStatsSnapshot, checkpoint_id: int
) -> CheckpointStats | None:
    """The statistics of one checkpoint, from the history or from the latest of each kind."""
    latest = (snapshot.latest_completed, snapshot.latest_savepoint, snapshot.latest_failed)
    known = (*snapshot.history, *(stats for stats in latest if stats is not None))
    return next((stats for stats in known if stats.checkpoint_id == checkpoint_id), None)


def checkpoint_details_json(stats: CheckpointStats) -> Json:
    """``GET /jobs/:jobid/checkpoints/details/:checkpointid``."""
    tasks = {vertex_id(task.vertex): _task(stats, task) for task in stats.tasks}
    return {**_statistics(stats), "tasks": tasks}


def find_task(stats: CheckpointStats, vertex: str) -> TaskCheckpointStats | None:
    """The statistics of one vertex, given by Flink's 32 digits or by its own name."""
    return next(
        (task for task in stats.tasks if vertex in (vertex_id(task.vertex), task.vertex)), None
    )


def subtasks_json(stats: CheckpointStats, task: TaskCheckpointStats) -> Json:
    """``GET /jobs/:jobid/checkpoints/details/:checkpointid/subtasks/:vertexid``."""
    metrics = task.metrics
    acknowledged = [task] if task.ack_timestamp_ms is not None else []
    return {
        **_task(stats, task),
        "summary": {
            "checkpointed_size": _summary(one.metrics.checkpointed_size for one in acknowledged),
            "state_size": _summary(one.state_size for one in acknowledged),
            "end_to_end_duration": _summary(_ack_duration_ms(stats, one) for one in acknowledged),
            "checkpoint_duration": {
                "sync": _summary(one.metrics.sync_duration_ms for one in acknowledged),
                "async": _summary(one.metrics.async_duration_ms for one in acknowledged),
            },
            "alignment": {
                "buffered": _summary(()),
                "processed": _summary(()),
                "persisted": _summary(one.metrics.persisted_size for one in acknowledged),
                "duration": _summary(one.metrics.alignment_duration_ms for one in acknowledged),
            },
            "start_delay": _summary(one.metrics.start_delay_ms for one in acknowledged),
        },
        "subtasks": [
            {"className": "pending", "index": 0, "status": "pending_or_failed"}
            if task.ack_timestamp_ms is None
            else {
                "className": "completed",
                "index": 0,
                "status": "completed",
                "ack_timestamp": task.ack_timestamp_ms,
                "end_to_end_duration": _ack_duration_ms(stats, task),
                "checkpointed_size": metrics.checkpointed_size,
                "state_size": task.state_size,
                "checkpoint": {
                    "sync": metrics.sync_duration_ms,
                    "async": metrics.async_duration_ms,
                },
                "alignment": {
                    "buffered": 0,
                    "processed": 0,
                    "persisted": metrics.persisted_size,
                    "duration": metrics.alignment_duration_ms,
                },
                "start_delay": metrics.start_delay_ms,
                "unaligned_checkpoint": metrics.unaligned,
                "aborted": False,
            }
        ],
    }


def checkpoint_config_json(view: JobView) -> Json:
    """``GET /jobs/:jobid/checkpoints/config``: the configuration in force, with defaults."""
    configuration = Configuration(view.configuration)
    config = configuration.checkpoint_config()
    return {
        "mode": "exactly_once",
        "interval": NO_INTERVAL_MS if config.interval_ms is None else config.interval_ms,
        "timeout": config.timeout_ms,
        "min_pause": config.min_pause_ms,
        "max_concurrent": config.max_concurrent_checkpoints,
        "externalization": {
            "enabled": config.retention is not RetainExternalized.NO_EXTERNALIZED_CHECKPOINTS,
            "delete_on_cancellation": config.retention.deletes_on_cancellation,
        },
        "state_backend": "Spark state store",
        "checkpoint_storage": "FileSystemCheckpointStorage",
        "unaligned_checkpoints": config.aligned_timeout_ms is not None,
        "tolerable_failed_checkpoints": config.tolerable_failed_checkpoints,
        "aligned_checkpoint_timeout": configuration.value(CHECKPOINT_ALIGNED_TIMEOUT),
        "checkpoints_after_tasks_finish": True,
        "state_changelog_enabled": False,
        "changelog_periodic_materialization_interval": 0,
        "changelog_storage": "",
    }


def _statistics(stats: CheckpointStats) -> Json:
    acknowledged = [task for task in stats.tasks if task.ack_timestamp_ms is not None]
    is_unaligned = any(task.metrics.unaligned for task in stats.tasks)
    common: Json = {
        "className": _CLASS_NAMES[stats.status],
        "id": stats.checkpoint_id,
        "status": stats.status,
        "is_savepoint": stats.kind.is_savepoint,
        "savepointFormat": "NATIVE" if stats.kind.is_savepoint else None,
        "trigger_timestamp": stats.trigger_timestamp_ms,
        "latest_ack_timestamp": _or_minus_one(stats.latest_ack_timestamp_ms),
        "checkpointed_size": stats.checkpointed_size,
        "state_size": stats.state_size,
        "end_to_end_duration": stats.end_to_end_duration_ms,
        "alignment_buffered": 0,
        "processed_data": 0,
        "persisted_data": sum(task.metrics.persisted_size for task in stats.tasks),
        "num_subtasks": len(stats.tasks),
        "num_acknowledged_subtasks": len(acknowledged),
        "checkpoint_type": "UNALIGNED_CHECKPOINT" if is_unaligned else stats.kind.value,
        "tasks": {},
    }
    if stats.status == "COMPLETED":
        return {**common, "external_path": stats.external_path, "discarded": stats.discarded}
    if stats.status == "FAILED":
        return {
            **common,
            "failure_timestamp": _or_minus_one(stats.failure_timestamp_ms),
            "failure_message": stats.failure_message,
        }
    return common


def _task(stats: CheckpointStats, task: TaskCheckpointStats) -> Json:
    acknowledged = task.ack_timestamp_ms is not None
    return {
        "id": stats.checkpoint_id,
        "status": "COMPLETED" if acknowledged and stats.status == "IN_PROGRESS" else stats.status,
        "latest_ack_timestamp": _or_minus_one(task.ack_timestamp_ms),
        "checkpointed_size": task.metrics.checkpointed_size,
        "state_size": task.state_size,
        "end_to_end_duration": _ack_duration_ms(stats, task),
        "alignment_buffered": 0,
        "processed_data": 0,
        "persisted_data": task.metrics.persisted_size,
        "num_subtasks": 1,
        "num_acknowledged_subtasks": int(acknowledged),
    }


def _ack_duration_ms(stats: CheckpointStats, task: TaskCheckpointStats) -> int:
    if task.ack_timestamp_ms is None:
        return -1
    return max(0, task.ack_timestamp_ms - stats.trigger_timestamp_ms)


def _optional(stats: CheckpointStats | None) -> Json | None:
    return None if stats is None else _statistics(stats)


def _or_minus_one(timestamp_ms: int | None) -> int:
    return -1 if timestamp_ms is None else timestamp_ms


@lru_cache(maxsize=3)
def _summary_of_history(values: tuple[int, ...]) -> Json:
    """Cached: it sorts thousands of values, which change per checkpoint, not per request."""
    return _summary(values)


def _summary(values: Iterable[int]) -> Json:
    summary = summarize(values)
    return {
        "min": summary.min,
        "max": summary.max,
        "avg": summary.average,
        "p50": summary.p50,
        "p90": summary.p90,
        "p95": summary.p95,
        "p99": summary.p99,
        "p999": summary.p999,
    }
