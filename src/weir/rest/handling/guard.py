"""Guards every route of the REST server: who may send requests, and how large.

The checks, in order:

1. **Size of the head.** A path beyond ``MAX_TARGET`` bytes is refused with 414, headers beyond
   ``MAX_HEADERS`` bytes with 431.
2. **Host.** A web page whose host name resolves to this machine (DNS rebinding) calls the server by
   that name. So only loopback names, the bound address and ``weir.rest.allowed-hosts`` are
   answered.
3. **Origin.** Browsers report the page that makes a request in ``Sec-Fetch-Site`` and ``Origin``. A
   request from another site is refused, even if it only reads, unless a user follows a link
   here: a page cannot read what it links to. Command-line clients send neither header.
4. **Token.** If the server has a token, the request must send ``Authorization: Bearer TOKEN``. The
   files of the web page need no token: they are the same for every job, and ask for the token; nor
   do the two probes, which say no more than that the job runs. With
   the token of those who may only look, a request other than GET and HEAD is refused, and answers
   say so in the header ``Weir-Access: read``, so that the web page shows no buttons.
5. **Content type.** An HTML form can send requests to any site, but never with the type of JSON.
   So requests that may change something must send JSON, or nothing.
6. **Body.** At most ``MAX_BODY`` bytes, whatever length is announced, within ``BODY_S`` seconds.

Refusals have Flink's format. The body of a refused request is still received, within limits:
otherwise a client that is still sending would see a broken connection instead of the reason.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Collection
from functools import lru_cache

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weir.rest.schema.base import Errors

#: Bytes of a path with its query, and of all headers.
MAX_TARGET = 8 * 1024
MAX_HEADERS = 16 * 1024
#: Bytes of a body: many times what a rule set or a path needs.
MAX_BODY = 2 * 1024 * 1024
#: Seconds that a client may take to send a body.
BODY_S = 10.0
#: How many bytes of an oversized body are received before the connection is closed.
_TAKEN_AT_MOST = 8 * MAX_BODY
#: How many characters of client input a message quotes.
_QUOTED = 80

#: The content type of every answer, as Flink spells it.
JSON = "application/json; charset=UTF-8"
_READING = ("GET", "HEAD")
#: Without these a request has no body.
_BODY_HEADERS = (b"content-length", b"transfer-encoding")
#: On answers to those who may only look.
_READ_ACCESS = ((b"weir-access", b"read"),)

#: Keeps browsers from guessing types, caching answers, or showing them inside other pages.
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    # The page uses nothing but its own files and this server, and no script within its HTML.
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src"
        b" 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]


class _RefusedError(Exception):
    """The request is refused, for this reason."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def shortened(text: str) -> str:
    """Client input, shortened for a message."""
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


def quoted(text: str) -> str:
    """Client input, shortened and quoted for a message."""
    return repr(shortened(text))


class Guard:
    """An ASGI application that passes permitted requests on to another application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        bound_address: str,
        hosts: Collection[str],
        open_paths: Collection[str],
        token: str | None,
        reading_token: str | None = None,
    ) -> None:
        """``bound_address``: the IP address listened on. ``hosts``: more names of the server.

        ``open_paths`` may be read without a token. ``reading_token`` counts only beside a
        ``token``.
        """
        self._app = app
        self._open_paths = open_paths
        #: Whether a ``Host`` header names this server. Clients send few different headers.
        self._is_own = lru_cache(maxsize=64)(self._names_it)
        self._bound = ipaddress.ip_address(bound_address)
        self._hosts = {"localhost", *hosts}
        self._token = None if token is None else token.encode()
        self._reading_token = None if reading_token is None else reading_token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                access = _READ_ACCESS if self._only_reads(scope) else ()
                headers = [*message.get("headers", ()), *_HEADERS, *access]
                message = {**message, "headers": headers}
            await send(message)

        try:
            try:
                self._check_head(scope)
            except _RefusedError:
                await _take_body(receive, keep=0)
                raise
            has_body = any(name in _BODY_HEADERS for name, _ in scope["headers"])
            body = await _take_body(receive, keep=MAX_BODY) if has_body else b""
            _check_content_type(scope, body)
        except _RefusedError as refused:
            headers = {"connection": "close"}
            if refused.status == 401:
                headers["www-authenticate"] = "Bearer"
            refusal = Response(
                msgspec.json.encode(Errors(errors=(str(refused),))),
                refused.status,
                headers,
                media_type=JSON,
            )
            await refusal(scope, receive, send_with_headers)
            return
        except _GoneError:
            return
        await self._app(scope, _replaying(body, receive), send_with_headers)

    def _check_head(self, scope: Scope) -> None:
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET:
            raise _RefusedError(414, f"The path of a request has at most {MAX_TARGET} bytes.")
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADERS:
            raise _RefusedError(431, f"The headers of a request have at most {MAX_HEADERS} bytes.")
        host = _header(scope, b"host") or ""
        if not self._is_own(host):
            raise _RefusedError(
                403,
                f"This server is not called {quoted(host)}: call it by the address that the job"
                " printed, or add the name to weir.rest.allowed-hosts.",
            )
        _check_origin(scope, host)
        is_open = scope["method"] in _READING and scope["path"] in self._open_paths
        if self._token is None or is_open or _has_token(scope, self._token):
            return
        if not self._only_reads(scope):
            raise _RefusedError(
                401,
                "This server wants its token: send 'Authorization: Bearer TOKEN' with that of"
                " rest.authentication.token or rest.authentication.token-file (weir: --token-file"
                " FILE, or WEIR_REST_TOKEN).",
            )
        if scope["method"] not in _READING:
            raise _RefusedError(
                403,
                "This token is for those who may only look: to change the job, send that of"
                " rest.authentication.token or rest.authentication.token-file.",
            )

    def _only_reads(self, scope: Scope) -> bool:
        """Whether the request has the token of those who may only look."""
        return (
            self._token is not None
            and self._reading_token is not None
            and not _has_token(scope, self._token)
            and _has_token(scope, self._reading_token)
        )

    def _names_it(self, host: str) -> bool:
        """Whether a ``Host`` header names this server."""
        name = host.lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name != "" and name in self._hosts
        if address.is_unspecified:
            return False
        # Unlike a name, an address cannot be made to point elsewhere. So if the server listens on
        # all addresses, all of them name it.
        return self._bound.is_unspecified or address.is_loopback or address == self._bound


class _GoneError(Exception):
    """The client closed the connection."""


def _has_token(scope: Scope, expected: bytes) -> bool:
    scheme, _, token = (_header(scope, b"authorization") or "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(
        token.strip().encode("latin-1"), expected
    )


def _header(scope: Scope, name: bytes) -> str | None:
    """The value of a header; None if it is absent.

    A repeated header cannot be trusted: its values are joined, which gives no valid value.
    """
    values = [value for key, value in scope["headers"] if key == name]
    return b", ".join(values).decode("latin-1") if values else None


def _check_origin(scope: Scope, host: str) -> None:
    site = _header(scope, b"sec-fetch-site")
    origin = _header(scope, b"origin")
    follows_link = (
        scope["method"] == "GET"
        and _header(scope, b"sec-fetch-mode") == "navigate"
        and _header(scope, b"sec-fetch-dest") == "document"
    )
    foreign = site not in (None, "same-origin", "none") and not follows_link
    if foreign or (origin is not None and origin.partition("://")[2].lower() != host.lower()):
        raise _RefusedError(
            403,
            f"A page of {quoted(origin or 'another site')} may not call this server: call it from a"
            " command line, or open its own address.",
        )


def _check_content_type(scope: Scope, body: bytes) -> None:
    if scope["method"] in _READING:
        return
    content_type = _header(scope, b"content-type")
    if content_type is None and not body:
        return
    if (content_type or "").partition(";")[0].strip().lower() != "application/json":
        raise _RefusedError(
            415,
            f"The body of a request is JSON, not {quoted(content_type or 'of an unknown type')}:"
            " send 'Content-Type: application/json' (curl: --json DATA).",
        )


async def _take_body(receive: Receive, *, keep: int) -> bytes:
    """The body, if it has at most ``keep`` bytes; with ``keep=0`` it is discarded."""
    body = bytearray()
    size = 0
    try:
        async with asyncio.timeout(BODY_S):
            more = True
            while more and size <= _TAKEN_AT_MOST:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _GoneError
                part = message.get("body", b"")
                size += len(part)
                if size <= keep:
                    body += part
                more = message.get("more_body", False)
    except TimeoutError as error:
        if keep:
            raise _RefusedError(
                408, f"The body of a request has to come within {BODY_S:.0f} seconds."
            ) from error
    if keep and size > keep:
        raise _RefusedError(413, f"The body of a request has at most {keep} bytes.")
    return bytes(body)


def _replaying(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives the application the whole body, then later messages."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
