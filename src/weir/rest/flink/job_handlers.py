"""Handlers of the driver's, the job's and its coordinators' endpoints."""

from __future__ import annotations

import re

from starlette.exceptions import HTTPException

from weir.core.status import JobStatus
from weir.errors import CoordinatorError
from weir.monitoring.views import JobView
from weir.rest.flink import job_answers
from weir.rest.handling.guard import quoted
from weir.rest.handling.serving import Serving, serves
from weir.rest.schema import jobs
from weir.rest.schema.base import Message, Operation, Triggered
from weir.rest.schema.failure_cause import FailureCause
from weir.runtime.ports import CoordinatorAnswer

#: Kinds of operations.
CANCELLATION, COORDINATOR = "cancel", "coordinator"


@serves(jobs.CONFIG)
async def _config(server: Serving) -> jobs.DashboardConfig:
    now_ms = server.clock.wall_ms()
    return job_answers.dashboard_config(
        now_ms, server.version, refresh_ms=server.refresh_ms, history=server.is_history
    )


@serves(jobs.STATUS)
async def _status(server: Serving, job_id: str) -> jobs.StatusOfJob:
    view = await server.view(job_id)
    if view.status.is_terminal:
        server.operations.collect(CANCELLATION)
    return jobs.StatusOfJob(status=view.status.value)


@serves(jobs.EXCEPTIONS)
async def _exceptions(server: Serving, job_id: str, **query: str | None) -> jobs.JobExceptions:
    view = await server.view(job_id)
    text = query["maxExceptions"] or str(job_answers.MAX_EXCEPTIONS)
    if not re.fullmatch("0*[0-9]{1,9}", text, re.ASCII):
        raise HTTPException(400, f"maxExceptions is a whole number, not {quoted(text)}.")
    return job_answers.exceptions(view, int(text[-9:]))


@serves(jobs.CANCEL)
async def _cancel(server: Serving, job_id: str, mode: str | None) -> Message:
    view = await server.view(job_id)
    if mode not in (None, "cancel"):
        raise HTTPException(
            400,
            f"The mode {quoted(str(mode))} is unknown: use mode=cancel, or POST to"
            f" /jobs/{job_id}/stop.",
        )
    return cancel(server, view)


@serves(jobs.SEND_TO_COORDINATOR)
async def _send_to_coordinator(
    server: Serving, job_id: str, operator: str, body: jobs.CoordinatorRequest
) -> Triggered:
    """In Flink, only the job itself can talk to its coordinators."""
    await server.view(job_id)
    try:
        return server.trigger(
            f"{COORDINATOR} {operator}",
            body,
            lambda: server.gateway.send_to_coordinator(operator, body.request),
        )
    except CoordinatorError as error:
        raise HTTPException(404, str(error)) from error


@serves(jobs.COORDINATOR_OUTCOME)
async def _coordinator_outcome(
    server: Serving, job_id: str, operator: str, trigger_id: str
) -> Operation[jobs.CoordinatorReply]:
    await server.view(job_id)

    def reply(found: CoordinatorAnswer) -> jobs.CoordinatorReply:
        return jobs.CoordinatorReply(answer=found.answer, checkpoint_id=found.checkpoint_id)

    def failed(cause: FailureCause) -> jobs.CoordinatorReply:
        return jobs.CoordinatorReply(answer=None, failure_cause=cause)

    return server.outcome(f"{COORDINATOR} {operator}", trigger_id, reply, failed)


def cancel(server: Serving, view: JobView) -> Message:
    """Cancel the job, unless it is cancelled. Raises 409 if it has ended otherwise, and 429."""
    gateway = server.gateway
    if view.status is JobStatus.CANCELED:
        return Message()  # as in Flink: what was asked for is so
    if view.status.is_terminal:
        raise HTTPException(
            409, f"Job {view.job_id} is already {view.status.value} and cannot be cancelled."
        )
    server.start(CANCELLATION, server.new_trigger_id(), gateway.cancel, ends_job=True)
    return Message()
