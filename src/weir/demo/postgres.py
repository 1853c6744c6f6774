"""Two of the demo's tables in PostgreSQL as well: appended, and by key (``--postgres-dsn``).

Each run writes into a schema of its own, which is the first on the search path of the connection
string that the pipeline gets. It is dropped at the end, with its rows of Weir's ledger.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import weir
from weir.demo.verify import Cut, TableReport, compare
from weir.errors import ConfigurationError, CutNotFoundError
from weir.sinks.postgres.session import connected, parameters_of, quoted

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import psycopg

#: The pipeline's tables there, as the demo's other tables are called.
TABLES = ("flights_clean", "carrier_delays")
_ROWS = 10_000


class DemoDatabase:
    """The schema of one run."""

    def __init__(self, dsn: str) -> None:
        """Create the schema.

        Raises ``SinkError`` if the connection string has a password, ``StorageError`` if the server
        does not answer, ``UnsupportedEnvironmentError`` without psycopg.
        """
        parameters = parameters_of(dsn)
        if "options" in parameters:
            raise ConfigurationError(
                "--postgres-dsn cannot be used with options in the connection string: remove them."
            )
        self.schema = f"weir_demo_{secrets.token_hex(4)}"
        self._parameters = {**parameters, "options": f"-c search_path={self.schema}"}
        with self._connected() as connection:
            connection.execute(f"CREATE SCHEMA {quoted(self.schema)}")

    @property
    def dsn(self) -> str:
        """For the pipeline: tables without a schema are those of the run."""
        from psycopg.conninfo import make_conninfo

        return make_conninfo(**self._parameters)

    def verify(self, expected: Mapping[str, pa.Table]) -> list[TableReport]:
        """Compare each table with its expected rows; a missing table counts as empty."""
        with self._connected() as connection:
            return [_report(connection, name, expected[name]) for name in TABLES]

    def look(self, directory: Path) -> Cut:
        """Compare each table with the Delta table below ``directory`` at the same checkpoint.

        PostgreSQL keeps no older versions, but Delta does: at the checkpoint at which Weir's ledger
        says that the table stands, both must have the same rows. No driver may be writing.
        """
        said, wrong = [], []
        for name in TABLES:
            with self._connected() as connection:
                epoch = self._epoch(connection, name)
                if epoch is None:
                    said.append(f"{name} has no checkpoint yet")
                    continue
                try:
                    cut = weir.read_consistent({name: str(directory / name)}, checkpoint_id=epoch)
                except CutNotFoundError:
                    said.append(f"{name} is ahead, at checkpoint {epoch}")
                    continue
                report = _report(connection, name, cut.table(name).to_pyarrow_table())
            said.append(f"{name} {report.rows_committed:,} at checkpoint {epoch}")
            if not report.exact:
                wrong.append(
                    f"{report.table} lacks {report.missing} rows and has {report.duplicates} twice"
                    f" and {report.unexpected} unknown rows, at checkpoint {epoch}"
                )
        return Cut(
            text=f"PostgreSQL as Delta: {', '.join(said)}",
            problem=f"PostgreSQL and Delta disagree: {'; '.join(wrong)}." if wrong else None,
        )

    def _epoch(self, connection: psycopg.Connection, name: str) -> int | None:
        """The checkpoint at which a table stands; None if it has none."""
        if connection.execute("SELECT to_regclass('weir.commits')").fetchone() == (None,):
            return None
        found = connection.execute(
            "SELECT max(epoch) FROM weir.commits WHERE target = %s", [f"{self.schema}.{name}"]
        ).fetchone()
        return None if found is None or found[0] is None else int(found[0])

    def drop(self) -> None:
        """Remove everything that the run has left."""
        with self._connected() as connection:
            connection.execute(f"DROP SCHEMA {quoted(self.schema)} CASCADE")
            connection.execute(
                "DELETE FROM weir.commits WHERE starts_with(target, %s)", [f"{self.schema}."]
            )

    def _connected(self) -> AbstractContextManager[psycopg.Connection]:
        return connected(self._parameters, "The database of --postgres-dsn")


def _report(connection: psycopg.Connection, name: str, expected: pa.Table) -> TableReport:
    batches = []
    if connection.execute("SELECT to_regclass(%s)", [quoted(name)]).fetchone() != (None,):
        columns = ", ".join(map(quoted, expected.column_names))
        # A cursor on the server: a year of flights does not fit into memory as Python objects.
        with connection.cursor(name="weir_demo") as cursor:
            cursor.execute(f"SELECT {columns} FROM {quoted(name)}")
            while rows := cursor.fetchmany(_ROWS):
                arrays = [
                    pa.array(values, field.type)
                    for values, field in zip(zip(*rows, strict=True), expected.schema, strict=True)
                ]
                batches.append(pa.RecordBatch.from_arrays(arrays, schema=expected.schema))
    actual = pa.Table.from_batches(batches, schema=expected.schema)
    return compare(f"{name} (PostgreSQL)", expected, actual)
