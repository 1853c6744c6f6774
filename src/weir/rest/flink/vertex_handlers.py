"""Handlers of the endpoints of vertices and subtasks."""

from __future__ import annotations

from starlette.exceptions import HTTPException

from weir.monitoring.views import JobView, VertexView
from weir.rest.flink import vertex_answers
from weir.rest.flink.job_answers import vertex_id
from weir.rest.handling.guard import quoted, shortened
from weir.rest.handling.serving import Serving, serves
from weir.rest.schema import vertices

_GRAPH_TYPES = {"full": "FULL", "on_cpu": "ON_CPU", "off_cpu": "OFF_CPU"}


async def vertex_of(server: Serving, job_id: str, vertex: str) -> tuple[JobView, VertexView]:
    """A job's view and one of its vertices. Raises 400 or 404."""
    view = await server.view(job_id)
    found = vertex_answers.find_vertex(view, vertex)
    if found is None:
        known = ", ".join(vertex_answers.vertex_names(view))
        raise HTTPException(
            404, f"Job {job_id} has no vertex {shortened(vertex)}; its vertices are: {known}."
        )
    return view, found


def check_subtask(subtask: str) -> None:
    """Raise 400 or 404 unless it is the index of a vertex's only subtask."""
    if not subtask.isdecimal():
        raise HTTPException(400, f"A subtask's index is a whole number, not {quoted(subtask)}.")
    if int(subtask[-19:]) != 0 or len(subtask) > 19:
        raise HTTPException(
            404, f"A vertex has only subtask 0, and no subtask {shortened(subtask)}."
        )


def _check_attempt(view: JobView, attempt: str) -> None:
    if not attempt.isdecimal():
        raise HTTPException(400, f"An attempt is a whole number, not {quoted(attempt)}.")
    newest = vertex_answers.attempt_number(view)
    if attempt.lstrip("0") != str(newest).lstrip("0"):
        raise HTTPException(
            404, f"Attempt {shortened(attempt)} is not known: only the newest, {newest}, is."
        )


@serves(vertices.VERTEX)
async def _vertex(server: Serving, job_id: str, vertex: str) -> vertices.VertexDetails:
    view, vertex_view = await vertex_of(server, job_id, vertex)
    return vertex_answers.vertex_details(view, vertex_view, server.endpoint, server.clock.wall_ms())


@serves(vertices.SUBTASK_TIMES)
async def _subtask_times(server: Serving, job_id: str, vertex: str) -> vertices.VertexTimes:
    view, vertex_view = await vertex_of(server, job_id, vertex)
    return vertex_answers.vertex_times(view, vertex_view, server.endpoint, server.clock.wall_ms())


@serves(vertices.VERTEX_TASK_MANAGERS)
async def _task_managers(server: Serving, job_id: str, vertex: str) -> vertices.VertexTaskManagers:
    view, vertex_view = await vertex_of(server, job_id, vertex)
    return vertex_answers.vertex_task_managers(
        view, vertex_view, server.endpoint, server.clock.wall_ms()
    )


@serves(vertices.BACK_PRESSURE)
async def _back_pressure(server: Serving, job_id: str, vertex: str) -> vertices.BackPressure:
    view, vertex_view = await vertex_of(server, job_id, vertex)
    readings = await server.readings(job_id)
    reading = next(found for found in readings.vertices if found.view.vertex == vertex_view.vertex)
    return vertex_answers.back_pressure(view, reading, readings.now_ms)


@serves(vertices.FLAME_GRAPH)
async def _flame_graph(
    server: Serving, job_id: str, vertex: str, **query: str | None
) -> vertices.FlameGraph:
    await vertex_of(server, job_id, vertex)
    asked = (query["type"] or "full").lower()
    if asked not in _GRAPH_TYPES:
        raise HTTPException(400, f"The type {quoted(asked)} is unknown: full, on_cpu or off_cpu.")
    return vertices.FlameGraph(graph_type=_GRAPH_TYPES[asked])


@serves(vertices.VERTEX_ACCUMULATORS)
async def _accumulators(server: Serving, job_id: str, vertex: str) -> vertices.VertexAccumulators:
    _, vertex_view = await vertex_of(server, job_id, vertex)
    return vertices.VertexAccumulators(id=vertex_id(vertex_view.vertex))


@serves(vertices.SUBTASKS_ACCUMULATORS)
async def _subtasks_accumulators(
    server: Serving, job_id: str, vertex: str
) -> vertices.SubtasksAccumulators:
    view, vertex_view = await vertex_of(server, job_id, vertex)
    subtask = vertices.SubtaskAccumulators(
        attempt=vertex_answers.attempt_number(view), endpoint=server.endpoint
    )
    return vertices.SubtasksAccumulators(id=vertex_id(vertex_view.vertex), subtasks=(subtask,))


@serves(vertices.SUBTASK)
async def _subtask(
    server: Serving, job_id: str, vertex: str, subtask: str
) -> vertices.SubtaskAttempt:
    view, vertex_view = await vertex_of(server, job_id, vertex)
    check_subtask(subtask)
    return vertex_answers.subtask_attempt(
        view, vertex_view, server.endpoint, server.clock.wall_ms()
    )


@serves(vertices.SUBTASK_ATTEMPT)
async def _subtask_attempt(
    server: Serving, job_id: str, vertex: str, subtask: str, attempt: str
) -> vertices.SubtaskAttempt:
    view, vertex_view = await vertex_of(server, job_id, vertex)
    check_subtask(subtask)
    _check_attempt(view, attempt)
    return vertex_answers.subtask_attempt(
        view, vertex_view, server.endpoint, server.clock.wall_ms()
    )


@serves(vertices.SUBTASK_ATTEMPT_ACCUMULATORS)
async def _attempt_accumulators(
    server: Serving, job_id: str, vertex: str, subtask: str, attempt: str
) -> vertices.SubtaskAttemptAccumulators:
    view, vertex_view = await vertex_of(server, job_id, vertex)
    check_subtask(subtask)
    _check_attempt(view, attempt)
    return vertices.SubtaskAttemptAccumulators(
        attempt=vertex_answers.attempt_number(view), id=vertex_id(vertex_view.vertex)
    )
