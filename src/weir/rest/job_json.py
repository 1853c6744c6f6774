"""The job and its vertices in the JSON of Flink's REST API.

Pure functions from ``JobView`` to dictionaries: field names, spellings and codes are Flink's, so
that its stock command line can read them. For concepts that Weir lacks, the value is the one that
Flink gives when it is unknown:

1. A Weir task is one streaming query, so every vertex counts as one task, whatever its
   parallelism.
2. Weir has no task managers or slots (Spark schedules the work): these counts are zero.
3. Flink identifies vertices by 32 hexadecimal digits, Weir by name: ``vertex_id`` derives the
   digits from the name, the same in every run.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from datetime import datetime
from typing import Any, TypeAlias

from weir.coordinators.rejects import rejects_in
from weir.core.checkpoints.stats import ExceptionView, JobView, VertexView
from weir.core.status import JobStatus
from weir.core.types import TaskStatus, VertexId

#: A JSON object for ``json.dumps``.
Json: TypeAlias = dict[str, Any]

#: The release of Flink whose REST contract is followed.
FLINK_VERSION = "2.3.0"

#: Flink's ``ExecutionState``, in its order.
EXECUTION_STATES = (
    "CREATED",
    "SCHEDULED",
    "DEPLOYING",
    "RUNNING",
    "FINISHED",
    "CANCELING",
    "CANCELED",
    "FAILED",
    "RECONCILING",
    "INITIALIZING",
)

#: Flink's ``JobStatus`` values: the keys of ``timestamps``.
_FLINK_JOB_STATUSES = (
    "INITIALIZING",
    "CREATED",
    "RUNNING",
    "FAILING",
    "FAILED",
    "CANCELLING",
    "CANCELED",
    "FINISHED",
    "RESTARTING",
    "SUSPENDED",
    "RECONCILING",
)

_APPLICATION_STATUSES = {
    JobStatus.FINISHED: "SUCCEEDED",
    JobStatus.FAILED: "FAILED",
    JobStatus.CANCELED: "CANCELED",
    JobStatus.SUSPENDED: "UNKNOWN",
}


def vertex_id(vertex: VertexId) -> str:
    """The 32 hexadecimal digits that identify a vertex in Flink's JSON."""
    return hashlib.md5(vertex.encode(), usedforsecurity=False).hexdigest()


def execution_state(status: TaskStatus) -> str:
    """Flink's ``ExecutionState``: a task that waits for its final checkpoint is RUNNING."""
    return "RUNNING" if status is TaskStatus.WAITING_FOR_FINAL_CHECKPOINT else status.value


def dashboard_config_json(now_ms: int, version: str) -> Json:
    """``GET /config``."""
    now = datetime.fromtimestamp(now_ms / 1000).astimezone()
    offset = now.utcoffset()
    return {
        "refresh-interval": 3000,
        "timezone-name": now.tzname(),
        "timezone-offset": 0 if offset is None else int(offset.total_seconds() * 1000),
        "flink-version": FLINK_VERSION,
        "flink-revision": f"weir-{version}",
        "features": {
            "web-submit": False,
            "web-cancel": True,
            "web-rescale": False,
            "web-history": False,
        },
    }


def cluster_overview_json(view: JobView, version: str) -> Json:
    """``GET /overview``."""
    return {
        "taskmanagers": 0,
        "slots-total": 0,
        "slots-available": 0,
        "taskmanagers-blocked": 0,
        "slots-free-and-blocked": 0,
        "jobs-running": int(not view.status.is_terminal),
        "jobs-finished": int(view.status is JobStatus.FINISHED),
        "jobs-cancelled": int(view.status is JobStatus.CANCELED),
        "jobs-failed": int(view.status is JobStatus.FAILED),
        "flink-version": FLINK_VERSION,
        "flink-commit": f"weir-{version}",
    }


def job_ids_json(view: JobView) -> Json:
    """``GET /jobs``."""
    return {"jobs": [{"id": view.job_id, "status": view.status.value}]}


def jobs_overview_json(view: JobView, now_ms: int) -> Json:
    """``GET /jobs/overview``: the mandatory fields only, since older clients refuse others."""
    states = {state.lower(): count for state, count in _states(view.vertices).items()}
    return {
        "jobs": [
            {
                "jid": view.job_id,
                "name": view.name,
                "start-time": view.start_time_ms,
                "end-time": view.end_time_ms,
                "duration": _duration_ms(view, now_ms),
                "state": view.status.value,
                "last-modification": view.last_modification_ms,
                "tasks": {**states, "total": len(view.vertices)},
                "pending-operators": 0,
            }
        ]
    }


def job_details_json(view: JobView, now_ms: int) -> Json:
    """``GET /jobs/:jobid``."""
    return {
        "jid": view.job_id,
        "name": view.name,
        "isStoppable": False,
        "state": view.status.value,
        "job-type": "STREAMING",
        "schedulerType": "Default",
        "start-time": view.start_time_ms,
        "end-time": view.end_time_ms,
        "duration": _duration_ms(view, now_ms),
        "maxParallelism": -1,
        "application-id": None,
        "now": now_ms,
        "timestamps": {status: view.timestamps_ms.get(status, 0) for status in _FLINK_JOB_STATUSES},
        "vertices": [_vertex_json(view, vertex, now_ms) for vertex in view.vertices],
        "status-counts": _states(view.vertices),
        "plan": {
            "jid": view.job_id,
            "name": view.name,
            "type": "STREAMING",
            "nodes": [_plan_node_json(vertex) for vertex in view.vertices],
        },
        "stream-graph": None,
        "pending-operators": 0,
    }


def rejects_json(view: JobView) -> Json:
    """``GET /jobs/:jobid/rejects``, Weir's own: what sources could not read.

    As of the newest completed checkpoint.
    """
    newest = view.latest_completed
    found = [] if newest is None else rejects_in(newest.coordinator_states)
    return {
        "checkpointId": None if newest is None else newest.checkpoint_id,
        "operators": [
            {"operator": one.operator, "rejected": one.count, "rejects": list(one.newest)}
            for one in found
        ],
    }


def job_config_json(view: JobView) -> Json:
    """``GET /jobs/:jobid/config``."""
    return {
        "jid": view.job_id,
        "name": view.name,
        "execution-config": {
            "restart-strategy": view.configuration.get(
                "restart-strategy.type", "exponential-delay"
            ),
            "job-parallelism": max((vertex.parallelism for vertex in view.vertices), default=1),
            "object-reuse-mode": False,
            "user-config": view.configuration,
        },
    }


def exceptions_json(view: JobView) -> Json:
    """``GET /jobs/:jobid/exceptions``: newest first."""
    entries = [_exception_json(failure) for failure in reversed(view.exceptions)]
    newest = view.exceptions[-1] if view.exceptions else None
    return {
        "root-exception": _stack_trace(newest, view.failure) if newest else view.failure,
        "timestamp": newest.timestamp_ms if newest else None,
        "all-exceptions": [],
        "truncated": False,
        "exceptionHistory": {"entries": entries, "truncated": False},
    }


def execution_result_json(view: JobView, now_ms: int) -> Json:
    """``GET /jobs/:jobid/execution-result``."""
    if not view.status.is_terminal:
        return {"status": {"id": "IN_PROGRESS"}, "job-execution-result": None}
    return {
        "status": {"id": "COMPLETED"},
        "job-execution-result": {
            "id": view.job_id,
            "application-status": _APPLICATION_STATUSES[view.status],
            "accumulator-results": {},
            "net-runtime": _duration_ms(view, now_ms),
        },
    }


def _states(vertices: tuple[VertexView, ...]) -> dict[str, int]:
    counts = Counter(execution_state(vertex.status) for vertex in vertices)
    return {state: counts[state] for state in EXECUTION_STATES}


def _duration_ms(view: JobView, now_ms: int) -> int:
    end_ms = now_ms if view.end_time_ms < 0 else view.end_time_ms
    return max(0, end_ms - view.start_time_ms)


def _vertex_json(view: JobView, vertex: VertexView, now_ms: int) -> Json:
    start_ms = view.timestamps_ms.get("RUNNING", -1)
    end_ms = now_ms if view.end_time_ms < 0 else view.end_time_ms
    return {
        "id": vertex_id(vertex.vertex),
        "slotSharingGroupId": vertex_id(vertex.vertex),
        "name": vertex.vertex,
        "maxParallelism": -1,
        "parallelism": vertex.parallelism,
        "status": execution_state(vertex.status),
        "start-time": start_ms,
        "end-time": view.end_time_ms,
        "duration": max(0, end_ms - start_ms) if start_ms >= 0 else -1,
        "tasks": _states((vertex,)),
        "metrics": {
            "read-bytes": 0,
            "read-bytes-complete": False,
            "write-bytes": 0,
            "write-bytes-complete": False,
            "read-records": vertex.records_in,
            "read-records-complete": True,
            "write-records": vertex.records_committed,
            "write-records-complete": True,
            "accumulated-backpressured-time": 0,
            "accumulated-idle-time": 0,
            "accumulated-busy-time": 0.0,
        },
    }


def _plan_node_json(vertex: VertexView) -> Json:
    return {
        "id": vertex_id(vertex.vertex),
        "parallelism": vertex.parallelism,
        "operator": "",
        "operator_strategy": "",
        "description": " -> ".join(vertex.operators),
        "optimizer_properties": {},
    }


def _exception_json(failure: ExceptionView) -> Json:
    return {
        "exceptionName": failure.message.partition("\n")[0],
        "stacktrace": _stack_trace(failure),
        "timestamp": failure.timestamp_ms,
        "failureLabels": {},
        "taskName": failure.vertex,
        "endpoint": None,
        "taskManagerId": None,
        "concurrentExceptions": [],
    }


def _stack_trace(failure: ExceptionView, message: str | None = None) -> str:
    """The failure with its trace; ``message`` replaces the failure's own message."""
    return "\n".join(part for part in (message or failure.message, failure.trace) if part)
