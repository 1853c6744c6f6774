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
import inspect
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from weir.core.checkpoints.stats import CheckpointStats, JobView
from weir.errors import CoordinatorError, StorageError, WeirError
from weir.rest import checkpoint_json, job_json
from weir.rest.guard import quoted, shortened
from weir.rest.job_json import Json
from weir.rest.requests import (
    AsyncOperations,
    CheckpointBody,
    CoordinatorBody,
    DisposalBody,
    SavepointBody,
    StopBody,
    TooManyOperationsError,
)
from weir.runtime.concurrency import Clock, in_background
from weir.runtime.gateway import JobGateway
from weir.runtime.ports import CoordinatorAnswer
from weir.storage.checkpoints import CheckpointStorage, snapshot_directory
from weir.storage.filesystem import FileSystem
from weir.storage.paths import is_same, normalize

_CHECKPOINT, _SAVEPOINT, _CANCEL, _DISPOSAL = (
    "checkpoint",
    "savepoint",
    "cancel",
    "savepoint disposal",
)
_COORDINATOR = "coordinator"
#: Digits of the largest checkpoint id, a Java long.
_ID_DIGITS = 19

T = TypeVar("T")
Body = TypeVar("Body", CheckpointBody, SavepointBody, StopBody, DisposalBody, CoordinatorBody)


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
        Route(path, _endpoint(handler, status), methods=[method])
        for method, path, handler, status in handlers.routes()
    ]
    return Starlette(
        routes=[*routes, Mount("/v1", routes=routes)],
        exception_handlers={HTTPException: _answer_http_error, Exception: _answer_any_error},
    )


def _endpoint(
    handler: Callable[..., Awaitable[Json]], status: int
) -> Callable[[Request], Awaitable[JSONResponse]]:
    """The handler, called with the parts of the path, and with the request if it asks for it."""
    takes_request = "request" in inspect.signature(handler).parameters

    async def endpoint(request: Request) -> JSONResponse:
        arguments: dict[str, Any] = {"request": request} if takes_request else {}
        answer = await handler(**request.path_params, **arguments)
        return JSONResponse(answer, status_code=status)

    return endpoint


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

    def routes(self) -> list[tuple[str, str, Callable[..., Any], int]]:
        """Method, path, handler and success status of every route."""
        job, checkpoints = "/jobs/{job_id}", "/jobs/{job_id}/checkpoints"
        details = f"{checkpoints}/details/{{checkpoint_id}}"
        return [
            ("GET", "/config", self.config, 200),
            ("GET", "/overview", self.overview, 200),
            ("GET", "/jobs", self.jobs, 200),
            ("GET", "/jobs/overview", self.jobs_overview, 200),
            ("GET", job, self.job, 200),
            ("PATCH", job, self.cancel, 202),
            ("GET", f"{job}/status", self.status, 200),
            ("GET", f"{job}/config", self.job_config, 200),
            ("GET", f"{job}/exceptions", self.exceptions, 200),
            ("GET", f"{job}/execution-result", self.execution_result, 200),
            ("GET", f"{job}/rejects", self.rejects, 200),
            ("PATCH", f"{job}/clientHeartbeat", self.client_heartbeat, 202),
            ("GET", checkpoints, self.checkpoints, 200),
            ("POST", checkpoints, self.trigger_checkpoint, 202),
            ("GET", f"{checkpoints}/config", self.checkpoint_config, 200),
            ("GET", details, self.checkpoint_details, 200),
            ("GET", f"{details}/subtasks/{{vertex}}", self.checkpoint_subtasks, 200),
            ("GET", f"{checkpoints}/{{trigger_id}}", self.checkpoint_status, 200),
            ("POST", f"{job}/savepoints", self.trigger_savepoint, 202),
            ("GET", f"{job}/savepoints/{{trigger_id}}", self.savepoint_status, 200),
            ("POST", f"{job}/stop", self.stop_with_savepoint, 202),
            ("POST", f"{job}/coordinators/{{operator}}", self.send_to_coordinator, 202),
            (
                "GET",
                f"{job}/coordinators/{{operator}}/{{trigger_id}}",
                self.coordinator_answer,
                200,
            ),
            ("POST", "/savepoint-disposal", self.dispose_savepoint, 202),
            ("GET", "/savepoint-disposal/{trigger_id}", self.disposal_status, 200),
        ]

    async def config(self) -> Json:
        return job_json.dashboard_config_json(self._clock.wall_ms(), self._version)

    async def overview(self) -> Json:
        return job_json.cluster_overview_json(await self._newest(), self._version)

    async def jobs(self) -> Json:
        return job_json.job_ids_json(await self._newest())

    async def jobs_overview(self) -> Json:
        return job_json.jobs_overview_json(await self._newest(), self._clock.wall_ms())

    async def job(self, job_id: str) -> Json:
        return job_json.job_details_json(await self._view(job_id), self._clock.wall_ms())

    async def status(self, job_id: str) -> Json:
        view = await self._view(job_id)
        if view.status.is_terminal:
            self._operations.collect(_CANCEL)
        return {"status": view.status.value}

    async def job_config(self, job_id: str) -> Json:
        return job_json.job_config_json(await self._view(job_id))

    async def exceptions(self, job_id: str) -> Json:
        return job_json.exceptions_json(await self._view(job_id))

    async def execution_result(self, job_id: str) -> Json:
        return job_json.execution_result_json(await self._view(job_id), self._clock.wall_ms())

    async def rejects(self, job_id: str) -> Json:
        """Weir's own route: what the job's sources could not read."""
        return job_json.rejects_json(await self._view(job_id))

    async def client_heartbeat(self, job_id: str) -> Json:
        await self._view(job_id)
        return {}

    async def cancel(self, job_id: str, request: Request) -> Json:
        view = await self._view(job_id)
        mode = request.query_params.get("mode", "cancel")
        if mode != "cancel":
            raise HTTPException(
                400,
                f"The mode {quoted(mode)} is unknown: use mode=cancel, or POST to"
                f" /jobs/{job_id}/stop.",
            )
        if view.status.is_terminal:
            raise HTTPException(
                409, f"Job {job_id} is {view.status.value} already and cannot be cancelled."
            )
        self._start(_CANCEL, self._new_trigger_id(), self._gateway.cancel, ends_job=True)
        return {}

    async def checkpoints(self, job_id: str) -> Json:
        return checkpoint_json.checkpoints_json((await self._view(job_id)).checkpoints)

    async def checkpoint_config(self, job_id: str) -> Json:
        return checkpoint_json.checkpoint_config_json(await self._view(job_id))

    async def checkpoint_details(self, job_id: str, checkpoint_id: str) -> Json:
        return checkpoint_json.checkpoint_details_json(
            await self._checkpoint(job_id, checkpoint_id)
        )

    async def checkpoint_subtasks(self, job_id: str, checkpoint_id: str, vertex: str) -> Json:
        stats = await self._checkpoint(job_id, checkpoint_id)
        task = checkpoint_json.find_task(stats, vertex)
        if task is None:
            raise HTTPException(
                404,
                f"Checkpoint {checkpoint_id} of job {job_id} has no vertex {shortened(vertex)}.",
            )
        return checkpoint_json.subtasks_json(stats, task)

    async def trigger_checkpoint(self, job_id: str, request: Request) -> Json:
        await self._view(job_id)
        body = await _body(request, CheckpointBody)
        kind = body.checkpoint_type
        return self._trigger(
            _CHECKPOINT, body.trigger_id, lambda: self._gateway.trigger_checkpoint(kind)
        )

    async def trigger_savepoint(self, job_id: str, request: Request) -> Json:
        await self._view(job_id)
        body = await _body(request, SavepointBody)
        if body.cancel_job:
            raise HTTPException(
                400,
                f"Cancelling with a savepoint is not available: POST to /jobs/{job_id}/stop"
                " instead.",
            )
        target = _normalized(body.target_directory)
        return self._trigger(
            _SAVEPOINT, body.trigger_id, lambda: self._gateway.trigger_savepoint(target)
        )

    async def stop_with_savepoint(self, job_id: str, request: Request) -> Json:
        await self._view(job_id)
        body = await _body(request, StopBody)
        target, drain = _normalized(body.target_directory), body.drain
        return self._trigger(
            _SAVEPOINT,
            body.trigger_id,
            lambda: self._gateway.stop_with_savepoint(target, drain=drain),
            ends_job=True,
        )

    async def send_to_coordinator(self, job_id: str, operator: str, request: Request) -> Json:
        """Weir's own route: in Flink, only the job itself can talk to its coordinators."""
        await self._view(job_id)
        body = await _body(request, CoordinatorBody)
        try:
            return self._trigger(
                _COORDINATOR,
                body.trigger_id,
                lambda: self._gateway.send_to_coordinator(operator, body.request),
            )
        except CoordinatorError as error:
            raise HTTPException(404, str(error)) from error

    async def coordinator_answer(self, job_id: str, operator: str, trigger_id: str) -> Json:
        await self._view(job_id)
        found: CoordinatorAnswer | None = self._outcome(_COORDINATOR, trigger_id)
        if found is None:
            return _poll_json(None)
        return _poll_json({"answer": found.answer, "checkpointId": found.checkpoint_id})

    async def dispose_savepoint(self, request: Request) -> Json:
        """Dispose of a savepoint, unless this job still needs it.

        Whether other jobs need it cannot be known from its path (see ``weir.readers.savepoint``).
        """
        body = await _body(request, DisposalBody)
        try:
            directory = await _beside(lambda: snapshot_directory(body.savepoint_path))
        except StorageError as error:
            raise HTTPException(400, str(error)) from error
        if await self._is_restore_point(directory):
            raise HTTPException(
                409,
                f"{directory} is what this job was restored from, and it has completed no"
                " checkpoint of its own yet: dispose of it once it has.",
            )
        storage = CheckpointStorage(fs=self._file_systems, base_directory=directory, job_id="")
        return self._trigger(
            _DISPOSAL,
            body.trigger_id,
            lambda: in_background(lambda: storage.dispose_savepoint(directory)),
        )

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

    async def checkpoint_status(self, job_id: str, trigger_id: str) -> Json:
        await self._view(job_id)
        checkpoint = self._outcome(_CHECKPOINT, trigger_id)
        return _poll_json(
            None if checkpoint is None else {"checkpointId": checkpoint.checkpoint_id}
        )

    async def savepoint_status(self, job_id: str, trigger_id: str) -> Json:
        await self._view(job_id)
        savepoint = self._outcome(_SAVEPOINT, trigger_id)
        return _poll_json(None if savepoint is None else {"location": savepoint.external_path})

    async def disposal_status(self, trigger_id: str) -> Json:
        return _poll_json(None if self._outcome(_DISPOSAL, trigger_id) is None else {})

    async def _newest(self) -> JobView:
        """The gateway's newest view; concurrent callers share one call."""
        if self._look is None or self._look.done():
            self._look = asyncio.ensure_future(asyncio.to_thread(self._gateway.view))
        return await asyncio.shield(self._look)

    async def _view(self, job_id: str) -> JobView:
        view = await self._newest()
        if job_id != view.job_id:
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
        stats = checkpoint_json.find_checkpoint(snapshot, int(checkpoint_id))
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
        trigger_id: str | None,
        begin: Callable[[], Future[Any]],
        *,
        ends_job: bool = False,
    ) -> Json:
        key = self._new_trigger_id() if trigger_id is None else trigger_id
        self._start(kind, key, begin, ends_job=ends_job)
        return {"request-id": key}

    def _start(
        self, kind: str, trigger_id: str, begin: Callable[[], Future[Any]], *, ends_job: bool
    ) -> None:
        try:
            self._operations.start(kind, trigger_id, begin, ends_job=ends_job)
        except TooManyOperationsError as error:
            raise HTTPException(
                429, "Too many operations are in flight: wait for some of them to end."
            ) from error

    def _outcome(self, kind: str, trigger_id: str) -> Any:
        """The operation's result, or None while it is in flight. Raises 404 and 500."""
        future: Future[Any] | None = self._operations.find(kind, trigger_id)
        if future is None:
            raise HTTPException(
                404,
                f"No {kind} request {shortened(trigger_id)} is known here: it may have been"
                " forgotten.",
            )
        if not future.done():
            return None
        if future.cancelled():
            raise HTTPException(
                500, f"The {kind} request {trigger_id} was given up, since the job ended."
            )
        failure = future.exception()
        if failure is not None:
            raise HTTPException(
                500, str(failure) if isinstance(failure, WeirError) else repr(failure)
            )
        return future.result()


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


async def _body(request: Request, kind: type[Body]) -> Body:
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


def _poll_json(operation: Json | None) -> Json:
    status = "IN_PROGRESS" if operation is None else "COMPLETED"
    return {"status": {"id": status}, "operation": operation}


async def _answer_http_error(request: Request, error: Exception) -> JSONResponse:
    """Answer a refusal with its sentence, in Flink's format."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = str(error.detail) if isinstance(error, HTTPException) else repr(error)
    if text in ("Not Found", "Method Not Allowed"):
        text = f"{text}: {request.method} {shortened(request.url.path)}"
    return JSONResponse({"errors": [text]}, status_code=status)


async def _answer_any_error(request: Request, error: Exception) -> JSONResponse:
    """Answer a request that the gateway refused (its sentence), or a bug (its ``repr``)."""
    text = (
        str(error)
        if isinstance(error, WeirError)
        else f"Internal error in {request.url.path}: {error!r}"
    )
    return JSONResponse({"errors": [text]}, status_code=500)
