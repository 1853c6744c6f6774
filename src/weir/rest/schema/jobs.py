"""Messages and endpoints of the driver, of its job, and of the job's coordinators."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from weir.rest.schema.base import (
    FLINK_VERSION,
    JOB_PATH,
    Endpoint,
    Message,
    Operation,
    Progress,
    Request,
    Triggered,
    endpoints_in,
)
from weir.rest.schema.failure_cause import Outcome


class CoordinatorRequest(Request, frozen=True, kw_only=True):
    """Send a request to an operator's coordinator."""

    FIELDS: ClassVar[str] = "request is an object, as the coordinator understands it"

    request: dict[str, Any]


class CoordinatorReply(Outcome, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of a ``CoordinatorRequest``."""

    answer: dict[str, Any] | None
    #: The completed checkpoint that contains what the request changed; missing if it failed.
    checkpoint_id: int = msgspec.field(name="checkpointId", default=0)


class DashboardFeatures(Message, frozen=True, kw_only=True, rename="kebab"):
    """What Flink's dashboard may offer."""

    web_submit: bool = False
    #: The dashboard's button is a GET that cancels, which any web page could send.
    web_cancel: bool = False
    web_rescale: bool = False
    web_history: bool = False


class DashboardConfig(Message, frozen=True, kw_only=True, rename="kebab"):
    """What Flink's dashboard asks for first."""

    #: Milliseconds.
    refresh_interval: int
    timezone_name: str | None
    #: Milliseconds east of Greenwich.
    timezone_offset: int
    flink_version: str = FLINK_VERSION
    flink_revision: str
    features: DashboardFeatures = DashboardFeatures()


class ClusterOverview(Message, frozen=True, kw_only=True, rename="kebab"):
    """Numbers of jobs by how they stand, and Spark's executors with their slots."""

    #: 0 if Spark does not answer.
    taskmanagers: int = 0
    #: Spark tasks that can run at a time.
    slots_total: int = 0
    #: Spark tasks that could run besides those that do.
    slots_available: int = 0
    taskmanagers_blocked: int = 0
    slots_free_and_blocked: int = 0
    jobs_running: int
    jobs_finished: int
    jobs_cancelled: int
    jobs_failed: int
    flink_version: str = FLINK_VERSION
    flink_commit: str


class JobIdWithStatus(Message, frozen=True, kw_only=True):
    """One job of ``JobIds``."""

    id: str
    status: str


class JobIds(Message, frozen=True, kw_only=True):
    """The jobs of a server, by id."""

    jobs: tuple[JobIdWithStatus, ...]


class JobSummary(Message, frozen=True, kw_only=True):
    """One job of a server (Flink: ``JobDetails``)."""

    job_id: str = msgspec.field(name="jid")
    name: str
    job_type: str = msgspec.field(name="jobType", default="STREAMING")
    scheduler_type: str = msgspec.field(name="schedulerType", default="Default")
    start_time_ms: int = msgspec.field(name="start-time")
    #: -1 while the job runs.
    end_time_ms: int = msgspec.field(name="end-time")
    duration_ms: int = msgspec.field(name="duration")
    state: str
    last_modification_ms: int = msgspec.field(name="last-modification")
    #: Tasks by lower-case state, and their ``total``.
    tasks: dict[str, int]
    pending_operators: int = msgspec.field(name="pending-operators", default=0)


class JobsOverview(Message, frozen=True, kw_only=True):
    """The jobs of a server, with their tasks by state."""

    jobs: tuple[JobSummary, ...]


class StatusOfJob(Message, frozen=True, kw_only=True):
    """The job's status."""

    status: str


class IoMetrics(Message, frozen=True, kw_only=True, rename="kebab"):
    """Rows since the driver started. Bytes, which Spark does not count, are 0, and complete."""

    read_bytes: int = 0
    read_bytes_complete: bool = True
    write_bytes: int = 0
    write_bytes_complete: bool = True
    read_records: int
    read_records_complete: bool = True
    #: Rows that sinks have committed.
    write_records: int
    write_records_complete: bool = True
    accumulated_backpressured_time: int = 0
    accumulated_idle_time: int = 0
    accumulated_busy_time: float = 0.0


class VertexInfo(Message, frozen=True, kw_only=True):
    """One vertex of a job: one streaming query. It counts as one task."""

    #: 32 digits derived from the name, the same in every run.
    id: str
    slot_sharing_group_id: str = msgspec.field(name="slotSharingGroupId")
    name: str
    max_parallelism: int = msgspec.field(name="maxParallelism", default=-1)
    parallelism: int
    status: str
    start_time_ms: int = msgspec.field(name="start-time")
    end_time_ms: int = msgspec.field(name="end-time")
    duration_ms: int = msgspec.field(name="duration")
    #: Tasks by state.
    tasks: dict[str, int]
    metrics: IoMetrics


class PlanInput(Message, frozen=True, kw_only=True):
    """One channel that a vertex reads."""

    #: Its place among the channels of the vertex.
    num: int
    #: The vertex that writes it.
    id: str
    ship_strategy: str = "FORWARD"
    exchange: str = "pipelined_bounded"


class PlanNode(Message, frozen=True, kw_only=True):
    """One vertex in the job's plan."""

    id: str
    parallelism: int
    operator: str = ""
    operator_strategy: str = ""
    #: The names of its steps, from sources to sinks.
    description: str
    inputs: tuple[PlanInput, ...] = ()
    optimizer_properties: Message = Message()


class Plan(Message, frozen=True, kw_only=True):
    """The job's graph."""

    job_id: str = msgspec.field(name="jid")
    name: str
    type: str = "STREAMING"
    nodes: tuple[PlanNode, ...]


class JobPlan(Message, frozen=True, kw_only=True):
    """The job's graph by itself."""

    plan: Plan


class JobAccumulators(Message, frozen=True, kw_only=True, rename="kebab"):
    """Empty, as of a Flink job without accumulators: Weir has no accumulators."""

    job_accumulators: tuple[Message, ...] = ()
    user_task_accumulators: tuple[Message, ...] = ()
    serialized_user_task_accumulators: Message = Message()


class JobInfo(Message, frozen=True, kw_only=True):
    """One job with its vertices (Flink: ``JobDetailsInfo``)."""

    job_id: str = msgspec.field(name="jid")
    name: str
    is_stoppable: bool = msgspec.field(name="isStoppable", default=False)
    state: str
    job_type: str = msgspec.field(name="job-type", default="STREAMING")
    scheduler_type: str = msgspec.field(name="schedulerType", default="Default")
    start_time_ms: int = msgspec.field(name="start-time")
    end_time_ms: int = msgspec.field(name="end-time")
    duration_ms: int = msgspec.field(name="duration")
    max_parallelism: int = msgspec.field(name="maxParallelism", default=-1)
    #: The job's own id: each job is an application by itself.
    application_id: str = msgspec.field(name="application-id")
    now_ms: int = msgspec.field(name="now")
    #: When the job took each status; 0 if it never has.
    timestamps: dict[str, int]
    vertices: tuple[VertexInfo, ...]
    status_counts: dict[str, int] = msgspec.field(name="status-counts")
    plan: Plan
    stream_graph: None = msgspec.field(name="stream-graph", default=None)
    pending_operators: int = msgspec.field(name="pending-operators", default=0)


class ExecutionConfig(Message, frozen=True, kw_only=True, rename="kebab"):
    """How a job is executed."""

    restart_strategy: str
    job_parallelism: int
    object_reuse_mode: bool = False
    #: Every key of Weir with its value in force; secrets are masked.
    user_config: dict[str, str]


class JobConfig(Message, frozen=True, kw_only=True):
    """The job's configuration."""

    job_id: str = msgspec.field(name="jid")
    name: str
    execution_config: ExecutionConfig = msgspec.field(name="execution-config")


class ExceptionInfo(Message, frozen=True, kw_only=True, rename="camel"):
    """One failure of the job."""

    exception_name: str
    stacktrace: str
    timestamp: int
    failure_labels: dict[str, str] = msgspec.field(name="failureLabels", default_factory=dict)
    #: The vertex whose task failed; None if no task did.
    task_name: str | None
    endpoint: str | None = None
    task_manager_id: str | None = None
    concurrent_exceptions: tuple[Message, ...] = ()


class ExceptionHistory(Message, frozen=True, kw_only=True):
    """The failures of the job, newest first."""

    entries: tuple[ExceptionInfo, ...]
    #: Whether there are more than were asked for.
    truncated: bool = False


class JobExceptions(Message, frozen=True, kw_only=True):
    """Why the job failed."""

    root_exception: str | None = msgspec.field(name="root-exception")
    timestamp: int | None
    all_exceptions: tuple[Message, ...] = msgspec.field(name="all-exceptions", default=())
    truncated: bool = False
    exception_history: ExceptionHistory = msgspec.field(name="exceptionHistory")


class JobExecutionResult(Message, frozen=True, kw_only=True, rename="kebab"):
    """How the job ended."""

    id: str
    #: SUCCEEDED, FAILED, CANCELED or UNKNOWN (suspended).
    application_status: str
    accumulator_results: dict[str, str] = msgspec.field(
        name="accumulator-results", default_factory=dict
    )
    #: Milliseconds.
    net_runtime: int


class ExecutionResult(Message, frozen=True, kw_only=True):
    """How the job ended, if it has."""

    status: Progress
    job_execution_result: JobExecutionResult | None = msgspec.field(name="job-execution-result")


class OperatorRejects(Message, frozen=True, kw_only=True):
    """What one source could not read."""

    operator: str
    #: How many rows or files, since the job first started.
    rejected: int
    #: The newest of them, as the source describes them.
    rejects: tuple[dict[str, Any], ...]


class Rejects(Message, frozen=True, kw_only=True):
    """What the job's sources could not read, as of the newest completed checkpoint."""

    checkpoint_id: int | None = msgspec.field(name="checkpointId")
    operators: tuple[OperatorRejects, ...]


CONFIG = Endpoint("GET", "/config", DashboardConfig, "What Flink's dashboard asks for first.")
OVERVIEW = Endpoint("GET", "/overview", ClusterOverview, "Numbers of jobs by how they stand.")
JOBS = Endpoint("GET", "/jobs", JobIds, "The ids and statuses of the jobs.")
JOBS_OVERVIEW = Endpoint(
    "GET", "/jobs/overview", JobsOverview, "The jobs, with their tasks by state."
)
JOB = Endpoint("GET", JOB_PATH, JobInfo, "The job with its vertices and its plan.")
CANCEL = Endpoint("PATCH", JOB_PATH, Message, "Cancel the job.", query=("mode",))
PLAN = Endpoint("GET", f"{JOB_PATH}/plan", JobPlan, "The job's graph.")
ACCUMULATORS = Endpoint(
    "GET", f"{JOB_PATH}/accumulators", JobAccumulators, "Empty: Weir has no accumulators."
)
STATUS = Endpoint("GET", f"{JOB_PATH}/status", StatusOfJob, "The job's status.")
JOB_CONFIG = Endpoint("GET", f"{JOB_PATH}/config", JobConfig, "The job's configuration.")
EXCEPTIONS = Endpoint(
    "GET",
    f"{JOB_PATH}/exceptions",
    JobExceptions,
    "Why the job failed.",
    query=("maxExceptions",),
)
EXECUTION_RESULT = Endpoint(
    "GET", f"{JOB_PATH}/execution-result", ExecutionResult, "How the job ended, if it has."
)
REJECTS = Endpoint(
    "GET", f"{JOB_PATH}/rejects", Rejects, "Weir's own: what the job's sources could not read."
)
CLIENT_HEARTBEAT = Endpoint(
    "PATCH", f"{JOB_PATH}/clientHeartbeat", Message, "Accepted from Flink's clients; does nothing."
)
SEND_TO_COORDINATOR = Endpoint(
    "POST",
    f"{JOB_PATH}/coordinators/{{operator}}",
    Triggered,
    "Weir's own: send a request to an operator's coordinator.",
    body=CoordinatorRequest,
)
COORDINATOR_OUTCOME = Endpoint(
    "GET",
    f"{JOB_PATH}/coordinators/{{operator}}/{{trigger_id}}",
    Operation[CoordinatorReply],
    "Weir's own: the coordinator's answer, once a checkpoint contains it.",
)

ENDPOINTS = endpoints_in(globals())
