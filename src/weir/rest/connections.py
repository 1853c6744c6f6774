"""Connections of the REST server: so many at a time, and each for as long as requests come and go
on it.

A driver's file descriptors are its job's too, so no client may hold on to many, by sending a head
byte after byte or by reading an answer byte after byte. Every ``STALL_S`` a connection must have
seen the head of another request; one that has not is cut off. That is longer than any request
takes: no handler waits for the job.
"""

from __future__ import annotations

import asyncio
import socket

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

#: Connections at a time.
MAX_CONNECTIONS = 128
#: Seconds without the head of another request after which a connection is cut off.
STALL_S = 30.0


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol over h11 with these limits. uvicorn itself closes a connection that rests
    for 5 seconds."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, unless there are too many."""
        super().connection_made(transport)
        # asyncio leaves it out for sockets that it did not make: an answer in two parts then takes
        # 40 ms.
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
