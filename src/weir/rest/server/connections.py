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
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Concurrent connections.
MAX_CONNECTIONS = 128
#: A connection is cut off after this many seconds without the head of another request.
STALL_S = 30.0
#: Bytes of a request that are not its body: those of a head that the parser still collects. The
#: guard refuses shorter heads in words.
MAX_HEAD = 64 * 1024
#: A TLS handshake is given up after this many seconds.
HANDSHAKE_S = 5.0


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
        if sum(accepted.fileno() >= 0 for accepted in tuple(self._accepted)) >= MAX_CONNECTIONS:
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


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's httptools protocol with these limits.

    uvicorn itself closes a connection that is idle for 5 seconds.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Takes uvicorn's arguments."""
        super().__init__(*arguments, **named)
        #: Of the request that is being received.
        self._head_bytes = 0
        #: How many heads of requests came.
        self._begun = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch the connection."""
        super().connection_made(transport)
        # asyncio does not set this for sockets that it did not make; without it an answer in two
        # parts takes 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch(0)

    def data_received(self, data: bytes) -> None:
        """Refuse an endless head of a request, or what is between parts of its body."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        """Another request begins."""
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head of a request is complete."""
        super().on_headers_complete()
        self._begun += 1

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
