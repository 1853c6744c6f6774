"""The frame of one batch: what the sinks call of Spark's DataFrame, run by simulated executors.

A frame has one column ``id`` of whole numbers. Its Spark tasks run in a process of their own, which
may outlive the driver; a task may be tried twice, after a failure or not, and only the last try
counts.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from weir.errors import WeirError
from weir.sim.engine.disk import ProcessFileSystem
from weir.sim.engine.loop import Process
from weir.sim.stores.faults import Network, calling_process

#: How many rows a Spark task has at most.
_TASK_ROWS = 2
#: The share of Spark tasks that are tried twice.
_RETRIED = 0.2
_SCHEMA = {
    "type": "struct",
    "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}],
}


class _Schema:
    """Stands in for ``StructType``."""

    @staticmethod
    def json() -> str:
        """The schema as Spark's JSON."""
        return json.dumps(_SCHEMA)

    @staticmethod
    def fromJson(_: object) -> _Schema:  # noqa: N802 - pyspark's name
        """The same schema, whatever ids are given to its field."""
        return _Schema()


class _Session:
    """Stands in for ``SparkSession`` with its settings."""

    def __init__(self) -> None:
        self.conf = SimpleNamespace(get=lambda _: "", set=lambda *_: None)


class SimFrame:
    """The rows of one batch."""

    schema = _Schema()
    sparkSession = _Session()  # noqa: N815 - pyspark's name

    def __init__(
        self, rows: Sequence[int], network: Network, executors: Process, files: ProcessFileSystem
    ) -> None:
        """``files``: the file system as executors see it."""
        self._rows = rows
        self._network = network
        self._executors = executors
        self._files = files
        self._format = ""

    # -- what does not change the rows

    def selectExpr(self, *_: str) -> SimFrame:  # noqa: N802 - pyspark's name
        """The frame itself."""
        return self

    def select(self, *_: object) -> SimFrame:
        """The frame itself."""
        return self

    def to(self, _: object) -> SimFrame:
        """The frame itself."""
        return self

    def __getitem__(self, name: str) -> Any:
        return SimpleNamespace(alias=lambda *_, **__: name)

    # -- what runs a Spark job

    def mapInArrow(  # noqa: N802 - pyspark's name
        self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str
    ) -> Any:
        """What a function makes of each task's rows; ``collect`` runs it."""

        def task(number: int, rows: Sequence[int]) -> list[Any]:
            batch = pa.RecordBatch.from_pydict({"id": pa.array(rows, pa.int64())})
            return [
                SimpleNamespace(**row) for one in function(iter([batch])) for row in one.to_pylist()
            ]

        return SimpleNamespace(collect=lambda: self._job(task))

    @property
    def write(self) -> SimFrame:
        """The writer of the frame's files."""
        return self

    def format(self, name: str) -> SimFrame:
        """Write Parquet or JSON."""
        self._format = name
        return self

    def mode(self, _: str) -> SimFrame:
        """The writer itself."""
        return self

    def options(self, **_: str) -> SimFrame:
        """The writer itself."""
        return self

    def save(self, path: str) -> None:
        """Write a file for each task, not synced."""
        directory = path.removeprefix("file://")

        def task(number: int, rows: Sequence[int]) -> list[Any]:
            extension = "snappy.parquet" if self._format == "parquet" else "json"
            content = _parquet if self._format == "parquet" else _lines
            name = f"part-{number:05d}-0-c000.{extension}"
            self._files.put(f"{directory}/{name}", content(tuple(rows)))
            return []

        self._job(task)

    def _job(self, task: Callable[[int, Sequence[int]], list[Any]]) -> list[Any]:
        """Run a task for each part of the rows, one after the other; return their results."""
        results: list[Any] = []
        failures: list[Exception] = []

        def run() -> None:
            for number in range(0, len(self._rows), _TASK_ROWS):
                rows = self._rows[number : number + _TASK_ROWS]
                again = not self._network.over and self._network.random.random() < _RETRIED
                try:
                    if again:
                        with suppress(WeirError):
                            task(number, rows)
                    results.extend(task(number, rows))
                except Exception as error:
                    failures.append(error)
                    return

        work = self._network.loop.spawn(self._executors, run)
        while not work.done():
            self._network.loop.sleep(calling_process(), 2_000)
        if failures:
            raise failures[0]
        return results


@cache
def rows_of(data: bytes) -> list[int]:
    """The rows of a file that a frame has written."""
    if data.startswith(b"PAR1"):
        return [int(row) for row in pq.read_table(pa.BufferReader(data)).column("id").to_pylist()]
    return [int(json.loads(line)["id"]) for line in data.splitlines()]


@cache
def _parquet(rows: tuple[int, ...]) -> bytes:
    field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    text = io.BytesIO()
    pq.write_table(pa.table([pa.array(rows, pa.int64())], schema=pa.schema([field])), text)
    return text.getvalue()


def _lines(rows: tuple[int, ...]) -> bytes:
    return "".join(f'{{"id": {row}}}\n' for row in rows).encode()
