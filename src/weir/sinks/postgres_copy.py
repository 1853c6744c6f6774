"""Stages rows in PostgreSQL, on Spark's Python workers: Arrow batches become one ``COPY``.

Arrow turns whole columns into text and quotes them as CSV, in C++. Binary ``COPY`` would save the
server some parsing, but its values would have to be packed one by one in Python.

A Spark task that runs twice (a retry, speculation, an executor that died after its ``COPY`` was
committed) stages its rows twice. So each run has a *writer* id of its own, with which it marks its
rows, and which only the run that counts reports to the driver. The others' rows are never read.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.errors import SinkMismatchError
from weir.sinks.postgres_session import connected, quoted
from weir.sinks.postgres_types import StagedColumn

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

#: The schema of what a writer reports, for Spark.
REPORT = "writer long, rows long"
#: Names of a staged row's own columns: which run of a task wrote it, and its number there.
WRITER, ROW = "weir_writer", "weir_row"
#: The days since 1970 with the years 1 to 9999 (the end excluded), and the Julian day of 1970.
_DAYS = (-719_162, 2_932_897)
_JULIAN_EPOCH = 2_440_588
_DAY_US = 86_400_000_000


def create_staging_table(
    connection: psycopg.Connection, table: str, columns: Sequence[StagedColumn], comment: str
) -> None:
    """Create a table for staged rows, unless it exists. ``table`` is quoted for SQL."""
    from psycopg.sql import SQL, Literal

    parts = [f"{quoted(column.name)} {column.type}" for column in columns]
    parts += [f"{WRITER} bigint NOT NULL", f"{ROW} bigint NOT NULL"]
    # Not unlogged: the rows must survive a crash of the server.
    connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(parts)})")
    connection.execute(SQL("COMMENT ON TABLE {} IS {}").format(SQL(table), Literal(comment)))


@dataclass(frozen=True, kw_only=True)
class CopyRows:
    """For ``mapInArrow``: copies a partition's rows into a staging table, in one transaction.

    Emits a row with the writer's id and how many rows it staged; nothing for an empty partition,
    which needs no connection. The rows are durable when it has ended.
    """

    #: Connection parameters, without a password.
    parameters: Mapping[str, str]
    #: Quoted for SQL.
    table: str
    columns: tuple[StagedColumn, ...]
    #: The sink, for messages.
    place: str
    #: The name of the connection, by which it is ended if the attempt is dead.
    session: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        writer = secrets.randbits(62)
        rows = self._copy(writer, first, filled)
        yield pa.RecordBatch.from_pydict(
            {"writer": pa.array([writer], pa.int64()), "rows": pa.array([rows], pa.int64())}
        )

    def _copy(self, writer: int, first: pa.RecordBatch, more: Iterator[pa.RecordBatch]) -> int:
        import psycopg

        names = ", ".join(quoted(name) for name in (*self._names, WRITER, ROW))
        rows = 0
        with (
            connected(self.parameters, self.place, name=self.session) as connection,
            connection.cursor() as cursor,
        ):
            try:
                with cursor.copy(f"COPY {self.table} ({names}) FROM STDIN (FORMAT csv)") as copy:
                    batch: pa.RecordBatch | None = first
                    while batch is not None:
                        copy.write(self._csv(batch, writer, rows))
                        rows += batch.num_rows
                        batch = next(more, None)
            except psycopg.DataError as error:
                raise SinkMismatchError(
                    f"{self.place} cannot take a row of this batch: {error.diag.message_primary}"
                    f" ({error.diag.context}). Change the value before the sink; text must not"
                    " contain the character NUL."
                ) from error
        return rows

    @property
    def _names(self) -> list[str]:
        return [column.name for column in self.columns]

    def _csv(self, batch: pa.RecordBatch, writer: int, first_row: int) -> memoryview:
        """The rows as CSV: all values quoted, nulls empty, as PostgreSQL reads it."""
        import pyarrow as pa
        import pyarrow.csv

        arrays = [
            as_text(array, column.type)
            for array, column in zip(batch.columns, self.columns, strict=True)
        ]
        count = batch.num_rows
        arrays.append(pa.repeat(pa.scalar(writer, pa.int64()), count))
        arrays.append(pa.array(range(first_row, first_row + count), pa.int64()))
        table = pa.RecordBatch.from_arrays(arrays, [str(number) for number in range(len(arrays))])
        text = io.BytesIO()
        options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid")
        pyarrow.csv.write_csv(table, text, options)
        return text.getbuffer()


def as_text(array: pa.Array, staged_type: str) -> Any:
    """A column's values as PostgreSQL's input functions read them, as an array of strings."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if staged_type.endswith("[]"):
        element = as_text(array.values, staged_type.removesuffix("[]"))
        for character in ("\\", '"'):
            element = pc.replace_substring(element, character, "\\" + character)
        element = pc.coalesce(pc.binary_join_element_wise('"', element, '"', ""), "NULL")
        joined = pc.binary_join(pa.ListArray.from_arrays(array.offsets, element), ",")
        literal = pc.binary_join_element_wise("{", joined, "}", "")
        return pc.if_else(array.is_null(), pa.scalar(None, pa.string()), literal)
    if staged_type == "date":
        return _days_as_text(array)
    if staged_type in ("timestamptz", "timestamp"):
        return _instants_as_text(array, "Z" if staged_type == "timestamptz" else "")
    text = array.cast(pa.string())
    return pc.binary_join_element_wise("\\x", text, "") if staged_type == "bytea" else text


def _days_as_text(array: pa.Array) -> Any:
    import pyarrow as pa

    days = array.cast(pa.int32()).cast(pa.int64())
    return _with_julian(array, days, _DAYS, lambda: _julian(days.fill_null(0).to_numpy()))


def _instants_as_text(array: pa.Array, zone: str) -> Any:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    def julian() -> pa.Array:
        days, time = np.divmod(micros.fill_null(0).to_numpy(), _DAY_US)
        clock = pa.array(time, pa.time64("us")).cast(pa.string())
        return pc.binary_join_element_wise(_julian(days), clock, " ")

    micros = array.cast(pa.int64())
    first, end = (day * _DAY_US for day in _DAYS)
    text = _with_julian(micros.cast(pa.timestamp("us")), micros, (first, end), julian)
    return pc.binary_join_element_wise(text, zone, "")


def _with_julian(
    array: pa.Array, numbers: pa.Array, years: tuple[int, int], julian: Callable[[], pa.Array]
) -> Any:
    """The array as text: years 1 to 9999 as ISO 8601 has them, others by their Julian day.

    PostgreSQL reads no other years in ISO 8601, and Arrow writes years beyond 32767 as others.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    text = array.cast(pa.string())
    known = pc.and_(pc.greater_equal(numbers, years[0]), pc.less(numbers, years[1]))
    return text if pc.all(known).as_py() is not False else pc.if_else(known, text, julian())


def _julian(days: Any) -> pa.Array:
    """Days since 1970 as ``J2440588``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.binary_join_element_wise("J", pa.array(days + _JULIAN_EPOCH).cast(pa.string()), "")
