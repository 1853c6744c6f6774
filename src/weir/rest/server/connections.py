"""Limits the REST server's connections: how many at a time, and how long each may stall.

The job needs the driver's file descriptors too, so no client may hold many of them by sending a
request head or reading an answer byte by byte. Every ``STALL_S`` seconds a connection must have
received the head of another request, or it is cut off. That is longer than any request takes: no
handler waits for the job.

Connections are counted when they are accepted, and a TLS handshake has ``HANDSHAKE_S`` seconds: a
client that has shown no token yet holds no more of them than others do.
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from weir.rest.server.recent import RecentAnswer, RecentAnswers

#: Concurrent connections.
MAX_CONNECTIONS = 128
#: A connection is cut off after this many seconds without the head of another request.
STALL_S = 30.0
#: Bytes of a request that are not its body: those of a head that the parser still collects. The
#: guard refuses shorter ones in words.
MAX_HEAD = 64 * 1024
#: A TLS handshake is given up after this many seconds.
HANDSHAKE_S = 5.0
#: Seconds after which the next answer to a request is made whose client has the one before: those
#: of the same moment who need a new one do not wait for it.
_LATER_S = 0.05


class BoundedListener(socket.socket):
    """A listening socket that closes what it accepts beyond ``MAX_CONNECTIONS``."""

    def __init__(self, listening: socket.socket) -> None:
        """Takes ``listening`` over."""
        super().__init__(
            listening.family, listening.type, listening.proto, fileno=listening.detach()
        )
        self._accepted: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def accept(self) -> tuple[socket.socket, object]:
        """Raises ``ConnectionAbortedError``, which asyncio ignores, if there are too many."""
        connection, address = super().accept()
        if sum(one.fileno() >= 0 for one in tuple(self._accepted)) >= MAX_CONNECTIONS:
            connection.close()
            raise ConnectionAbortedError("there are too many connections")
        self._accepted.add(connection)
        return connection, address


class BoundedServer(uvicorn.Server):
    """uvicorn's server with a limit on TLS handshakes, for which it has no setting."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Make the loop's servers with that limit."""
        if self.config.is_ssl:
            loop = asyncio.get_running_loop()
            limited = partial(loop.create_server, ssl_handshake_timeout=HANDSHAKE_S)
            loop.create_server = limited  # type: ignore[method-assign]
        await super().startup(sockets)


class _Gathering:
    """A transport that sends what one turn of the event loop writes in one call of the system.

    uvicorn writes the head of an answer and its body apart, and each send takes an eighth of the
    time of an answer from memory.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._written: list[bytes] = []
        #: What was written since the request began whose answer is to be kept; None: none is.
        self.kept: list[bytes] | None = None
        #: Whether it is only kept, since the client has been answered.
        self.is_mute = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send it soon."""
        if self.kept is not None:
            self.kept.append(data)
        if self.is_mute:
            return
        if not self._written:
            self._loop.call_soon(self._flush)
        self._written.append(data)

    def close(self) -> None:
        """Send what was written, and close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._written:
            self._transport.write(b"".join(self._written))
            self._written.clear()


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's httptools protocol with these limits, and with answers from memory.

    uvicorn itself closes a connection that is idle for 5 seconds.
    """

    def __init__(self, *arguments: Any, recent: RecentAnswers, **named: Any) -> None:
        """Takes uvicorn's arguments, and what all connections of the server share."""
        super().__init__(*arguments, **named)
        self._recent = recent
        #: Of the request that is being received.
        self._head_bytes = 0
        self._is_within = False
        #: How many heads of requests came.
        self._begun = 0
        #: The answer that this connection's request makes for others, and the one that it awaits.
        self._leads: RecentAnswer | None = None
        self._follows: RecentAnswer | None = None
        #: What answers the request that leads, and when that begins.
        self._leading: RequestResponseCycle | None = None
        self._later: asyncio.TimerHandle | None = None
        #: Whether a request may have changed something since the last answer.
        self._changes = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch the connection."""
        self._gathering = _Gathering(transport, self.loop)
        super().connection_made(self._gathering)  # type: ignore[arg-type]
        # asyncio does not set this for sockets that it did not make; without it an answer in two
        # parts takes 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch(0)

    def data_received(self, data: bytes) -> None:
        """Answer from memory, or parse.

        An endless head of a request is refused, or what is between parts of its body.
        """
        if self._follows is not None:
            # Another request before the answer to this one: each gets its own, in order.
            self._alone()
        elif self._is_idle:
            recent = self._recent.find(data)
            if recent is not None and recent.answer is not None:
                self._begun += 1
                self._unset_keepalive_if_required()
                self.resume(recent.answer)
                return
            if self._later is None:
                self._wait_or_lead(data, recent)
                return
        if self._later is not None:
            self._make()
        self._parse(data)

    def _wait_or_lead(self, data: bytes, recent: RecentAnswer | None) -> None:
        """Wait for the answer that another connection makes, or make it."""
        if recent is not None:
            self._begun += 1
            self._unset_keepalive_if_required()
            self._follows = recent
            recent.followers.append(self)
            return
        self._leads = self._recent.begin(data)
        if self._leads is None:
            self._parse(data)
        elif self._leads.before is None:
            self._make()
        else:
            # Whoever asked does not wait.
            assert self._leads.before.answer is not None
            self._gathering.write(self._leads.before.answer)
            self._later = self.loop.call_later(_LATER_S, self._make)

    def _make(self) -> None:
        """Make the answer to the request that leads, and keep it."""
        assert self._leads is not None
        if self._later is not None:
            self._later.cancel()
            self._later = None
            self._gathering.is_mute = True
        self._gathering.kept = []
        self._parse(self._leads.request)
        self._leading = self.cycle

    def resume(self, answer: bytes | None) -> None:
        """What another connection's request was answered is this one's answer, too."""
        if answer is None:
            self._alone()
        else:
            self._follows = None
            self.transport.write(answer)
            super().on_response_complete()

    @property
    def _is_idle(self) -> bool:
        """Whether nothing of a request or of an answer is under way."""
        return (
            not self._is_within
            and (self.cycle is None or self.cycle.response_complete)
            and not self.flow.write_paused
            and not self.transport.is_closing()
        )

    def _alone(self) -> None:
        """Let the request that waits for another one's answer get its own."""
        recent, self._follows = self._follows, None
        if recent is not None:
            if self in recent.followers:
                recent.followers.remove(self)
            self._parse(recent.request)

    def _parse(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        """Another request begins."""
        self._head_bytes = 0
        self._is_within = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A request that may change something: whoever sent it sees what it did."""
        super().on_headers_complete()
        self._begun += 1
        if self.scope["method"] not in ("GET", "HEAD"):
            self._changes = True
            self._recent.forget()

    def on_message_complete(self) -> None:
        """The request has come whole."""
        self._is_within = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Share the answer with those who asked for the same."""
        super().on_response_complete()
        if self._changes:
            self._recent.forget()
            self._changes = not self.cycle.response_complete
        one = self._leading
        self._share(is_whole=one is not None and one.keep_alive and one.response_complete)

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever awaits this connection's answer makes another."""
        super().connection_lost(exc)
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._follows is not None and self in self._follows.followers:
            self._follows.followers.remove(self)
        self._follows = None
        self._share(is_whole=False)

    def shutdown(self) -> None:
        """The server ends, and answers what it was asked."""
        self._alone()
        super().shutdown()

    def _share(self, *, is_whole: bool) -> None:
        recent, self._leads = self._leads, None
        kept, self._gathering.kept = self._gathering.kept, None
        self._gathering.is_mute = False
        if recent is not None:
            self._recent.complete(recent, b"".join(kept or ()) if is_whole else None)

    def on_body(self, body: bytes) -> None:
        """A part of the body, which the guard bounds."""
        self._head_bytes -= len(body)
        super().on_body(body)

    def _watch(self, begun: int) -> None:
        self.loop.call_later(STALL_S, self._cut_off_if_still, begun)

    def _cut_off_if_still(self, begun: int) -> None:
        if self not in self.connections:
            return
        if self._begun == begun:
            self.transport.abort()
        else:
            self._watch(self._begun)
