"""The REST server's routes: Flink's paths, with and without ``/v1``, for one running job.

Answers are in ``*_answers.py`` and ``*_handlers.py``, by topic; ``serving`` says what handlers may
do.

Every failure is answered with an error status and ``{"errors": ["one sentence"]}``, which Flink's
clients show. Polling a failed operation is no failure: it answers 200 with the cause. 500 is for
what is nobody's mistake but the server's. 503 is left to the two probes, since clients retry on it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from weir.errors import WeirError
from weir.gateway.job_gateway import JobGateway
from weir.monitoring.cluster import Cluster
from weir.rest.flink import (
    checkpoint_handlers,
    cluster_handlers,
    constant_answers,
    job_handlers,
    metric_handlers,
    vertex_handlers,
)
from weir.rest.handling.guard import JSON, shortened
from weir.rest.handling.operations import AsyncOperations
from weir.rest.handling.serving import HANDLERS, Handler, Serving
from weir.rest.past.history import StoredJobs
from weir.rest.schema.base import Endpoint, Errors, Request, Text
from weir.rest.schema.endpoints import ENDPOINTS
from weir.rest.web import files as page_files
from weir.rest.web import handlers as page_handlers
from weir.runtime.concurrency import Clock
from weir.storage.filesystem import FileSystem

#: The modules whose import has filled ``HANDLERS``.
TOPICS = (
    job_handlers,
    checkpoint_handlers,
    vertex_handlers,
    cluster_handlers,
    metric_handlers,
    constant_answers,
    page_handlers,
)


def make_app(
    source: JobGateway | StoredJobs,
    *,
    operations: AsyncOperations,
    clock: Clock,
    version: str,
    file_systems: Callable[[str], FileSystem],
    new_trigger_id: Callable[[], str] = lambda: secrets.token_hex(16),
    address: str,
    cluster: Cluster | None,
    refresh_ms: int,
) -> ASGIApp:
    """The application that serves a driver's job, or the jobs of a history server.

    ``file_systems`` gives the file system of a savepoint to dispose of; ``address`` is the
    server's; ``cluster`` are the job's processes, None if they cannot be asked; ``refresh_ms`` is
    how often a dashboard is to ask.
    """
    serving = Serving(
        source,
        operations=operations,
        clock=clock,
        version=version,
        file_systems=file_systems,
        new_trigger_id=new_trigger_id,
        address=address,
        cluster=cluster,
        refresh_ms=refresh_ms,
    )
    routes = [
        Route(
            path,
            _answering(endpoint, partial(HANDLERS[endpoint], serving)),
            methods=[endpoint.method],
        )
        for endpoint in ENDPOINTS
        for path in (endpoint.path, f"{endpoint.path}/")
    ]
    return Starlette(
        routes=[*routes, Mount("/v1", routes=routes), *page_files.routes()],
        exception_handlers={HTTPException: _answer_http_error},
    )


def _answering(
    endpoint: Endpoint[Any], handler: Handler
) -> Callable[[HttpRequest], Awaitable[Response]]:
    async def answer(request: HttpRequest) -> Response:
        # Starlette's own handler of any exception raises it again, which costs the connection.
        try:
            return await made_for(request)
        except HTTPException:
            raise
        except Exception as error:
            return _any_error(request, error)

    async def made_for(request: HttpRequest) -> Response:
        arguments: dict[str, Any] = {
            **request.path_params,
            **{name: request.query_params.get(name) for name in endpoint.query},
        }
        if endpoint.body is not None:
            arguments["body"] = await _body(request, endpoint.body)
        found = await handler(**arguments)
        if isinstance(found, Text):
            return Response(found.text, endpoint.status, media_type=found.content_type)
        made = _json(found, endpoint.status)
        if request.method != "GET":
            return made
        tag = f'"{hashlib.blake2b(bytes(made.body), digest_size=12).hexdigest()}"'
        # The client may have it.
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        made.headers["etag"] = tag
        return made

    return answer


def _json(answer: object, status: int) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type=JSON)


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


def _any_error(request: HttpRequest, error: Exception) -> Response:
    """Answer a request that the gateway refused (its sentence), or a bug (its ``repr``)."""
    text = (
        str(error)
        if isinstance(error, WeirError)
        else f"Internal error in {request.url.path}: {error!r}"
    )
    return _json(Errors(errors=(text,)), 500)
