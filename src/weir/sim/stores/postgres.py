"""A PostgreSQL server, and what psycopg is to one process: the real ``PostgresTable`` runs over it.

What the sink assumes of PostgreSQL, and what may happen there:

1. A transaction shows all that it did, or nothing, when it is committed; each of its statements
   sees what was committed before (READ COMMITTED) and what the transaction itself did.
2. A row of ``weir.commits`` and a table that is to be dropped are locked until the transaction
   ends. Who waits longer than ``lock_timeout`` gets an error.
3. A connection may be lost with any statement. If the answer to COMMIT is lost, the transaction may
   have been committed, or not; or it is committed later, unless its session was ended meanwhile.
   The session of a client that is gone lives on for a while, with its locks.
4. A transaction whose client has done nothing for ``idle_in_transaction_session_timeout`` ends.
   A session that is terminated ends after a while.
5. The server may restart. A standby that lagged behind may take over: what was committed is gone.

It knows the statements that the sink uses, and refuses any other by name.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import psycopg
from psycopg.sql import Composable

from weir.errors import PipelineError
from weir.sim.engine.disk import Disk
from weir.sim.stores.faults import Network, Outcome, calling_process
from weir.sim.stores.store import Store
from weir.sinks.postgres.session import _IDLE_TIMEOUT_MS, _LOCK_TIMEOUT_MS
from weir.sinks.postgres.sink import PostgresTable

#: How often who waits for a lock looks again, in virtual microseconds.
_LOOK_US = 20_000
#: For how long the session of a client that is gone lives on at most.
_ORPHAN_US = 8_000_000
#: For how long a terminated session lives on at most.
_TERMINATES_US = 300_000
#: How likely a standby lacks another committed transaction, and the newest rows of the target.
_LAGS = 0.7
_LOSES_ROWS = 0.5
#: How often the connection is lost with a statement, compared with ``COMMIT``.
_STATEMENTS_FAIL = 0.1
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
#: By Arrow's type, PostgreSQL's two names of its own, and what a value of it in a binary COPY is.
_TYPES: dict[str, tuple[str, str, Callable[[bytes], Any]]] = {
    "int16": ("smallint", "int2", lambda data: _number(">h", data)),
    "int32": ("integer", "int4", lambda data: _number(">i", data)),
    "int64": ("bigint", "int8", lambda data: _number(">q", data)),
    "float": ("real", "float4", lambda data: _number(">f", data)),
    "double": ("double precision", "float8", lambda data: _number(">d", data)),
    "bool": ("boolean", "bool", lambda data: data == b"\1"),
    "string": ("text", "text", bytes.decode),
    "binary": ("bytea", "bytea", bytes),
    "date32[day]": ("date", "date", lambda data: _time("days", ">i", data).date()),
    "timestamp[us, tz=UTC]": (
        "timestamp with time zone",
        "timestamptz",
        lambda data: _time("microseconds", ">q", data),
    ),
    "timestamp[us]": (
        "timestamp without time zone",
        "timestamp",
        lambda data: _time("microseconds", ">q", data).replace(tzinfo=None),
    ),
}


def _number(kind: str, data: bytes) -> Any:
    return struct.unpack(kind, data)[0]


def _time(unit: str, kind: str, data: bytes) -> datetime:
    return _EPOCH + timedelta(**{unit: _number(kind, data)})


#: A row: its values as a binary COPY has them.
Values = tuple[bytes | None, ...]

_STAGING = r'weir\."(s_[0-9a-f]{16}_[0-9]+_[0-9]+)"'
_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_END = b"\xff\xff"
_PART = re.compile(rf"FROM {_STAGING}(?: WHERE weir_writer = ANY \('{{([0-9,]*)}}'::bigint\[\]\))?")

#: A row of ``weir.commits``: the epoch and what else the sink enters.
LedgerKey = tuple[str, str, str]


@dataclass(frozen=True)
class Database:
    """What is committed, or what one transaction sees."""

    #: The target's rows.
    target: tuple[Values, ...] = ()
    #: By staging table, the rows with their writers.
    staging: dict[str, tuple[tuple[int, Values], ...]] = field(default_factory=dict)
    ledger: dict[LedgerKey, tuple[Any, ...]] = field(default_factory=dict)


class Session:
    """One connection, as the server sees it, with its transaction."""

    def __init__(self, name: str, now_us: int) -> None:
        self.name = name
        self.alive = True
        #: When its client last did something, in virtual microseconds; None: a statement runs.
        self.idle_since_us: int | None = now_us
        self.changes: list[Callable[[Database], Database]] = []
        #: Rows of the ledger, and tables, that no other session may lock before it ends.
        self.locks: set[object] = set()
        #: Tables that it has read or written.
        self.uses: set[str] = set()
        self.lock_timeout_us = _LOCK_TIMEOUT_MS * 1_000

    def end(self) -> None:
        """Roll back, and close."""
        self.alive = False
        self.changes, self.locks, self.uses = [], set(), set()


class Server(Store):
    """A server with one table. Half of what strikes it is a standby that lagged behind."""

    def __init__(
        self, network: Network, disk: Disk, root: str, changed: Callable[[], object]
    ) -> None:
        """See ``Store``; nothing of it is on the simulated disk."""
        super().__init__(network, disk, root, changed)
        self._columns = {"id": "int64"}
        self.database = Database()
        #: What was committed before, for a standby that lags behind.
        self._history: list[Database] = []
        self._sessions: list[Session] = []

    def sink(self) -> PostgresTable:
        """See ``Store``."""
        return PostgresTable("host=db dbname=shop", "out")

    def attach(self, sink: Any) -> None:
        """See ``Store``."""
        sink._connect = partial(_connection, self)

    def declare(self, schema: Any) -> None:
        """See ``Store``."""
        self._columns = {one.name: str(one.type) for one in schema}
        for name, kind in self._columns.items():
            if kind not in _TYPES:
                raise PipelineError(f"The simulated PostgreSQL has no type for {name!r}, a {kind}.")

    @classmethod
    def lacks(cls, sink: Any) -> str | None:
        """See ``Store``."""
        if sink._mode != "append" or sink._rejects:
            return "updates by key, and rejected rows"
        return "columns that are added" if sink._adds or sink._epoch_column else None

    @property
    def columns(self) -> list[tuple[Any, ...]]:
        """The target's columns, as the sink asks for them."""
        return [
            (name, *_TYPES[kind][:2], -1, False, False, False, False)
            for name, kind in self._columns.items()
        ]

    def rows(self) -> list[dict[str, Any]]:
        """See ``Store``."""
        return [*map(self._named, self.database.target)]

    def held(self) -> list[dict[str, Any]]:
        """See ``Store``."""
        staged = [row for rows in self.database.staging.values() for _, row in rows]
        return [*map(self._named, (*self.database.target, *staged))]

    def _named(self, row: Values) -> dict[str, Any]:
        return {
            name: None if value is None else _TYPES[kind][2](value)
            for (name, kind), value in zip(self._columns.items(), row, strict=True)
        }

    def sessions(self, sink: Any, before: int) -> set[object]:
        """See ``Store``. Their names have the attempt."""
        name = re.compile(rf"weir {sink._ledger.digest} (\d+)")
        found = ((session, name.fullmatch(session.name)) for session in self.live())
        return {session for session, match in found if match and int(match[1]) < before}

    def strike(self) -> str:
        """Restart, or let an older state take over."""
        if self.network.random.random() < 0.5:
            self.restart()
            return "the server restarts"
        self.goes_back(lost=self.fail_over())
        return "a standby that lagged behind takes over"

    def live(self) -> list[Session]:
        """The sessions that are not over."""
        now_us = self.network.loop.now_us
        for session in self._sessions:
            since = session.idle_since_us
            if since is not None and now_us - since > _IDLE_TIMEOUT_MS * 1_000:
                session.end()
        self._sessions = [session for session in self._sessions if session.alive]
        return self._sessions

    def restart(self) -> None:
        """Crash and come back: every session is over, and what was committed is there."""
        for session in self._sessions:
            session.end()

    def fail_over(self) -> bool:
        """A standby takes over, which lacks some of the committed transactions.

        Half the time it lacks the newest rows of the target. Returns whether rows of it are gone.
        """
        self.restart()
        self.age += 1
        random, before = self.network.random, self.database
        while self._history and random.random() < _LAGS:
            self.database = self._history.pop()
        if random.random() < _LOSES_ROWS:
            while self._history and self.database.target == before.target:
                self.database = self._history.pop()
        return self.database.target != before.target

    def seen_by(self, session: Session) -> Database:
        """What the session's next statement sees."""
        database = self.database
        for change in session.changes:
            database = change(database)
        return database

    def commit(self, session: Session) -> None:
        """Commit a session's transaction, and end the session; nothing if it is over."""
        if session not in self.live():
            return
        if session.changes:
            self._history.append(self.database)
            self.database = self.seen_by(session)
        session.end()
        self._changed()

    def others(self, session: Session) -> list[Session]:
        """The other sessions that are not over."""
        return [other for other in self.live() if other is not session]

    def lock(self, session: Session, lock: object) -> None:
        """Wait for a row of the ledger, or for a table that nobody else may use then.

        Raises psycopg's ``LockNotAvailable``.
        """
        loop = self.network.loop
        until_us = loop.now_us + session.lock_timeout_us
        while any(lock in one.locks or lock in one.uses for one in self.others(session)):
            if loop.now_us >= until_us:
                raise _error("55P03", "canceling statement due to lock timeout")
            loop.sleep(calling_process(), _LOOK_US)
            if not session.alive:
                raise psycopg.OperationalError("Simulated: the server closed the connection")
        session.locks.add(lock)


def _error(state: str, text: str) -> psycopg.Error:
    return psycopg.errors.lookup(state)(f"Simulated: {text}")


class _Result:
    """What ``execute`` returns."""

    def __init__(self, rows: list[Any], rowcount: int = -1) -> None:
        self._rows = rows
        self.rowcount = rowcount

    def fetchall(self) -> list[Any]:
        """All rows."""
        return self._rows

    def fetchone(self) -> Any:
        """The first row, or None."""
        return self._rows[0] if self._rows else None


class Connection:
    """Stands in for ``psycopg.Connection``: one transaction, which leaving the block commits."""

    info = SimpleNamespace(server_version=150_000)

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self._network = server.network
        self._network.travel()
        if self._network.outcome("connect") is not Outcome.ANSWERED:
            raise psycopg.OperationalError("Simulated: the server does not answer")
        self.session = Session(name, self._network.loop.now_us)
        server._sessions.append(self.session)
        self._network.travel()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, Exception):
            # The process is dead: nothing is sent any more.
            self._orphaned()
            return
        if kind is not None:
            self.session.end()
            return
        self._commit()
        self._network.travel()

    def _commit(self) -> None:
        """Send COMMIT: the server may act without an answer, and later."""

        def commit() -> None:
            self._server.commit(self.session)

        outcome = self._network.outcome("COMMIT")
        if outcome is Outcome.ANSWERED:
            try:
                self._network.travel()
            except BaseException:
                # It was sent before the process died.
                self._network.later(commit)
                raise
            self._check_alive()
            commit()
            return
        self._network.unanswered(outcome, commit)
        if outcome is Outcome.REFUSED:
            self._orphaned()
        raise psycopg.OperationalError("Simulated: the connection was lost with COMMIT")

    def execute(self, query: str | Composable, params: Any = None) -> _Result:
        """Run a statement. Raises psycopg's errors."""
        text = query.as_string(None) if isinstance(query, Composable) else query
        text = " ".join(text.split())
        with self._statement(text[:40]):
            return self._run(text, params)

    def cursor(self) -> _Cursor:
        """A cursor, for ``COPY``."""
        return _Cursor(self)

    def copied(self, statement: str, rows: Sequence[Values]) -> None:
        """Carry out ``COPY``."""
        table = _staging_table(statement)
        with self._statement("COPY"):
            self._use(table)
            # The last two columns are Weir's own.
            marked = [(int.from_bytes(row[-2] or b""), row[:-2]) for row in rows]
            self.session.changes.append(lambda database: _with_rows(database, table, marked))

    @contextmanager
    def _statement(self, what: str) -> Iterator[None]:
        """A statement on its way, while it runs, and its answer."""
        session = self.session
        try:
            if self._network.outcome(what, often=_STATEMENTS_FAIL) is not Outcome.ANSWERED:
                self._orphaned()
                raise psycopg.OperationalError("Simulated: the connection was lost")
            self._network.travel()
            self._check_alive()
            session.idle_since_us = None
            yield
            session.idle_since_us = self._network.loop.now_us
            self._network.travel()
        except psycopg.Error:
            raise
        except BaseException:
            self._orphaned()
            raise

    def _check_alive(self) -> None:
        if self.session not in self._server.live():
            raise psycopg.OperationalError("Simulated: the server closed the connection")

    def _orphaned(self) -> None:
        """The client is gone: its session ends, at once or when the server notices."""
        session, random = self.session, self._network.random
        session.idle_since_us = self._network.loop.now_us
        delay_us = random.choice((0, random.randrange(_ORPHAN_US)))
        self._network.loop.at(delay_us, self._network.outside, session.end)

    def _use(self, table: str) -> None:
        """Use a table until the end of the transaction."""
        while any(table in other.locks for other in self._server.others(self.session)):
            self._network.loop.sleep(calling_process(), _LOOK_US)
        if table not in self._server.seen_by(self.session).staging:
            raise _error("42P01", f"the relation {table} does not exist")
        self.session.uses.add(table)

    def _run(self, text: str, params: Any) -> _Result:
        if text.startswith("SELECT a.attname, format_type("):
            return _Result(self._server.columns)
        for begins, rows in _CONSTANT.items():
            if text.startswith(begins):
                return _Result(rows)
        for begins, run in _STATEMENTS.items():
            if text.startswith(begins):
                return run(self, text, params)
        raise NotImplementedError(f"The simulated server does not know: {text}")

    # -- statements

    def _ledger(self, text: str, params: Any) -> _Result:
        session, server = self.session, self._server
        key = (params[0], params[1], params[2])
        if text.endswith("DO NOTHING"):
            if key not in server.seen_by(session).ledger:
                server.lock(session, key)
                session.changes.append(
                    lambda database: (
                        database if key in database.ledger else _entered(database, key, (0,))
                    )
                )
            return _Result([])
        if "DO UPDATE" in text:
            server.lock(session, key)
            session.changes.append(lambda database: _entered(database, key, tuple(params[3:])))
            return _Result([])
        if text.endswith("FOR UPDATE"):
            server.lock(session, key)
        row = server.seen_by(session).ledger.get(key, (0,))
        return _Result([(row[0],)] if row[0] or text.endswith("FOR UPDATE") else [])

    def _commits(self, text: str, params: Any) -> _Result:
        found = [
            (committed_at, key[0], job_name, directory, key[1], epoch, attempt)
            for key, (epoch, *more) in self._server.seen_by(self.session).ledger.items()
            if key[2] == params[0] and epoch
            for _, committed_at, job_name, directory, attempt in [more]
        ]
        return _Result(sorted(found, key=lambda row: row[0], reverse=True))

    def _exists(self, text: str, params: Any) -> _Result:
        if params is None:
            return _Result([(True,)])
        name = re.fullmatch(_STAGING, params[0])
        found = name is None or name[1] in self._server.seen_by(self.session).staging
        return _Result([(found,)] if "IS NOT NULL" in text else [(params[0] if found else None,)])

    def _count(self, text: str, params: Any) -> _Result:
        table = _staging_table(text)
        self._use(table)
        staged = self._server.seen_by(self.session).staging[table]
        return _Result([*Counter(writer for writer, _ in staged).items()])

    def _insert(self, text: str, params: Any) -> _Result:
        rows: list[Values] = []
        for table, listed in _PART.findall(text):
            self._use(table)
            writers = set(map(int, filter(None, listed.split(","))))
            rows += [
                row
                for writer, row in self._server.seen_by(self.session).staging[table]
                if writer in writers or not listed
            ]
        self.session.changes.append(
            lambda database: replace(database, target=(*database.target, *rows))
        )
        return _Result([], len(rows))

    def _create(self, text: str, params: Any) -> _Result:
        table = _staging_table(text)
        self.session.changes.append(lambda database: _with_rows(database, table, []))
        return _Result([])

    def _drop(self, text: str, params: Any) -> _Result:
        table = _staging_table(text)
        self._server.lock(self.session, table)
        self.session.changes.append(
            lambda database: replace(
                database,
                staging={name: rows for name, rows in database.staging.items() if name != table},
            )
        )
        return _Result([])

    def _names_of_others(self, text: str, params: Any) -> _Result:
        names = {other.name for other in self._server.others(self.session)}
        return _Result([(name,) for name in sorted(names)])

    def _terminate(self, text: str, params: Any) -> _Result:
        for other in self._server.others(self.session):
            if other.name in params[0]:
                delay_us = self._network.random.randrange(_TERMINATES_US)
                self._network.loop.at(delay_us, self._network.outside, other.end)
        return _Result([])

    def _is_left(self, text: str, params: Any) -> _Result:
        return _Result(
            [()] * any(other.name in params[0] for other in self._server.others(self.session))
        )

    def _tables(self, text: str, params: Any) -> _Result:
        return _Result([(name,) for name in sorted(self._server.seen_by(self.session).staging)])

    def _drop_timeout(self, text: str, params: Any) -> _Result:
        self.session.lock_timeout_us = int(text.rpartition(" ")[2]) * 1_000
        return _Result([])


#: Statements with the same answer each time.
_CONSTANT: dict[str, list[Any]] = {
    "SELECT set_config(": [],
    "SELECT pg_is_in_recovery()": [(False, True, True, True, True)],
    "SELECT has_any_column_privilege": [(True,)],
    "SELECT c.oid, n.nspname": [(1, "public", "r")],
    "SELECT array(SELECT attname": [],
    "SET CONSTRAINTS ALL IMMEDIATE": [],
    "COMMENT ON TABLE": [],
    "SELECT pg_stat_clear_snapshot()": [],
    "SELECT gid FROM pg_prepared_xacts": [],
}
_STATEMENTS: dict[str, Callable[[Connection, str, Any], _Result]] = {
    "SELECT epoch FROM weir.commits": Connection._ledger,
    "SELECT committed_at, job_id": Connection._commits,
    "INSERT INTO weir.commits": Connection._ledger,
    "SELECT to_reg": Connection._exists,
    "SELECT weir_writer, count(*)": Connection._count,
    'INSERT INTO "': Connection._insert,
    "CREATE TABLE IF NOT EXISTS": Connection._create,
    "DROP TABLE IF EXISTS": Connection._drop,
    "SET LOCAL lock_timeout": Connection._drop_timeout,
    "SELECT DISTINCT application_name": Connection._names_of_others,
    "SELECT pg_terminate_backend": Connection._terminate,
    "SELECT relname FROM pg_class": Connection._tables,
    "SELECT FROM pg_stat_activity": Connection._is_left,
}


class _Cursor:
    """Stands in for a cursor and its ``COPY``, which is carried out when it ends."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._statement = ""
        self._data = b""

    def __enter__(self) -> _Cursor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._data:
            rows, self._data = _unpacked(self._data), b""
            self._connection.copied(self._statement, rows)

    def copy(self, statement: str) -> _Cursor:
        """Begin ``COPY``."""
        self._statement = statement
        return self

    def write(self, data: bytes) -> None:
        """Send a part of what is copied, in PostgreSQL's binary format."""
        self._data += data


def _unpacked(data: bytes) -> list[Values]:
    """The rows of a binary ``COPY``."""
    assert data.startswith(_COPY_HEADER) and data.endswith(_COPY_END), data
    rows, at = [], len(_COPY_HEADER)
    while data[at:] != _COPY_END:
        (columns,) = struct.unpack_from(">h", data, at)
        at += 2
        row: list[bytes | None] = []
        for _ in range(columns):
            (size,) = struct.unpack_from(">i", data, at)
            at += 4
            row.append(None if size < 0 else data[at : at + size])
            at += max(0, size)
        rows.append(tuple(row))
    return rows


def _connection(server: Server, conninfo: str, **_: object) -> Any:
    """What ``psycopg.connect`` does."""
    found = re.search(r"application_name='(.*?)'", conninfo)
    return Connection(server, "" if found is None else found[1])


def _staging_table(statement: str) -> str:
    """The staging table that a statement names."""
    [name] = re.findall(_STAGING, statement)
    return str(name)


def _with_rows(database: Database, table: str, rows: list[tuple[int, Values]]) -> Database:
    """The database with more rows in a staging table, which is made if there is none."""
    staged = database.staging.get(table, ())
    return replace(database, staging={**database.staging, table: (*staged, *rows)})


def _entered(database: Database, key: LedgerKey, row: tuple[Any, ...]) -> Database:
    return replace(database, ledger={**database.ledger, key: row})
