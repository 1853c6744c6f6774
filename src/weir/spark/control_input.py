"""The control input: the tiny source that Weir adds to every query, so that the driver sits between two batches.

A streaming query is a loop: ask each source for its latest offset, run a batch, commit it, again. This source yields
no rows. It forwards ``latestOffset`` to the planning server in the driver (``weir/spark/planning_server.py``) and
returns when the driver answers. While it waits, no batch runs and the query's directory does not change: there
checkpoints are taken. It stands first in the union with a query's first source, and carries the column metadata of that
source, since ``Union`` keeps its first child's (PROTOCOL P26).

The reader lives in a small Python process of its own on the driver's machine. It reaches the driver by a Unix socket
in a directory that only this user may enter; the key that authenticates it is a file in that directory. Messages are
JSON, never pickles. This module is imported there, so it imports nothing heavy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

#: The name of the source; each vertex has its own, which begins with it.
CONTROL_INPUT = "weir-control-input"

#: Files in the planning server's directory.
SOCKET_NAME = "socket"
KEY_NAME = "key"


class ControlInputReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Asks the driver before every batch and adds no rows to any.

    Its offset never moves, so that it neither keeps a query from ending with ``availableNow`` nor forces a batch.
    """

    def __init__(self, *, directory: str, vertex: str, attempt: int) -> None:
        self._directory = Path(directory)
        self._vertex = vertex
        self._attempt = attempt
        self._connection: Connection | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """The constant offset."""
        return {"control": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Nothing to prepare: there is no data to bound."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Wait until the driver lets the next batch begin. Raises ``EOFError`` if the driver has gone."""
        if self._connection is None:
            self._connection = Client(
                str(self._directory / SOCKET_NAME),
                family="AF_UNIX",
                authkey=(self._directory / KEY_NAME).read_bytes(),
            )
            hello = {"vertex": self._vertex, "attempt": self._attempt}
            self._connection.send_bytes(json.dumps(hello).encode())
        self._connection.send_bytes(b"plan")
        self._connection.recv_bytes()
        return start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """No partitions: the source adds no task to a batch."""
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Never called, since there are no partitions."""
        return iter(())


class NoRows(DataSourceReader):
    """The source as a batch: reading it starts Spark's Python daemons, and yields nothing."""

    def partitions(self) -> Sequence[InputPartition]:
        """No partitions."""
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Never called, since there are no partitions."""
        return iter(())


class ControlInput(DataSource):
    """The registered data source. Options: ``directory``, ``vertex``, ``attempt``."""

    @classmethod
    def name(cls) -> str:
        """The name for ``spark.readStream.format``."""
        return CONTROL_INPUT

    @classmethod
    def of_vertex(cls, vertex: str) -> type[ControlInput]:
        """The source to register for the query of one vertex.

        All queries on one registered source share the map of its environment, and each writes to it as it starts.
        Spark does not guard that map: two that start at once can break it, and then no task of theirs can be read.
        """
        name = f"{CONTROL_INPUT}-{vertex.encode().hex()}"
        return type(cls.__name__, (cls,), {"name": classmethod(lambda _: name)})

    def reader(self, schema: StructType) -> DataSourceReader:
        """The source as a batch, for ``weir/spark/session.py``."""
        return NoRows()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """The reader; Spark runs it in a process of its own."""
        return ControlInputReader(
            directory=self.options["directory"],
            vertex=self.options["vertex"],
            attempt=int(self.options["attempt"]),
        )
