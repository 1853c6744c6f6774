"""Flink's own web dashboard in front of a Weir server.

Its files are in Flink's jar, which serves them beside its REST API. Here a server on the loopback
interface does so: it has the files, and asks Weir for everything else.
"""

from __future__ import annotations

import mimetypes
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.flink.distribution import JARS
from tests.kit.waiting import wait_until

from weir.rest.schema.base import FLINK_VERSION

_JAR = JARS / f"flink-dist-{FLINK_VERSION}.jar"


class Dashboard:
    """Serves Flink's files, and what ``target`` answers."""

    def __init__(self) -> None:
        self._files = zipfile.ZipFile(_JAR)
        self._names = frozenset(self._files.namelist())
        self._lock = threading.Lock()
        self._client = httpx.AsyncClient(trust_env=False, timeout=60)
        #: The address of the Weir server.
        self.target = ""

    async def answer(self, request: Request) -> Response:
        """Answer a GET: the dashboard sends no other request in these tests."""
        path = request.url.path
        name = f"web{path if path != '/' else '/index.html'}"
        if name in self._names:
            with self._lock:
                return Response(self._files.read(name), media_type=mimetypes.guess_type(name)[0])
        query = f"?{request.url.query}" if request.url.query else ""
        found = await self._client.get(f"{self.target}{path}{query}")
        return Response(found.content, found.status_code, media_type=found.headers["content-type"])


@contextmanager
def served_dashboard() -> Iterator[tuple[Dashboard, str]]:
    """The dashboard and its address, as long as the block runs."""
    dashboard = Dashboard()
    app = Starlette(routes=[Route("/{path:path}", dashboard.answer)])
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, "the dashboard is served")
        (port,) = (one.getsockname()[1] for one in server.servers[0].sockets)
        yield dashboard, f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
