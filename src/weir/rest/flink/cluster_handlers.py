"""Handlers of the endpoints of what a job runs on."""

from __future__ import annotations

import os
from typing import Any

from starlette.exceptions import HTTPException

from weir.rest.flink import cluster_answers, job_handlers
from weir.rest.flink.vertex_answers import DRIVER
from weir.rest.handling.guard import quoted, shortened
from weir.rest.handling.serving import Serving, beside, serves
from weir.rest.schema import cluster, openapi
from weir.rest.schema.base import Message, Text


@serves(cluster.DRIVER_LOGS)
async def _logs(server: Serving) -> cluster.LogFiles:
    path, log = server.gateway.engine_log, server.gateway.recorder.log
    engine = await beside(lambda: cluster_answers.log_files(path))
    driver = await beside(lambda: cluster_answers.driver_log_file(log))
    return cluster.LogFiles(logs=(driver, *engine.logs))


@serves(cluster.DRIVER_LOG_FILE)
async def _log_file(server: Serving, file: str) -> Text:
    """A log by its name. Raises 404: only a listed file is read, whatever the path says."""
    if file == cluster_answers.DRIVER_LOG:
        log = server.gateway.recorder.log
        return Text(await beside(lambda: cluster_answers.driver_log(log)))
    path = server.gateway.engine_log
    if file not in [listed.name for listed in (await _logs(server)).logs]:
        raise HTTPException(404, f"There is no log file {quoted(file)} here.")
    return Text(await beside(lambda: cluster_answers.log_tail(path)))


@serves(cluster.CANCEL_APPLICATION)
async def _cancel(server: Serving, application_id: str) -> Message:
    return job_handlers.cancel(server, await server.view(application_id))


@serves(cluster.DRIVER_ENVIRONMENT)
async def _environment(server: Serving) -> cluster.EnvironmentInfo:
    return cluster_answers.environment(await server.looks.jvm(), os.environ)


@serves(cluster.JOB_DRIVER_ENVIRONMENT)
async def _job_environment(server: Serving, job_id: str) -> cluster.EnvironmentInfo:
    await server.view(job_id)
    return await _environment(server)


@serves(cluster.DRIVER_LOG)
async def _driver_log(server: Serving) -> Text:
    return await _log_file(server, cluster_answers.DRIVER_LOG)


@serves(cluster.LIVENESS)
async def _liveness(server: Serving) -> Text:
    """Raises 503 if the process can only be killed.

    A job that restarts, or a JVM that is gone, is no such case: the driver sees to it by itself.
    """
    if not server.is_history:
        silent_ms = await server.once("silent", server.gateway.silent_ms)
        if silent_ms >= cluster_answers.HUNG_MS:
            raise HTTPException(503, f"The job's main thread has hung for {silent_ms // 1000} s.")
    return Text("alive\n")


@serves(cluster.READINESS)
async def _readiness(server: Serving) -> Text:
    """Raises 503 while the job starts or restarts, and after its end."""
    if not server.is_history:
        [view] = await server.views()
        lacking = cluster_answers.lacking(view)
        if lacking is not None:
            raise HTTPException(503, lacking)
    return Text("ready\n")


@serves(cluster.TASK_MANAGERS)
async def _task_managers(server: Serving) -> cluster.TaskManagers:
    now_ms = server.clock.wall_ms()
    found, jvm = await server.looks.executors(), await server.looks.jvm()
    return cluster.TaskManagers(
        taskmanagers=tuple(
            cluster_answers.task_manager(
                executor, jvm if executor.executor_id == DRIVER else None, now_ms
            )
            for executor in found
        )
    )


@serves(cluster.TASK_MANAGER)
async def _task_manager(server: Serving, executor: str) -> cluster.TaskManagerDetails:
    found = await server.executor(executor)
    jvm = await server.looks.jvm() if executor == DRIVER else None
    return cluster_answers.task_manager_details(found, jvm, server.clock.wall_ms())


@serves(cluster.TASK_MANAGER_LOGS)
async def _executor_logs(server: Serving, executor: str) -> cluster.LogFiles:
    await server.executor(executor)
    return await _logs(server) if executor == DRIVER else cluster.LogFiles(logs=())


@serves(cluster.TASK_MANAGER_LOG_FILE)
async def _executor_log_file(server: Serving, executor: str, file: str) -> Text:
    await server.executor(executor)
    if executor != DRIVER:
        raise HTTPException(404, f"The logs of executor {shortened(executor)} are on its machine.")
    return await _log_file(server, file)


@serves(cluster.TASK_MANAGER_LOG)
async def _executor_log(server: Serving, executor: str) -> Text:
    await server.executor(executor)
    path = server.gateway.engine_log
    if executor != DRIVER:
        return Text("")
    return Text(await beside(lambda: cluster_answers.log_tail(path)))


@serves(cluster.TASK_MANAGER_STDOUT)
async def _executor_stdout(server: Serving, executor: str) -> Text:
    await server.executor(executor)
    return Text("")


@serves(cluster.TASK_MANAGER_THREADS)
async def _executor_threads(server: Serving, executor: str) -> cluster.ThreadDump:
    await server.executor(executor)
    return cluster_answers.java_threads(await server.looks.threads(executor))


@serves(cluster.RESCALE_DETAILS)
async def _rescale(server: Serving, job_id: str, rescale: str) -> Message:
    await server.view(job_id)
    raise HTTPException(404, f"Job {job_id} has no rescale {shortened(rescale)}.")


@serves(cluster.JARS)
async def _jars(server: Serving) -> cluster.Jars:
    return cluster.Jars(address=server.address)


@serves(cluster.OPENAPI)
async def _openapi(server: Serving) -> dict[str, Any]:
    return openapi.document(server.version)
