"""Connections to PostgreSQL: parameters without a password, short sessions, errors in words.

Every operation opens a connection of its own and closes it. So nothing is shared between threads,
no idle connection goes stale while the server restarts, and a pooler in transaction mode works in
between. A session's settings hold for one transaction:

- A driver that hangs in the middle of a commit holds the lock on its row of ``weir.commits``. The
  server ends its transaction after ``idle_in_transaction_session_timeout``, and the newer driver
  waits longer than that (``lock_timeout``). A statement may take as long as its rows need.
- ``synchronous_commit`` is switched on where it is off: what is acknowledged must be on disk
  (PROTOCOL P23).
- What changes the text of values (``DateStyle`` and others) is fixed: a database or a role may have
  other defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from weir.errors import SinkError, StorageError, UnsupportedEnvironmentError
from weir.kernel import Kernel

if TYPE_CHECKING:
    import psycopg

#: Opens a connection, as ``psycopg.connect`` does.
Connect: TypeAlias = Callable[..., "psycopg.Connection"]
#: Parameters that are secrets, or as good as secrets.
_SECRETS = (
    "password",
    "sslpassword",
    "oauth_client_secret",
    "scram_client_key",
    "scram_server_key",
)
#: Unless the connection string says otherwise: a dead server is noticed within half a minute.
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
#: Of an advisory lock: any number that nobody else uses.
_CREATE_LOCK = 0x77656972
_LOCK_TIMEOUT_MS = 20_000
_IDLE_TIMEOUT_MS = 10_000
#: How long to wait for terminated sessions, which may still stage something.
_SESSIONS_END_MS = 5_000
_POLL_S = 0.02
#: What a value, or an error, looks like as text, and how the text of a statement is read.
_FIXED = ", ".join(
    f"set_config('{name}', '{value}', true)"
    for name, value in (
        ("TimeZone", "UTC"),
        ("DateStyle", "ISO, YMD"),
        ("IntervalStyle", "postgres"),
        ("extra_float_digits", "1"),
        ("bytea_output", "hex"),
        ("array_nulls", "on"),
        ("quote_all_identifiers", "off"),
        ("standard_conforming_strings", "on"),
    )
)
_SETTINGS = f"""
    SELECT set_config('lock_timeout', '{_LOCK_TIMEOUT_MS}', true),
           set_config('idle_in_transaction_session_timeout', '{_IDLE_TIMEOUT_MS}', true),
           set_config('statement_timeout', '0', true),
           {_FIXED},
           set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                      WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)
"""
#: Classes of errors that pass by themselves: the connection, serialization and deadlocks,
#: resources, locks, an operator's intervention, the system; a standby that takes no writes; and a
#: timeout of an idle transaction.
_PASSING = ("08", "40", "53", "55", "57", "58", "25006", "25P03")
#: Wrong values and violated constraints, values too long for an index, what triggers raise.
_VIOLATIONS = ("21", "22", "23", "54000", "P0001")


def parameters_of(dsn: str) -> dict[str, str]:
    """The parameters in a connection string or URI.

    Raises ``SinkError`` if it cannot be read or holds a password; the message never repeats it.
    """
    try:
        import pgpq  # noqa: F401
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise UnsupportedEnvironmentError(
            "PostgresTable needs psycopg 3 and pgpq, which are not installed: pip install"
            " 'weir-spark[postgres]', also where Spark's executors run."
        ) from error
    try:
        parameters = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
    except ProgrammingError:
        # psycopg's message repeats parts of the string, perhaps of a password.
        raise SinkError(
            "The connection string of PostgresTable cannot be read: write it like 'host=db"
            " dbname=shop user=weir' or 'postgresql://weir@db/shop'."
        ) from None
    if found := [key for key in _SECRETS if key in parameters]:
        raise SinkError(
            f"The connection string of PostgresTable holds a {found[0]}, which would reach every"
            " executor and could reach logs: remove it, and put it into ~/.pgpass, a service file"
            " or the variable PGPASSWORD, for the driver and for Spark's executors."
        )
    return {**_DEFAULTS, **parameters}


def connect(conninfo: str, **options: Any) -> psycopg.Connection:
    """Open a connection of psycopg's."""
    import psycopg

    return psycopg.connect(conninfo, **options)


@contextmanager
def connected(
    parameters: Mapping[str, str], place: str, *, name: str = "weir", connect: Connect = connect
) -> Iterator[psycopg.Connection]:
    """A connection in a transaction, which is committed at the end; closed in any case.

    ``name`` is the session's ``application_name``. Raises ``StorageError`` for what passes by
    itself (the outcome of the transaction may then be unknown), ``SinkError`` for what does not.
    Errors in data and violated constraints pass through as psycopg's.
    """
    import psycopg
    from psycopg.conninfo import make_conninfo

    try:
        conninfo = make_conninfo(
            **{**parameters, "client_encoding": "utf8", "application_name": name}
        )
        # A pooler in transaction mode knows no prepared statements.
        with connect(conninfo, prepare_threshold=None) as connection:
            # Each statement sees what others have committed before it; a default may differ.
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            connection.execute(_SETTINGS)
            if connection.info.server_version >= 170_000:
                connection.execute("SELECT set_config('transaction_timeout', '0', true)")
            yield connection
    except psycopg.Error as error:
        if is_violation(error):
            raise
        said = " ".join(str(error).split())
        state = error.sqlstate or ""
        if state.startswith(_PASSING) or (
            not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        ):
            raise StorageError(
                f"{place} does not answer now ({said}): check the server and the way to it; the"
                " job continues once it is back."
            ) from error
        raise SinkError(
            f"{place} refuses what Weir asks of it ({said}): check the table, and what the role"
            " may do."
        ) from error


def create_once(
    connection: psycopg.Connection, kind: Literal["table", "schema"], name: str, rest: str = ""
) -> None:
    """Create a table or a schema, unless it exists. ``name`` and ``rest`` are SQL.

    ``CREATE ... IF NOT EXISTS`` alone asks for the right to create even if there is nothing to do,
    and fails if two sessions run it at once. A session that creates the same waits until this
    transaction ends.
    """
    lookup = {"table": "to_regclass", "schema": "to_regnamespace"}[kind]
    found = connection.execute(f"SELECT {lookup}(%s) IS NOT NULL", [name]).fetchone()
    if found != (True,):
        connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_CREATE_LOCK, name])
        connection.execute(f"CREATE {kind.upper()} IF NOT EXISTS {name} {rest}")


def wait_until_ended(
    connection: psycopg.Connection, sessions: Sequence[str], kernel: Kernel
) -> None:
    """Wait until terminated sessions with these names are gone."""
    deadline_ms = kernel.now_ms() + _SESSIONS_END_MS
    while kernel.now_ms() < deadline_ms:
        # A transaction sees the sessions as they were when it first looked.
        connection.execute("SELECT pg_stat_clear_snapshot()")
        found = connection.execute(
            "SELECT FROM pg_stat_activity WHERE usename = current_user"
            " AND pid <> pg_backend_pid() AND application_name = ANY (%s)",
            [list(sessions)],
        ).fetchone()
        if found is None:
            return
        kernel.sleep(_POLL_S)


def is_violation(error: BaseException) -> bool:
    """Whether rows caused the error: wrong values, violated constraints, what triggers raise."""
    import psycopg

    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return state is not None and state.startswith(_VIOLATIONS)


def quoted(name: str) -> str:
    """An identifier, quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'
