"""The token of a REST server: where it comes from, and how its owner's commands find it.

A server with a token writes it, with its address, into a file of the user's state directory that
nobody else may read: ``$XDG_STATE_HOME/weir/rest/<host>-<port>.json`` (``~/.local/state``). The
commands of the same user on the same machine look there, so that ``weir list`` needs no token by
hand. They use an entry only while the very process that wrote it lives: it holds the port, so
nobody else listens there to be given the token.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec
import psutil

from weir.config.values import TOKEN
from weir.errors import RestError
from weir.storage.lease import process_lives

_log = logging.getLogger(__name__)

_LOOPBACK = ("127.0.0.1", "::1")


class OwnServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server of this user with a token."""

    address: str
    token: str
    pid: int
    #: As ``psutil.Process.create_time`` has it.
    pid_started: float


def read_token(path: str) -> str:
    """The token in a file. Raises ``RestError`` if it cannot be read, holds none, or can be read by
    everybody."""
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
    """The token in a file, which is made with a new one if there is none. Raises ``RestError``."""
    if not os.path.lexists(path):
        try:
            _write_new(Path(path), f"{secrets.token_urlsafe(32)}\n".encode())
        except OSError as error:
            raise RestError(
                f"The token file {path} cannot be made ({error.strerror or error}): name another"
                " one with rest.authentication.token-file."
            ) from error
    return read_token(path)


def publish(address: str, token: str) -> None:
    """Let the commands of this user find the token of this process's server."""
    server = OwnServer(
        address=address, token=token, pid=os.getpid(), pid_started=psutil.Process().create_time()
    )
    try:
        place = _place(urlsplit(address))
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        _write_new(place, msgspec.json.encode(server))
    except (OSError, RuntimeError) as error:
        # Whoever configured the token can also hand it to the commands.
        _log.warning("The commands of this user cannot find the token by themselves: %s", error)


def withdraw(address: str) -> None:
    """The server of this process ends."""
    with suppress(OSError, RuntimeError):
        place = _place(urlsplit(address))
        server = _read_own(place)
        if server is not None and server.pid == os.getpid():
            place.unlink()


def find_own_server(address: str) -> OwnServer | None:
    """The living server of this user at an address. Its own address has its scheme, and
    ``localhost`` may stand for it."""
    with suppress(OSError, RuntimeError, ValueError):
        asked = urlsplit(address)
        server = _read_own(_place(asked))
        if server is None or not process_lives(server.pid, server.pid_started):
            return None
        known = urlsplit(server.address)
        same_host = asked.hostname == known.hostname or (
            asked.hostname == "localhost" and known.hostname in _LOOPBACK
        )
        if same_host and known.scheme in (asked.scheme, "https"):
            return server
    return None


def _place(address: SplitResult) -> Path:
    """Raises ``RuntimeError`` without a home directory, and ``ValueError`` for a port that is
    none."""
    configured = os.environ.get("XDG_STATE_HOME", "")
    # The specification has relative paths ignored.
    state = Path(configured) if configured.startswith("/") else Path.home() / ".local" / "state"
    return state / "weir" / "rest" / f"{socket.gethostname()}-{address.port}.json"


def _read_own(place: Path) -> OwnServer | None:
    """What is at the place, if it is this user's and nobody else may read it."""
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
    """Make a file that only its owner may read, whole or not at all; one that is there is left as
    it is."""
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
