"""Messages and endpoints of what a job runs on: the application, the driver, Spark's executors.

The driver is Flink's job manager, an executor a task manager. What has no meaning here (uploaded
jars, cached data sets, rescaling while a job runs) answers as an idle Flink cluster does.
"""

from __future__ import annotations

from typing import Any

import msgspec

from weir.rest.schema.base import JOB_PATH, Endpoint, Message, Text, endpoints_in
from weir.rest.schema.jobs import JobSummary


class ApplicationSummary(Message, frozen=True, kw_only=True, rename="kebab"):
    """The driver's program, in a list of applications."""

    #: The id of its one job.
    id: str
    name: str
    start_time: int
    #: -1 while it runs.
    end_time: int
    duration: int
    #: CREATED, RUNNING, FAILING, FAILED, CANCELING, CANCELED or FINISHED. A job's CANCELLING has
    #: two Ls, as in Flink.
    status: str
    #: Its jobs by status.
    jobs: dict[str, int]


class ApplicationsOverview(Message, frozen=True, kw_only=True):
    """The applications of a server: one for each job."""

    applications: tuple[ApplicationSummary, ...]


class ApplicationInfo(Message, frozen=True, kw_only=True, rename="kebab"):
    """One application with its job."""

    id: str
    name: str
    status: str
    start_time: int
    end_time: int
    duration: int
    #: When it took each status; 0 if it never has.
    timestamps: dict[str, int]
    jobs: tuple[JobSummary, ...]


class ApplicationException(Message, frozen=True, kw_only=True, rename="camel"):
    """One failure of the application's job."""

    exception_name: str
    stacktrace: str
    timestamp: int
    job_id: str


class ApplicationExceptionHistory(Message, frozen=True, kw_only=True):
    """The failures of the application's job, newest first."""

    entries: tuple[ApplicationException, ...]


class ApplicationExceptions(Message, frozen=True, kw_only=True, rename="camel"):
    """Why the application's job failed."""

    exception_history: ApplicationExceptionHistory


class ConfigEntry(Message, frozen=True, kw_only=True):
    """One key with its value; a secret is masked."""

    key: str
    value: str


class JvmInfo(Message, frozen=True, kw_only=True):
    """Spark's JVM in the driver."""

    version: str
    arch: str
    #: Its options; an option that may be a secret is masked.
    options: tuple[str, ...]


class EnvironmentInfo(Message, frozen=True, kw_only=True):
    """The driver's process."""

    #: Its environment. Values are masked, except those of well-known harmless variables.
    environment: tuple[ConfigEntry, ...]
    jvm: JvmInfo
    classpath: tuple[str, ...]


class LogFile(Message, frozen=True, kw_only=True):
    """One log file."""

    name: str
    #: Bytes.
    size: int
    mtime: int


class LogFiles(Message, frozen=True, kw_only=True):
    """The log files of a process."""

    logs: tuple[LogFile, ...]


class LogUrl(Message, frozen=True, kw_only=True):
    """Where a history server's dashboard links to for logs."""

    #: Empty: there is no link.
    url: str = ""


class ThreadInfo(Message, frozen=True, kw_only=True, rename="camel"):
    """One thread with its stack."""

    thread_name: str
    stringified_thread_info: str


class ThreadDump(Message, frozen=True, kw_only=True, rename="camel"):
    """The threads of a process: of the driver Python's, of an executor Java's."""

    thread_infos: tuple[ThreadInfo, ...]


class ResourceProfile(Message, frozen=True, kw_only=True, rename="camel"):
    """What a task manager offers; Spark does not cut its memory into these parts."""

    cpu_cores: float
    #: MiB for Spark's tasks.
    task_heap_memory: int
    task_off_heap_memory: int = 0
    managed_memory: int = 0
    network_memory: int = 0
    extended_resources: dict[str, float] = msgspec.field(
        name="extendedResources", default_factory=dict
    )


class Hardware(Message, frozen=True, kw_only=True, rename="camel"):
    """A task manager's machine, as far as it is known."""

    cpu_cores: int
    #: Bytes of the driver's machine; 0 for others.
    physical_memory: int = 0
    #: Flink's name for the largest size of the heap. Bytes; of another machine's executor those
    #: that Spark uses of it.
    free_memory: int
    managed_memory: int = 0


class MemoryConfiguration(Message, frozen=True, kw_only=True, rename="camel"):
    """Flink's parts of a task manager's memory, in bytes; Spark has one of them."""

    framework_heap: int = 0
    task_heap: int
    framework_off_heap: int = 0
    task_off_heap: int = 0
    network_memory: int = 0
    managed_memory: int = 0
    jvm_metaspace: int = 0
    jvm_overhead: int = 0
    total_flink_memory: int
    total_process_memory: int


class TaskManager(Message, frozen=True, kw_only=True, rename="camel"):
    """One of Spark's executors; with a local master, only the driver's JVM."""

    id: str
    path: str
    data_port: int
    jmx_port: int = -1
    time_since_last_heartbeat: int
    #: Spark tasks that can run at a time.
    slots_number: int
    free_slots: int
    #: Spark tasks that run now.
    assigned_tasks: int
    total_resource: ResourceProfile
    free_resource: ResourceProfile
    hardware: Hardware
    memory_configuration: MemoryConfiguration
    blocked: bool = False


class TaskManagers(Message, frozen=True, kw_only=True):
    """Spark's executors."""

    taskmanagers: tuple[TaskManager, ...]


class GarbageCollector(Message, frozen=True, kw_only=True):
    """What one garbage collector has done."""

    name: str
    count: int
    #: Milliseconds.
    time: int


class TaskManagerMetrics(Message, frozen=True, kw_only=True, rename="camel"):
    """Memory of an executor's JVM in bytes; -1 for what Spark does not report."""

    heap_used: int
    heap_committed: int = -1
    heap_max: int
    non_heap_used: int
    non_heap_committed: int = -1
    non_heap_max: int = -1
    direct_count: int = 0
    direct_used: int
    direct_max: int = 0
    mapped_count: int = 0
    mapped_used: int
    mapped_max: int = 0
    memory_segments_available: int = 0
    memory_segments_total: int = 0
    netty_shuffle_memory_segments_available: int = 0
    netty_shuffle_memory_segments_used: int = 0
    netty_shuffle_memory_segments_total: int = 0
    netty_shuffle_memory_available: int = 0
    netty_shuffle_memory_used: int = 0
    netty_shuffle_memory_total: int = 0
    garbage_collectors: tuple[GarbageCollector, ...]


class TaskManagerDetails(TaskManager, frozen=True, kw_only=True, rename="camel"):
    """One of Spark's executors, with its memory."""

    allocated_slots: tuple[Message, ...] = ()
    metrics: TaskManagerMetrics


class Jars(Message, frozen=True, kw_only=True):
    """Empty: jobs are not uploaded."""

    address: str
    files: tuple[Message, ...] = ()


class DataSets(Message, frozen=True, kw_only=True, rename="camel"):
    """Empty: Weir caches no data sets."""

    data_sets: tuple[Message, ...] = ()


class RescaleCounts(Message, frozen=True, kw_only=True, rename="camel"):
    """No job is rescaled while it runs."""

    ignored: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0


class LatestRescales(Message, frozen=True, kw_only=True):
    """Empty: Weir does not rescale a running job."""

    completed: None = None
    failed: None = None
    ignored: None = None


class RescalesOverview(Message, frozen=True, kw_only=True, rename="camel"):
    """Empty: a job takes another parallelism when it is started again."""

    rescales_counts: RescaleCounts = RescaleCounts()
    latest: LatestRescales = LatestRescales()


class RescaleDurations(Message, frozen=True, kw_only=True):
    """Durations of no rescales."""

    min: int = 0
    max: int = 0
    avg: int = 0
    p50: float = 0
    p90: float = 0
    p95: float = 0
    p99: float = 0
    p999: float = 0


class RescalesSummary(Message, frozen=True, kw_only=True, rename="camel"):
    """Empty: no job is rescaled while it runs."""

    rescales_counts: RescaleCounts = RescaleCounts()
    rescales_duration_stats_in_millis: RescaleDurations = RescaleDurations()
    completed_rescales_duration_stats_in_millis: RescaleDurations = RescaleDurations()
    ignored_rescales_duration_stats_in_millis: RescaleDurations = RescaleDurations()
    failed_rescales_duration_stats_in_millis: RescaleDurations = RescaleDurations()


class RescalesConfig(Message, frozen=True, kw_only=True, rename="camel"):
    """All unset: Flink has values for a job with its adaptive scheduler only."""

    rescale_history_max: int = 0
    scheduler_execution_mode: None = None
    submission_resource_wait_timeout_in_millis: None = None
    submission_resource_stabilization_timeout_in_millis: None = None
    slot_idle_timeout_in_millis: None = None
    executing_cooldown_timeout_in_millis: None = None
    executing_resource_stabilization_timeout_in_millis: None = None
    maximum_delay_for_triggering_rescale_in_millis: None = None
    rescale_on_failed_checkpoint_count: None = None


_APPLICATION = "/applications/{application_id}"
_TASK_MANAGER = "/taskmanagers/{executor}"
_RESCALES = f"{JOB_PATH}/rescales"

APPLICATIONS = Endpoint(
    "GET", "/applications/overview", ApplicationsOverview, "The applications: one for the job."
)
APPLICATION = Endpoint("GET", _APPLICATION, ApplicationInfo, "One application with its job.")
APPLICATION_EXCEPTIONS = Endpoint(
    "GET", f"{_APPLICATION}/exceptions", ApplicationExceptions, "Why the application's job failed."
)
APPLICATION_CONFIG = Endpoint(
    "GET",
    f"{_APPLICATION}/jobmanager/config",
    tuple[ConfigEntry, ...],
    "The configuration in force, without secrets.",
)
CANCEL_APPLICATION = Endpoint(
    "POST", f"{_APPLICATION}/cancel", Message, "Cancel the application's job."
)
DRIVER_CONFIG = Endpoint(
    "GET",
    "/jobmanager/config",
    tuple[ConfigEntry, ...],
    "The configuration in force, without secrets.",
)
JOB_DRIVER_CONFIG = Endpoint(
    "GET", f"{JOB_PATH}/jobmanager/config", tuple[ConfigEntry, ...], "The same."
)
DRIVER_ENVIRONMENT = Endpoint(
    "GET", "/jobmanager/environment", EnvironmentInfo, "The driver's process, without secrets."
)
JOB_DRIVER_ENVIRONMENT = Endpoint(
    "GET", f"{JOB_PATH}/jobmanager/environment", EnvironmentInfo, "The same."
)
DRIVER_LOGS = Endpoint("GET", "/jobmanager/logs", LogFiles, "The driver's log, and Spark's.")
DRIVER_LOG_FILE = Endpoint(
    "GET", "/jobmanager/logs/{file}", Text, "The end of one of the log files."
)
DRIVER_LOG = Endpoint("GET", "/jobmanager/log", Text, "The driver's newest log lines.")
DRIVER_LOG_URL = Endpoint(
    "GET", f"{JOB_PATH}/jobmanager/log-url", LogUrl, "Empty: logs are not kept elsewhere."
)
TASK_MANAGER_LOG_URL = Endpoint(
    "GET", f"{JOB_PATH}/taskmanagers/{{executor}}/log-url", LogUrl, "Empty, too."
)
DRIVER_STDOUT = Endpoint(
    "GET", "/jobmanager/stdout", Text, "Empty: the driver prints to its terminal."
)
DRIVER_THREADS = Endpoint(
    "GET", "/jobmanager/thread-dump", ThreadDump, "The driver's Python threads."
)
TASK_MANAGERS = Endpoint("GET", "/taskmanagers", TaskManagers, "Spark's executors.")
TASK_MANAGER = Endpoint("GET", _TASK_MANAGER, TaskManagerDetails, "One of Spark's executors.")
TASK_MANAGER_LOGS = Endpoint(
    "GET", f"{_TASK_MANAGER}/logs", LogFiles, "Those, if the executor is the driver's JVM."
)
TASK_MANAGER_LOG_FILE = Endpoint(
    "GET", f"{_TASK_MANAGER}/logs/{{file}}", Text, "The end of one of the log files."
)
TASK_MANAGER_LOG = Endpoint("GET", f"{_TASK_MANAGER}/log", Text, "The end of Spark's log.")
TASK_MANAGER_STDOUT = Endpoint("GET", f"{_TASK_MANAGER}/stdout", Text, "Empty.")
TASK_MANAGER_THREADS = Endpoint(
    "GET", f"{_TASK_MANAGER}/thread-dump", ThreadDump, "The executor's Java threads."
)
RESOURCE_REQUIREMENTS = Endpoint(
    "GET",
    f"{JOB_PATH}/resource-requirements",
    Message,
    "Empty: a job takes another parallelism when it is started again.",
)
RESCALES_OVERVIEW = Endpoint("GET", f"{_RESCALES}/overview", RescalesOverview, "Empty.")
RESCALES_HISTORY = Endpoint("GET", f"{_RESCALES}/history", tuple[Message, ...], "Empty.")
RESCALES_SUMMARY = Endpoint("GET", f"{_RESCALES}/summary", RescalesSummary, "Empty.")
RESCALES_CONFIG = Endpoint("GET", f"{_RESCALES}/config", RescalesConfig, "Empty.")
RESCALE_DETAILS = Endpoint(
    "GET", f"{_RESCALES}/details/{{rescale}}", Message, "404: there are no rescales."
)
JARS = Endpoint("GET", "/jars", Jars, "Empty: jobs are not uploaded.")
DATA_SETS = Endpoint("GET", "/datasets", DataSets, "Empty: Weir caches no data sets.")
LIVENESS = Endpoint(
    "GET",
    "/healthz",
    Text,
    "Weir's own, without a token: 503 once the job's main thread has hung for a minute.",
)
READINESS = Endpoint(
    "GET",
    "/readyz",
    Text,
    "Weir's own, without a token: 503 unless the job runs, with all its queries.",
)
#: For those who start and watch processes, such as a kubelet: they have no token.
PROBES = frozenset({LIVENESS.path, READINESS.path})
OPENAPI = Endpoint(
    "GET", "/openapi.json", dict[str, Any], "Weir's own: this page as an OpenAPI document."
)

ENDPOINTS = endpoints_in(globals())
