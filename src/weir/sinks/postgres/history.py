"""The history of a PostgreSQL table: a column with the number of each row's checkpoint.

The rows of checkpoint n are those whose number is at most n. That holds only as long as all numbers
in the column come from one job: another job, even if it starts from this job's savepoint, counts
from 1 again. So a column belongs to the first job and sink that commit with it, and others are
refused; they may have a column of their own in the same table. Rows without a number are part of no
checkpoint, and rows with 0 part of every checkpoint.

``weir.history`` has a row for each commit, which is written with the rows::

    relation | column_name | epoch | after | joins | committed_at | job_id | sink
    orders   | weir_epoch  |    41 |    39 | f     | 2026-..      | 0a1b.. | out

``after`` is the epoch that the ledger had before: if that is not in the history, rows were
committed without a number. A table that was dropped and created again has no history, and a renamed
table keeps its own.

Rows that were pending in another job's savepoint are committed in that job's name, whose ids mean
nothing here. They are older than every checkpoint of this job, and have the number 0.

Why a column for each job: numbers that go on above the older job's would differ from the ids in the
job's records and in every other table, and numbering the older rows again would write the whole
table. A further column costs nothing, and both histories stay right. Which job has which column is
on record beside the ledger, by the table's oid, since a table that is created again is another
table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from weir.core.types import AbsolutePath, JobId, OperatorId
from weir.errors import CutNotFoundError, SinkError, SinkMismatchError, StorageError
from weir.sinks.base import Commit, SinkContext
from weir.sinks.commit_log import CommitLog, Entry
from weir.sinks.postgres.session import create_once, quoted
from weir.sinks.postgres.target import Ledger, PostgresTarget, check_privileges
from weir.sinks.postgres.types import StagedColumn, takes
from weir.storage.records import converted

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

_TABLE = "weir.history"
#: A ``regclass`` follows a table that is renamed, and is dumped as its name.
_COLUMNS = """(
    relation regclass, column_name text, epoch bigint, after bigint NOT NULL,
    joins boolean NOT NULL, committed_at timestamptz NOT NULL, job_id text NOT NULL,
    sink text NOT NULL, PRIMARY KEY (relation, column_name, epoch))
"""
_OF_COLUMN = "FROM weir.history WHERE relation = to_regclass(%s) AND column_name = %s"
#: First of the two numbers of an advisory lock: nobody else's.
_LOCK = 0x77656973
#: How many commits a reader fetches at once.
_PAGE = 1_000


def epoch_column(name: str) -> StagedColumn:
    """The column of that name as if the rows had it."""
    return StagedColumn(name, "bigint")


@dataclass(frozen=True, kw_only=True)
class History:
    """The numbers that a sink writes into a column."""

    context: SinkContext
    target: PostgresTarget
    column: str
    #: The sink, for messages.
    place: str

    @staticmethod
    def create(connection: psycopg.Connection) -> None:
        """Create the table of commits, unless it exists."""
        create_once(connection, "table", _TABLE, _COLUMNS)

    def check(self, connection: psycopg.Connection) -> None:
        """Raise ``SinkError`` if the sink may not number its rows in this column."""
        check_privileges(connection, _TABLE, ("INSERT", "SELECT"), place=self.place)
        if self.target.exists:
            self.check_column()
            check_privileges(connection, self.target.sql, ("SELECT",), place=self.place)
            found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [_TABLE]).fetchone()
            newest = self._newest(connection) if found == (True,) else None
            if newest is None:
                self._check_begins(connection)
            else:
                ledger = Ledger(context=self.context, target=self.target.name)
                self._check_goes_on(newest, ledger.newest(connection) or 0)

    def check_column(self) -> None:
        """Raise ``SinkMismatchError`` if the table lacks the column, or cannot keep numbers."""
        found = next((known for known in self.target.columns if known.name == self.column), None)
        if found is None:
            raise SinkMismatchError(
                f"{self.place} has no column {self.column!r} for the numbers of checkpoints:"
                f" run {self._way_to(self.column)}. Rows that are there then count as older than"
                " every checkpoint."
            )
        if found.generated or found.has_default or not takes(found, epoch_column(self.column)):
            raise SinkMismatchError(
                f"The column {self.column!r} of {self.place} must be a bigint without a default,"
                f" which would number other writers' rows, but is {found.type}"
                f"{' with a default' if found.generated or found.has_default else ''}: drop its"
                " default, or give another epoch_column."
            )

    def enter(self, connection: psycopg.Connection, committed: int, epoch: int) -> int:
        """Record the commit of an epoch; return the number for its rows.

        ``committed``: the epoch in the ledger, which the caller has locked. Raises
        ``SinkMismatchError`` if the numbers would not show what each checkpoint had.
        """
        self.check_column()
        # Two jobs may begin at once.
        name = f"{self.target.sql}.{self.column}"
        connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_LOCK, name])
        newest = self._newest(connection)
        if newest is not None:
            self._check_goes_on(newest, committed)
        else:
            self._check_begins(connection)
            if self._commits_for_another_job:
                return 0
        connection.execute(
            f"INSERT INTO {_TABLE} VALUES (to_regclass(%s), %s, %s, %s, %s, %s, %s, %s)",
            [
                *self._key,
                epoch,
                committed,
                self.context.leaves_out,
                datetime.fromtimestamp(self.context.kernel.wall_ms() / 1000, UTC),
                self.context.job_id,
                self.context.sink,
            ],
        )
        return epoch

    def _newest(self, connection: psycopg.Connection) -> int | None:
        """The newest epoch in the column; None if no sink has it.

        Raises ``SinkMismatchError`` if another sink has.
        """
        row = connection.execute(
            f"SELECT epoch, job_id, sink {_OF_COLUMN} ORDER BY epoch DESC LIMIT 1", self._key
        ).fetchone()
        if row is None:
            return None
        epoch, job_id, sink = row
        if (job_id, sink) != (self.context.job_id, self.context.sink):
            raise SinkMismatchError(
                f"The column {self.column!r} of {self.place} has the checkpoints of job {job_id},"
                f" sink {sink!r}, up to {epoch}, whose numbers would be mixed with those of job"
                f" {self.context.job_id}, sink {self.context.sink!r}: {self._other_column}."
            )
        return int(epoch)

    def _check_goes_on(self, newest: int, committed: int) -> None:
        """Raise ``SinkMismatchError`` if the newest number is not that of the newest commit."""
        if newest != committed:
            raise SinkMismatchError(
                f"{self.place} has rows of checkpoint {committed} without a number in the column"
                f" {self.column!r}, whose newest is {newest}: {self._other_column}."
            )

    def _check_begins(self, connection: psycopg.Connection) -> None:
        """Raise ``SinkMismatchError`` unless each row is older than every checkpoint.

        The job, or that whose savepoint it started from, may have written rows without a number
        after the column was added.
        """
        name = quoted(self.column)
        found = connection.execute(
            f"SELECT {name} FROM {self.target.sql} WHERE {name} IS DISTINCT FROM 0 LIMIT 1"
        ).fetchone()
        if found == (None,):
            raise SinkMismatchError(
                f"The column {self.column!r} of {self.place} has no number in some rows that are"
                f" there already: run UPDATE {self.target.sql} SET {name} = 0 WHERE {name} IS NULL,"
                " which makes them older than every checkpoint."
            )
        if found is not None:
            raise SinkMismatchError(
                f"The column {self.column!r} of {self.place} has numbers that no job is known to"
                f" have written: {self._other_column}."
            )

    @property
    def _commits_for_another_job(self) -> bool:
        directory = self.context.job_directory
        return directory is not None and directory.rpartition("/")[2] != self.context.job_id

    @property
    def _key(self) -> list[str]:
        return [self.target.sql, self.column]

    @property
    def _other_column(self) -> str:
        other = f"{self.column}_2"
        return f"run {self._way_to(other)}, and give the sink epoch_column={other!r}"

    def _way_to(self, column: str) -> str:
        change = f"ALTER TABLE {self.target.sql}"
        return (
            f"{change} ADD COLUMN {quoted(column)} bigint DEFAULT 0;"
            f" {change} ALTER COLUMN {quoted(column)} DROP DEFAULT"
        )


class HistoryLog(CommitLog):
    """The commits to one table as of the last ``look_again``, by their numbers."""

    def __init__(
        self,
        name: str,
        root: str,
        column: str,
        *,
        place: str,
        session: Callable[[], AbstractContextManager[psycopg.Connection]],
        find: Callable[[psycopg.Connection], PostgresTarget],
    ) -> None:
        """Find the table; ``root`` is its name for readers, ``place`` the sink for messages.

        Raises ``CutNotFoundError`` if there is none, and ``StorageError`` if it cannot be read.
        """
        super().__init__(name, f"table {name!r} ({place})", root)
        self._column = column
        self._session = session
        self._find = find
        self._target, self._up_to = self._looked()

    def look_again(self) -> None:
        """Look up the newest commit."""
        self._target, self._up_to = self._looked()

    def entries(self) -> Iterator[Entry]:
        """All commits, newest first, and what the table had before the first of them."""
        after, oldest = self._up_to, None
        while after and (page := self._page(after)):
            yield from (entry for _, entry in page)
            after, oldest = page[-1]
        if after and oldest is not None and oldest.commit is not None:
            before = replace(oldest.commit, checkpoint_id=after)
            yield Entry(version=after, commit=before, changes_data=True)

    def check_one_sink(self, job_id: str, job_name: str, sink: str) -> None:
        """Raise ``StorageError`` if rows of this sink have no number: the history lacks them."""
        with self._connected() as connection:
            row = connection.execute(
                f"SELECT (SELECT epoch FROM weir.commits WHERE (job_id, sink, target) ="
                f" (%s, %s, %s)), (SELECT max(epoch) {_OF_COLUMN} AND (job_id, sink) = (%s, %s))",
                [job_id, sink, self._target.name, self._target.sql, self._column, job_id, sink],
            ).fetchone()
        if row is not None and row[1] is not None and row[0] != row[1]:
            raise StorageError(
                f"{self.place[:1].upper()}{self.place[1:]} has rows of checkpoint {row[0]} of job"
                f" {job_name!r} without a number in {self._column!r}, whose newest is {row[1]}: no"
                " checkpoint can be read from it. Give the sink a new epoch_column."
            )

    def cleaned_up(self) -> str:
        """Nothing: commits stay."""
        return ""

    def query(self, epoch: int) -> str:
        """SQL for the rows of all epochs up to this, without numbers of checkpoints."""
        names = [column.name for column in self._target.columns]
        with self._connected() as connection:
            numbers = connection.execute(
                "SELECT name FROM unnest(%s::text[]) AS columns (name) WHERE EXISTS"
                " (SELECT FROM weir.history WHERE relation = to_regclass(%s) AND"
                " column_name = name)",
                [names, self._target.sql],
            ).fetchall()
        names = [name for name in names if (name,) not in numbers]
        return (
            f"SELECT {', '.join(map(quoted, names))} FROM {self._target.sql}"
            f" WHERE {quoted(self._column)} <= {epoch}"
        )

    def _looked(self) -> tuple[PostgresTarget, int]:
        with self._connected() as connection:
            target = self._find(connection)
            found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [_TABLE]).fetchone()
            row = None
            if found == (True,):
                row = connection.execute(
                    f"SELECT max(epoch) {_OF_COLUMN}", [target.sql, self._column]
                ).fetchone()
        if not target.exists:
            raise CutNotFoundError(
                f"No PostgreSQL table found for {self.place}: check its name, or wait for the first"
                " checkpoint with rows, which creates it."
            )
        return target, 0 if row is None or row[0] is None else row[0]

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection]:
        try:
            with self._session() as connection:
                yield connection
        except SinkError as error:
            raise StorageError(str(error)) from error

    def _page(self, newest: int) -> list[tuple[int, Entry]]:
        """The newest commits up to an epoch, each with the epoch before it."""
        with self._connected() as connection:
            rows = connection.execute(
                "SELECT epoch, after, joins, h.committed_at, h.job_id, h.sink, job_name,"
                f" job_directory, attempt FROM (SELECT * {_OF_COLUMN} AND epoch <= %s"
                f" ORDER BY epoch DESC LIMIT {_PAGE}) h JOIN (SELECT job_id, sink, job_name,"
                " job_directory, attempt FROM weir.commits WHERE target = %s) c"
                " ON (h.job_id, h.sink) = (c.job_id, c.sink) ORDER BY epoch DESC",
                [self._target.sql, self._column, newest, self._target.name],
            ).fetchall()
        try:
            return [(row[1], _entry(row)) for row in rows]
        except ValueError as error:
            raise StorageError(
                f"The history of {self.place} cannot be read ({error}): check weir.commits and who"
                " writes to it."
            ) from error


def _entry(row: tuple[Any, ...]) -> Entry:
    epoch, _, joins, committed_at, job_id, sink, job_name, directory, attempt = row
    commit = Commit(
        timestamp_ms=round(committed_at.timestamp() * 1000),
        job_id=converted(job_id, JobId),
        job_name=job_name,
        job_directory=directory and converted(directory, AbsolutePath),
        sink=converted(sink, OperatorId),
        checkpoint_id=epoch,
        attempt=attempt,
        joins=joins,
    )
    return Entry(version=epoch, commit=commit, changes_data=True)
