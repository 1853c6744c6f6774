"""Exactly-once writes to a PostgreSQL table: Spark's executors stage the rows, the driver commits.

What is not yet committed lies in ordinary (logged) tables of the schema ``weir``: an unlogged table
is empty after a crash of the server, and a checkpoint is acknowledged on the strength of its rows.

1. ``stage``: each Spark task copies its rows into a staging table of the attempt, in a transaction
   of its own (``copy.py``). Readers of the target see nothing of it.
2. ``flush``: the rows are on disk since their transaction was committed; the next batch begins a
   new staging table (``staging.py``).
3. ``commit``: one transaction locks the sink's row in ``weir.commits``, inserts the epoch's rows
   into the target and enters the epoch in that row. A repeated commit finds the epoch there. Two
   drivers that commit the same epoch wait for each other at the lock (PROTOCOL P18). Before the
   insert the staged rows are counted: if some are gone, nothing is made visible. So it is if the
   ledger has an older epoch than was committed before, because a standby that lagged behind has
   taken over: each payload says what was committed when it was flushed.
4. ``clean``: ends the sessions of dead attempts, whose tasks may still be copying, and drops their
   staging tables (P22).

With ``mode="upsert"`` only the last row of a key counts within an epoch: that with the greatest
``order_by``, else that of the latest batch, else of the latest in its Spark task. With
``order_by`` a row never replaces a row with a greater value, so the result does not depend on where
one checkpoint ends and the next begins.

``schema_evolution`` changes the target within the commit (``evolution.py``); ``epoch_column``
keeps the number of each row's checkpoint (``history.py``).

An epoch without rows leaves the database alone; it is on record in the job's own log (P15).

Payload::

    {"table": "s_0a1b2c3d4e5f6071_1_4", "position": 7, "flushed": true, "after": 12, "rows": 1200,
     "writers": [[4611686018427387904, 700], [12, 500]],
     "columns": [{"name": "id", "type": "bigint"}]}
"""

from __future__ import annotations

import getpass
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec

from weir.core.types import Payload
from weir.errors import (
    InvariantError,
    LostRowsError,
    LostWriteError,
    SinkError,
    SinkMismatchError,
    StorageError,
)
from weir.lineage.datasets import Dataset, postgres_dataset
from weir.sinks.arrow_rows import map_in_arrow
from weir.sinks.base import Batch, Commit, Sink, SinkContext, gone_back
from weir.sinks.ddl import check_names
from weir.sinks.postgres.copy import REPORT, CopyRows
from weir.sinks.postgres.evolution import check_owner, evolved
from weir.sinks.postgres.history import History, HistoryLog, epoch_column
from weir.sinks.postgres.insert import Insert, Rejects
from weir.sinks.postgres.prepared import (
    PreparedPayload,
    check_none_waits,
    rows_committed_by_hand,
)
from weir.sinks.postgres.session import (
    Connect,
    connect,
    connected,
    is_violation,
    parameters_of,
    quoted,
    wait_until_ended,
)
from weir.sinks.postgres.staging import (
    StagingTables,
    TablePayload,
    columns_of,
    damage,
    in_sql,
    table_payload,
    writers_of,
)
from weir.sinks.postgres.target import Ledger, PostgresTarget, check_server
from weir.sinks.postgres.types import (
    StagedColumn,
    check_fits,
    is_column_name,
    staged_columns,
    staging_expressions,
)
from weir.sinks.staging import check_evolution, decode_flushed, decode_staged, encoded

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)

Mode: TypeAlias = Literal["append", "upsert"]


class PostgresTable(Sink):
    """Appends to a PostgreSQL table, or updates it by key, exactly once.

    ``dsn``: libpq's connection string or URI, without a password. ``table``: ``name`` or
    ``schema.name``, as in the catalogue (no quotes). ``mode``: ``"append"`` or ``"upsert"``, which
    needs ``key``, the columns of a unique index that are not null. ``order_by``: the column whose
    greatest value wins. ``create``: create the table with the first rows, with ``key`` as its
    primary key. ``rejects``: a table, created if necessary, for rows that violate a constraint or
    do not fit their column; without it, such a row fails the job. ``schema_evolution="add"``:
    columns that the table lacks are added to it, and narrower columns get the rows' type, with the
    commit of the first rows that need it; without it, the table must take the rows as it is.
    In both cases columns that the rows lack get their default, or null. ``epoch_column``, with
    ``mode="append"``: a column (``bigint``) that gets the number of the checkpoint that commits the
    row, by which ``read_consistent`` reads older checkpoints; one job and sink may write it.

    Raises ``SinkError`` for arguments that contradict each other or a password in ``dsn``, and
    ``UnsupportedEnvironmentError`` if psycopg or pgpq is not installed.
    """

    compares = True
    #: Reaches the server; the simulator has its own.
    _connect: Connect = staticmethod(connect)

    def __init__(
        self,
        dsn: str,
        table: str,
        mode: Mode = "append",
        *,
        key: Sequence[str] = (),
        order_by: str | None = None,
        create: bool = False,
        rejects: str | None = None,
        schema_evolution: Literal["add"] | None = None,
        epoch_column: str | None = None,
    ) -> None:
        self._parameters = parameters_of(dsn)
        self._table = table
        self._mode = mode
        self.takes_updates = mode == "upsert"
        self._key = (key,) if isinstance(key, str) else tuple(key)
        self._order_by = order_by
        self._create = create
        self._rejects = rejects
        self._adds = schema_evolution == "add"
        self._epoch_column = epoch_column
        self._opened: SinkContext | None = None
        #: Of this attempt.
        self._staging: StagingTables
        #: ``schema.table``, once opened.
        self._target_name = ""
        #: The newest epoch known to be committed; 0 if none is.
        self._newest = 0
        #: The table as it was found first, along the search path.
        self._found: PostgresTarget | None = None
        #: The rows' schema that last fitted (Spark's JSON), and its columns: so it is checked once.
        self._accepted: tuple[str, tuple[StagedColumn, ...]] | None = None
        given = (table, *self._key, order_by, rejects, epoch_column)
        check_names(given, place=self.describe())
        self._check_arguments()
        check_evolution(schema_evolution, self.describe())

    def describe(self) -> str:
        """What and where, for messages."""
        shown = ("service", "host", "port", "dbname")
        where = " ".join(
            f"{key}={self._parameters[key]}" for key in shown if key in self._parameters
        )
        return f"PostgresTable({self._table!r} at {where or 'PGHOST'!r})"

    def destination(self) -> str | None:
        """The table on its server."""
        dataset = self.dataset()
        return f"{dataset.namespace}/{dataset.name}"

    def identity(self) -> str:
        """The table, its server and its database."""
        given = self._parameters
        host = given.get("host") or os.environ.get("PGHOST") or "localhost"
        port = given.get("port") or os.environ.get("PGPORT") or "5432"
        names = (given.get("dbname"), given.get("service"), os.environ.get("PGDATABASE"))
        database = next(filter(None, names), "")
        return f"PostgresTable {self._table.removeprefix('public.')} at {host}:{port}/{database}"

    def dataset(self) -> Dataset:
        """The table on its server."""
        given = self._parameters
        schema, _, table = (self._target_name or f"public.{self._table}").rpartition(".")
        if not self._target_name and "." in self._table:
            schema, _, table = self._table.partition(".")
        user = given.get("user") or os.environ.get("PGUSER") or getpass.getuser()
        return postgres_dataset(
            host=given.get("host") or os.environ.get("PGHOST", ""),
            port=given.get("port") or os.environ.get("PGPORT", ""),
            database=given.get("dbname") or os.environ.get("PGDATABASE") or user,
            schema=schema,
            table=table,
        )

    def check(self, context: SinkContext) -> None:
        """Refuse a server that cannot be written to, and a table that does not fit (MISSION G4)."""
        # For another run in the same process: what the previous run committed may be gone by right.
        self._opened, self._newest, self._found = None, 0, None
        try:
            with self._session("weir check") as connection:
                target = self._find(connection)
                self._check_access(connection, target)
                self._check_target(target)
                if self._epoch_column is not None:
                    self._history(context, target, self._epoch_column).check(connection)
        except StorageError as error:
            raise SinkError(str(error)) from error

    def open(self, context: SinkContext) -> None:
        """Create the schema ``weir`` and its ledger, unless they exist."""
        if self._opened is not None and self._opened.job_id != context.job_id:
            self._newest = 0
        self._opened = context
        with self._session("weir open") as connection:
            self._target_name = self._find(connection).name
            self._ledger.create(connection)
            if self._epoch_column is not None:
                History.create(connection)
            # What an earlier attempt has committed must still be there when this attempt commits.
            found = self._ledger.newest(connection) or 0
            self._newest = max(self._newest, context.newest, found)
        self._staging = StagingTables(
            ledger=self._ledger, session=partial(self._session, self._session_name)
        )
        self._accepted = None

    def stage(self, frame: DataFrame, batch: Batch) -> Payload | None:
        """Copy the batch's rows into a staging table, in one Spark job.

        None if there are no rows. Raises ``SinkMismatchError`` before any row is written if the
        columns do not fit.
        """
        schema = frame.schema.json()
        columns = self._fitting(schema)
        if batch.files == ():
            return None
        table = self._staging.take(columns, batch.batch_id)
        copy = CopyRows(
            parameters=self._parameters,
            table=in_sql(table),
            columns=columns,
            place=self.describe(),
            session=self._session_name,
            connect=self._connect,
            new_name=self._context.kernel.new_name,
        )
        selected = frame.selectExpr(*staging_expressions(schema))
        names = [column.name for column in columns]
        reports = map_in_arrow(selected, names, copy, REPORT).collect()
        if not reports:
            self._staging.settle([(table, batch.batch_id)])
            return None
        return encoded(table_payload(table, batch.batch_id, columns, reports))

    def flush(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Check that the rows are there; the next batch begins a new staging table (PROTOCOL P23).

        They are durable since they were copied. Raises ``LostWriteError`` if some are gone, since
        the server was restored or a standby that lagged behind took over.
        """
        staged = decode_staged(payloads, TablePayload, self.describe())
        lost = self._staging.flush(staged)
        if lost is not None:
            raise LostWriteError(
                f"Output that {self.describe()} staged cannot be part of a checkpoint, because"
                f" {lost}: its rows are recomputed from the last checkpoint. Make sure that"
                " nothing else changes tables in the schema weir."
            )
        return [
            given
            if payload.flushed
            else encoded(msgspec.structs.replace(payload, flushed=True, after=self._newest))
            for given, payload in zip(payloads, staged, strict=True)
        ]

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """Insert the epoch's rows into the target in one transaction, with the epoch's record.

        Returns 0 if that was done before or there are no rows. Raises ``LostRowsError`` if staged
        rows are gone, and ``SinkMismatchError`` if the table refuses a row and there is no table of
        rejects; calling again is safe.
        """
        of_tables = [payload for payload in payloads if "transactions" not in payload]
        others = [payload for payload in payloads if "transactions" in payload]
        staged = decode_flushed(of_tables, TablePayload, self.describe())
        prepared = decode_flushed(others, PreparedPayload, self.describe())
        if not payloads:
            return 0
        try:
            with self._session(self._session_name) as connection:
                rows = self._commit(connection, epoch, staged, prepared)
        except Exception as error:
            if not is_violation(error):
                raise
            raise self._violation(epoch, error) from error
        self._newest = max(self._newest, epoch)
        self._staging.settle((payload.table, payload.position) for payload in staged)
        return rows

    def newest_committed(self) -> int | None:
        """The epoch in the sink's row of ``weir.commits`` (PROTOCOL P21)."""
        with self._session(self._session_name) as connection:
            return self._ledger.newest(connection)

    def commits(self, context: SinkContext) -> Iterator[Commit]:
        """The newest commit of each job and sink at the target, newest first."""
        with self._session("weir") as connection:
            target = self._find(connection)
            # The rows are gone with their table.
            return iter(Ledger.commits(connection, target.name) if target.exists else ())

    def history(self, name: str) -> HistoryLog:
        """The checkpoints that the table shows, for readers who call it ``name``.

        Raises ``CutNotFoundError`` if it does not exist, and ``StorageError`` if it has none or
        does not answer.
        """
        if self._epoch_column is None:
            raise StorageError(
                f"Table {name!r} ({self.describe()}) keeps no older rows: give the sink"
                " epoch_column='weir_epoch', or read the others at the checkpoint at which it"
                " stands in weir.commits (checkpoint_id=)."
            )
        where = self.dataset()
        return HistoryLog(
            name,
            f"{where.namespace}/{where.name}",
            self._epoch_column,
            place=self.describe(),
            session=partial(self._session, "weir read"),
            find=self._find,
        )

    def clean(self, attempt: int) -> None:
        """End the sessions of dead attempts and delete what they staged (PROTOCOL P22).

        Raises ``SinkMismatchError`` if an attempt of an older Weir has prepared transactions.
        """
        with self._session(self._session_name) as connection:
            sessions = connection.execute(
                "SELECT DISTINCT application_name FROM pg_stat_activity"
                " WHERE usename = current_user AND pid <> pg_backend_pid()"
            ).fetchall()
            dead = [name for (name,) in sessions if self._is_dead(name, attempt)]
            # By their names: a pooler may give a process to another session meanwhile.
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE usename = current_user AND pid <> pg_backend_pid()"
                " AND application_name = ANY (%s)",
                [dead],
            )
            wait_until_ended(connection, dead, self._context.kernel)
            check_none_waits(connection, self._ledger, place=self.describe())
        self._staging.clean(attempt)

    def close(self) -> None:
        """Delete what this attempt staged: every epoch is committed."""
        self._staging.close()

    def _commit(
        self,
        connection: psycopg.Connection,
        epoch: int,
        staged: Sequence[TablePayload],
        prepared: Sequence[PreparedPayload],
    ) -> int:
        """Insert what is staged, check what was prepared, enter the epoch; return the rows."""
        ledger = self._ledger
        committed = ledger.lock(connection)
        if committed >= epoch:
            return 0
        self._check_not_gone_back(committed, staged)
        if (lost := damage(connection, staged)) is not None:
            raise LostRowsError(
                f"Checkpoint {epoch} cannot be committed to {self.describe()}, since {lost}: none"
                " of its rows are visible there, and the job cannot continue without them. Restore"
                " the schema weir of the database and run the job again, or start from an older"
                " snapshot with --from-savepoint PATH --accept-duplicates."
            )
        rows = 0
        if prepared:
            rows = rows_committed_by_hand(
                connection, prepared, ledger=ledger, epoch=epoch, place=self.describe()
            )
        # A restored job may have pending rows of an older version of the pipeline.
        groups = [(columns, list(group)) for columns, group in groupby(staged, columns_of)]
        if groups:
            # Before the first row: what is locked only for rows is not locked harder later, by
            # which two sinks of one table would wait for each other.
            target = self._created_target(connection, groups[0][0], committed)
            number = self._number(connection, target, committed, epoch)
            target = self._changed_target(connection, target, [columns for columns, _ in groups])
        for columns, group in groups:
            insert = Insert(
                target=target,
                columns=columns,
                writers=writers_of(group),
                key=self._key if self._mode == "upsert" else (),
                order_by=self._order_by,
                count=sum(payload.rows for payload in group),
                number=number,
            )
            session = partial(self._session, self._session_name)
            rows += insert.run(connection, self._rejects_at(target, epoch), session)
        ledger.enter(connection, epoch, rows)
        return rows

    def _check_not_gone_back(self, committed: int, payloads: Sequence[TablePayload]) -> None:
        """Raise ``LostRowsError`` if the ledger once had a newer epoch than it has now."""
        newest = self._newest
        if not self._context.may_have_gone_back:
            # Another job's savepoint may go to another target, which has a ledger of its own.
            known = [payload.after for payload in payloads if self._staging.is_own(payload)]
            newest = max([newest, *known])
        if committed < newest:
            raise gone_back(self.describe(), newest, committed)

    def _created_target(
        self, connection: psycopg.Connection, columns: tuple[StagedColumn, ...], committed: int
    ) -> PostgresTarget:
        """The table, created for rows with these columns if it should be.

        It is never created twice: the rows of the epochs up to ``committed`` would be missing.
        """
        target = self._find(connection)
        if not target.exists:
            if committed or not self._create:
                raise SinkError(
                    f"{self.describe()} is gone, with the rows that were committed to it: restore"
                    " the table, or create an empty table; the commit is repeated."
                )
            target.create(connection, self._with_number(columns), self._key)
            target = self._find(connection)
        self._check_target(target)
        return target

    def _changed_target(
        self,
        connection: psycopg.Connection,
        target: PostgresTarget,
        groups: Iterable[tuple[StagedColumn, ...]],
    ) -> PostgresTarget:
        """The table as it takes rows of each group's columns; changed if it should be."""
        for columns in groups:
            self._check_fits(target, columns)
            if self._adds:
                find, given = partial(self._find, connection), self._with_number(columns)
                target = evolved(connection, find, given, place=self.describe())
        return target

    def _number(
        self, connection: psycopg.Connection, target: PostgresTarget, committed: int, epoch: int
    ) -> tuple[str, int] | None:
        """The column and value by which the epoch's rows are found, if there is a history."""
        if self._epoch_column is None:
            return None
        history = self._history(self._context, target, self._epoch_column)
        return self._epoch_column, history.enter(connection, committed, epoch)

    def _history(self, context: SinkContext, target: PostgresTarget, column: str) -> History:
        return History(context=context, target=target, column=column, place=self.describe())

    def _with_number(self, columns: tuple[StagedColumn, ...]) -> tuple[StagedColumn, ...]:
        """The columns of the target that a commit fills."""
        name = self._epoch_column
        return columns if name is None else (*columns, epoch_column(name))

    def _check_fits(self, target: PostgresTarget, columns: tuple[StagedColumn, ...]) -> None:
        given = self._with_number(columns)
        check_fits(target.columns, given, place=self.describe(), adds=self._adds)

    def _check_access(self, connection: psycopg.Connection, target: PostgresTarget) -> None:
        place = self.describe()
        check_server(connection, rejects=self._rejects is not None, place=place)
        if not (target.exists or self._create):
            raise SinkError(
                f"{place} does not exist: create the table, or give the sink create=True."
            )
        needed = ("INSERT", "SELECT", "UPDATE") if self._key else ("INSERT",)
        target.check_access(connection, needed, place=place)
        if self._adds:
            check_owner(connection, target, place=place)
        if (rejects := self._rejects_name(target)) is not None:
            found = PostgresTarget.find(connection, rejects, place=f"The table {rejects!r}")
            found.check_access(connection, ("INSERT",), place=place)

    def _rejects_name(self, target: PostgresTarget) -> str | None:
        """``schema.table``."""
        name = self._rejects
        return name if name is None or "." in name else f"{target.schema}.{name}"

    def _rejects_at(self, target: PostgresTarget, epoch: int) -> Rejects | None:
        name = self._rejects_name(target)
        if name is None:
            return None
        schema, _, table = name.partition(".")
        return Rejects(
            table=f"{quoted(schema)}.{quoted(table)}",
            job_id=self._context.job_id,
            sink=self._context.sink,
            epoch=epoch,
        )

    def _violation(self, epoch: int, error: Exception) -> SinkMismatchError:
        said = " ".join(str(error).split())
        return SinkMismatchError(
            f"Checkpoint {epoch} cannot be committed to {self.describe()}, since the table refuses"
            f" a row ({said}): none of its rows are visible there. Change the"
            " constraint or the row in its way, or give the sink rejects=TABLE, which takes such"
            " rows, and run the job again."
        )

    def _fitting(self, spark_schema: str) -> tuple[StagedColumn, ...]:
        """The rows' columns. Raises ``SinkMismatchError`` if the table does not take them."""
        if self._accepted is None or self._accepted[0] != spark_schema:
            columns = staged_columns(spark_schema, place=self.describe())
            names = [column.name for column in columns]
            if self._epoch_column in names:
                raise SinkMismatchError(
                    f"{self.describe()} writes the numbers of checkpoints into"
                    f" {self._epoch_column!r}, but the rows have a column of that name: rename it"
                    " before the sink, or give another epoch_column."
                )
            for column in filter(None, (*self._key, self._order_by)):
                if column not in names:
                    raise SinkMismatchError(
                        f"{self.describe()} needs the column {column!r} in its key or order_by, but"
                        f" the rows have only {names}: add it before the sink."
                    )
            with self._session(self._session_name) as connection:
                target = self._find(connection)
            if target.exists:
                self._check_fits(target, columns)
            self._accepted = (spark_schema, columns)
        return self._accepted[1]

    def _is_dead(self, name: str, attempt: int) -> bool:
        """Whether a session is this sink's, of an attempt before the given attempt."""
        found = re.fullmatch(rf"weir {self._ledger.digest} (\d+)", name)
        return found is not None and int(found[1]) < attempt

    def _find(self, connection: psycopg.Connection) -> PostgresTarget:
        """The table. It is looked up along the search path once, and by its schema from then on.

        Another table of that name may come earlier on the path.
        """
        before = self._found
        found = PostgresTarget.find(
            connection,
            self._table if before is None else before.table,
            place=self.describe(),
            schema=None if before is None else before.schema,
        )
        if before is not None and before.oid and found.oid not in (0, before.oid):
            _log.warning(
                "%s is another table now: that to which earlier rows were committed was dropped or"
                " renamed. Rows go to the one that is there.",
                self.describe(),
            )
        if before is None or found.oid:
            self._found = found
        return found

    def _check_target(self, target: PostgresTarget) -> None:
        target.check_key(self._key, place=self.describe())

    def _session(self, name: str) -> AbstractContextManager[psycopg.Connection]:
        return connected(self._parameters, self.describe(), name=name, connect=self._connect)

    @property
    def _session_name(self) -> str:
        """By this ``clean`` finds the sessions of dead attempts."""
        return f"weir {self._ledger.digest} {self._context.attempt}"

    @property
    def _context(self) -> SinkContext:
        if self._opened is None:
            raise InvariantError(f"{self.describe()} was used before it was opened")
        return self._opened

    @property
    def _ledger(self) -> Ledger:
        return Ledger(context=self._context, target=self._target_name)

    def _check_arguments(self) -> None:
        if self._mode not in get_args(Mode):
            raise SinkError(
                f"{self.describe()} has the unknown mode {self._mode!r}: use one of"
                f" {get_args(Mode)}."
            )
        for table in (self._table, self._rejects):
            if table is not None and ("\0" in table or "" in table.split(".", 1)):
                raise SinkError(
                    f"{self.describe()} has the name {table!r}: write tables as in the catalogue,"
                    " such as 'orders' or 'sales.orders'."
                )
        if (self._mode == "upsert") != bool(self._key):
            raise SinkError(
                f"{self.describe()} needs key= for mode='upsert', and only for that: name the"
                " columns that identify a row."
            )
        if self._order_by is not None and not self._key:
            raise SinkError(
                f"{self.describe()} has order_by={self._order_by!r}, which only mode='upsert' uses:"
                " remove it."
            )
        name = self._epoch_column
        if name is not None and (self._key or not is_column_name(name)):
            raise SinkError(
                f"{self.describe()} has epoch_column={name!r}: give the name of a column, and only"
                " with mode='append', since an upsert keeps no older rows."
            )
