"""The target of ``PostgresTable`` in the catalogue, and Weir's ledger of what was committed.

``weir.commits`` has one row for each job, sink and target. Its ``epoch`` grows in the transaction
that makes the epoch's rows visible, so a query sees both or neither::

    job_id | sink | target        | epoch | rows | committed_at | job_name | job_directory | attempt
    0a1b.. | out  | public.orders |    41 | 1200 | 2026-..      | orders   | /var/...      |       2
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from weir.errors import SinkError, SinkMismatchError
from weir.sinks.base import Commit, SinkContext
from weir.sinks.postgres.session import create_once, quoted
from weir.sinks.postgres.types import StagedColumn, TargetColumn

if TYPE_CHECKING:
    import psycopg

_KINDS = {"r", "p"}
_LEDGER_COLUMNS = """(
    job_id text, sink text, target text, epoch bigint NOT NULL, rows bigint NOT NULL,
    committed_at timestamptz NOT NULL, job_name text NOT NULL, job_directory text NOT NULL,
    attempt bigint NOT NULL, PRIMARY KEY (job_id, sink, target))
"""
_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), base.typname,
           CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE a.atttypmod END,
           coalesce(element.typtype, base.typtype) = 'e', a.attnotnull,
           a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a'
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    JOIN pg_type base ON base.oid = coalesce(nullif(t.typbasetype, 0), t.oid)
    LEFT JOIN pg_type element ON element.oid = base.typelem AND base.typname LIKE '\\_%%'
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE = """
    SELECT array(SELECT attname::text FROM pg_attribute
                 WHERE attrelid = indrelid AND attnum = ANY (indkey[0:indnkeyatts - 1]))
    FROM pg_index
    WHERE indrelid = %s AND indisunique AND indisvalid AND indimmediate
          AND indpred IS NULL AND indexprs IS NULL
"""


@dataclass(frozen=True, kw_only=True)
class PostgresTarget:
    """A table, which may not exist yet."""

    schema: str
    table: str
    exists: bool
    #: By which the server knows it, whatever its name; 0 if it does not exist.
    oid: int = 0
    columns: tuple[TargetColumn, ...] = ()
    #: The columns of each unique index.
    unique: tuple[frozenset[str], ...] = ()

    @property
    def name(self) -> str:
        """``schema.table``."""
        return f"{self.schema}.{self.table}"

    @property
    def sql(self) -> str:
        """The name, quoted for SQL."""
        return f"{quoted(self.schema)}.{quoted(self.table)}"

    @classmethod
    def find(
        cls, connection: psycopg.Connection, table: str, *, place: str, schema: str | None = None
    ) -> PostgresTarget:
        """Look a table up, along the search path unless it has a schema.

        Without ``schema``, that may be a part of ``table``. Raises ``SinkMismatchError`` if it is
        something else than a table.
        """
        name = table
        if schema is None:
            schema, dot, name = table.partition(".")
            if not dot:
                name, schema = schema, ""
        rows = connection.execute(
            "SELECT c.oid, n.nspname, c.relkind::text FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relname = %(name)s"
            " AND CASE %(schema)s WHEN '' THEN pg_table_is_visible(c.oid)"
            " ELSE n.nspname = %(schema)s END",
            {"name": name, "schema": schema},
        ).fetchall()
        if not rows:
            found = connection.execute(
                "SELECT n.nspname FROM pg_namespace n"
                " WHERE n.nspname = coalesce(nullif(%s, ''), current_schema())",
                [schema],
            ).fetchone()
            if found is None:
                raise SinkError(
                    f"{place} cannot be created, since the database has no schema {schema!r}:"
                    f" run CREATE SCHEMA {quoted(schema or 'public')}."
                )
            return cls(schema=found[0], table=name, exists=False)
        ((oid, schema, kind),) = rows
        if kind not in _KINDS:
            raise SinkMismatchError(
                f"{place} is not a table: name an ordinary or a partitioned table."
            )
        columns = connection.execute(_COLUMNS, [oid]).fetchall()
        return cls(
            schema=schema,
            table=name,
            exists=True,
            oid=oid,
            columns=tuple(
                TargetColumn(
                    name=row[0],
                    type=row[1],
                    type_name=row[2],
                    modifier=row[3],
                    is_enum=row[4],
                    not_null=row[5],
                    has_default=row[6],
                    generated=row[7],
                )
                for row in columns
            ),
            unique=tuple(
                frozenset(names) for (names,) in connection.execute(_UNIQUE, [oid]).fetchall()
            ),
        )

    def create(
        self, connection: psycopg.Connection, columns: Sequence[StagedColumn], key: Sequence[str]
    ) -> None:
        """Create the table for rows with these columns, with ``key`` as its primary key."""
        parts = [f"{quoted(column.name)} {column.type}" for column in columns]
        if key:
            parts.append(f"PRIMARY KEY ({', '.join(map(quoted, key))})")
        create_once(connection, "table", self.sql, f"({', '.join(parts)})")

    def check_key(self, key: Sequence[str], *, place: str) -> None:
        """Raise ``SinkMismatchError`` unless a row can be found by the key."""
        if not self.exists or not key:
            return
        not_null = {column.name for column in self.columns if column.not_null}
        if frozenset(key) in self.unique and not_null.issuperset(key):
            return
        columns = ", ".join(map(quoted, key))
        raise SinkMismatchError(
            f"{place} has no unique index over exactly its key ({columns}) with columns that are"
            f" not null: run ALTER TABLE {self.sql} ADD PRIMARY KEY ({columns}), or give another"
            " key."
        )

    def check_access(
        self, connection: psycopg.Connection, privileges: Sequence[str], *, place: str
    ) -> None:
        """Raise ``SinkError`` unless the role has these privileges, or may create the table."""
        if self.exists:
            check_privileges(connection, self.sql, privileges, place=place)
            return
        may = connection.execute(
            "SELECT has_schema_privilege(%s::regnamespace, 'CREATE')", [quoted(self.schema)]
        ).fetchone()
        if may == (False,):
            raise SinkError(
                f"{place} may not create {self.sql}: create it, or run GRANT CREATE ON SCHEMA"
                f" {quoted(self.schema)} to the role that Weir connects as."
            )


def check_server(connection: psycopg.Connection, *, rejects: bool, place: str) -> None:
    """Raise ``SinkError`` if the role cannot stage and commit rows in this database."""
    standby, home, may_create_home, may_stage, may_set_aside = connection.execute(
        "SELECT pg_is_in_recovery(), to_regnamespace('weir') IS NOT NULL,"
        " has_database_privilege(current_database(), 'CREATE'),"
        " coalesce(has_schema_privilege(to_regnamespace('weir')::oid, 'CREATE'), true),"
        " has_database_privilege(current_database(), 'TEMPORARY')"
    ).fetchone() or (False, True, True, True, True)
    if standby:
        raise SinkError(
            f"{place} is on a standby, which takes no rows: name the primary, or add"
            " target_session_attrs=read-write and all hosts to the connection string."
        )
    if not (may_stage if home else may_create_home):
        raise SinkError(
            f"{place} needs the schema weir for staged rows: as the database's owner, run"
            " CREATE SCHEMA weir AUTHORIZATION with the role that Weir connects as."
        )
    if rejects and not may_set_aside:
        raise SinkError(
            f"{place} needs a temporary table to set rejects aside: run GRANT TEMPORARY ON DATABASE"
            f" {quoted(connection.info.dbname)} to the role that Weir connects as."
        )
    check_privileges(connection, "weir.commits", ("INSERT", "SELECT", "UPDATE"), place=place)


def check_privileges(
    connection: psycopg.Connection, table: str, privileges: Sequence[str], *, place: str
) -> None:
    """Raise ``SinkError`` if the table exists and the role lacks a privilege on it."""
    for privilege in privileges:
        may = connection.execute(
            "SELECT has_any_column_privilege(to_regclass(%s), %s)", [table, privilege]
        ).fetchone()
        if may == (False,):
            raise SinkError(
                f"{place} cannot be written to: run GRANT {privilege} ON {table} to the role that"
                " Weir connects as."
            )


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The row of one job, sink and target in ``weir.commits``."""

    context: SinkContext
    target: str

    @property
    def digest(self) -> str:
        """Names the sink's sessions and staging tables: 16 hexadecimal digits."""
        return hashlib.sha256("\0".join(self._key).encode()).hexdigest()[:16]

    @staticmethod
    def create(connection: psycopg.Connection) -> None:
        """Create the schema and the table, unless they exist."""
        create_once(connection, "schema", "weir")
        create_once(connection, "table", "weir.commits", _LEDGER_COLUMNS)

    @staticmethod
    def commits(connection: psycopg.Connection, target: str) -> list[Commit]:
        """The newest commit of each job and sink at a target, newest first."""
        found = connection.execute("SELECT to_regclass('weir.commits') IS NOT NULL").fetchone()
        if found != (True,):
            return []
        rows = connection.execute(
            "SELECT committed_at, job_id, job_name, job_directory, sink, epoch, attempt"
            " FROM weir.commits WHERE target = %s AND epoch > 0 ORDER BY committed_at DESC",
            [target],
        ).fetchall()
        return [
            Commit(
                timestamp_ms=round(row[0].timestamp() * 1000),
                job_id=row[1],
                job_name=row[2],
                job_directory=row[3],
                sink=row[4],
                checkpoint_id=row[5],
                attempt=row[6],
            )
            for row in rows
        ]

    def newest(self, connection: psycopg.Connection) -> int | None:
        """The newest committed epoch; None if there is none."""
        row = connection.execute(
            "SELECT epoch FROM weir.commits"
            " WHERE (job_id, sink, target) = (%s, %s, %s) AND epoch > 0",
            self._key,
        ).fetchone()
        return None if row is None else int(row[0])

    def lock(self, connection: psycopg.Connection) -> int:
        """Wait until no other session commits here; return the newest epoch, 0 if there is none."""
        self._write(connection, 0, 0, "NOTHING")
        row = connection.execute(
            "SELECT epoch FROM weir.commits WHERE (job_id, sink, target) = (%s, %s, %s) FOR UPDATE",
            self._key,
        ).fetchone()
        return 0 if row is None else int(row[0])

    def enter(self, connection: psycopg.Connection, epoch: int, rows: int) -> None:
        """Record the epoch, in the transaction that makes its rows visible."""
        fields = ("epoch", "rows", "committed_at", "job_name", "job_directory", "attempt")
        changes = ", ".join(f"{field} = EXCLUDED.{field}" for field in fields)
        self._write(connection, epoch, rows, f"UPDATE SET {changes}")

    def _write(self, connection: psycopg.Connection, epoch: int, rows: int, change: str) -> None:
        connection.execute(
            "INSERT INTO weir.commits VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
            f" ON CONFLICT (job_id, sink, target) DO {change}",
            [
                *self._key,
                epoch,
                rows,
                datetime.fromtimestamp(self.context.kernel.wall_ms() / 1000, UTC),
                self.context.job_name,
                self.context.job_directory or "",
                self.context.attempt,
            ],
        )

    @property
    def _key(self) -> list[str]:
        return [self.context.job_id, self.context.sink, self.target]
