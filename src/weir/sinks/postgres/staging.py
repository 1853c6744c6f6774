"""The staging tables of one sink and attempt, and what payloads say of them.

A table takes the batches between two checkpoints, so an epoch's rows lie in one table or two. It is
dropped when all its batches are committed. Deleted rows would stay behind, and slow every commit
down, whenever something keeps VACUUM from removing them.

One table for each batch would fill the catalogue, and one for the whole attempt would have to be
emptied by ``DELETE``. ``PREPARE TRANSACTION`` needs no table, but would hold locks, and VACUUM, for
as long as a checkpoint takes, and most servers have it off.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from msgspec import Meta

from weir.core.types import Count
from weir.errors import SinkError, StorageError
from weir.sinks.postgres.copy import WRITER, create_staging_table
from weir.sinks.postgres.session import quoted
from weir.sinks.postgres.target import Ledger
from weir.sinks.postgres.types import StagedColumn
from weir.sinks.staging import StagedPayload

if TYPE_CHECKING:
    import psycopg

_log = logging.getLogger(__name__)

#: How long to wait for a table that is to be dropped; commits come first.
_DROP_TIMEOUT_MS = 1_000

#: Gives a connection in a transaction, which is committed at the end.
Session: TypeAlias = Callable[[], AbstractContextManager["psycopg.Connection"]]


class TablePayload(StagedPayload, kw_only=True):
    """The payload of a batch whose rows are in a staging table."""

    table: Annotated[str, Meta(pattern=r"\As_[0-9a-f]{16}_[0-9]{1,18}_[0-9]{1,18}\Z")]
    #: The newest epoch that was committed when the payload was flushed; 0 if there was none.
    after: Count
    rows: Count
    writers: list[tuple[Count, Count]]
    columns: list[StagedColumn]

    def __post_init__(self) -> None:
        if sum(rows for _, rows in self.writers) != self.rows:
            raise ValueError("its writers have another number of rows")


class StagingTables:
    """The tables of one sink and attempt. An older attempt's are dropped by ``clean``."""

    def __init__(self, *, ledger: Ledger, session: Session) -> None:
        self._ledger = ledger
        self._session = session
        #: Guards the fields below, since batches are staged while older batches are committed.
        self._lock = threading.Lock()
        self._generation = 0
        #: Each table with its batches that are not committed.
        self._uncommitted: dict[str, set[int]] = {}

    def take(self, columns: Sequence[StagedColumn], position: int) -> str:
        """The table for a batch's rows, created if it is the first there; notes the batch."""
        context = self._ledger.context
        with self._lock:
            table = self._current
            exists = table in self._uncommitted
            self._uncommitted.setdefault(table, set()).add(position)
        if not exists:
            about = f"Staged by job {context.job_name} ({context.job_id}), sink {context.sink}"
            with self._session() as connection:
                create_staging_table(connection, in_sql(table), columns, about)
        return table

    def flush(self, payloads: Iterable[TablePayload]) -> str | None:
        """Begin a new table with the next batch; return what is wrong with these, in words."""
        with self._lock:
            # A table without rows so far goes on; none is made for each epoch without rows.
            if self._uncommitted.get(self._current):
                self._generation += 1
            # Others are committed.
            mine = [
                each for each in payloads if each.position in self._uncommitted.get(each.table, ())
            ]
        if not mine:
            return None
        with self._session() as connection:
            return damage(connection, mine)

    def settle(self, batches: Iterable[tuple[str, int]]) -> None:
        """Forget committed batches; drop tables of which none is left."""
        with self._lock:
            for table, position in batches:
                self._uncommitted.get(table, set()).discard(position)
            current = self._current
            done = [
                table
                for table, positions in self._uncommitted.items()
                if not positions and table != current
            ]
            for table in done:
                del self._uncommitted[table]
        self._drop(done)

    def clean(self, attempt: int) -> None:
        """Drop those of attempts before the given attempt (PROTOCOL P22)."""
        with self._session() as connection:
            tables = connection.execute(
                "SELECT relname FROM pg_class WHERE relnamespace = 'weir'::regnamespace"
                " AND relkind = 'r'"
            ).fetchall()
        own = re.compile(rf"s_{self._ledger.digest}_(\d+)_\d+")
        self._drop(
            [name for (name,) in tables if (f := own.fullmatch(name)) and int(f[1]) < attempt]
        )

    def close(self) -> None:
        """Drop all: every epoch is committed."""
        with self._lock:
            tables, self._uncommitted = list(self._uncommitted), {}
            self._generation += 1
        self._drop(tables)

    def is_own(self, payload: TablePayload) -> bool:
        """Whether this sink staged it, in any attempt."""
        return payload.table.startswith(f"s_{self._ledger.digest}_")

    def _drop(self, tables: Sequence[str]) -> None:
        """Drop tables; a task that is late may keep its table until the next attempt."""
        for table in tables:
            try:
                with self._session() as connection:
                    connection.execute(f"SET LOCAL lock_timeout = {_DROP_TIMEOUT_MS}")
                    connection.execute(f"DROP TABLE IF EXISTS {in_sql(table)}")
            except (SinkError, StorageError) as error:
                _log.warning("The staging table %s could not be dropped: %s", table, error)

    @property
    def _current(self) -> str:
        """The table for the next batch."""
        return f"s_{self._ledger.digest}_{self._ledger.context.attempt}_{self._generation}"


def table_payload(
    table: str, position: int, columns: Sequence[StagedColumn], reports: Iterable[Any]
) -> TablePayload:
    """The payload of a batch, from what its Spark tasks reported, in the partitions' order."""
    writers = [(report.writer, report.rows) for report in reports]
    return TablePayload(
        table=table,
        position=position,
        flushed=False,
        after=0,
        rows=sum(rows for _, rows in writers),
        writers=writers,
        columns=list(columns),
    )


def in_sql(table: str) -> str:
    """A staging table's name, quoted for SQL."""
    return f"weir.{quoted(table)}"


def columns_of(payload: TablePayload) -> tuple[StagedColumn, ...]:
    """The columns of a batch."""
    return tuple(payload.columns)


def writers_of(payloads: Iterable[TablePayload]) -> dict[str, list[tuple[int, int]]]:
    """By staging table, the writers of these batches, each with its place in the order of all."""
    writers: dict[str, list[tuple[int, int]]] = {}
    count = 0
    for payload in payloads:
        for writer, _ in payload.writers:
            writers.setdefault(in_sql(payload.table), []).append((writer, count))
            count += 1
    return writers


def damage(connection: psycopg.Connection, payloads: Sequence[TablePayload]) -> str | None:
    """The first staging table that is gone or lacks rows, in words; None if all are whole."""
    expected: dict[str, dict[int, int]] = {}
    for payload in payloads:
        expected.setdefault(payload.table, {}).update(payload.writers)
    for table, writers in expected.items():
        found = connection.execute("SELECT to_regclass(%s)::text", [in_sql(table)]).fetchone()
        if found == (None,):
            return f"the staging table weir.{table} is gone"
        counts: dict[int, int] = dict(
            connection.execute(
                f"SELECT {WRITER}, count(*) FROM {in_sql(table)} GROUP BY {WRITER}"
            ).fetchall()
        )
        if any(counts.get(writer) != rows for writer, rows in writers.items()):
            return f"the staging table weir.{table} lacks rows"
    return None
