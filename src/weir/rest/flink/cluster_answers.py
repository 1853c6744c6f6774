"""The REST server's answers on the application, the driver and Spark's executors.

What these processes know can be secret, and every permitted client of the server can read it. So
values of the environment are shown for a list of harmless variables only, and options of the JVM
and Spark's log as ``masking`` leaves them.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
import traceback
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from starlette.exceptions import HTTPException

from weir.core.status import JobStatus
from weir.core.types import TaskStatus
from weir.masking import MASKED, masked, masked_option
from weir.monitoring.cluster import ExecutorView, JvmView, ThreadView
from weir.monitoring.log_buffer import LogBuffer
from weir.monitoring.views import JobView
from weir.rest.flink import job_answers
from weir.rest.handling.answering import answers
from weir.rest.handling.guard import shortened
from weir.rest.schema import cluster

#: The name under which the driver's own lines are listed.
DRIVER_LOG = "driver.log"
#: How much of the end of a log file is sent, in bytes.
LOG_TAIL = 1024 * 1024
#: A main thread that has not answered for so long, in milliseconds, hangs for good: it waits for
#: nothing but messages.
HUNG_MS = 60_000

#: Names of variables whose values are not secret.
_HARMLESS = re.compile(
    r"(HOME|HOSTNAME|JAVA_HOME|LANG|LC_\w+|LOGNAME|PATH|PWD|PYSPARK_PYTHON|PYTHON(HASHSEED|PATH|"
    r"UNBUFFERED)|SHELL|SPARK_HOME|SPARK_LOCAL_IP|TERM|TMPDIR|TZ|USER|VIRTUAL_ENV|WEIR_DEBUG|"
    r"WEIR_NO_WARMUP|XDG_\w+)"
)
#: Flink's ``ApplicationState`` values, and the job's status that each is.
_STATUSES = {
    "CREATED": "CREATED",
    "RUNNING": "RUNNING",
    "FAILING": "FAILING",
    "FAILED": "FAILED",
    "CANCELING": "CANCELLING",
    "CANCELED": "CANCELED",
    "FINISHED": "FINISHED",
}
#: Flink's application has no such statuses, or spells them otherwise.
_APPLICATION_STATUS = {
    JobStatus.RESTARTING: "RUNNING",
    JobStatus.SUSPENDED: "CANCELED",
    JobStatus.CANCELLING: "CANCELING",
}
_MIB = 1024 * 1024


def lacking(view: JobView) -> str | None:
    """What the job lacks to be ready; None if it runs with all its queries."""
    if view.status is not JobStatus.RUNNING:
        return f"The job is {view.status.value}."
    starting = sum(vertex.status is TaskStatus.INITIALIZING for vertex in view.vertices)
    return f"{starting} of {len(view.vertices)} queries are starting." if starting else None


@answers(cluster.APPLICATIONS)
def applications(views: tuple[JobView, ...], now_ms: int) -> cluster.ApplicationsOverview:
    """An application for each job: the driver's program, under the job's id."""
    return cluster.ApplicationsOverview(
        applications=tuple(
            cluster.ApplicationSummary(
                id=view.job_id,
                name=view.name,
                start_time=view.start_time_ms,
                end_time=view.end_time_ms,
                duration=job_answers.duration_ms(view, now_ms),
                status=_application_status(view),
                jobs={view.status.value: 1},
            )
            for view in views
        )
    )


@answers(cluster.APPLICATION)
def application(view: JobView, now_ms: int) -> cluster.ApplicationInfo:
    """One application with its job."""
    return cluster.ApplicationInfo(
        id=view.job_id,
        name=view.name,
        status=_application_status(view),
        start_time=view.start_time_ms,
        end_time=view.end_time_ms,
        duration=job_answers.duration_ms(view, now_ms),
        timestamps={
            status: view.timestamps_ms.get(job_status, 0)
            for status, job_status in _STATUSES.items()
        },
        jobs=(job_answers.job_summary(view, now_ms),),
    )


@answers(cluster.APPLICATION_EXCEPTIONS)
def application_exceptions(view: JobView) -> cluster.ApplicationExceptions:
    """The failures of the application's job."""
    return cluster.ApplicationExceptions(
        exception_history=cluster.ApplicationExceptionHistory(
            entries=tuple(
                cluster.ApplicationException(
                    exception_name=entry.exception_name,
                    stacktrace=entry.stacktrace,
                    timestamp=entry.timestamp,
                    job_id=view.job_id,
                )
                for entry in job_answers.exceptions(
                    view, job_answers.MAX_EXCEPTIONS
                ).exception_history.entries
            )
        )
    )


@answers(cluster.DRIVER_CONFIG)
@answers(cluster.JOB_DRIVER_CONFIG)
@answers(cluster.APPLICATION_CONFIG)
def config_entries(configured: JobView) -> tuple[cluster.ConfigEntry, ...]:
    """The configuration in force, whose secrets are masked already."""
    return tuple(
        cluster.ConfigEntry(key=key, value=text) for key, text in configured.configuration.items()
    )


def environment(jvm: JvmView | None, variables: Mapping[str, str]) -> cluster.EnvironmentInfo:
    """The driver's process, without secrets."""
    return cluster.EnvironmentInfo(
        environment=tuple(
            cluster.ConfigEntry(key=name, value=text if _HARMLESS.fullmatch(name) else MASKED)
            for name, text in sorted(variables.items())
        ),
        jvm=cluster.JvmInfo(
            version="" if jvm is None else jvm.version,
            arch="" if jvm is None else jvm.arch,
            options=() if jvm is None else tuple(map(masked_option, jvm.options)),
        ),
        classpath=() if jvm is None else jvm.classpath,
    )


def log_files(path: str | None) -> cluster.LogFiles:
    """Spark's log, if it exists. Reads the file system."""
    if path is None:
        return cluster.LogFiles(logs=())
    file = Path(path)
    try:
        found = file.stat()
    except OSError:
        return cluster.LogFiles(logs=())
    log = cluster.LogFile(name=file.name, size=found.st_size, mtime=found.st_mtime_ns // 10**6)
    return cluster.LogFiles(logs=(log,))


def driver_log(log: LogBuffer) -> str:
    """The driver's newest log lines, as a file would have them."""
    return "".join(
        f"{datetime.fromtimestamp(line.time_ms / 1000).isoformat(' ', 'milliseconds')}"
        f" {line.level:<5} {line.task or line.logger}: {line.text}\n"
        for line in tuple(log.lines)
    )


def driver_log_file(log: LogBuffer) -> cluster.LogFile:
    """``driver_log`` in a list of files."""
    lines = tuple(log.lines)
    return cluster.LogFile(
        name=DRIVER_LOG,
        size=len(driver_log(log).encode("utf-8", errors="replace")),
        mtime=lines[-1].time_ms if lines else 0,
    )


def log_tail(path: str | None, most: int = LOG_TAIL) -> str:
    """The last ``most`` bytes of a log file, from the start of a line; empty without a path.

    Reads it. Raises 500 if it cannot be read.
    """
    if path is None:
        return ""
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            data = file.read(most)
    except OSError as error:
        raise HTTPException(
            500, f"Spark's log {shortened(path)} cannot be read: {error.strerror}."
        ) from error
    if size > most:
        data = data.partition(b"\n")[2]
    return masked(data.decode("utf-8", errors="replace"))


@answers(cluster.DRIVER_THREADS)
def python_threads() -> cluster.ThreadDump:
    """The Python threads of this process."""
    names = {known.ident: known for known in threading.enumerate()}
    infos = []
    for ident, frame in _frames().items():
        thread = names.get(ident)
        name = f"thread-{ident}" if thread is None else thread.name
        kind = " daemon" if thread is not None and thread.daemon else ""
        stack = "".join(traceback.format_stack(frame))
        infos.append(
            cluster.ThreadInfo(
                thread_name=name, stringified_thread_info=f'"{name}"{kind} Id={ident}\n{stack}\n'
            )
        )
    return cluster.ThreadDump(thread_infos=tuple(infos))


def _frames() -> dict[int, FrameType]:
    """Each thread's newest frame.

    Garbage collection is off meanwhile: before Python 3.12, a collection deadlocks the process if
    a finalizer lets another thread run that starts a third thread.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()


def java_threads(threads: tuple[ThreadView, ...]) -> cluster.ThreadDump:
    """The Java threads of an executor."""
    return cluster.ThreadDump(
        thread_infos=tuple(
            cluster.ThreadInfo(thread_name=thread.name, stringified_thread_info=thread.text)
            for thread in threads
        )
    )


def task_manager(executor: ExecutorView, jvm: JvmView | None, now_ms: int) -> cluster.TaskManager:
    """One of Spark's executors; ``jvm`` is its JVM if that is the driver's."""
    return cluster.TaskManager(**_figures(executor, jvm, now_ms))


def task_manager_details(
    executor: ExecutorView, jvm: JvmView | None, now_ms: int
) -> cluster.TaskManagerDetails:
    """One of Spark's executors; ``jvm`` is its JVM if that is the driver's."""
    return cluster.TaskManagerDetails(
        **_figures(executor, jvm, now_ms), metrics=_memory(executor, jvm)
    )


def _application_status(view: JobView) -> str:
    return _APPLICATION_STATUS.get(view.status, view.status.value)


def _figures(executor: ExecutorView, jvm: JvmView | None, now_ms: int) -> dict[str, Any]:
    """The fields of ``TaskManager``. Spark lists only executors whose heartbeat came."""
    import psutil

    free = executor.memory_max - executor.memory_used
    cores = executor.cores
    return {
        "id": executor.executor_id,
        "path": f"spark://{executor.host}:{executor.port}/{executor.executor_id}",
        "data_port": executor.port,
        "time_since_last_heartbeat": now_ms,
        "slots_number": cores,
        "free_slots": executor.free_cores,
        "assigned_tasks": executor.active_tasks,
        "total_resource": cluster.ResourceProfile(
            cpu_cores=float(cores), task_heap_memory=executor.memory_max // _MIB
        ),
        "free_resource": cluster.ResourceProfile(
            cpu_cores=float(executor.free_cores), task_heap_memory=free // _MIB
        ),
        "hardware": cluster.Hardware(
            cpu_cores=cores,
            physical_memory=0 if jvm is None else psutil.virtual_memory().total,
            free_memory=executor.memory_max if jvm is None else jvm.heap_max,
        ),
        "memory_configuration": cluster.MemoryConfiguration(
            task_heap=executor.memory_max,
            total_flink_memory=executor.memory_max,
            total_process_memory=executor.memory_max,
        ),
    }


def _memory(executor: ExecutorView, jvm: JvmView | None) -> cluster.TaskManagerMetrics:
    if jvm is None:
        return cluster.TaskManagerMetrics(
            heap_used=executor.memory_used,
            heap_max=executor.memory_max,
            non_heap_used=-1,
            direct_used=-1,
            mapped_used=-1,
            garbage_collectors=(),
        )
    direct, mapped = jvm.buffers.get("direct", (0, 0, 0)), jvm.buffers.get("mapped", (0, 0, 0))
    return cluster.TaskManagerMetrics(
        heap_used=jvm.heap_used,
        heap_committed=jvm.heap_committed,
        heap_max=jvm.heap_max,
        non_heap_used=jvm.non_heap_used,
        non_heap_committed=jvm.non_heap_committed,
        non_heap_max=jvm.non_heap_max,
        direct_count=direct[0],
        direct_used=direct[1],
        direct_max=direct[2],
        mapped_count=mapped[0],
        mapped_used=mapped[1],
        mapped_max=mapped[2],
        garbage_collectors=tuple(
            cluster.GarbageCollector(name=name, count=count, time=ms)
            for name, (count, ms) in jvm.collectors.items()
        ),
    )
