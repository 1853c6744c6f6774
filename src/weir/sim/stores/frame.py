"""``Frame``: what a sink's ``stage`` gets in the simulator in place of a DataFrame.

It has the rows of one batch, and the part of a DataFrame's methods that sinks use. What Spark runs
as a job runs in simulated executors: their tasks are in a process of their own, which may outlive
the driver; a task may be tried twice, after a failure or not, and only the last try counts.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from weir.errors import PipelineError, WeirError
from weir.sim.engine.disk import Disk, ProcessFileSystem
from weir.sim.stores.faults import Network, calling_process
from weir.sinks.staging import NULL_PARTITION

#: How many rows a Spark task has at most.
_TASK_ROWS = 2
#: The share of Spark tasks that are tried twice.
_RETRIED = 0.2
#: Spark's types that have no parameters, and no time zone, as Arrow's.
SIMPLE_TYPES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
}
_SPARK_NAMES = {kind: name for name, kind in SIMPLE_TYPES.items()}


class Row(dict[str, Any]):
    """A row: by name, by attribute and by position, as Spark's."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, name: str | int) -> Any:
        return list(self.values())[name] if isinstance(name, int) else super().__getitem__(name)

    def asDict(self, recursive: bool = False) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """The row as a dict."""
        del recursive
        return dict(self)


class _Schema:
    """The part of a ``StructType`` that sinks use."""

    def __init__(self, schema: pa.Schema) -> None:
        self.names = list(schema.names)
        self.fieldNames = lambda: list(schema.names)
        self._arrow = schema

    def __len__(self) -> int:
        return len(self.names)

    def json(self) -> str:
        """The schema as Spark's JSON."""
        return _spark_json(self._arrow)

    @staticmethod
    def fromJson(schema: Any) -> Any:  # noqa: N802 (Spark's name)
        """The schema as it is: what ``Frame.to`` gets."""
        return schema


@cache
def _spark_json(schema: pa.Schema) -> str:
    fields = [
        {"name": one.name, "type": _spark_type(one.type), "nullable": True, "metadata": {}}
        for one in schema
    ]
    return json.dumps({"type": "struct", "fields": fields})


def _spark_type(kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _spark_type(kind.value_type), "containsNull": True}
    if pa.types.is_struct(kind):
        return json.loads(_spark_json(pa.schema(list(kind))))
    if kind not in _SPARK_NAMES:
        raise PipelineError(f"The simulator cannot write {kind} to a simulated store.")
    return _SPARK_NAMES[kind]


@dataclass(frozen=True)
class Executors:
    """Where the Spark tasks of one driver run."""

    network: Network
    #: The file system as they see it, with their process.
    files: ProcessFileSystem

    def run(
        self, task: Callable[[int, pa.Table], list[Any]], rows: pa.Table, *, writes: bool = False
    ) -> list[Any]:
        """Run a task for each part of the rows, one after the other; return their results.

        A job that writes files has a task even without rows.
        """
        results: list[Any] = []
        failures: list[Exception] = []
        network = self.network

        def job() -> None:
            for number in range(0, max(len(rows), int(writes)), _TASK_ROWS):
                part = rows.slice(number, _TASK_ROWS)
                again = not network.over and network.random.random() < _RETRIED
                try:
                    if again:
                        with suppress(WeirError):
                            task(number, part)
                    results.extend(task(number, part))
                except Exception as error:
                    failures.append(error)
                    return

        work = network.loop.spawn(self.files.process, job)
        while not work.done():
            network.loop.sleep(calling_process(), 2_000)
        if failures:
            raise failures[0]
        return results


class Frame:
    """The rows of one batch."""

    sparkSession = SimpleNamespace(  # noqa: N815 (Spark's name)
        conf=SimpleNamespace(get=lambda _: "", set=lambda *_: None)
    )

    def __init__(self, table: pa.Table, executors: Executors | None = None) -> None:
        """``executors``: None where only Python code reads the rows."""
        self._table = table
        self._executors = executors
        self.schema = _Schema(table.schema)
        self.columns = list(table.schema.names)
        self.isStreaming = False
        self._format = ""
        self._partition_by: tuple[str, ...] = ()

    def rows(self) -> list[Row]:
        """The rows."""
        return [Row(one) for one in self._table.to_pylist()]

    collect = rows

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[Row]:  # noqa: N802, N803
        """The rows, one by one."""
        del prefetchPartitions
        return iter(self.rows())

    def toArrow(self) -> pa.Table:  # noqa: N802
        """The rows as an Arrow table."""
        return self._table

    def toPandas(self) -> Any:  # noqa: N802
        """The rows as a pandas DataFrame."""
        return self._table.to_pandas()

    def count(self) -> int:
        """How many rows there are."""
        return len(self._table)

    def isEmpty(self) -> bool:  # noqa: N802
        """Whether there are none."""
        return not len(self._table)

    def foreach(self, function: Callable[[Row], Any]) -> None:
        """Call a function with each row."""
        for row in self.rows():
            function(row)

    def foreachPartition(self, function: Callable[[Iterable[Row]], Any]) -> None:  # noqa: N802
        """Call a function with the rows of each partition; there is one."""
        function(iter(self.rows()))

    def select(self, *columns: Any) -> Frame:
        """Some columns, by name, or as ``__getitem__`` gives them."""
        listed = [one for each in columns for one in (each if isinstance(each, list) else [each])]
        fields = [_Column(one) if isinstance(one, str) else one for one in listed]
        arrays = [self._table.column(one.name) for one in fields]
        schema = pa.schema([one.described(self._table.schema) for one in fields])
        return Frame(pa.table(arrays, schema=schema), self._executors)

    def drop(self, *columns: str) -> Frame:
        """The other columns."""
        return self.select([one for one in self.columns if one not in columns])

    def same(self, *_: Any, **__: Any) -> Frame:
        """This frame: how it is cached and spread makes no difference."""
        return self

    cache = persist = unpersist = repartition = coalesce = same
    #: Weir's sinks select the columns that are there, by name.
    selectExpr = to = same  # noqa: N815

    def __getitem__(self, name: str) -> _Column:
        return _Column(name.strip("`"))

    # -- what runs a Spark job

    def mapInArrow(  # noqa: N802
        self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str
    ) -> Any:
        """What a function makes of each task's rows; ``collect`` runs it."""

        def task(number: int, rows: pa.Table) -> list[Any]:
            made = function(iter(rows.to_batches()))
            return [Row(one) for batch in made for one in batch.to_pylist()]

        return SimpleNamespace(collect=lambda: self._job(task))

    @property
    def write(self) -> Frame:
        """The writer of the frame's files."""
        return self

    def format(self, name: str) -> Frame:
        """Write Parquet or JSON."""
        if name not in ("parquet", "json"):
            raise PipelineError(f"The simulator writes Parquet and JSON, not {name}.")
        self._format = name
        return self

    mode = options = same

    def partitionBy(self, *columns: str) -> Frame:  # noqa: N802
        """Write a directory for each value of these columns."""
        self._partition_by = columns
        return self

    def save(self, path: str) -> None:
        """Write a file for each task, not synced; a JSON file only if it has rows."""
        directory = path.removeprefix("file://")

        def task(number: int, rows: pa.Table) -> list[Any]:
            if not len(rows) and self._format == "json":
                return []
            extension = "snappy.parquet" if self._format == "parquet" else "json"
            content = _parquet if self._format == "parquet" else _lines
            name = f"part-{number:05d}-0-c000.{extension}"
            assert self._executors is not None
            for below, part in self._partitions(rows):
                self._executors.files.put(f"{directory}/{below}{name}", content(part))
            return []

        self._job(task, writes=True)

    def _partitions(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """The directory of each row's values, and the rows there without these."""
        if not self._partition_by:
            yield "", rows
            return
        found: dict[str, list[int]] = {}
        for number, row in enumerate(rows.select(list(self._partition_by)).to_pylist()):
            values = {
                column: NULL_PARTITION if value is None else quote(str(value), safe=" :+")
                for column, value in row.items()
            }
            below = "".join(f"{column}={value}/" for column, value in values.items())
            found.setdefault(below, []).append(number)
        left = rows.drop_columns(list(self._partition_by))
        for below, numbers in found.items():
            yield below, left.take(numbers)

    def _job(
        self, task: Callable[[int, pa.Table], list[Any]], *, writes: bool = False
    ) -> list[Any]:
        if self._executors is None:
            raise PipelineError("The simulator gives these rows to Python code only.")
        return self._executors.run(task, self._table, writes=writes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise PipelineError(
            f"The simulator gives sinks rows without Spark, so frame.{name} is not there: read the"
            " rows with collect, toArrow, toPandas, toLocalIterator or foreachPartition."
        )


@dataclass(frozen=True)
class _Column:
    """A column of a frame, perhaps with an id that its field gets in Parquet files."""

    name: str
    field_id: int | None = None

    def alias(self, _: str, metadata: Any) -> _Column:
        """The column with metadata."""
        return _Column(self.name, metadata.get("parquet.field.id"))

    def described(self, schema: pa.Schema) -> pa.Field:
        """The column's field."""
        field = schema.field(self.name)
        if self.field_id is None:
            return field
        return field.with_metadata({"PARQUET:field_id": str(self.field_id)})


class SimSession:
    """The part of a ``SparkSession`` that reads Parquet files."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.read = self

    def options(self, **_: Any) -> SimSession:
        """The reader itself."""
        return self

    def parquet(self, *paths: str) -> Frame:
        """The rows of files on the simulated disk."""
        data = [self._disk.files[path.removeprefix("file://")] for path in paths]
        return Frame(pa.concat_tables([pq.read_table(pa.BufferReader(one)) for one in data]))


def numbers(rows: Sequence[int]) -> pa.Table:
    """A table with one column, ``id``."""
    return pa.table({"id": pa.array(rows, pa.int64())})


@cache
def rows_of(data: bytes) -> list[dict[str, Any]]:
    """The rows of a file that a frame has written."""
    if data.startswith(b"PAR1"):
        rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(data)).to_pylist()
        return rows
    return [json.loads(line) for line in data.splitlines()]


def _parquet(rows: pa.Table) -> bytes:
    written = io.BytesIO()
    pq.write_table(rows, written, compression="none", use_dictionary=False)
    return written.getvalue()


def lines(rows: pa.Table) -> list[bytes]:
    """Each row as JSON."""
    return [json.dumps(row, default=str).encode() for row in rows.to_pylist()]


def _lines(rows: pa.Table) -> bytes:
    return b"".join(line + b"\n" for line in lines(rows))
