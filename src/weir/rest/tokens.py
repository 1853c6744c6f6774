"""The token of a REST server: where it comes from, and how its owner's commands find both.

A server writes its address, with its token if it has any, into a file in the user's state directory
that nobody else may read: ``$XDG_STATE_HOME/weir/rest/<machine>~<host>~<port>.json`` (by default
below ``~/.local/state``). The same user's commands on the same machine look there, so that
``weir list`` finds every driver and needs no explicit token. They use an entry only while the very
process that wrote it is alive: that process holds the port, so nobody else can listen there and
receive the token.
"""

from __future__ import annotations

import glob
import logging
import os
import secrets
import socket
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psutil

from weir.config.values import TOKEN
from weir.errors import RestError
from weir.storage.lease import process_lives

_log = logging.getLogger(__name__)

_LOOPBACK = ("127.0.0.1", "::1")


class OwnServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server of this user."""

    address: str
    #: None: it wants none.
    token: str | None
    pid: int
    #: ``psutil.Process.create_time`` of the process.
    pid_started: float
    #: The port is taken, but answers are not given yet.
    starting: bool = False


def read_token(path: str) -> str:
    """The token in a file.

    Raises ``RestError`` if the file cannot be read, holds no token, or is open to other users.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
        with os.fdopen(descriptor, encoding="ascii") as file:
            mode = os.fstat(descriptor).st_mode
            text = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RestError(
            f"The token file {path} cannot be read ({error}): check its path and rights."
        ) from error
    if mode & stat.S_IRWXO:
        raise RestError(
            f"The token file {path} is open to every user of this machine: make a new token, and"
            " run 'chmod 600' on it."
        )
    try:
        return TOKEN.parse(text)
    except ValueError as error:
        raise RestError(
            f"The token file {path} holds no token: write one line there, {TOKEN.expectation}."
        ) from error


def read_or_make_token(path: str) -> str:
    """The token in a file; a missing file is made with a new token. Raises ``RestError``."""
    if not os.path.lexists(path):
        try:
            _write_new(Path(path), f"{secrets.token_urlsafe(32)}\n".encode())
        except OSError as error:
            raise RestError(
                f"The token file {path} cannot be made ({error.strerror or error}): name another"
                " file with rest.authentication.token-file."
            ) from error
    return read_token(path)


def default_token_file() -> Path:
    """The file of the token for servers on other machines, where the user names none.

    Raises ``RestError`` without a home directory.
    """
    try:
        directory = _directory().parent
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise RestError(
            f"There is no place for a token ({error}): name a file with"
            " rest.authentication.token-file."
        ) from error
    return directory / "token"


def publish(address: str, token: str | None, *, starting: bool = False) -> None:
    """Write the entry by which this user's commands find this process's server and its token."""
    server = OwnServer(
        address=address,
        token=token,
        pid=os.getpid(),
        pid_started=psutil.Process().create_time(),
        starting=starting,
    )
    try:
        asked = urlsplit(address)
        place = _place(asked.hostname, asked.port)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = place.with_suffix(f".{server.pid}")
        written.unlink(missing_ok=True)
        _write_new(written, msgspec.json.encode(server))
        # At once: a command that looks meanwhile finds the old entry or the new one.
        written.replace(place)
    except (OSError, RuntimeError) as error:
        # Not fatal: the user who configured the token can also pass it to the commands.
        if token is not None:
            _log.warning("The commands of this user cannot find the token by themselves: %s", error)


def withdraw(address: str) -> None:
    """Remove the entry of this process's server, which is stopping."""
    with suppress(OSError, RuntimeError):
        asked = urlsplit(address)
        place = _place(asked.hostname, asked.port)
        server = _read_own(place)
        if server is not None and server.pid == os.getpid():
            place.unlink()


def find_own_server(address: str) -> OwnServer | None:
    """This user's live server at an address, or None.

    ``localhost`` also matches a loopback address, and ``http`` a server that speaks HTTPS: use the
    ``address`` of the result, which has the right scheme.
    """
    with suppress(OSError, RuntimeError, ValueError):
        asked = urlsplit(address)
        hosts = [asked.hostname, *(_LOOPBACK if asked.hostname == "localhost" else ())]
        for host in hosts:
            server = _read_own(_place(host, asked.port))
            if server is None or not process_lives(server.pid, server.pid_started):
                continue
            known = urlsplit(server.address)
            if known.hostname == host and known.scheme in (asked.scheme, "https"):
                return server
    return None


def own_servers() -> tuple[OwnServer, ...]:
    """This user's live servers on this machine, by address; entries of dead servers are removed."""
    found = []
    with suppress(OSError, RuntimeError):
        for place in sorted(_directory().glob(f"{glob.escape(socket.gethostname())}~*.json")):
            with suppress(OSError):
                server = _read_own(place)
                if server is not None and process_lives(server.pid, server.pid_started):
                    found.append(server)
                elif server is not None:
                    place.unlink()
    return tuple(sorted(found, key=lambda entry: entry.address))


def _place(host: str | None, port: int | None) -> Path:
    """The file of the entry for an address on this machine: others may share the directory.

    Raises ``RuntimeError`` without a home directory.
    """
    return _directory() / f"{socket.gethostname()}~{host}~{port}.json"


def _directory() -> Path:
    """Where the entries are. Raises ``RuntimeError`` without a home directory."""
    configured = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification says to ignore relative paths.
    state = Path(configured) if configured.startswith("/") else Path.home() / ".local" / "state"
    return state / "weir" / "rest"


def _read_own(place: Path) -> OwnServer | None:
    """The entry in a file, if this user owns the file and nobody else may read it."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            return None
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            return msgspec.json.decode(file.read(), type=OwnServer)
    return None


def _write_new(path: Path, data: bytes) -> None:
    """Make, atomically, a file that only its owner may read; an existing file is left as it is."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
