"""The REST server of a driver: Flink's API on one port, in a daemon thread beside the job.

The socket is bound by ``bind`` on the caller's thread, so that a taken port is known at once and the address can be
recorded before the job begins; ``start`` then serves. Only the loopback interface is bound unless told otherwise:
whoever reaches the port can stop the job.
"""

from __future__ import annotations

import errno
import importlib
import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import weir
from weir.errors import InvariantError, RestError, invariant
from weir.kernel.clock import Clock, SystemClock
from weir.kernel.gateway import JobGateway
from weir.rest.operations import AsyncOperations
from weir.state.filesystem import FileSystem
from weir.state.resolve import FileSystems

if TYPE_CHECKING:
    import uvicorn

#: How long open connections may take to end when the server stops, in seconds.
_SHUTDOWN_S = 2
_BACKLOG = 128


class RestServer:
    """Serves one job. Made, given its gateway, started and stopped by the same thread.

    Args:
        gateway: The job; may be given later by ``serve``, since a job's id can depend on the server's address.
        bind_address: Interface to bind.
        port: 0 for any free one.
        store_duration_ms: How long the result of a request can be asked for (``rest.async.store-duration``).
    """

    def __init__(
        self,
        gateway: JobGateway | None = None,
        *,
        bind_address: str = "127.0.0.1",
        port: int = 8081,
        store_duration_ms: int = 300_000,
        clock: Clock | None = None,
    ) -> None:
        self._gateway = gateway
        self._bind_address = bind_address
        self._port = port
        self._clock: Clock = SystemClock() if clock is None else clock
        self._operations = AsyncOperations(self._clock, store_duration_ms)
        self._file_systems: Callable[[str], FileSystem] = FileSystems(None)
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def serve(self, gateway: JobGateway, file_systems: Callable[[str], FileSystem] | None = None) -> None:
        """Set the job to serve, and where its savepoints may lie (None: local file systems); comes before ``start``."""
        invariant(self._thread is None, "the gateway of a REST server is set before it starts")
        self._gateway = gateway
        if file_systems is not None:
            self._file_systems = file_systems

    def load(self) -> None:
        """Load the libraries that ``start`` needs: a third of a second, for when there is something to wait for."""
        importlib.import_module("uvicorn")
        importlib.import_module("weir.rest.app")

    def bind(self) -> str:
        """Take the port and return the server's address, such as ``http://127.0.0.1:8081``.

        Clients that connect before ``start`` wait. Raises ``RestError`` if the port is taken or not to be had.
        """
        if self._socket is None:
            self._socket = _listen(self._bind_address, self._port)
        return _address_of(self._socket)

    def start(self) -> str:
        """Bind unless that is done, serve in a daemon thread, and return the address. Raises ``RestError``."""
        invariant(self._thread is None, "a REST server is started once")
        gateway = self._gateway
        if gateway is None:
            raise InvariantError("a REST server needs its gateway before it starts")
        address = self.bind()
        listening = self._socket
        # Not at the top: see ``load``.
        import uvicorn

        from weir.rest.app import make_app

        app = make_app(
            gateway,
            operations=self._operations,
            clock=self._clock,
            version=weir.__version__,
            file_systems=self._file_systems,
        )
        # Quiet, and without signal handlers: those are installed on the main thread only.
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        server = uvicorn.Server(config)
        self._server = server
        self._thread = threading.Thread(target=server.run, args=([listening],), name="weir-rest", daemon=True)
        self._thread.start()
        return address

    def stop(self) -> None:
        """Let clients read what has just finished (up to three seconds), then close the port. Idempotent."""
        if self._server is not None and self._thread is not None:
            self._operations.wait_until_collected()
            self._server.should_exit = True
            self._thread.join()
        if self._socket is not None:
            self._socket.close()
        self._server = None
        self._socket = None


def _listen(bind_address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind_address else socket.AF_INET
    try:
        return socket.create_server((bind_address, port), family=family, backlog=_BACKLOG)
    except OverflowError as error:
        raise RestError(
            f"The port {port} does not exist: give one from 0 to 65535 with --rest-port N."
        ) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise RestError(
                f"Port {port} on {bind_address} is taken: give another one with --rest-port N, or 0 for any free one."
            ) from error
        raise RestError(
            f"The REST server cannot listen on {bind_address}, port {port} ({error.strerror or error}):"
            " give another port with --rest-port N, or another address with rest.bind-address."
        ) from error


def _address_of(listening: socket.socket) -> str:
    """The URL at which clients on this machine reach the socket."""
    host, port = listening.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        address = ipaddress.ip_address("::1" if address.version == 6 else "127.0.0.1")
    shown = f"[{address}]" if address.version == 6 else str(address)
    return f"http://{shown}:{port}"
