"""The REST server's answers on the job and its vertices: pure functions of ``JobView``.

1. A Weir task is one streaming query, so every vertex counts as one task, whatever its
   parallelism.
2. Flink identifies vertices by 32 hexadecimal digits, Weir by name: ``vertex_id`` derives the
   digits from the name, the same in every run.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from datetime import datetime

from weir.config import Configuration
from weir.coordinators.rejects import rejects_in
from weir.core.status import JobStatus, has_ended
from weir.core.types import TaskStatus, VertexId
from weir.monitoring.cluster import ExecutorView
from weir.monitoring.views import ExceptionView, JobView, VertexView
from weir.rest.handling.answering import answers
from weir.rest.schema import jobs
from weir.rest.schema.base import COMPLETED, IN_PROGRESS

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

#: Entries of the exception history in an answer that does not ask for a number, as in Flink.
MAX_EXCEPTIONS = 20

_APPLICATION_STATUSES = {
    JobStatus.FINISHED: "SUCCEEDED",
    JobStatus.FAILED: "FAILED",
    JobStatus.CANCELED: "CANCELED",
    JobStatus.SUSPENDED: "UNKNOWN",
}


def vertex_id(vertex: VertexId) -> str:
    """The 32 hexadecimal digits that identify a vertex in Flink's JSON."""
    return hashlib.md5(vertex.encode(), usedforsecurity=False).hexdigest()


def names_vertex(asked: str, vertex: VertexId) -> bool:
    """Whether a path means this vertex: by its name, or by Flink's 32 digits in either case."""
    return asked == vertex or asked.lower() == vertex_id(vertex)


def execution_state(view: JobView, vertex: VertexView) -> str:
    """Flink's ``ExecutionState``: a task that waits for its final checkpoint is RUNNING.

    The tasks of a job that has ended have ended with it.
    """
    status = vertex.status
    if view.status.is_terminal and not has_ended(status):
        return "FINISHED" if view.status is JobStatus.FINISHED else "CANCELED"
    return "RUNNING" if status is TaskStatus.WAITING_FOR_FINAL_CHECKPOINT else status.value


def dashboard_config(
    now_ms: int, version: str, *, refresh_ms: int, history: bool
) -> jobs.DashboardConfig:
    """How this server presents itself; ``refresh_ms``: how often a dashboard is to ask."""
    now = datetime.fromtimestamp(now_ms / 1000).astimezone()
    offset = now.utcoffset()
    return jobs.DashboardConfig(
        refresh_interval=refresh_ms,
        timezone_name=now.tzname(),
        timezone_offset=0 if offset is None else int(offset.total_seconds() * 1000),
        flink_revision=f"weir-{version}",
        features=jobs.DashboardFeatures(web_history=history),
    )


@answers(jobs.OVERVIEW)
def cluster_overview(
    views: tuple[JobView, ...], executors: tuple[ExecutorView, ...], version: str
) -> jobs.ClusterOverview:
    """The jobs, counted by how they stand, and the executors with their slots."""
    counts = Counter(view.status for view in views)
    return jobs.ClusterOverview(
        taskmanagers=len(executors),
        slots_total=sum(executor.cores for executor in executors),
        slots_available=sum(executor.free_cores for executor in executors),
        jobs_running=sum(not view.status.is_terminal for view in views),
        jobs_finished=counts[JobStatus.FINISHED],
        jobs_cancelled=counts[JobStatus.CANCELED],
        jobs_failed=counts[JobStatus.FAILED],
        flink_commit=f"weir-{version}",
    )


@answers(jobs.JOBS)
def job_ids(views: tuple[JobView, ...]) -> jobs.JobIds:
    """The jobs with their statuses."""
    return jobs.JobIds(
        jobs=tuple(jobs.JobIdWithStatus(id=view.job_id, status=view.status.value) for view in views)
    )


@answers(jobs.JOBS_OVERVIEW)
def jobs_overview(views: tuple[JobView, ...], now_ms: int) -> jobs.JobsOverview:
    """The jobs, in a few figures each."""
    return jobs.JobsOverview(jobs=tuple(job_summary(view, now_ms) for view in views))


def job_summary(view: JobView, now_ms: int) -> jobs.JobSummary:
    """The job in a list of jobs."""
    states = {state.lower(): count for state, count in _states(view, view.vertices).items()}
    return jobs.JobSummary(
        job_id=view.job_id,
        name=view.name,
        start_time_ms=view.start_time_ms,
        end_time_ms=view.end_time_ms,
        duration_ms=duration_ms(view, now_ms),
        state=view.status.value,
        last_modification_ms=view.last_modification_ms,
        tasks={**states, "total": len(view.vertices)},
    )


@answers(jobs.JOB)
def job_info(view: JobView, now_ms: int) -> jobs.JobInfo:
    """The job with its vertices and its plan."""
    return jobs.JobInfo(
        job_id=view.job_id,
        name=view.name,
        state=view.status.value,
        start_time_ms=view.start_time_ms,
        end_time_ms=view.end_time_ms,
        duration_ms=duration_ms(view, now_ms),
        now_ms=now_ms,
        application_id=view.job_id,
        timestamps={status: view.timestamps_ms.get(status, 0) for status in _FLINK_JOB_STATUSES},
        vertices=tuple(_vertex_info(view, vertex, now_ms) for vertex in view.vertices),
        status_counts=_states(view, view.vertices),
        plan=plan(view),
    )


@answers(jobs.PLAN)
def job_plan(view: JobView) -> jobs.JobPlan:
    """The plan alone."""
    return jobs.JobPlan(plan=plan(view))


def plan(view: JobView) -> jobs.Plan:
    """The vertices, and which of them read which."""
    return jobs.Plan(
        job_id=view.job_id,
        name=view.name,
        nodes=tuple(
            jobs.PlanNode(
                id=vertex_id(vertex.vertex),
                parallelism=vertex.parallelism,
                description=" -> ".join(vertex.operators),
                inputs=tuple(
                    jobs.PlanInput(num=number, id=vertex_id(upstream))
                    for number, upstream in enumerate(vertex.inputs)
                ),
            )
            for vertex in view.vertices
        ),
    )


@answers(jobs.REJECTS)
def rejects(view: JobView) -> jobs.Rejects:
    """What sources could not read, as of the newest completed checkpoint."""
    newest = view.latest_completed
    found = [] if newest is None else rejects_in(newest.coordinator_states)
    return jobs.Rejects(
        checkpoint_id=None if newest is None else newest.checkpoint_id,
        operators=tuple(
            jobs.OperatorRejects(
                operator=rejects.operator, rejected=rejects.count, rejects=tuple(rejects.newest)
            )
            for rejects in found
        ),
    )


@answers(jobs.JOB_CONFIG)
def job_config(configured: JobView) -> jobs.JobConfig:
    """The job's configuration."""
    return jobs.JobConfig(
        job_id=configured.job_id,
        name=configured.name,
        execution_config=jobs.ExecutionConfig(
            restart_strategy=Configuration(configured.configuration).restart_config().type.value,
            job_parallelism=max((vertex.parallelism for vertex in configured.vertices), default=1),
            user_config=dict(configured.configuration),
        ),
    )


def exceptions(view: JobView, limit: int) -> jobs.JobExceptions:
    """The newest failures of the job, newest first, at most ``limit``."""
    newest = view.exceptions[-1] if view.exceptions else None
    return jobs.JobExceptions(
        root_exception=_stack_trace(newest, view.failure) if newest else view.failure,
        timestamp=newest.timestamp_ms if newest else None,
        exception_history=jobs.ExceptionHistory(
            entries=tuple(
                _exception_info(failure) for failure in view.exceptions[: -limit - 1 : -1]
            ),
            truncated=len(view.exceptions) > limit,
        ),
    )


@answers(jobs.EXECUTION_RESULT)
def execution_result(view: JobView, now_ms: int) -> jobs.ExecutionResult:
    """How the job ended, if it has."""
    if not view.status.is_terminal:
        return jobs.ExecutionResult(status=IN_PROGRESS, job_execution_result=None)
    return jobs.ExecutionResult(
        status=COMPLETED,
        job_execution_result=jobs.JobExecutionResult(
            id=view.job_id,
            application_status=_APPLICATION_STATUSES[view.status],
            net_runtime=duration_ms(view, now_ms),
        ),
    )


def _states(view: JobView, vertices: tuple[VertexView, ...]) -> dict[str, int]:
    counts = Counter(execution_state(view, vertex) for vertex in vertices)
    return {state: counts[state] for state in EXECUTION_STATES}


def duration_ms(view: JobView, now_ms: int) -> int:
    """From the job's start to its end, or to now."""
    end_ms = now_ms if view.end_time_ms < 0 else view.end_time_ms
    return max(0, end_ms - view.start_time_ms)


def _vertex_info(view: JobView, vertex: VertexView, now_ms: int) -> jobs.VertexInfo:
    start_ms = view.timestamps_ms.get("RUNNING", -1)
    end_ms = now_ms if view.end_time_ms < 0 else view.end_time_ms
    return jobs.VertexInfo(
        id=vertex_id(vertex.vertex),
        slot_sharing_group_id=vertex_id(vertex.vertex),
        name=vertex.vertex,
        parallelism=vertex.parallelism,
        status=execution_state(view, vertex),
        start_time_ms=start_ms,
        end_time_ms=view.end_time_ms,
        duration_ms=max(0, end_ms - start_ms) if start_ms >= 0 else -1,
        tasks=_states(view, (vertex,)),
        metrics=io_metrics(vertex),
    )


def io_metrics(vertex: VertexView) -> jobs.IoMetrics:
    """The rows of a vertex, and what it did with its time."""
    return jobs.IoMetrics(
        read_records=vertex.records_in,
        write_records=vertex.records_committed,
        accumulated_backpressured_time=vertex.held_ms,
        accumulated_idle_time=vertex.rested_ms,
        accumulated_busy_time=float(vertex.busy_ms),
    )


def _exception_info(failure: ExceptionView) -> jobs.ExceptionInfo:
    return jobs.ExceptionInfo(
        exception_name=failure.message.partition("\n")[0],
        stacktrace=_stack_trace(failure),
        timestamp=failure.timestamp_ms,
        task_name=failure.vertex,
    )


def _stack_trace(failure: ExceptionView, message: str | None = None) -> str:
    """The failure with its trace; ``message`` replaces the failure's own message."""
    return "\n".join(part for part in (message or failure.message, failure.trace) if part)
