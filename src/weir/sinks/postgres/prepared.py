"""Two-phase commit by PostgreSQL itself: ``PostgresTable(two_phase=True)``.

Each Spark task copies its rows into the target and ends with ``PREPARE TRANSACTION``: the rows are
durable, and no reader sees them. ``COMMIT PREPARED`` shows them once the checkpoint is complete. So
each row is written once, but an epoch becomes visible in as many steps as there were tasks.

The transaction's name says whose it is, as staging tables' names do (PROTOCOL P22)::

    weir_<sink's digest>_<attempt>_<position>_<random>

With its rows it enters its name into ``weir.prepared``. That record is visible exactly if the rows
are, so a repeated commit knows what is done (P18), and a transaction that somebody rolled back is
told from one that was committed. Before the first ``COMMIT PREPARED`` of an epoch the driver enters
``weir_<digest>_epoch_<N>``: a job restored from an older checkpoint would write rows again (P21).
The last step deletes these records and enters the epoch into the ledger, in one transaction: a
record that is visible says that its target shows an epoch in part.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Meta

from weir.core.types import Count, Payload
from weir.errors import LostRowsError, LostWriteError, SinkError, SinkMismatchError
from weir.sinks.postgres.copy import CopyRows
from weir.sinks.postgres.session import connected, create_once, is_violation
from weir.sinks.postgres.target import Ledger, PostgresTarget
from weir.sinks.postgres.types import StagedColumn
from weir.sinks.staging import StagedPayload

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

#: The schema of what a Spark task reports.
REPORT_PREPARED = "transaction string, rows long"
_NAME = r"weir_[0-9a-f]{16}_[0-9]{1,18}_[0-9]{1,18}_[0-9a-f]{16}"
_RECORDS = "(name text PRIMARY KEY, target text NOT NULL, rows bigint NOT NULL)"
#: How long sessions that were told to end may still prepare something.
_SESSIONS_END_S = 5.0
_POLL_S = 0.02
#: By the rows' type, the names in ``pg_type`` of columns that take its binary form.
_COPIED = {
    "boolean": {"bool"},
    "smallint": {"int2"},
    "integer": {"int4"},
    "bigint": {"int8"},
    "real": {"float4"},
    "double precision": {"float8"},
    "numeric": {"numeric"},
    "text": {"text", "varchar"},
    "bytea": {"bytea"},
    "date": {"date"},
    "timestamptz": {"timestamptz"},
    "timestamp": {"timestamp"},
    "jsonb": {"jsonb"},
}

#: Gives a connection, which is closed at the end.
Session: TypeAlias = Callable[[], AbstractContextManager["psycopg.Connection"]]


class PreparedPayload(StagedPayload, kw_only=True):
    """The payload of a batch whose rows are in prepared transactions."""

    #: ``schema.table``: where the rows will be, whoever commits them.
    target: str
    #: The newest epoch that was committed when the payload was flushed; 0 if there was none.
    after: Count
    rows: Count
    transactions: list[tuple[Annotated[str, Meta(pattern=rf"\A{_NAME}\Z")], Count]]

    def __post_init__(self) -> None:
        if sum(rows for _, rows in self.transactions) != self.rows:
            raise ValueError("its transactions have another number of rows")


@dataclass(frozen=True, kw_only=True)
class PrepareRows(CopyRows):
    """For ``mapInArrow``: copies a partition's rows into the target, in a prepared transaction.

    Emits its name and how many rows it has; nothing for an empty partition.
    """

    #: ``schema.table``.
    target: str
    #: Of the transaction's name: all but its random part.
    prefix: str

    #: The table's columns and their types, as the driver saw them.
    types: Mapping[str, str]

    def _run(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        import psycopg
        import pyarrow as pa

        # Each run has a name of its own. None ends what another one prepared: that may count.
        name = f"{self.prefix}_{secrets.token_hex(8)}"
        try:
            with connected(self.parameters, self.place, name=self.session) as connection:
                self._check_types(connection)
                rows = self._copy(connection, batches)
                connection.execute(
                    "INSERT INTO weir.prepared VALUES (%s, %s, %s)", [name, self.target, rows]
                )
                connection.execute(f"PREPARE TRANSACTION '{name}'")
        except psycopg.Error as error:
            if not is_violation(error):
                raise
            raise SinkMismatchError(
                f"{self.place} refuses a row of this batch ({' '.join(str(error).split())}): change"
                " the constraint or the row."
            ) from error
        return pa.RecordBatch.from_pydict(
            {"transaction": pa.array([name]), "rows": pa.array([rows], pa.int64())}
        )

    def _check_types(self, connection: psycopg.Connection) -> None:
        """Keep the table from changing, and raise ``SinkMismatchError`` if it has changed.

        A binary copy would put the bytes of one type into another.
        """
        connection.execute(f"LOCK TABLE {self.table} IN ROW EXCLUSIVE MODE")
        found: dict[str, str] = dict(
            connection.execute(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
                " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
                [self.table],
            ).fetchall()
        )
        for name, kind in self.types.items():
            if (now := found.get(name)) != kind:
                raise SinkMismatchError(
                    f"The column {name!r} of {self.place} was {kind} when the job started, and is"
                    f" {now} now: the batch is repeated with the table as it is."
                )


class PreparedTransactions:
    """Those of one sink and attempt."""

    def __init__(
        self, *, ledger: Ledger, place: str, session: Session, statements: Session
    ) -> None:
        """``statements`` gives a session without a transaction around each statement."""
        self._ledger = ledger
        self._place = place
        self._session = session
        self._statements = statements
        self._lock = threading.Lock()
        #: The names that count and are not committed.
        self._open: set[str] = set()
        #: The newest position that was flushed, and how often older attempts were cleaned up.
        self._flushed = -1
        self._cleaned = 0

    def prefix(self, position: int) -> str:
        """Of the names of a batch's transactions."""
        return f"{self._of_attempt}{position}"

    def staged(self, transactions: Iterable[str]) -> None:
        """A batch's transactions are those that count, whatever else its tasks prepared."""
        with self._lock:
            self._open.update(transactions)

    def flush(self, payloads: Sequence[Payload]) -> None:
        """Check that all are there (PROTOCOL P23), and end what runs left that do not count.

        Raises ``LostWriteError`` if one is gone.
        """
        self._flushed = max([self._flushed, *(payload["position"] for payload in payloads)])
        with self._session() as connection:
            waiting = waiting_here(connection, self._of_sink)
            with self._lock:
                mine = {name for name in _names(payloads) if name in self._open}
                left = sorted(name for name in waiting - self._open if self._is_left(name))
            # A commit that goes on may have been cut short: its records say what it did.
            gone = mine - waiting
            gone -= _recorded(connection, sorted(gone)) if gone else set()
        if gone:
            raise LostWriteError(
                f"Output that {self._place} staged cannot be part of a checkpoint, because the"
                f" prepared transaction {min(gone)} is gone: its rows are recomputed from the last"
                " checkpoint. Make sure that nothing else ends transactions of Weir's."
            )
        self._end("ROLLBACK", left)

    def show(self, epoch: int, payloads: Sequence[Payload]) -> None:
        """Commit the epoch's transactions, unless that was done.

        Calling again is safe. Raises ``LostRowsError`` before any if one is gone.
        """
        names = _names(payloads)
        with self._session() as connection:
            # Nobody finishes the epoch meanwhile, which deletes its records.
            if self._ledger.lock(connection) >= epoch:
                return
            # In this order: what no longer waits was ended before the next statement, which sees
            # the record if it was committed.
            waiting = waiting_here(connection, self._of_sink)
            done = _recorded(connection, names)
            if gone := set(names) - waiting - done:
                raise LostRowsError(
                    f"Checkpoint {epoch} cannot be committed to {self._place}, since the prepared"
                    f" transaction {min(gone)} is gone, and the job cannot continue without its"
                    " rows. Start from an older snapshot with --from-savepoint PATH"
                    " --accept-duplicates."
                )
            connection.execute(
                "INSERT INTO weir.prepared VALUES (%s, %s, 0) ON CONFLICT (name) DO NOTHING",
                [f"{self._ledger.shown_prefix}{epoch}", self._ledger.target],
            )
        self._end("COMMIT", [name for name in names if name in waiting])

    def finish(self, connection: psycopg.Connection, payloads: Sequence[Payload]) -> int:
        """Delete the records of an epoch that is shown; return its rows.

        In the transaction that enters the epoch into the ledger. Raises ``LostRowsError`` if a
        record is missing.
        """
        expected = dict(pair for payload in payloads for pair in payload["transactions"])
        found = connection.execute(
            "DELETE FROM weir.prepared WHERE name = ANY (%s) OR starts_with(name, %s)"
            " RETURNING name, rows",
            [list(expected), self._of_sink],
        ).fetchall()
        if not expected.items() <= dict(found).items():
            raise LostRowsError(
                f"{self._place} lacks records in weir.prepared of rows that were committed: restore"
                " the table weir.prepared, which only Weir may change, and run the job again."
            )
        with self._lock:
            self._open.difference_update(expected)
        return sum(expected.values())

    def clean(self, attempt: int) -> None:
        """Roll back those of attempts before the given one (PROTOCOL P22).

        After the second time, with the attempt's first commit, ``flush`` looks for late ones too.
        """
        self._cleaned += 1
        with self._session() as connection:
            waiting = waiting_here(connection, self._of_sink)
        self._end("ROLLBACK", sorted(one for one in waiting if _attempt(one) < attempt))

    def close(self) -> None:
        """Roll back what does not count: every epoch is committed."""
        with self._session() as connection:
            waiting = waiting_here(connection, self._of_attempt)
        self._end("ROLLBACK", sorted(waiting))

    def is_own(self, payload: Payload) -> bool:
        """Whether this sink staged it, in any attempt."""
        return all(name.startswith(self._of_sink) for name in _names([payload]))

    def _is_left(self, name: str) -> bool:
        """Whether a transaction that does not count was prepared for a batch that is over."""
        own, attempt = self._ledger.context.attempt, _attempt(name)
        if attempt == own:
            return _position(name) <= self._flushed
        return attempt < own and self._cleaned > 1

    def _end(self, how: str, names: Sequence[str]) -> None:
        if names:
            with self._statements() as connection:
                end_prepared(connection, how, names)

    @property
    def _of_sink(self) -> str:
        return f"weir_{self._ledger.digest}_"

    @property
    def _of_attempt(self) -> str:
        return f"{self._of_sink}{self._ledger.context.attempt}_"


def create_records(connection: psycopg.Connection) -> None:
    """Create the table of records, unless it exists."""
    create_once(connection, "table", "weir.prepared", _RECORDS)


def check_prepares(connection: psycopg.Connection, *, place: str) -> None:
    """Raise ``SinkError`` unless the server allows prepared transactions."""
    (allowed,) = connection.execute("SHOW max_prepared_transactions").fetchone() or ("0",)
    if allowed == "0":
        raise SinkError(
            f"{place} has two_phase=True, but its server allows no prepared transactions: set"
            " max_prepared_transactions there to at least the number of Spark tasks between two"
            " commits, restart the server, or leave two_phase out."
        )


def check_copied(target: PostgresTarget, rows: Sequence[StagedColumn], *, place: str) -> None:
    """Raise ``SinkMismatchError`` unless the table's columns have the types of the rows."""
    columns = {column.name: column for column in target.columns}
    differences = []
    for row in rows:
        column = columns[row.name]
        base = row.type.removesuffix("[]")
        taken = _COPIED[base.partition("(")[0]]
        if base != row.type:
            # Binary COPY names the type of the elements, and pgpq has no zone in it.
            taken = {f"_{name}" for name in taken - {"timestamptz", "varchar"}}
        if column.type_name not in taken:
            differences.append(
                f"{row.name!r} is {row.type} in the rows, {column.type} in the table"
            )
    if differences:
        raise SinkMismatchError(
            f"{place} has two_phase=True, by which rows are copied as they are, but"
            f" {'; '.join(differences)}: cast the columns before the sink, or leave two_phase out."
        )


def end_prepared(connection: psycopg.Connection, how: str, names: Iterable[str]) -> None:
    """``COMMIT`` or ``ROLLBACK`` prepared transactions, unless another session does it."""
    from psycopg.errors import ObjectNotInPrerequisiteState, UndefinedObject

    for name in names:
        with suppress(UndefinedObject):
            try:
                connection.execute(f"{how} PREPARED '{name}'")
            except ObjectNotInPrerequisiteState:
                # Another session is about to end it: that is over when it is no longer busy.
                time.sleep(_POLL_S)
                connection.execute(f"{how} PREPARED '{name}'")


def wait_until_ended(connection: psycopg.Connection, sessions: Sequence[str]) -> None:
    """Wait until sessions with these names are gone, which were told to end."""
    deadline = time.monotonic() + _SESSIONS_END_S
    while time.monotonic() < deadline:
        # A transaction sees the sessions as they were when it first looked.
        connection.execute("SELECT pg_stat_clear_snapshot()")
        found = connection.execute(
            "SELECT FROM pg_stat_activity WHERE usename = current_user"
            " AND pid <> pg_backend_pid() AND application_name = ANY (%s)",
            [list(sessions)],
        ).fetchone()
        if found is None:
            return
        time.sleep(_POLL_S)


def waiting_here(connection: psycopg.Connection, prefix: str) -> set[str]:
    """The database's prepared transactions with this prefix, whoever prepared them."""
    found = connection.execute(
        "SELECT gid FROM pg_prepared_xacts"
        " WHERE database = current_database() AND starts_with(gid, %s)",
        [prefix],
    ).fetchall()
    return {name for (name,) in found if re.fullmatch(_NAME, name)}


def _recorded(connection: psycopg.Connection, names: Sequence[str]) -> set[str]:
    found = connection.execute(
        "SELECT name FROM weir.prepared WHERE name = ANY (%s)", [list(names)]
    ).fetchall()
    return {name for (name,) in found}


def _names(payloads: Iterable[Payload]) -> list[str]:
    return [name for payload in payloads for name, _ in payload["transactions"]]


def _attempt(name: str) -> int:
    return int(name.split("_")[2])


def _position(name: str) -> int:
    return int(name.split("_")[3])
