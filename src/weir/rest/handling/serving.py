"""What the handlers of the REST server's endpoints have in common.

Most answers need none of this (``answering``). A handler is a function that ``serves`` marks; it
gets the ``Serving`` of its server, then the parts of the path, the parameters of the query string
and the ``body``, by name. It runs on the server's event loop and never blocks:

1. Values come from ``JobGateway.view()``, which makes the job's main thread publish a view at most
   every 100 ms, however many ask, and waits a moment if the job hangs: so it is called on a thread,
   one call at a time, shared by all requests that arrive meanwhile (``once``). A history server
   reads them from a directory in the same way.
2. Requests go to the gateway, which posts them; the operations that they trigger are kept in
   ``AsyncOperations`` until the client has polled the outcome.
3. Anything else that takes time goes through ``beside``.

So no answer waits for another.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias, TypeVar

from starlette.exceptions import HTTPException

from weir.core.checkpoints.stats import CheckpointStats
from weir.errors import JobError, StorageError
from weir.gateway.job_gateway import JobGateway
from weir.metrics.readings import Readings, read
from weir.monitoring.cluster import Cluster, ExecutorView
from weir.monitoring.recorder import Recorder
from weir.monitoring.views import JobBrief, JobView
from weir.rest.handling.guard import quoted, shortened
from weir.rest.handling.looks import Looks
from weir.rest.handling.operations import AsyncOperations, TooManyOperationsError
from weir.rest.past.history import StoredJobs
from weir.rest.schema.base import (
    COMPLETED,
    IN_PROGRESS,
    Endpoint,
    Operation,
    Request,
    Triggered,
)
from weir.rest.schema.failure_cause import FailureCause, Outcome, failure_cause
from weir.runtime.concurrency import Clock, in_background
from weir.storage.filesystem import FileSystem
from weir.storage.paths import normalize

_log = logging.getLogger(__name__)

#: Digits of the largest checkpoint id, a Java long.
_ID_DIGITS = 19
_JOB_ID = re.compile("[0-9a-fA-F]{32}")
_NO_JOB = "This history server runs no job: ask the job's driver, if it is alive."

T = TypeVar("T")
Answer = TypeVar("Answer")
Found = TypeVar("Found", bound=Outcome)
Handler: TypeAlias = Callable[..., Awaitable[Any]]

#: The handlers, by endpoint.
HANDLERS: dict[Endpoint[Any], Handler] = {}


def serves(
    endpoint: Endpoint[Answer],
) -> Callable[[Callable[..., Awaitable[Answer]]], Callable[..., Awaitable[Answer]]]:
    """Marks the function that answers an endpoint."""

    def mark(handler: Callable[..., Awaitable[Answer]]) -> Callable[..., Awaitable[Answer]]:
        HANDLERS[endpoint] = handler
        return handler

    return mark


class Serving:
    """The jobs behind a server, and the operations that requests have started.

    A driver has one job, with its gateway; a history server has any number of jobs, without
    gateways.
    """

    def __init__(
        self,
        source: JobGateway | StoredJobs,
        *,
        operations: AsyncOperations,
        clock: Clock,
        version: str,
        file_systems: Callable[[str], FileSystem],
        new_trigger_id: Callable[[], str],
        address: str,
        cluster: Cluster | None,
        refresh_ms: int,
    ) -> None:
        """``source``: a driver's job, or the jobs of a history server.

        ``address``: the server's, with its scheme. ``cluster``: None if it cannot be asked.
        ``refresh_ms``: how often a dashboard is to ask.
        """
        self.refresh_ms = refresh_ms
        self.address = address
        #: Host and port.
        self.endpoint = address.partition("://")[2]
        self.looks = Looks(cluster, clock)
        self._stored = source if isinstance(source, StoredJobs) else None
        self._gateway = None if isinstance(source, StoredJobs) else source
        self.operations = operations
        self.clock = clock
        self.version = version
        self.file_systems = file_systems
        self.new_trigger_id = new_trigger_id
        #: The calls of ``once`` that run; touched on the event loop only.
        self._running: dict[object, asyncio.Future[Any]] = {}

    @property
    def gateway(self) -> JobGateway:
        """The job of this driver. Raises 409 in a history server, which runs no job."""
        if self._gateway is None:
            raise HTTPException(409, _NO_JOB)
        return self._gateway

    @property
    def recorder(self) -> Recorder | None:
        """What happened in this driver's job; None in a history server."""
        return None if self._gateway is None else self._gateway.recorder

    @property
    def is_history(self) -> bool:
        """Whether this is a history server."""
        return self._stored is not None

    async def once(self, key: object, look: Callable[[], T]) -> T:
        """Run a look-up on a thread; those who ask for the same meanwhile share its outcome.

        However often clients ask, and give up, only one thread waits for a look-up that hangs.
        """
        running: asyncio.Future[T] | None = self._running.get(key)
        if running is None:
            running = self._running[key] = _on_thread(look)
            running.add_done_callback(lambda _: self._running.pop(key))
        return await asyncio.shield(running)

    async def views(self) -> tuple[JobView, ...]:
        """The newest views of all jobs."""
        return await self.once("views", self._look_at_jobs)

    def _look_at_jobs(self) -> tuple[JobView, ...]:
        """May wait, but not for long."""
        return (self.gateway.view(),) if self._stored is None else self._stored.views()

    async def briefs(self) -> tuple[JobBrief, ...]:
        """All jobs, in a line each."""
        stored = self._stored
        if stored is None:
            return tuple(view.brief for view in await self.views())
        return await self.once("briefs", stored.briefs)

    async def newest(self) -> JobView:
        """The newest view of this driver's job. Raises 409 in a history server."""
        if self.is_history:
            raise HTTPException(409, _NO_JOB)
        (view,) = await self.views()
        return view

    async def view(self, job_id: str) -> JobView:
        """The newest view of a job. Raises 400 or 404 for a wrong id."""
        if not _JOB_ID.fullmatch(job_id):
            raise HTTPException(
                400,
                f"{quoted(job_id)} is not a job id: it has 32 hexadecimal digits, and GET /jobs"
                " lists it.",
            )
        asked = job_id.lower()
        stored = self._stored
        if stored is None:
            found = await self.newest()
            if found.job_id == asked:
                return found
            known = f"this driver runs job {found.job_id}."
        else:
            view = await self.once(("job", asked), partial(stored.view, asked))
            if view is not None:
                return view
            known = "GET /jobs lists those that are."
        raise HTTPException(404, f"Job {shortened(job_id)} is not known here: {known}")

    async def chosen(self, job_id: str | None) -> JobView:
        """The newest view of a job; without an id, of this driver's. Raises 400, 404 and 409."""
        return await (self.newest() if job_id is None else self.view(job_id))

    async def configured(self, job_id: str | None) -> JobView:
        """What ``chosen`` returns, if the job's configuration is known.

        Raises 400, 404 and 409: a job's driver may have left no archive.
        """
        view = await self.chosen(job_id)
        if not view.configuration:
            raise HTTPException(
                404,
                f"The configuration of job {view.job_id} is not known: its driver left no archive.",
            )
        return view

    async def readings(self, job_id: str | None = None, *, with_jvm: bool = False) -> Readings:
        """What metrics are read from; None: those of this driver's job.

        The JVM's are left out unless asked for, and if it does not answer.
        """
        view = await self.newest() if job_id is None else await self.view(job_id)
        jvm, process = await self.looks.figures() if with_jvm else (None, None)
        return read(
            view,
            () if self.recorder is None else tuple(self.recorder.samples),
            now_ms=self.clock.wall_ms(),
            jvm=jvm,
            jvm_process=process,
        )

    async def executor(self, executor_id: str) -> ExecutorView:
        """One of Spark's executors. Raises 404."""
        for executor in await self.looks.executors():
            if executor.executor_id == executor_id:
                return executor
        raise HTTPException(
            404, f"There is no executor {quoted(executor_id)} here: GET /taskmanagers lists them."
        )

    async def checkpoint(self, job_id: str, checkpoint_id: str) -> CheckpointStats:
        """One checkpoint of a job's history. Raises 400 or 404 for a wrong id."""
        snapshot = (await self.view(job_id)).checkpoints
        if not checkpoint_id.isdecimal():
            raise HTTPException(
                400, f"A checkpoint id is a whole number, not {quoted(checkpoint_id)}."
            )
        if len(checkpoint_id) > _ID_DIGITS:
            raise HTTPException(404, f"No checkpoint has an id of {len(checkpoint_id)} digits.")
        stats = snapshot.find(int(checkpoint_id))
        if stats is None:
            raise HTTPException(
                404,
                f"Checkpoint {checkpoint_id} of job {job_id} is not in the history: it is older, or"
                " there was none.",
            )
        return stats

    def trigger(
        self,
        kind: str,
        body: Request,
        begin: Callable[[], Future[Any]],
        *,
        ends_job: bool = False,
    ) -> Triggered:
        """Start the operation that a body asks for, or join it. Raises 429."""
        key = self.new_trigger_id() if body.trigger_id is None else body.trigger_id
        self.start(kind, key, begin, ends_job=ends_job)
        return Triggered(request_id=key)

    def start(
        self, kind: str, trigger_id: str, begin: Callable[[], Future[Any]], *, ends_job: bool
    ) -> None:
        """Start an operation, or join the operation with this kind and id. Raises 429."""
        try:
            self.operations.start(kind, trigger_id, begin, ends_job=ends_job)
        except TooManyOperationsError as error:
            raise HTTPException(
                429, "Too many operations are in flight: wait for some of them to end."
            ) from error

    def outcome(
        self,
        kind: str,
        trigger_id: str,
        answer: Callable[[Any], Found],
        failed: Callable[[FailureCause], Found],
    ) -> Operation[Found]:
        """How the operation stands; with its ``answer``, or how it ``failed``, if it has ended.

        That is no failure of the server's. Raises 404.
        """
        future: Future[Any] | None = self.operations.find(kind, trigger_id)
        if future is None:
            raise HTTPException(
                404,
                f"No {shortened(kind)} request {shortened(trigger_id)} is known here: it may have"
                " been forgotten.",
            )
        if not future.done():
            return Operation(status=IN_PROGRESS, operation=None)
        given_up = JobError(f"The {kind} request {trigger_id} was given up, since the job ended.")
        failure = given_up if future.cancelled() else future.exception()
        if failure is not None:
            return Operation(status=COMPLETED, operation=failed(failure_cause(failure)))
        return Operation(status=COMPLETED, operation=answer(future.result()))


def normalized(directory: str | None) -> str | None:
    """A request's directory in Weir's spelling; relative paths start at the driver's directory.

    Raises 400 if it cannot be a path.
    """
    if not directory:
        return None
    try:
        return normalize(directory)
    except StorageError as error:
        raise HTTPException(400, str(error)) from error


async def beside(look: Callable[[], T]) -> T:
    """Run a look-up that may hang on its own thread: it delays only its own request."""
    return await asyncio.shield(_on_thread(look))


def _on_thread(look: Callable[[], T]) -> asyncio.Future[T]:
    # Not on asyncio's own threads: the process waits for those when it ends.
    return asyncio.wrap_future(in_background(look))
