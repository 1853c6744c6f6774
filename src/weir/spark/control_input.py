"""The control input: the tiny source that Weir adds to every query, so that the driver sits between two batches.

A streaming query is a loop: ask each source for its latest offset, run a batch, commit it, again. This source forwards
``latestOffset`` to the planning server in the driver (``weir/spark/planning_server.py``) and returns when the driver
answers. While it waits, no batch runs and the query's directory does not change: there checkpoints are taken. It stands
first in the query's first union, so that it is asked before the others.

In a query that reads sources it yields no rows, and carries the column metadata of the first source, since ``Union``
keeps its first child's (PROTOCOL P26). In a query that reads channels (``weir/spark/channel_input.py``) its rows are
(channel, watermark), and they alone move the query's watermark (P25):

1. The driver's answer to a planning call says how far each channel's producer is. What is higher than before goes into
   the offset, so a batch that Spark replays says the same again.
2. The batch gets a row for each channel that rose. It holds from the next batch on, as in one query with both parts.
3. The first batch of a run gets a row for every channel: a restarted query knows its own watermark, but counts each
   branch as 0 until it is told again. If nothing else asks for that batch, the offset moves for its sake: Spark fires
   what was due at the stop only once a batch has run.

The reader lives in a small Python process of its own on the driver's machine. It reaches the driver by a Unix socket
in a directory that only this user may enter; the key that authenticates it is a file in that directory. Messages are
JSON, never pickles. This module is imported there, so it imports nothing heavy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

#: The name of the source; each vertex has its own, which begins with it.
CONTROL_INPUT = "weir-control-input"

#: The schema of the control input in a query that reads channels.
CHANNEL_SCHEMA = "channel int, watermark timestamp"

#: Files in the planning server's directory.
SOCKET_NAME = "socket"
KEY_NAME = "key"


class ControlInputReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Asks the driver before every batch, and passes on the watermarks of the query's channels.

    Without channels its offset moves only where the driver forces a batch, so that it does not keep a query from ending with
    ``availableNow``.
    """

    def __init__(self, *, directory: str, vertex: str, attempt: int) -> None:
        self._directory = Path(directory)
        self._vertex = vertex
        self._attempt = attempt
        self._connection: Connection | None = None
        #: Start and end of the run's first batch that this source takes part in.
        self._first: tuple[dict[str, Any], dict[str, Any]] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """No channel has a watermark."""
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
        answer = json.loads(self._connection.recv_bytes())
        known = _watermarks(start)
        risen = _risen(known, _watermarks(answer))
        untold = known and self._first is None
        if not risen and not untold and not answer.get("force"):
            return start
        moved = {"control": start["control"] + 1}
        return moved | ({"watermarks": known | risen} if known | risen else {})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One partition with the rows of the batch; none if there are none, so that it adds no task.

        Spark asks once for each branch that reads the source: the same batch, the same rows.
        """
        if self._first is None:
            self._first = (start, end)
        known = {} if self._first == (start, end) else _watermarks(start)
        rows = _risen(known, _watermarks(end))
        return [InputPartition(sorted((int(channel), ms) for channel, ms in rows.items()))] if rows else []

    def read(self, partition: InputPartition) -> Iterator[tuple[int, datetime]]:
        """The rows of a batch. With their zone, so that the worker's own does not shift them."""
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        return ((channel, epoch + timedelta(milliseconds=ms)) for channel, ms in partition.value)


def _watermarks(offset: Mapping[str, Any]) -> dict[str, int]:
    return dict(offset.get("watermarks", {}))


def _risen(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """The watermarks of ``after`` that are new or higher."""
    return {channel: ms for channel, ms in after.items() if channel not in before or ms > before[channel]}


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
