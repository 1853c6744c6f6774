"""The REST server's answers on vertices and their subtasks: pure functions of the job's view.

Every vertex has one subtask, with the index 0, as in ``checkpoint_answers``.
"""

from __future__ import annotations

from weir.core.types import VertexId
from weir.metrics.readings import VertexReading
from weir.monitoring.views import JobView, VertexView
from weir.rest.flink.job_answers import (
    EXECUTION_STATES,
    execution_state,
    io_metrics,
    names_vertex,
    vertex_id,
)
from weir.rest.schema import vertices
from weir.rest.schema.jobs import IoMetrics

#: The states of an attempt whose durations Flink shows.
_TIMED_STATES = ("CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING")
#: Shares of the time above which the back pressure is low, and high.
_LOW, _HIGH = 0.1, 0.5
#: Where queries run, as Spark calls its driver's own executor.
DRIVER = "driver"


def find_vertex(view: JobView, vertex: str) -> VertexView | None:
    """The vertex with this name, or with these 32 digits."""
    return next(
        (candidate for candidate in view.vertices if names_vertex(vertex, candidate.vertex)), None
    )


def attempt_number(view: JobView) -> int:
    """Flink's number of the newest attempt, which counts from 0."""
    return max(0, view.attempt - 1)


def vertex_details(
    view: JobView, vertex: VertexView, endpoint: str, now_ms: int
) -> vertices.VertexDetails:
    """The vertex with its subtask."""
    attempt = subtask_attempt(view, vertex, endpoint, now_ms)
    return vertices.VertexDetails(
        id=vertex_id(vertex.vertex),
        name=vertex.vertex,
        parallelism=vertex.parallelism,
        now=now_ms,
        aggregated=_aggregated(attempt),
        subtasks=(attempt,),
    )


def subtask_attempt(
    view: JobView, vertex: VertexView, endpoint: str, now_ms: int
) -> vertices.SubtaskAttempt:
    """The newest attempt of the vertex's subtask."""
    start_ms, duration_ms = _since(view, now_ms)
    return vertices.SubtaskAttempt(
        status=execution_state(view, vertex),
        attempt=attempt_number(view),
        endpoint=endpoint,
        start_time=start_ms,
        start_time_compatible=start_ms,
        end_time=view.end_time_ms,
        duration=duration_ms,
        metrics=io_metrics(vertex),
        taskmanager_id=DRIVER,
        status_duration={
            state: duration_ms if state == "RUNNING" else -1 for state in _TIMED_STATES
        },
    )


def vertex_times(
    view: JobView, vertex: VertexView, endpoint: str, now_ms: int
) -> vertices.VertexTimes:
    """When the subtask entered each state."""
    start_ms, duration_ms = _since(view, now_ms)
    state = execution_state(view, vertex)
    timestamps = dict.fromkeys((*_TIMED_STATES, *EXECUTION_STATES), 0)
    timestamps["CREATED"] = view.timestamps_ms.get("CREATED", 0)
    for passed in ("DEPLOYING", "INITIALIZING", "RUNNING"):
        timestamps[passed] = max(0, start_ms)
    if state == "INITIALIZING":
        timestamps["RUNNING"] = 0
    if view.end_time_ms >= 0 and state not in ("RUNNING", "INITIALIZING"):
        timestamps[state] = view.end_time_ms
    return vertices.VertexTimes(
        id=vertex_id(vertex.vertex),
        name=vertex.vertex,
        now=now_ms,
        subtasks=(
            vertices.SubtaskTimes(
                host=endpoint, endpoint=endpoint, duration=duration_ms, timestamps=timestamps
            ),
        ),
    )


def vertex_task_managers(
    view: JobView, vertex: VertexView, endpoint: str, now_ms: int
) -> vertices.VertexTaskManagers:
    """The driver, which runs the vertex's query."""
    attempt = subtask_attempt(view, vertex, endpoint, now_ms)
    return vertices.VertexTaskManagers(
        id=vertex_id(vertex.vertex),
        name=vertex.vertex,
        now=now_ms,
        taskmanagers=(
            vertices.VertexOnTaskManager(
                endpoint=endpoint,
                status=attempt.status,
                start_time=attempt.start_time,
                end_time=attempt.end_time,
                duration=attempt.duration,
                metrics=attempt.metrics,
                status_counts={state: int(state == attempt.status) for state in EXECUTION_STATES},
                taskmanager_id=attempt.taskmanager_id,
                aggregated=_aggregated(attempt),
            ),
        ),
    )


def back_pressure(view: JobView, vertex: VertexReading, now_ms: int) -> vertices.BackPressure:
    """Whether a vertex waited for its consumers in the newest minute."""
    level = "ok" if vertex.held <= _LOW else "low" if vertex.held <= _HIGH else "high"
    return vertices.BackPressure(
        level=level,
        level_again=level,
        end_timestamp=now_ms,
        subtasks=(
            vertices.SubtaskBackPressure(
                attempt_number=attempt_number(view),
                level=level,
                level_again=level,
                ratio=vertex.held,
                idle_ratio=vertex.rested,
                busy_ratio=vertex.busy,
            ),
        ),
    )


def vertex_names(view: JobView) -> tuple[VertexId, ...]:
    """The names of the job's vertices, for messages."""
    return tuple(vertex.vertex for vertex in view.vertices)


def _since(view: JobView, now_ms: int) -> tuple[int, int]:
    """When the newest attempt's tasks started, and how long ago; -1 if they have not."""
    start_ms = view.timestamps_ms.get("RUNNING", -1)
    end_ms = now_ms if view.end_time_ms < 0 else view.end_time_ms
    return start_ms, max(0, end_ms - start_ms) if start_ms >= 0 else -1


def _aggregated(attempt: vertices.SubtaskAttempt) -> vertices.SubtasksAggregated:
    return vertices.SubtasksAggregated(
        metrics={name: _alone(value) for name, value in _numbers(attempt.metrics).items()},
        status_duration={
            state: _alone(duration) for state, duration in attempt.status_duration.items()
        },
    )


def _numbers(metrics: IoMetrics) -> dict[str, int]:
    return {
        "read-bytes": metrics.read_bytes,
        "write-bytes": metrics.write_bytes,
        "read-records": metrics.read_records,
        "write-records": metrics.write_records,
        "accumulated-backpressured-time": metrics.accumulated_backpressured_time,
        "accumulated-busy-time": int(metrics.accumulated_busy_time),
        "accumulated-idle-time": metrics.accumulated_idle_time,
    }


def _alone(value: int) -> vertices.Distribution:
    """The distribution of one value."""
    return vertices.Distribution(
        min=value, max=value, avg=value, sum=value, median=value, p25=value, p75=value, p95=value
    )
