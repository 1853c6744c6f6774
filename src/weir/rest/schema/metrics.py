"""Messages and endpoints of metrics: Prometheus' page, and Flink's queries.

Without ``get``, a query of Flink's lists the names; with it, the values of those that exist. The
names and values are those of ``weir.metrics.definitions``, in Flink's words and units.
"""

from __future__ import annotations

from weir.rest.schema.base import JOB_PATH, Endpoint, Message, Text, endpoints_in
from weir.rest.schema.vertices import VERTEX_PATH


class MetricValue(Message, frozen=True, kw_only=True, omit_defaults=True):
    """One metric."""

    id: str
    #: As text; absent if only names were asked for.
    value: str | None = None


class AggregatedMetric(Message, frozen=True, kw_only=True, omit_defaults=True):
    """One metric over several subtasks, jobs or task managers, in the ways asked for."""

    id: str
    min: float | None = None
    max: float | None = None
    avg: float | None = None
    sum: float | None = None
    #: How unequal the values are, in percent.
    skew: float | None = None


_ONE = tuple[MetricValue, ...]
_SEVERAL = tuple[AggregatedMetric, ...]
_SUBTASKS = f"{VERTEX_PATH}/subtasks"

PROMETHEUS = Endpoint(
    "GET", "/metrics", Text, "Weir's own: all metrics in Prometheus' text format."
)
JOBS_METRICS = Endpoint(
    "GET", "/jobs/metrics", _SEVERAL, "Metrics over the jobs.", query=("get", "agg", "jobs")
)
JOB_METRICS = Endpoint("GET", f"{JOB_PATH}/metrics", _ONE, "The job's metrics.", query=("get",))
VERTEX_METRICS = Endpoint(
    "GET",
    f"{VERTEX_PATH}/metrics",
    _ONE,
    "A vertex's metrics, each name with its subtask in front.",
    query=("get",),
)
WATERMARKS = Endpoint(
    "GET", f"{VERTEX_PATH}/watermarks", _ONE, "The watermarks of a vertex's subtasks."
)
SUBTASKS_METRICS = Endpoint(
    "GET",
    f"{_SUBTASKS}/metrics",
    _SEVERAL,
    "Metrics over a vertex's subtasks.",
    query=("get", "agg", "subtasks"),
)
SUBTASK_METRICS = Endpoint(
    "GET", f"{_SUBTASKS}/{{subtask}}/metrics", _ONE, "A subtask's metrics.", query=("get",)
)
DRIVER_METRICS = Endpoint(
    "GET", "/jobmanager/metrics", _ONE, "Metrics of the driver's JVM.", query=("get",)
)
TASK_MANAGERS_METRICS = Endpoint(
    "GET",
    "/taskmanagers/metrics",
    _SEVERAL,
    "Metrics over Spark's executors.",
    query=("get", "agg", "taskmanagers"),
)
TASK_MANAGER_METRICS = Endpoint(
    "GET",
    "/taskmanagers/{executor}/metrics",
    _ONE,
    "Metrics of one of Spark's executors.",
    query=("get",),
)

ENDPOINTS = endpoints_in(globals())
