"""Lands the lines of a socket in files of the job, which are then read like any others.

A socket has no positions: what was received and not yet committed would be lost with the process.
So a thread of the driver receives the lines and writes them to files of a directory of the job's
own, synced before they get their names; Spark reads the files as a stream. From there on every line
is processed exactly once. Lines that the peer has sent and that are not in a file yet are lost with
the process, as in Spark.

The socket is connected when the source is first read, and again in each attempt whose connection
has ended.

The files stay: they are the job's input, which a start from an older checkpoint, from a savepoint
or from nothing reads again, and nobody knows which savepoints are kept. Whoever deletes old ones
must not meet their names again, since Spark ignores a name that it has read: so no two files ever
have the same, whatever was deleted, and whichever driver still receives.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from weir.errors import InputError, PipelineError
from weir.storage.paths import as_spark_path, is_local, normalize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)

#: Lines that arrive within this time become one file.
_GATHERED_S = 0.2
_CONNECT_S = 10.0
_BLOCK_BYTES = 65_536
_SUFFIX = ".json"


class LandedSocket:
    """A source function for ``Job.source``: the lines that a socket sends.

    ``directory`` is local, and of this source alone. With ``include_timestamp`` each line has the
    time at which it was received.
    """

    #: By directory: each is written by one thread of the process, over all attempts.
    _receivers: ClassVar[dict[str, Receiver]] = {}

    def __init__(self, host: str, port: int, *, include_timestamp: bool, directory: str) -> None:
        self._directory = normalize(directory)
        if not is_local(self._directory):
            raise PipelineError(
                f"The lines of socket {host}:{port} cannot be landed in {directory}: keep the"
                " checkpoints of a job that reads a socket in a local directory."
            )
        self._address = (host, port)
        self._columns = "value string" + (", timestamp timestamp" if include_timestamp else "")

    def __call__(self, spark: SparkSession) -> DataFrame:
        """The lines as a stream. Raises ``InputError`` if the socket cannot be connected."""
        receiver = self._receivers.get(self._directory)
        if receiver is None or not receiver.is_alive:
            self._receivers[self._directory] = Receiver(self._address, Path(self._directory))
        reader = spark.readStream.schema(self._columns).option("mode", "FAILFAST")
        return reader.json(as_spark_path(self._directory))


def landed(host: str, port: int, include_timestamp: bool, directory: str) -> LandedSocket:
    """The source that takes the place of ``format("socket")``."""
    return LandedSocket(host, port, include_timestamp=include_timestamp, directory=directory)


class Receiver:
    """Receives lines and writes them to files, on a thread of its own."""

    def __init__(self, address: tuple[str, int], directory: Path) -> None:
        """Connects. Raises ``InputError``."""
        self._shown = f"{address[0]}:{address[1]}"
        try:
            self._socket = socket.create_connection(address, timeout=_CONNECT_S)
        except OSError as error:
            raise InputError(
                f"The socket {self._shown} cannot be connected ({error.strerror or error}): start"
                " the program that sends lines, such as 'nc -lk PORT'."
            ) from error
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._thread = threading.Thread(target=self._run, name="weir-socket", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether lines are still received."""
        return self._thread.is_alive()

    def _run(self) -> None:
        received = 0
        why = "the other side closed it"
        try:
            with self._socket:
                for lines in self._gathered():
                    self._land(lines)
                    received += len(lines)
        except OSError as error:
            why = str(error)
        _log.warning(
            "The connection to socket %s has ended after %d lines (%s): there will be no more rows"
            " until the job is started again.",
            self._shown,
            received,
            why,
        )

    def _gathered(self) -> Iterator[list[bytes]]:
        """Whole lines that came shortly after one another, until the connection ends.

        A last line without an end is one, too.
        """
        self._socket.settimeout(_GATHERED_S)
        lines: list[bytes] = []
        rest, block, since = b"", None, time.monotonic()
        while block != b"":
            try:
                block = self._socket.recv(_BLOCK_BYTES)
            except TimeoutError:
                block = None
            if block:
                *whole, rest = (rest + block).split(b"\n")
                lines += whole
            elif block == b"" and rest:
                lines.append(rest)
            waited_s = time.monotonic() - since
            if lines and (not block or waited_s > _GATHERED_S):
                yield lines
                lines = []
            if not lines:
                since = time.monotonic()

    def _land(self, lines: list[bytes]) -> None:
        """Write lines to the next file, durably, before it gets its name."""
        now = datetime.now(UTC)
        received = now.isoformat(timespec="milliseconds")
        rows = (
            {"value": line.removesuffix(b"\r").decode(errors="replace"), "timestamp": received}
            for line in lines
        )
        name = f"{now:%Y%m%dT%H%M%S.%f}-{uuid.uuid4().hex}{_SUFFIX}"
        hidden = self._directory / f".{name}"
        with hidden.open("w", encoding="ascii") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())
        hidden.rename(self._directory / name)
        handle = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
