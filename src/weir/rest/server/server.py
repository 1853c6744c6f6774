"""The REST server of a driver: Flink's API on one port, in a daemon thread of the job's process.

``bind`` binds the socket on the caller's thread, so that a taken port is reported at once and the
address can be recorded before the job starts; ``start`` then serves. By default only the loopback
interface is bound, and any other only with a token: a client that can send requests can stop the
job. ``guard`` decides who may send requests, ``connections`` how long a connection may stall.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weir import __version__
from weir.errors import RestError, invariant
from weir.gateway.job_gateway import JobGateway
from weir.monitoring.cluster import Cluster
from weir.rest import tokens
from weir.rest.handling.operations import AsyncOperations
from weir.runtime.concurrency import Clock, SystemClock
from weir.storage.file_systems import FileSystems
from weir.storage.filesystem import FileSystem

if TYPE_CHECKING:
    import uvicorn

    from weir.rest.past.history import StoredJobs

#: How long open connections may take to close when the server stops, in seconds.
_SHUTDOWN_S = 2
#: How long its thread may take to end after that, in seconds.
_ENDING_S = 3.0
_BACKLOG = 128
#: How many ports are tried, from the configured port on.
_NEXT_PORTS = 100


class _PortTakenError(RestError):
    """Another process listens on the port."""


@dataclass(frozen=True, kw_only=True)
class RestSecurity:
    """Who may send requests to the server, and how clients verify it."""

    #: The token that clients must send; None, which is allowed on loopback only: none is required.
    token: str | None = field(default=None, repr=False)
    #: Another token, for those who may only look.
    reading_token: str | None = field(default=None, repr=False)
    #: Additional host names by which clients may call the server.
    allowed_hosts: tuple[str, ...] = ()
    #: Files in PEM; with them the server speaks HTTPS.
    certificate: str | None = None
    key: str | None = None


class RestServer:
    """Serves one job. One thread makes, binds, starts and stops it.

    Args:
        bind_address: Interface to bind.
        port: 0 for any free port.
        or_next: Whether to listen on one of the next ports if this port is taken.
        store_duration_ms: How long the result of an operation can be polled
            (``rest.async.store-duration``).
        security: Token, names and certificate.
        refresh_ms: How often Flink's dashboard asks (``web.refresh-interval``).
    """

    def __init__(
        self,
        *,
        bind_address: str = "127.0.0.1",
        port: int = 0,
        or_next: bool = False,
        store_duration_ms: int = 300_000,
        security: RestSecurity = RestSecurity(),
        clock: Clock | None = None,
        refresh_ms: int = 3_000,
    ) -> None:
        self._refresh_ms = refresh_ms
        self._bind_address = bind_address
        self._port = port
        self._or_next = or_next
        self._security = security
        self._clock: Clock = SystemClock() if clock is None else clock
        self._operations = AsyncOperations(self._clock, store_duration_ms)
        #: The address and its socket, once bound.
        self._taken: tuple[str, socket.socket] | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def load(self) -> None:
        """Load the libraries that ``start`` needs.

        That takes a third of a second: call it while waiting for something else.
        """
        for name in (
            "weir.rest.server.app",
            "weir.rest.server.connections",
            "weir.rest.handling.guard",
        ):
            importlib.import_module(name)

    def check(self) -> None:
        """Raise ``RestError`` for settings that ``bind`` will refuse, whatever port is free."""
        _check_certificate(self._security)
        with _listen(self._bind_address, 0) as probe:
            self._check_reach(probe)

    def bind(self) -> str:
        """Bind the port and return the server's address, such as ``http://127.0.0.1:8081``.

        Clients that connect before ``start`` wait. Raises ``RestError`` if the port is taken or
        cannot be bound, if other machines could reach it without a token, and if the certificate
        cannot be used.
        """
        return self._bound()[0]

    def start(
        self,
        gateway: JobGateway,
        file_systems: Callable[[str], FileSystem] | None = None,
        cluster: Cluster | None = None,
    ) -> str:
        """Bind if necessary, serve a driver's job in a daemon thread, and return the address.

        ``file_systems`` gives the file system of a savepoint to dispose of; None: local file
        systems. ``cluster`` are the processes of the job. Raises ``RestError``.
        """
        return self._serve(gateway, file_systems, cluster)

    def start_history(self, jobs: StoredJobs) -> str:
        """Serve jobs that may have ended, from their directory. Raises ``RestError``."""
        return self._serve(jobs, None, None)

    def _serve(
        self,
        source: JobGateway | StoredJobs,
        file_systems: Callable[[str], FileSystem] | None,
        cluster: Cluster | None,
    ) -> str:
        invariant(self._thread is None, "a REST server is started once")
        address, listening = self._bound()
        # Not at the top: see ``load``.
        import uvicorn

        from weir.rest.handling.guard import Guard
        from weir.rest.schema.cluster import PROBES
        from weir.rest.server.app import make_app
        from weir.rest.server.connections import BoundedListener, BoundedProtocol, BoundedServer
        from weir.rest.web import files as page_files

        listening = BoundedListener(listening)
        self._taken = address, listening
        app = make_app(
            source,
            operations=self._operations,
            clock=self._clock,
            version=__version__,
            file_systems=FileSystems() if file_systems is None else file_systems,
            address=address,
            cluster=cluster,
            refresh_ms=self._refresh_ms,
        )
        # Logs nothing. uvicorn installs signal handlers on the main thread only, so not here.
        config = uvicorn.Config(
            Guard(
                app,
                bound_address=listening.getsockname()[0],
                hosts=(self._bind_address.lower(), *self._security.allowed_hosts),
                open_paths=page_files.PATHS | PROBES,
                token=self._security.token,
                reading_token=self._security.reading_token,
            ),
            # The listener counts what Python accepts.
            loop="asyncio",
            http=BoundedProtocol,
            ws="none",
            interface="asgi3",
            proxy_headers=False,
            server_header=False,
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            ssl_certfile=self._security.certificate,
            ssl_keyfile=self._security.key,
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        server = BoundedServer(config)
        self._server = server
        self._thread = threading.Thread(
            target=server.run, args=([listening],), name="weir-rest", daemon=True
        )
        self._thread.start()
        tokens.publish(address, self._security.token)
        return address

    def _bound(self) -> tuple[str, socket.socket]:
        """Address and socket, bound on the first call. Raises ``RestError``."""
        if self._taken is None:
            _check_certificate(self._security)
            listening = self._listening()
            self._check_reach(listening)
            scheme = "http" if self._security.certificate is None else "https"
            self._taken = _address_of(listening, scheme), listening
            tokens.publish(self._taken[0], self._security.token, starting=True)
        return self._taken

    def _check_reach(self, listening: socket.socket) -> None:
        """Close the socket and raise ``RestError`` if others could reach it without a token."""
        host = listening.getsockname()[0]
        if self._security.token is None and not ipaddress.ip_address(host).is_loopback:
            listening.close()
            raise RestError(
                f"The REST server does not listen on {self._bind_address} without a token,"
                " since anyone who reaches it can stop the job: name a file for a token"
                " with rest.authentication.token-file, or listen on 127.0.0.1 with"
                " rest.bind-address."
            )

    def _listening(self) -> socket.socket:
        """The bound socket. Raises ``RestError``."""
        if self._or_next and self._port:
            for port in range(self._port, min(self._port + _NEXT_PORTS, 65_536)):
                with contextlib.suppress(_PortTakenError):
                    return _listen(self._bind_address, port)
        return _listen(self._bind_address, self._port)

    def stop(self) -> None:
        """Wait until clients have read what has just finished (up to 3 s), then close the port.

        Idempotent.
        """
        if self._server is not None and self._thread is not None:
            self._operations.wait_until_collected()
        if self._taken is not None:
            # Before closing the port: the next process that listens on it must not get the token.
            tokens.withdraw(self._taken[0])
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            # A request that hangs must not keep the process: the thread is a daemon.
            self._thread.join(_SHUTDOWN_S + _ENDING_S)
        if self._taken is not None:
            self._taken[1].close()
        self._server = None
        self._taken = None


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
            raise _PortTakenError(
                f"Port {port} on {bind_address} is taken: give another with --rest-port N, or 0"
                " for any free port."
            ) from error
        raise RestError(
            f"The REST server cannot listen on {bind_address}, port {port}"
            f" ({error.strerror or error}): give another port with --rest-port N, or another"
            " address with rest.bind-address."
        ) from error


def _check_certificate(security: RestSecurity) -> None:
    if security.certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(security.certificate, security.key)
    except (OSError, ValueError) as error:
        raise RestError(
            f"The REST server cannot use the certificate {security.certificate} with the key"
            f" {security.key} ({error}): set security.ssl.rest.certificate and"
            " security.ssl.rest.key to files in PEM that belong together."
        ) from error


def _address_of(listening: socket.socket, scheme: str) -> str:
    """The URL at which clients on this machine reach the socket."""
    host, port = listening.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        address = ipaddress.ip_address("::1" if address.version == 6 else "127.0.0.1")
    shown = f"[{address}]" if address.version == 6 else str(address)
    return f"{scheme}://{shown}:{port}"
