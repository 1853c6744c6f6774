"""The REST server's routes: Flink's paths, with and without ``/v1``, for one running job.

Values come from ``JobGateway.view()``, which waits a moment if the job hangs: so it is called on a
thread, not on the event loop, one call at a time, shared by all requests that arrive meanwhile.
Requests go to the gateway, which posts them; the operations that they trigger are kept in
``AsyncOperations`` until the client has polled the outcome. So no answer waits for another.

Every failure is answered with an error status and ``{"errors": ["one sentence"]}``, which Flink's
clients show. Polling a failed operation answers 500: Flink's other way of reporting it needs a
Java-serialised exception. 503 is never used, since clients retry on it.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Mount, Route

from weir.core.checkpoints.stats import CheckpointStats
from weir.core.status import JobStatus
from weir.core.types import CompletedCheckpoint
from weir.errors import CoordinatorError, StorageError, WeirError
from weir.rest import checkpoint_answers, job_answers
from weir.rest.guard import JSON, quoted, shortened
from weir.rest.operations import AsyncOperations, TooManyOperationsError
from weir.rest.schema import ENDPOINTS, checkpoints, jobs
from weir.rest.schema.base import (
    COMPLETED,
    IN_PROGRESS,
    Endpoint,
    Errors,
    Message,
    Operation,
    Request,
    Triggered,
)
from weir.rest.schema.checkpoints import CheckpointInfo
from weir.runtime.concurrency import Clock, in_background
from weir.runtime.gateway import JobGateway
from weir.runtime.ports import CoordinatorAnswer
from weir.runtime.views import JobView
from weir.storage.filesystem import FileSystem
from weir.storage.paths import is_same, normalize
from weir.storage.snapshots import Snapshots, snapshot_directory

_CHECKPOINT, _SAVEPOINT, _CANCEL, _DISPOSAL = (
    "checkpoint",
    "savepoint",
    "cancel",
    "savepoint disposal",
)
_COORDINATOR = "coordinator"
#: Digits of the largest checkpoint id, a Java long.
_ID_DIGITS = 19
_JOB_ID = re.compile("[0-9a-fA-F]{32}")

T = TypeVar("T")
Answer = TypeVar("Answer", bound=Message)
Handler: TypeAlias = Callable[..., Awaitable[Message]]

#: The methods of ``_Handlers``, by endpoint.
_HANDLERS: dict[Endpoint[Any], Handler] = {}


def _serves(
    endpoint: Endpoint[Answer],
) -> Callable[[Callable[..., Awaitable[Answer]]], Callable[..., Awaitable[Answer]]]:
    """Marks the method that answers an endpoint.

    It is called with the parts of the path, with the parameters of the query string, and with the
    ``body``, if the endpoint has them.
    """

    def mark(handler: Callable[..., Awaitable[Answer]]) -> Callable[..., Awaitable[Answer]]:
        _HANDLERS[endpoint] = handler
        return handler

    return mark


def make_app(
    gateway: JobGateway,
    *,
    operations: AsyncOperations,
    clock: Clock,
    version: str,
    file_systems: Callable[[str], FileSystem],
    new_trigger_id: Callable[[], str] = lambda: secrets.token_hex(16),
) -> Starlette:
    """The application that serves the job behind ``gateway``.

    ``file_systems`` gives the file system of a savepoint to dispose of.
    """
    handlers = _Handlers(
        gateway,
        operations=operations,
        clock=clock,
        version=version,
        file_systems=file_systems,
        new_trigger_id=new_trigger_id,
    )
    routes = [
        Route(path, _answering(one, partial(_HANDLERS[one], handlers)), methods=[one.method])
        for one in ENDPOINTS
        for path in (one.path, f"{one.path}/")
    ]
    return Starlette(
        routes=[*routes, Mount("/v1", routes=routes)],
        exception_handlers={HTTPException: _answer_http_error, Exception: _answer_any_error},
    )


def _answering(
    endpoint: Endpoint[Message], handler: Handler
) -> Callable[[HttpRequest], Awaitable[Response]]:
    async def answer(request: HttpRequest) -> Response:
        arguments: dict[str, Any] = {
            **request.path_params,
            **{name: request.query_params.get(name) for name in endpoint.query},
        }
        if endpoint.body is not None:
            arguments["body"] = await _body(request, endpoint.body)
        return _json(await handler(**arguments), endpoint.status)

    return answer


def _json(answer: Message, status: int) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type=JSON)


class _Handlers:
    """One method per route. All run on the server's event loop, and none blocks."""

    def __init__(
        self,
        gateway: JobGateway,
        *,
        operations: AsyncOperations,
        clock: Clock,
        version: str,
        file_systems: Callable[[str], FileSystem],
        new_trigger_id: Callable[[], str],
    ) -> None:
        self._gateway = gateway
        self._operations = operations
        self._clock = clock
        self._version = version
        self._file_systems = file_systems
        self._new_trigger_id = new_trigger_id
        #: The newest call of ``view``, running or done; touched on the event loop only.
        self._look: asyncio.Future[JobView] | None = None

    @_serves(jobs.CONFIG)
    async def config(self) -> jobs.DashboardConfig:
        return job_answers.dashboard_config(self._clock.wall_ms(), self._version)

    @_serves(jobs.OVERVIEW)
    async def overview(self) -> jobs.ClusterOverview:
        return job_answers.cluster_overview(await self._newest(), self._version)

    @_serves(jobs.JOBS)
    async def job_ids(self) -> jobs.JobIds:
        view = await self._newest()
        one = jobs.JobIdWithStatus(id=view.job_id, status=view.status.value)
        return jobs.JobIds(jobs=(one,))

    @_serves(jobs.JOBS_OVERVIEW)
    async def jobs_overview(self) -> jobs.JobsOverview:
        one = job_answers.job_summary(await self._newest(), self._clock.wall_ms())
        return jobs.JobsOverview(jobs=(one,))

    @_serves(jobs.JOB)
    async def job(self, job_id: str) -> jobs.JobInfo:
        return job_answers.job_info(await self._view(job_id), self._clock.wall_ms())

    @_serves(jobs.PLAN)
    async def plan(self, job_id: str) -> jobs.JobPlan:
        return jobs.JobPlan(plan=job_answers.plan(await self._view(job_id)))

    @_serves(jobs.ACCUMULATORS)
    async def accumulators(self, job_id: str) -> jobs.JobAccumulators:
        await self._view(job_id)
        return jobs.JobAccumulators()

    @_serves(jobs.STATUS)
    async def status(self, job_id: str) -> jobs.StatusOfJob:
        view = await self._view(job_id)
        if view.status.is_terminal:
            self._operations.collect(_CANCEL)
        return jobs.StatusOfJob(status=view.status.value)

    @_serves(jobs.JOB_CONFIG)
    async def job_config(self, job_id: str) -> jobs.JobConfig:
        return job_answers.job_config(await self._view(job_id))

    @_serves(jobs.EXCEPTIONS)
    async def exceptions(self, job_id: str, **query: str | None) -> jobs.JobExceptions:
        view = await self._view(job_id)
        text = query["maxExceptions"] or str(job_answers.MAX_EXCEPTIONS)
        if not re.fullmatch("0*[0-9]{1,9}", text, re.ASCII):
            raise HTTPException(400, f"maxExceptions is a whole number, not {quoted(text)}.")
        return job_answers.exceptions(view, int(text[-9:]))

    @_serves(jobs.EXECUTION_RESULT)
    async def execution_result(self, job_id: str) -> jobs.ExecutionResult:
        return job_answers.execution_result(await self._view(job_id), self._clock.wall_ms())

    @_serves(jobs.REJECTS)
    async def rejects(self, job_id: str) -> jobs.Rejects:
        return job_answers.rejects(await self._view(job_id))

    @_serves(jobs.CLIENT_HEARTBEAT)
    async def client_heartbeat(self, job_id: str) -> Message:
        await self._view(job_id)
        return Message()

    @_serves(jobs.CANCEL)
    async def cancel(self, job_id: str, mode: str | None) -> Message:
        view = await self._view(job_id)
        if mode not in (None, "cancel"):
            raise HTTPException(
                400,
                f"The mode {quoted(str(mode))} is unknown: use mode=cancel, or POST to"
                f" /jobs/{job_id}/stop.",
            )
        if view.status is JobStatus.CANCELED:
            return Message()  # as in Flink: what was asked for is so
        if view.status.is_terminal:
            raise HTTPException(
                409, f"Job {job_id} is already {view.status.value} and cannot be cancelled."
            )
        self._start(_CANCEL, self._new_trigger_id(), self._gateway.cancel, ends_job=True)
        return Message()

    @_serves(checkpoints.CHECKPOINTS)
    async def checkpoint_history(self, job_id: str) -> checkpoints.CheckpointsInfo:
        return checkpoint_answers.checkpoints_info((await self._view(job_id)).checkpoints)

    @_serves(checkpoints.CHECKPOINT_CONFIG)
    async def checkpoint_config(self, job_id: str) -> checkpoints.CheckpointConfigInfo:
        return checkpoint_answers.checkpoint_config(await self._view(job_id))

    @_serves(checkpoints.CHECKPOINT_DETAILS)
    async def checkpoint_details(self, job_id: str, checkpoint_id: str) -> CheckpointInfo:
        return checkpoint_answers.checkpoint_details(await self._checkpoint(job_id, checkpoint_id))

    @_serves(checkpoints.CHECKPOINT_SUBTASKS)
    async def checkpoint_subtasks(
        self, job_id: str, checkpoint_id: str, vertex: str
    ) -> checkpoints.SubtasksInfo:
        stats = await self._checkpoint(job_id, checkpoint_id)
        task = checkpoint_answers.find_task(stats, vertex)
        if task is None:
            raise HTTPException(
                404,
                f"Checkpoint {checkpoint_id} of job {job_id} has no vertex {shortened(vertex)}.",
            )
        return checkpoint_answers.subtasks_info(stats, task)

    @_serves(checkpoints.TRIGGER_CHECKPOINT)
    async def trigger_checkpoint(
        self, job_id: str, body: checkpoints.CheckpointRequest
    ) -> Triggered:
        await self._view(job_id)
        kind = body.checkpoint_type
        return self._trigger(_CHECKPOINT, body, lambda: self._gateway.trigger_checkpoint(kind))

    @_serves(checkpoints.TRIGGER_SAVEPOINT)
    async def trigger_savepoint(self, job_id: str, body: checkpoints.SavepointRequest) -> Triggered:
        """Take a savepoint; with ``cancel-job``, no batch comes after it (``flink cancel -s``)."""
        await self._view(job_id)
        target = _normalized(body.target_directory)
        if body.cancel_job:
            return self._trigger(
                _SAVEPOINT,
                body,
                lambda: self._gateway.stop_with_savepoint(target, drain=False),
                ends_job=True,
            )
        return self._trigger(_SAVEPOINT, body, lambda: self._gateway.trigger_savepoint(target))

    @_serves(checkpoints.STOP)
    async def stop_with_savepoint(self, job_id: str, body: checkpoints.StopRequest) -> Triggered:
        await self._view(job_id)
        target, drain = _normalized(body.target_directory), body.drain
        return self._trigger(
            _SAVEPOINT,
            body,
            lambda: self._gateway.stop_with_savepoint(target, drain=drain),
            ends_job=True,
        )

    @_serves(jobs.SEND_TO_COORDINATOR)
    async def send_to_coordinator(
        self, job_id: str, operator: str, body: jobs.CoordinatorRequest
    ) -> Triggered:
        """In Flink, only the job itself can talk to its coordinators."""
        await self._view(job_id)
        try:
            return self._trigger(
                _COORDINATOR,
                body,
                lambda: self._gateway.send_to_coordinator(operator, body.request),
            )
        except CoordinatorError as error:
            raise HTTPException(404, str(error)) from error

    @_serves(jobs.COORDINATOR_OUTCOME)
    async def coordinator_outcome(
        self, job_id: str, operator: str, trigger_id: str
    ) -> Operation[jobs.CoordinatorReply]:
        await self._view(job_id)

        def reply(found: CoordinatorAnswer) -> jobs.CoordinatorReply:
            return jobs.CoordinatorReply(answer=found.answer, checkpoint_id=found.checkpoint_id)

        return self._outcome(_COORDINATOR, trigger_id, reply)

    @_serves(checkpoints.DISPOSE_SAVEPOINT)
    async def dispose_savepoint(self, body: checkpoints.DisposalRequest) -> Triggered:
        """Dispose of a savepoint, unless this job still needs it.

        Whether other jobs need it cannot be known from its path (see ``weir.readers.savepoint``).
        """
        try:
            directory = await _beside(lambda: snapshot_directory(body.savepoint_path))
        except StorageError as error:
            raise HTTPException(400, str(error)) from error
        if await self._is_restore_point(directory):
            raise HTTPException(
                409,
                f"This job was restored from {directory} and has not completed a checkpoint of its"
                " own yet: dispose of it after it has.",
            )
        storage = Snapshots(self._file_systems)
        return self._trigger(
            _DISPOSAL,
            body,
            lambda: in_background(lambda: storage.dispose_savepoint(directory)),
        )

    @_serves(checkpoints.DISPOSAL_OUTCOME)
    async def disposal_outcome(self, trigger_id: str) -> Operation[Message]:
        return self._outcome(_DISPOSAL, trigger_id, lambda _: Message())

    @_serves(checkpoints.CHECKPOINT_OUTCOME)
    async def checkpoint_outcome(
        self, job_id: str, trigger_id: str
    ) -> Operation[checkpoints.CheckpointTaken]:
        await self._view(job_id)

        def taken(found: CompletedCheckpoint) -> checkpoints.CheckpointTaken:
            return checkpoints.CheckpointTaken(checkpoint_id=found.checkpoint_id)

        return self._outcome(_CHECKPOINT, trigger_id, taken)

    @_serves(checkpoints.SAVEPOINT_OUTCOME)
    async def savepoint_outcome(
        self, job_id: str, trigger_id: str
    ) -> Operation[checkpoints.SavepointTaken]:
        await self._view(job_id)

        def taken(found: CompletedCheckpoint) -> checkpoints.SavepointTaken:
            return checkpoints.SavepointTaken(location=found.external_path)

        return self._outcome(_SAVEPOINT, trigger_id, taken)

    async def _is_restore_point(self, directory: str) -> bool:
        """Whether a failover would restore this snapshot: nothing has completed since it was."""
        checkpoints = (await self._newest()).checkpoints
        restored, completed = checkpoints.latest_restored, checkpoints.latest_completed
        if restored is None:
            return False
        path = restored.external_path
        if not await _beside(lambda: is_same(path, directory)):
            return False
        return completed is None or completed.trigger_timestamp_ms < restored.restore_timestamp_ms

    async def _newest(self) -> JobView:
        """The gateway's newest view; concurrent callers share one call."""
        if self._look is None or self._look.done():
            self._look = asyncio.ensure_future(asyncio.to_thread(self._gateway.view))
        return await asyncio.shield(self._look)

    async def _view(self, job_id: str) -> JobView:
        view = await self._newest()
        if not _JOB_ID.fullmatch(job_id):
            raise HTTPException(
                400,
                f"{quoted(job_id)} is not a job id: it has 32 hexadecimal digits, and GET /jobs"
                " lists it.",
            )
        if job_id.lower() != view.job_id:
            raise HTTPException(
                404,
                f"Job {shortened(job_id)} is not known here: this driver runs job {view.job_id}.",
            )
        return view

    async def _checkpoint(self, job_id: str, checkpoint_id: str) -> CheckpointStats:
        snapshot = (await self._view(job_id)).checkpoints
        if not checkpoint_id.isdecimal():
            raise HTTPException(
                400, f"A checkpoint id is a whole number, not {quoted(checkpoint_id)}."
            )
        if len(checkpoint_id) > _ID_DIGITS:
            raise HTTPException(404, f"No checkpoint has an id of {len(checkpoint_id)} digits.")
        stats = checkpoint_answers.find_checkpoint(snapshot, int(checkpoint_id))
        if stats is None:
            raise HTTPException(
                404,
                f"Checkpoint {checkpoint_id} of job {job_id} is not in the history: it is older, or"
                " there was none.",
            )
        return stats

    def _trigger(
        self,
        kind: str,
        body: Request,
        begin: Callable[[], Future[Any]],
        *,
        ends_job: bool = False,
    ) -> Triggered:
        key = self._new_trigger_id() if body.trigger_id is None else body.trigger_id
        self._start(kind, key, begin, ends_job=ends_job)
        return Triggered(request_id=key)

    def _start(
        self, kind: str, trigger_id: str, begin: Callable[[], Future[Any]], *, ends_job: bool
    ) -> None:
        try:
            self._operations.start(kind, trigger_id, begin, ends_job=ends_job)
        except TooManyOperationsError as error:
            raise HTTPException(
                429, "Too many operations are in flight: wait for some of them to end."
            ) from error

    def _outcome(
        self, kind: str, trigger_id: str, answer: Callable[[Any], Answer]
    ) -> Operation[Answer]:
        """How the operation stands, with its ``answer`` if it has ended. Raises 404 and 500."""
        future: Future[Any] | None = self._operations.find(kind, trigger_id)
        if future is None:
            raise HTTPException(
                404,
                f"No {kind} request {shortened(trigger_id)} is known here: it may have been"
                " forgotten.",
            )
        if not future.done():
            return Operation(status=IN_PROGRESS, operation=None)
        if future.cancelled():
            raise HTTPException(
                500, f"The {kind} request {trigger_id} was given up, since the job ended."
            )
        failure = future.exception()
        if failure is not None:
            raise HTTPException(
                500, str(failure) if isinstance(failure, WeirError) else repr(failure)
            )
        return Operation(status=COMPLETED, operation=answer(future.result()))


def _normalized(directory: str | None) -> str | None:
    """A request's directory in Weir's spelling; relative paths start at the driver's directory.

    Raises 400 if it cannot be a path.
    """
    if not directory:
        return None
    try:
        return normalize(directory)
    except StorageError as error:
        raise HTTPException(400, str(error)) from error


async def _beside(look: Callable[[], T]) -> T:
    """Run a file system look-up on its own thread: a hanging mount delays only its own request."""
    return await asyncio.shield(asyncio.wrap_future(in_background(look)))


async def _body(request: HttpRequest, kind: type[Request]) -> Request:
    """The request's body as a value; no body means all defaults. Raises 400 if malformed."""
    text = await request.body()
    try:
        return msgspec.json.decode(text or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(
            400,
            f"The body of the request is malformed ({error}): {kind.FIELDS}, and triggerId 32"
            " hexadecimal digits or null.",
        ) from error


async def _answer_http_error(request: HttpRequest, error: Exception) -> Response:
    """Answer a refusal with its sentence, in Flink's format."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = str(error.detail) if isinstance(error, HTTPException) else repr(error)
    if text in ("Not Found", "Method Not Allowed"):
        text = f"{text}: {request.method} {shortened(request.url.path)}"
    return _json(Errors(errors=(text,)), status)


async def _answer_any_error(request: HttpRequest, error: Exception) -> Response:
    """Answer a request that the gateway refused (its sentence), or a bug (its ``repr``)."""
    text = (
        str(error)
        if isinstance(error, WeirError)
        else f"Internal error in {request.url.path}: {error!r}"
    )
    return _json(Errors(errors=(text,)), 500)
