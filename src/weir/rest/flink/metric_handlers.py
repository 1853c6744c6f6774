"""Handlers of the endpoints of metrics."""

from __future__ import annotations

from starlette.exceptions import HTTPException

from weir.metrics import prometheus
from weir.rest.flink import metric_answers
from weir.rest.flink.vertex_handlers import check_subtask, vertex_of
from weir.rest.handling.guard import quoted
from weir.rest.handling.serving import Serving, serves
from weir.rest.schema import metrics
from weir.rest.schema.base import Text
from weir.rest.schema.metrics import AggregatedMetric, MetricValue

_WATERMARK = "currentInputWatermark"


def _ways(agg: str | None) -> list[str]:
    """The aggregations asked for; all without a wish. Raises 400."""
    known = metric_answers.AGGREGATIONS
    asked = [way for way in (agg or "").lower().split(",") if way] or list(known)
    for way in asked:
        if way not in known:
            raise HTTPException(
                400, f"The aggregation {quoted(way)} is unknown: use {', '.join(known)}."
            )
    return asked


def _chosen(text: str | None) -> set[str] | None:
    """The elements of a list in a query; None, which means all, without a list."""
    return None if not text else {element for element in text.split(",") if element}


@serves(metrics.PROMETHEUS)
async def _prometheus(server: Serving) -> Text:
    readings = await server.readings(with_jvm=True)
    return Text(prometheus.exposition(readings), prometheus.CONTENT_TYPE)


@serves(metrics.JOB_METRICS)
async def _job(server: Serving, job_id: str, get: str | None) -> tuple[MetricValue, ...]:
    readings = await server.readings(job_id)
    return metric_answers.values(metric_answers.job_metrics(readings), get)


@serves(metrics.JOBS_METRICS)
async def _jobs(
    server: Serving, get: str | None, agg: str | None, jobs: str | None
) -> tuple[AggregatedMetric, ...]:
    ways, chosen = _ways(agg), _chosen(jobs)
    asked = None if chosen is None else {name.lower() for name in chosen}
    owners = [
        metric_answers.job_metrics(await server.readings(view.job_id))
        for view in await server.views()
        if asked is None or view.job_id in asked
    ]
    return metric_answers.aggregated(owners, get, ways)


@serves(metrics.VERTEX_METRICS)
async def _vertex(
    server: Serving, job_id: str, vertex: str, get: str | None
) -> tuple[MetricValue, ...]:
    _, vertex_view = await vertex_of(server, job_id, vertex)
    found = metric_answers.vertex_metrics(await server.readings(job_id), vertex_view.vertex)
    return metric_answers.values({f"0.{name}": value for name, value in found.items()}, get)


@serves(metrics.WATERMARKS)
async def _watermarks(server: Serving, job_id: str, vertex: str) -> tuple[MetricValue, ...]:
    _, vertex_view = await vertex_of(server, job_id, vertex)
    found = metric_answers.vertex_metrics(await server.readings(job_id), vertex_view.vertex)
    return (MetricValue(id=f"0.{_WATERMARK}", value=found[_WATERMARK]),)


@serves(metrics.SUBTASK_METRICS)
async def _subtask(
    server: Serving, job_id: str, vertex: str, subtask: str, get: str | None
) -> tuple[MetricValue, ...]:
    _, vertex_view = await vertex_of(server, job_id, vertex)
    check_subtask(subtask)
    return metric_answers.values(
        metric_answers.vertex_metrics(await server.readings(job_id), vertex_view.vertex), get
    )


@serves(metrics.SUBTASKS_METRICS)
async def _subtasks(
    server: Serving, job_id: str, vertex: str, **query: str | None
) -> tuple[AggregatedMetric, ...]:
    _, vertex_view = await vertex_of(server, job_id, vertex)
    ways = _ways(query["agg"])
    if not _has_first(query["subtasks"]):
        return ()
    found = metric_answers.vertex_metrics(await server.readings(job_id), vertex_view.vertex)
    return metric_answers.aggregated([found], query["get"], ways)


def _has_first(subtasks: str | None) -> bool:
    """Whether a list such as ``0-3,7`` has the subtask 0. Raises 400."""
    chosen = _chosen(subtasks)
    for part in chosen or ():
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise HTTPException(400, f"Subtasks are a list such as 0-3,7, not {quoted(part)}.")
    return chosen is None or any(int(part.partition("-")[0][-19:]) == 0 for part in chosen)


@serves(metrics.DRIVER_METRICS)
async def _driver(server: Serving, get: str | None) -> tuple[MetricValue, ...]:
    return metric_answers.values(
        metric_answers.driver_metrics(await server.readings(with_jvm=True)), get
    )


@serves(metrics.TASK_MANAGER_METRICS)
async def _task_manager(server: Serving, executor: str, get: str | None) -> tuple[MetricValue, ...]:
    found = await server.executor(executor)
    return metric_answers.values(
        metric_answers.executor_metrics(await server.readings(with_jvm=True), found), get
    )


@serves(metrics.TASK_MANAGERS_METRICS)
async def _task_managers(
    server: Serving, get: str | None, agg: str | None, taskmanagers: str | None
) -> tuple[AggregatedMetric, ...]:
    ways, chosen = _ways(agg), _chosen(taskmanagers)
    readings = await server.readings(with_jvm=True)
    owners = [
        metric_answers.executor_metrics(readings, executor)
        for executor in await server.looks.executors()
        if chosen is None or executor.executor_id in chosen
    ]
    return metric_answers.aggregated(owners, get, ways)
