"""One epoch's rows, from staging tables into the target, within a transaction of the caller's.

The rows go over in one statement. If the server refuses a row and there is a table of rejects, the
statement is undone and repeated on halves of the rows, down to the single rows that are refused: a
few bad rows cost a few dozen statements, however many rows there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weir.sinks.postgres.copy import ROW, WRITER
from weir.sinks.postgres.session import create_once, is_violation, quoted
from weir.sinks.postgres.target import PostgresTarget
from weir.sinks.postgres.types import StagedColumn, cast_type

if TYPE_CHECKING:
    import psycopg

_log = logging.getLogger(__name__)

_REJECTS_COLUMNS = """(
    job_id text NOT NULL, sink text NOT NULL, epoch bigint NOT NULL, sqlstate text NOT NULL,
    constraint_name text, message text NOT NULL, "row" jsonb NOT NULL,
    rejected_at timestamptz NOT NULL DEFAULT now())
"""


@dataclass(frozen=True, kw_only=True)
class Rejects:
    """Where rows go that the target refuses, and what is recorded with them."""

    #: The table, quoted for SQL.
    table: str
    job_id: str
    sink: str
    epoch: int


@dataclass(frozen=True, kw_only=True)
class Insert:
    """The statements for rows of the same columns."""

    target: PostgresTarget
    columns: Sequence[StagedColumn]
    #: By staging table (quoted for SQL), the writers whose rows count, each with its place in the
    #: order of all.
    writers: Mapping[str, Sequence[tuple[int, int]]]
    #: Empty to append.
    key: Sequence[str]
    order_by: str | None
    #: How many rows are staged.
    count: int
    #: A column of the target, and its value in each row; None if there is none.
    number: tuple[str, int] | None = None

    def run(
        self,
        connection: psycopg.Connection,
        rejects: Rejects | None,
        session: Callable[[], AbstractContextManager[psycopg.Connection]],
    ) -> int:
        """Insert the rows; return how many rows of the target that inserted or changed.

        Their order counts only where a key has several. ``session`` gives another connection, in
        which the table of rejects is created: other sinks that need it do not wait for this
        transaction, which may wait for a user's.

        Raises psycopg's error for a violation, unless there is a table of rejects.
        """
        # Constraints that are deferred to the end of the transaction would name no row there.
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        if self.key:
            selected = ", ".join((*map(self._cast, self.columns), *self._order))
            whole = self._last_rows(f"SELECT {selected} FROM ({self._staged}) AS staged")
            statement = self._insert(f"SELECT {self._names}{self._value} FROM ({whole}) AS counted")
        else:
            statement = self._insert(self._unordered)
        if rejects is None:
            return self._inserted(connection.execute(statement).rowcount, 0)
        try:
            with connection.transaction():
                return self._inserted(connection.execute(statement).rowcount, 0)
        except Exception as error:
            if not is_violation(error):
                raise
        with session() as other:
            create_once(other, "table", rejects.table, _REJECTS_COLUMNS)
        return self._in_parts(connection, rejects)

    def _inserted(self, count: int, rejected: int) -> int:
        """The number of rows that were inserted. Says so if others are nowhere.

        A key may have several rows, of which one counts.
        """
        if not self.key and count + rejected < self.count:
            _log.warning(
                "%s took %d of the %d rows of a checkpoint, and the server reports no error: a"
                " trigger or a rule of the table leaves out the others.",
                self.target.name,
                count,
                self.count - rejected,
            )
        return count

    def _in_parts(self, connection: psycopg.Connection, rejects: Rejects) -> int:
        """Insert all rows that the target takes, and the others into the table of rejects."""
        order = [] if self.order_by is None else [f"{quoted(self.order_by)} NULLS FIRST"]
        order += self._order
        count = connection.execute(
            "CREATE TEMPORARY TABLE pg_temp.weir_rows ON COMMIT DROP AS"
            f" SELECT row_number() OVER (ORDER BY {', '.join(order)}) AS weir_number, {self._names}"
            f" FROM ({self._last_rows(self._staged)}) AS counted"
        ).rowcount
        connection.execute("CREATE INDEX ON pg_temp.weir_rows (weir_number)")
        selected = ", ".join(map(self._cast, self.columns))
        rows = f"SELECT {selected}{self._value} FROM pg_temp.weir_rows WHERE weir_number"
        inserted = rejected = 0
        parts = [(0, count)] if count else []
        while parts:
            first, last = parts.pop()
            try:
                with connection.transaction():
                    part = f"{rows} > {first} AND weir_number <= {last} ORDER BY weir_number"
                    inserted += connection.execute(self._insert(part)).rowcount
            except Exception as error:
                if not is_violation(error):
                    raise
                middle = (first + last) // 2
                if last - first > 1:
                    parts += [(middle, last), (first, middle)]
                else:
                    self._reject(connection, rejects, last, error)
                    rejected += 1
        connection.execute("DROP TABLE pg_temp.weir_rows")
        _log.warning(
            "%s refuses %d rows of checkpoint %d: they are in %s",
            self.target.name,
            rejected,
            rejects.epoch,
            rejects.table,
        )
        return self._inserted(inserted, rejected)

    def _reject(
        self, connection: psycopg.Connection, rejects: Rejects, number: int, error: Exception
    ) -> None:
        import psycopg

        state = error.sqlstate if isinstance(error, psycopg.Error) else None
        constraint = error.diag.constraint_name if isinstance(error, psycopg.Error) else None
        connection.execute(
            f"INSERT INTO {rejects.table.replace('%', '%%')}"
            ' (job_id, sink, epoch, sqlstate, constraint_name, message, "row")'
            " SELECT %s, %s, %s, %s, %s, %s, to_jsonb(weir_rows) - 'weir_number'"
            " FROM pg_temp.weir_rows WHERE weir_number = %s",
            [
                rejects.job_id,
                rejects.sink,
                rejects.epoch,
                state,
                constraint,
                str(error).splitlines()[0],
                number,
            ],
        )

    @property
    def _unordered(self) -> str:
        """A query for the rows that count, as the target takes them."""
        selected = ", ".join(map(self._cast, self.columns))
        return " UNION ALL ".join(
            f"SELECT {selected}{self._value} FROM {table}"
            f" WHERE {WRITER} = ANY ({_array([writer for writer, _ in pairs])})"
            for table, pairs in self.writers.items()
        )

    @property
    def _staged(self) -> str:
        """A query for the rows that count, with their order. No statement here has parameters.

        Otherwise psycopg would take a ``%`` in a name for a parameter.
        """
        names = ", ".join(f"staged.{quoted(column.name)}" for column in self.columns)
        selects = []
        for table, pairs in self.writers.items():
            writers, parts = zip(*pairs, strict=True)
            selects.append(
                f"SELECT {names}, part.weir_part, staged.{ROW} FROM {table} AS staged"
                f" JOIN unnest({_array(writers)}, {_array(parts)}) AS part (writer, weir_part)"
                f" ON staged.{WRITER} = part.writer"
            )
        return " UNION ALL ".join(selects)

    @property
    def _order(self) -> list[str]:
        return ["weir_part", ROW]

    def _last_rows(self, rows: str) -> str:
        """The last row of each key, in the order of keys; without a key, all rows.

        By the order, two jobs do not wait for each other's rows in a circle.
        """
        if not self.key:
            return rows
        keys = ", ".join(map(quoted, self.key))
        order = [] if self.order_by is None else [f"{quoted(self.order_by)} DESC NULLS LAST"]
        order += [f"{column} DESC" for column in self._order]
        return (
            f"SELECT DISTINCT ON ({keys}) * FROM ({rows}) AS r ORDER BY {keys}, {', '.join(order)}"
        )

    def _insert(self, rows: str) -> str:
        number = "" if self.number is None else f", {quoted(self.number[0])}"
        into = f"{self.target.sql} AS target ({self._names}{number})"
        return f"INSERT INTO {into} {rows}{self._conflict}"

    @property
    def _value(self) -> str:
        return "" if self.number is None else f", {self.number[1]}"

    @property
    def _conflict(self) -> str:
        if not self.key:
            return ""
        keys = ", ".join(map(quoted, self.key))
        others = [quoted(column.name) for column in self.columns if column.name not in self.key]
        if not others:
            return f" ON CONFLICT ({keys}) DO NOTHING"
        changes = ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
        newer = ""
        if self.order_by is not None:
            name = quoted(self.order_by)
            newer = f" WHERE target.{name} IS NULL OR EXCLUDED.{name} >= target.{name}"
        return f" ON CONFLICT ({keys}) DO UPDATE SET {changes}{newer}"

    @property
    def _names(self) -> str:
        return ", ".join(quoted(column.name) for column in self.columns)

    def _cast(self, column: StagedColumn) -> str:
        name = quoted(column.name)
        target = next(known for known in self.target.columns if known.name == column.name)
        if (length := target.length) is not None:
            return f"{_too_long(name, length, column)} AS {name}"
        kind = cast_type(target, column)
        return name if kind is None else f"{name}::{kind} AS {name}"


def _too_long(name: str, length: int, column: StagedColumn) -> str:
    """SQL for a text that the server refuses if it is longer than its column, ``varchar(length)``.

    Otherwise the server cuts off spaces at the end of what is too long, so such text gets another
    end.
    """
    if column.type == "text[]":
        long = f"EXISTS (SELECT FROM unnest({name}) AS each WHERE char_length(each) > {length})"
        return (
            f"CASE WHEN {long} THEN array_append({name}, repeat('x', {length + 1})) ELSE {name} END"
        )
    return f"CASE WHEN char_length({name}) > {length} THEN {name} || 'x' ELSE {name} END"


def _array(numbers: Sequence[int]) -> str:
    return f"'{{{','.join(map(str, numbers))}}}'::bigint[]"
