"""The driver's end of the control inputs: one Unix socket, one thread for each query that plans.

A planning call is posted as an event and answered when the job's main thread says so. The answer is a JSON object,
empty or with the watermarks of the query's channels: ``{"watermarks": {"0": 1704067200000}}``. The server knows nothing
of checkpoints. What it gets wrong costs every batch, so a call is one message each way and one thread switch.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from types import MappingProxyType

from weir.core.types import VertexId
from weir.spark.control_input import KEY_NAME, SOCKET_NAME

_log = logging.getLogger(__name__)

#: Called with (vertex, attempt, call) for every planning call, on the thread of its connection.
PlanningHandler = Callable[[VertexId, int, int], None]


class PlanningServer:
    """Accepts the control inputs' connections and answers each call once."""

    def __init__(self, on_call: PlanningHandler) -> None:
        self._on_call = on_call
        self._calls = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Connection] = {}
        #: Open ones. Only the thread that serves one closes it, and only under the lock: a number that was closed may
        #: be another file's a moment later.
        self._connections: set[Connection] = set()
        # A Unix socket's path may have at most 107 bytes, so it lies in the system's directory, not in the job's.
        self.directory = Path(tempfile.mkdtemp(prefix="weir-"))
        key = secrets.token_bytes(32)
        (self.directory / KEY_NAME).write_bytes(key)
        self._listener = Listener(
            str(self.directory / SOCKET_NAME), family="AF_UNIX", authkey=key, backlog=64
        )
        self._closed = False
        threading.Thread(target=self._accept, name="weir-planning", daemon=True).start()

    def answer(
        self, call: int, watermarks: Mapping[int, int] = MappingProxyType({}), *, force: bool = False
    ) -> None:
        """Let the call return; ``watermarks`` are those of the query's channels by index, in milliseconds. With ``force``
        there is a batch, be it without rows.

        A reader that has gone meanwhile is no error: its query was stopped.
        """
        answer: dict[str, object] = {"force": True} if force else {}
        if watermarks:
            answer["watermarks"] = {str(channel): ms for channel, ms in watermarks.items()}
        with self._lock:
            connection = self._waiting.pop(call, None)
            if connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.send_bytes(json.dumps(answer).encode())

    def close(self) -> None:
        """Stop listening and remove the socket. Calls that wait end with their connections."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.close()
        with self._lock:
            self._waiting.clear()
            for connection in self._connections:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as peer:
                    peer.shutdown(socket.SHUT_RDWR)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError, AuthenticationError) as error:
                if not self._closed:
                    _log.warning("A connection to the planning server was refused: %s", error)
                continue
            with self._lock:
                self._connections.add(connection)
            threading.Thread(
                target=self._serve, args=(connection,), name="weir-planning-call", daemon=True
            ).start()

    def _serve(self, connection: Connection) -> None:
        """One reader's calls, until its process is gone."""
        try:
            hello = json.loads(connection.recv_bytes())
            vertex, attempt = str(hello["vertex"]), int(hello["attempt"])
            while connection.recv_bytes() == b"plan":
                call = next(self._calls)
                with self._lock:
                    self._waiting[call] = connection
                self._on_call(vertex, attempt, call)
        except (EOFError, OSError):
            _log.debug("A control input went away, as it does when its query stops.")
        finally:
            with self._lock:
                self._connections.discard(connection)
                connection.close()
