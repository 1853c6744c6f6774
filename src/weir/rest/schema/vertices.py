"""Messages and endpoints of a job's vertices and their subtasks.

A vertex is one streaming query and counts as one task: its one subtask has the index 0. Spark's own
tasks, of which a batch has many, are not subtasks in this sense.
"""

from __future__ import annotations

import msgspec

from weir.rest.schema.base import JOB_PATH, Endpoint, Message, endpoints_in
from weir.rest.schema.jobs import IoMetrics


class SubtaskAttempt(Message, frozen=True, kw_only=True, rename="kebab"):
    """An attempt of a subtask; Weir knows only the newest."""

    subtask: int = 0
    status: str
    #: Counted from 0: the number of restarts before it.
    attempt: int
    #: Host and REST port of the driver, which runs the query.
    endpoint: str
    start_time: int
    #: The same again, under the name that Flink's dashboard reads.
    start_time_compatible: int = msgspec.field(name="start_time")
    #: -1 while the job runs.
    end_time: int
    duration: int
    metrics: IoMetrics
    taskmanager_id: str
    #: Milliseconds in each state of the attempt; -1 for a state that it never had.
    status_duration: dict[str, int]


class Distribution(Message, frozen=True, kw_only=True):
    """A figure over the subtasks of a vertex."""

    min: int
    max: int
    avg: int
    sum: int
    median: int
    p25: int
    p75: int
    p95: int


class SubtasksAggregated(Message, frozen=True, kw_only=True, rename="kebab"):
    """The figures of ``SubtaskAttempt`` over the subtasks."""

    metrics: dict[str, Distribution]
    status_duration: dict[str, Distribution]


class VertexDetails(Message, frozen=True, kw_only=True):
    """One vertex with its subtask."""

    id: str
    name: str
    parallelism: int
    max_parallelism: int = msgspec.field(name="maxParallelism", default=-1)
    now: int
    aggregated: SubtasksAggregated
    subtasks: tuple[SubtaskAttempt, ...]


class SubtaskTimes(Message, frozen=True, kw_only=True):
    """When a subtask entered each state."""

    subtask: int = 0
    #: The same as ``endpoint``, under the name that Flink's dashboard reads.
    host: str
    endpoint: str
    duration: int
    #: 0 for a state that it never had. In the order of a task's life: the dashboard draws the last
    #: of those that began at the same time.
    timestamps: dict[str, int]


class VertexTimes(Message, frozen=True, kw_only=True):
    """When the subtask of a vertex entered each state."""

    id: str
    name: str
    now: int
    subtasks: tuple[SubtaskTimes, ...]


class VertexOnTaskManager(Message, frozen=True, kw_only=True, rename="kebab"):
    """What a task manager runs of a vertex. A query's own thread is in the driver."""

    endpoint: str
    status: str
    start_time: int
    end_time: int
    duration: int
    metrics: IoMetrics
    #: Subtasks by state.
    status_counts: dict[str, int]
    taskmanager_id: str
    aggregated: SubtasksAggregated


class VertexTaskManagers(Message, frozen=True, kw_only=True):
    """Which task managers run a vertex."""

    id: str
    name: str
    now: int
    taskmanagers: tuple[VertexOnTaskManager, ...]


class SubtaskBackPressure(Message, frozen=True, kw_only=True):
    """What a query did in the last minute."""

    subtask: int = 0
    attempt_number: int = msgspec.field(name="attempt-number")
    #: ok (at most 10 %), low (at most 50 %) or high.
    level: str = msgspec.field(name="backpressure-level")
    #: The same: Flink answers both spellings.
    level_again: str = msgspec.field(name="backpressureLevel")
    #: The share of the time in which a consumer that lags held the query up.
    ratio: float
    #: The share of the time in which it had nothing to read.
    idle_ratio: float = msgspec.field(name="idleRatio")
    busy_ratio: float = msgspec.field(name="busyRatio")


class BackPressure(Message, frozen=True, kw_only=True):
    """Whether a vertex waits for its consumers."""

    status: str = "ok"
    level: str = msgspec.field(name="backpressure-level")
    #: The same: Flink answers both spellings.
    level_again: str = msgspec.field(name="backpressureLevel")
    end_timestamp: int = msgspec.field(name="end-timestamp")
    subtasks: tuple[SubtaskBackPressure, ...]


class VertexAccumulators(Message, frozen=True, kw_only=True, rename="kebab"):
    """Empty: Weir has no accumulators."""

    id: str
    user_accumulators: tuple[Message, ...] = ()


class SubtaskAccumulators(Message, frozen=True, kw_only=True, rename="kebab"):
    """Empty: Weir has no accumulators."""

    subtask: int = 0
    attempt: int
    endpoint: str
    user_accumulators: tuple[Message, ...] = ()


class SubtasksAccumulators(Message, frozen=True, kw_only=True):
    """Empty: Weir has no accumulators."""

    id: str
    parallelism: int = 1
    subtasks: tuple[SubtaskAccumulators, ...]


class SubtaskAttemptAccumulators(Message, frozen=True, kw_only=True, rename="kebab"):
    """Empty: Weir has no accumulators."""

    subtask: int = 0
    attempt: int
    id: str
    user_accumulators: tuple[Message, ...] = ()


class FlameGraph(Message, frozen=True, kw_only=True, rename="camel"):
    """Empty, as from a Flink that samples no stacks (``rest.flamegraph.enabled: false``)."""

    #: Flink's number for that; times are positive.
    end_timestamp: int = -2
    data: None = None
    graph_type: str


VERTEX_PATH = f"{JOB_PATH}/vertices/{{vertex}}"
_SUBTASK = f"{VERTEX_PATH}/subtasks/{{subtask}}"

VERTEX = Endpoint("GET", VERTEX_PATH, VertexDetails, "One vertex, by its id or name.")
SUBTASK_TIMES = Endpoint(
    "GET", f"{VERTEX_PATH}/subtasktimes", VertexTimes, "When a vertex entered each state."
)
VERTEX_TASK_MANAGERS = Endpoint(
    "GET", f"{VERTEX_PATH}/taskmanagers", VertexTaskManagers, "Which task managers run a vertex."
)
BACK_PRESSURE = Endpoint(
    "GET", f"{VERTEX_PATH}/backpressure", BackPressure, "Whether a vertex waits for consumers."
)
FLAME_GRAPH = Endpoint(
    "GET",
    f"{VERTEX_PATH}/flamegraph",
    FlameGraph,
    "Empty: Weir samples no stacks.",
    query=("type",),
)
VERTEX_ACCUMULATORS = Endpoint(
    "GET", f"{VERTEX_PATH}/accumulators", VertexAccumulators, "Empty: Weir has no accumulators."
)
SUBTASKS_ACCUMULATORS = Endpoint(
    "GET",
    f"{VERTEX_PATH}/subtasks/accumulators",
    SubtasksAccumulators,
    "Empty: Weir has no accumulators.",
)
SUBTASK = Endpoint("GET", _SUBTASK, SubtaskAttempt, "A subtask's newest attempt.")
SUBTASK_ATTEMPT = Endpoint(
    "GET", f"{_SUBTASK}/attempts/{{attempt}}", SubtaskAttempt, "One attempt of a subtask."
)
SUBTASK_ATTEMPT_ACCUMULATORS = Endpoint(
    "GET",
    f"{_SUBTASK}/attempts/{{attempt}}/accumulators",
    SubtaskAttemptAccumulators,
    "Empty: Weir has no accumulators.",
)

ENDPOINTS = endpoints_in(globals())
