"""Stages rows in PostgreSQL, on Spark's Python workers: Arrow batches become one binary ``COPY``.

pgpq packs whole batches, and the server parses no text: both sides do half of CSV's work or less.

A Spark task that runs twice (a retry, speculation, an executor that died after its ``COPY`` was
committed) stages its rows twice. So each run has a *writer* id of its own, with which it marks its
rows, and which only the run that counts reports to the driver. The others' rows are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from weir.errors import SinkMismatchError
from weir.sinks.postgres.session import Connect, connected, quoted
from weir.sinks.postgres.types import StagedColumn

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from pgpq import ArrowToPostgresBinaryEncoder

#: The schema of what a writer reports, for Spark.
REPORT = "writer long, rows long"
#: Names of a staged row's own columns: which run of a task wrote it, and its number there.
WRITER, ROW = "weir_writer", "weir_row"
#: Writers' ids are below this: two runs practically never draw the same.
_WRITERS = 2**62
#: PostgreSQL counts from 2000, Arrow from 1970: days in between.
_EPOCHS_APART = 10_957
_DAY_US = 86_400_000_000


def create_staging_table(
    connection: psycopg.Connection, table: str, columns: Sequence[StagedColumn], comment: str
) -> None:
    """Create a table for staged rows, unless it exists. ``table`` is quoted for SQL."""
    from psycopg.sql import SQL, Literal

    parts = [f"{quoted(column.name)} {physical_type(column)}" for column in columns]
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
    connect: Connect
    #: ``Kernel.new_name``: other parts of the kernel, once pickled, would repeat themselves.
    new_name: Callable[[], str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        yield self._run(chain([first], filled))

    def _run(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        """Copy the rows; return the report."""
        import pyarrow as pa

        writer = int(self.new_name(), 16) % _WRITERS
        with connected(
            self.parameters, self.place, name=self.session, connect=self.connect
        ) as connection:
            rows = self._copy(connection, _marked(batches, writer))
        return pa.RecordBatch.from_pydict(
            {"writer": pa.array([writer], pa.int64()), "rows": pa.array([rows], pa.int64())}
        )

    def _copy(self, connection: psycopg.Connection, batches: Iterator[pa.RecordBatch]) -> int:
        """Copy batches of the rows' columns and then Weir's own; return the number of rows."""
        import psycopg

        names = [*(column.name for column in self.columns), WRITER, ROW]
        listed = ", ".join(map(quoted, names))
        statement = f"COPY {self.table} ({listed}) FROM STDIN (FORMAT binary)"
        rows = 0
        try:
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                encoder: ArrowToPostgresBinaryEncoder | None = None
                for given in batches:
                    batch = given.rename_columns(names)
                    if encoder is None:
                        encoder = self._encoder(batch.schema)
                        copy.write(encoder.write_header())
                    copy.write(self._packed(encoder, batch))
                    rows += batch.num_rows
                if encoder is not None:
                    copy.write(encoder.finish())
        except psycopg.DataError as error:
            said = f"{error.diag.message_primary} ({error.diag.context})"
            raise self._mismatch(said) from error
        return rows

    def _encoder(self, schema: pa.Schema) -> ArrowToPostgresBinaryEncoder:
        import pyarrow as pa
        from pgpq import ArrowToPostgresBinaryEncoder
        from pgpq.encoders import LargeStringEncoderBuilder, StringEncoderBuilder
        from pgpq.schema import Jsonb

        infer = ArrowToPostgresBinaryEncoder.infer_encoder
        builders = {field.name: infer(field) for field in schema}
        for column in self.columns:
            if column.type == "jsonb":
                field = schema.field(column.name)
                large = pa.types.is_large_string(field.type)
                builder = LargeStringEncoderBuilder if large else StringEncoderBuilder
                builders[column.name] = builder.new_with_output(field, Jsonb())
        return ArrowToPostgresBinaryEncoder.new_with_encoders(schema, builders)

    def _packed(self, encoder: ArrowToPostgresBinaryEncoder, batch: pa.RecordBatch) -> bytes:
        for column in self.columns:
            if _has_minus_infinity(batch[column.name]):
                raise self._mismatch(f"the date in {column.name!r} is out of range")
        try:
            return encoder.write_batch(batch)
        except ValueError as error:
            raise self._mismatch(str(error)) from error

    def _mismatch(self, said: str) -> SinkMismatchError:
        return SinkMismatchError(
            f"{self.place} cannot take a row of this batch: {said}. Change the value before the"
            " sink; text must not contain the character NUL."
        )


def _marked(batches: Iterable[pa.RecordBatch], writer: int) -> Iterator[pa.RecordBatch]:
    """The batches, each row with its writer and its number."""
    import numpy as np
    import pyarrow as pa

    first = 0
    for batch in batches:
        after = first + batch.num_rows
        writers = pa.repeat(pa.scalar(writer, pa.int64()), batch.num_rows)
        columns = [*batch.columns, writers, pa.array(np.arange(first, after))]
        yield pa.RecordBatch.from_arrays(columns, [str(number) for number in range(len(columns))])
        first = after


def physical_type(column: StagedColumn) -> str:
    """The type (SQL) of a column in a staging table.

    Binary ``COPY`` names an array's element type, and pgpq knows only ``timestamp``: the same
    instants in UTC, the time zone of every session here.
    """
    return "timestamp[]" if column.type == "timestamptz[]" else column.type


def _has_minus_infinity(array: pa.Array) -> bool:
    """Whether a date or instant of Spark's would be PostgreSQL's ``-infinity``.

    That is the least number, and means year -5 million here. The server refuses its neighbours.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _has_minus_infinity(array.flatten())
    if pa.types.is_date32(array.type):
        least = -(2**31) + _EPOCHS_APART
        return pc.any(pc.equal(array.cast(pa.int32()), least)).as_py() is True
    if pa.types.is_timestamp(array.type):
        least = -(2**63) + _EPOCHS_APART * _DAY_US
        return pc.any(pc.equal(array.cast(pa.int64()), least)).as_py() is True
    return False
