"""Limits the REST server's connections: how many at a time, and how long each may stall.

The job needs the driver's file descriptors too, so no client may hold many of them by sending a
request head or reading an answer byte by byte. Every ``STALL_S`` seconds a connection must have
received the head of another request, or it is cut off. That is longer than any request takes: no
handler waits for the job.
"""

from __future__ import annotations

import asyncio
import socket

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

#: Concurrent connections.
MAX_CONNECTIONS = 128
#: A connection is cut off after this many seconds without the head of another request.
STALL_S = 30.0


class BoundedProtocol(H11Protocol):
    """uvicorn's h11 protocol with these limits.

    uvicorn itself closes a connection that is idle for 5 seconds.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, unless there are too many."""
        super().connection_made(transport)
        # asyncio does not set this for sockets that it did not make; without it an answer in two
        # parts takes 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._watch(None)

    def _watch(self, before: RequestResponseCycle | None) -> None:
        self.loop.call_later(STALL_S, self._cut_off_if_still, before)

    def _cut_off_if_still(self, before: RequestResponseCycle | None) -> None:
        if self not in self.connections:
            return
        if self.cycle is before:
            self.transport.abort()
        else:
            self._watch(self.cycle)
