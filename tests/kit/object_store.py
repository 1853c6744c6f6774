"""An S3 server of the tests' own: moto, an emulation, behind faults and a counter of requests.

It is slower and more forgiving than S3, and its own check of ``If-None-Match`` reads and then
writes. So conditional puts pass one at a time, as S3 promises for each key.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import httpx
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

ACCESS_KEY = "AKIAWEIRTESTS4711"
SECRET_KEY = "open-sesame-0815/secret"

_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_UNKNOWN = b"<Error><Code>NotImplemented</Code><Message>A header is unknown.</Message></Error>"


@dataclass(frozen=True)
class Request:
    """One request as S3 bills it."""

    #: PUT, COPY, POST, LIST, GET, HEAD or DELETE.
    kind: str
    #: Without the bucket.
    key: str


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Say nothing about requests."""


class ObjectStore:
    """The server; ``bucket`` makes an empty bucket and returns its URI."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        #: How long each answer is held back, in seconds.
        self.delay_s = 0.0
        #: Conditional puts that are carried out, and answered with 503 as if they were not.
        self.lost_answers = 0
        #: Conditional puts are carried out, and answered once this is set.
        self.hold_answers: threading.Event | None = None
        #: What becomes of conditions of puts: stores may be "honouring", "ignoring" or "refusing".
        self.conditions = "honouring"
        #: If set, the status and body of every answer.
        self.refusal: tuple[str, bytes] | None = None
        #: Called before each request is carried out.
        self.before: Callable[[Request], object] = lambda request: None
        self._down_until_s = 0.0
        self._conditional = threading.Lock()
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._buckets = 0
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a process finds the server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "eu-central-1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "NO_PROXY": "127.0.0.1",
        }

    def bucket(self) -> str:
        """The URI of a new bucket."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        location = "<CreateBucketConfiguration><LocationConstraint>eu-central-1"
        location += "</LocationConstraint></CreateBucketConfiguration>"
        httpx.put(f"{self.url}/{name}", content=location, trust_env=False).raise_for_status()
        return f"s3://{name}"

    def put(self, path: str) -> None:
        """Put an empty object, whatever its name, as another tool would."""
        url = f"{self.url}/{path.removeprefix('s3://')}"
        httpx.put(url, content=b"", trust_env=False).raise_for_status()

    def uploads(self, bucket: str) -> str:
        """The bucket's unfinished multipart uploads, as the server lists them."""
        name = bucket.removeprefix("s3://")
        return httpx.get(f"{self.url}/{name}?uploads", trust_env=False).text

    def go_down(self, seconds: float) -> None:
        """Answer every request with 503 for so long, from now on."""
        self._down_until_s = time.monotonic() + seconds

    def heal(self) -> None:
        """End every fault."""
        self._down_until_s = 0.0
        self.delay_s = 0.0
        self.lost_answers = 0
        self.hold_answers = None
        self.conditions = "honouring"
        self.refusal = None
        self.before = lambda request: None

    def counted(self) -> Counter[str]:
        """How many requests of each kind came since the last call."""
        seen, self.requests = self.requests, []
        return Counter(request.kind for request in seen)

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        request = _request(environ)
        self.requests.append(request)
        if self.delay_s:
            time.sleep(self.delay_s)
        if time.monotonic() < self._down_until_s:
            return _refuse(environ, start, "503 Slow Down", _BUSY)
        if self.refusal is not None:
            return _refuse(environ, start, *self.refusal)
        self.before(request)
        if self.conditions == "ignoring":
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if "HTTP_IF_NONE_MATCH" not in environ:
            return self._app(environ, start)
        if self.conditions == "refusing":
            return _refuse(environ, start, "501 Not Implemented", _UNKNOWN)
        with self._conditional:
            if not self.lost_answers:
                answer = list(self._app(environ, start))
                if self.hold_answers is not None:
                    self.hold_answers.wait()
                return answer
            self.lost_answers -= 1
            list(self._app(environ, lambda *_: None))
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [_BUSY]


def _refuse(
    environ: dict[str, Any], start: Callable[..., Any], status: str, body: bytes
) -> Iterable[bytes]:
    # What the client sends is read, so that it gets the answer.
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start(status, [("Content-Type", "application/xml")])
    return [body]


def _request(environ: dict[str, Any]) -> Request:
    method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
    kind = method
    if method == "GET" and "list-type" in query:
        kind = "LIST"
    elif "HTTP_X_AMZ_COPY_SOURCE" in environ:
        kind = "COPY"
    _, _, key = environ["PATH_INFO"].lstrip("/").partition("/")
    return Request(kind, unquote(key))


@contextmanager
def running_object_store() -> Iterator[ObjectStore]:
    """A running server."""
    store = ObjectStore()
    try:
        yield store
    finally:
        store.close()
