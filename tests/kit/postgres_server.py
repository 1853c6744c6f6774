"""A PostgreSQL server of the tests' own, which they also kill and start again.

It is Debian's package (``make setup`` as root installs it). The server does not run as root, so it
then runs as the user ``postgres``, in a directory of its own, on a Unix socket there and on a free
port of loopback. It does not sync its files: killing a process loses nothing that the system has.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from weir.errors import StorageError, UnsupportedEnvironmentError

_PATIENCE_S = 60.0
_POLL_S = 0.02
#: Of the server's role, over loopback.
PASSWORD = "open-sesame-4711"
#: Beside PostgreSQL's own defaults.
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "40",
    "deadlock_timeout": "100ms",
    "log_min_messages": "warning",
}


def binaries() -> Path:
    """Where the server's programs are. Raises ``UnsupportedEnvironmentError`` without them."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if found:
        return found[-1].parent
    config = shutil.which("pg_config")
    if config is not None:
        shown = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=True)
        if Path(shown.stdout.strip(), "postgres").exists():
            return Path(shown.stdout.strip())
    raise UnsupportedEnvironmentError(
        "The PostgreSQL server is missing: run 'make setup' as root, or install it (on Debian and"
        " Ubuntu: apt-get install postgresql)."
    )


class PostgresServer:
    """One server with an empty database ``postgres``, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._data = directory / "data"
        self._user = "postgres" if os.getuid() == 0 else None
        self.role = self._user or pwd.getpwuid(os.getuid()).pw_name
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        secret = directory / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        if self._user is not None:
            shutil.chown(directory, self._user)
        self._run(
            "initdb",
            "--no-sync",
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
            f"--username={self.role}",
            f"--pwfile={secret}",
            "--encoding=UTF8",
            "--locale=C",
            f"--pgdata={self._data}",
        )

    @property
    def dsn(self) -> str:
        """Through the socket, which asks for no password."""
        return f"host={self._directory} port={self.port} dbname=postgres user={self.role}"

    @property
    def loopback_dsn(self) -> str:
        """Through loopback, which asks for ``PASSWORD``."""
        return f"host=127.0.0.1 port={self.port} dbname=postgres user={self.role}"

    def start(self) -> None:
        """Start the server; wait until it answers."""
        command = [str(binaries() / "postgres"), "-D", str(self._data), "-p", str(self.port)]
        command += ["-k", str(self._directory), "-h", "127.0.0.1"]
        for name, value in _SETTINGS.items():
            command += ["-c", f"{name}={value}"]
        deadline = time.monotonic() + _PATIENCE_S
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd="/", start_new_session=True, **self._as_user()
            )
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                log_text = (self._directory / "log").read_text(errors="replace")
                raise StorageError(f"The PostgreSQL server does not start: {log_text}")
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """Kill the server and all its processes, as a crash would."""
        process = self._process
        if process is None:
            return
        server = psutil.Process(process.pid)
        # It must not start further processes, or notice that one dies.
        server.suspend()
        processes = [server, *server.children()]
        for one in processes:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        process.wait()
        while any(map(_is_alive, processes)):
            time.sleep(_POLL_S)
        self._process = None

    def restart(self) -> None:
        """Kill the server and start it again."""
        self.kill()
        self.start()

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The rows of a query, or none of a statement without."""
        import psycopg

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query, parameters or None)
            return cursor.fetchall() if cursor.description is not None else []

    def create_database(self, name: str) -> str:
        """Create a database; return its connection string."""
        self.rows(f"CREATE DATABASE {name}")
        return self.dsn.replace("dbname=postgres", f"dbname={name}")

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.dsn).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(binaries() / program), *arguments],
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
            **self._as_user(),
        )
        if done.returncode != 0:
            raise StorageError(f"PostgreSQL's {program} fails: {done.stderr}")

    def _as_user(self) -> dict[str, Any]:
        return {} if self._user is None else {"user": self._user, "group": self._user}


def _is_alive(process: psutil.Process) -> bool:
    """Whether a process still holds the server's memory; a zombie does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """A running server; its processes and files are gone afterwards."""
    # A directory that the server's user may enter.
    directory = Path(tempfile.mkdtemp(prefix="weir-postgres-"))
    try:
        server = PostgresServer(directory)
        server.start()
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(directory)
