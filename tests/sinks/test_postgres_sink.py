"""The PostgreSQL sink on a real server, without Spark: staging, commits, what breaks in between."""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.kit.postgres_server import PASSWORD
from tests.kit.waiting import wait_until
from tests.sinks.postgres_database import JOB, Database, Frame, flushed, rows, staged

from weir.errors import (
    LostRowsError,
    LostWriteError,
    SinkError,
    SinkMismatchError,
    StorageError,
    UnsupportedEnvironmentError,
)
from weir.sinks import Batch, PostgresTable
from weir.sinks.postgres import session as postgres_session
from weir.sinks.postgres.staging import TablePayload
from weir.sinks.staging import decode_flushed


def test_staged_rows_are_invisible_until_they_are_committed(table):
    """Readers of the target see an epoch's rows at once, and none before."""
    sink = table.opened()
    payload = flushed(sink, 0, rows((1, "a"), (2, None)), [], rows((3, "")))
    assert table.shown() == []
    assert sink.commit(1, [payload]) == 3
    assert table.shown() == [(1, "a"), (2, None), (3, "")]


def test_committing_an_epoch_twice_shows_its_rows_once(table):
    """The ledger has the epoch, for this process and any later one (PROTOCOL P13)."""
    sink = table.opened()
    payload = flushed(sink, 0, rows((1, "a")))
    assert sink.commit(4, [payload]) == 1
    assert sink.commit(4, [payload]) == 0
    assert table.opened(attempt=2).commit(4, [payload]) == 0
    assert table.opened(attempt=2).newest_committed() == 4
    assert table.shown() == [(1, "a")]


def test_an_epoch_without_rows_leaves_the_database_alone(table):
    """Neither an empty batch nor an empty epoch leaves anything (PROTOCOL P15)."""
    sink = table.opened()
    frame: Any = Frame([], [])
    assert sink.stage(frame, Batch(batch_id=0)) is None
    assert sink.stage(frame, Batch(batch_id=1, files=())) is None
    assert sink.commit(1, []) == 0
    assert sink.newest_committed() is None
    assert table.sql("SELECT * FROM weir.commits") == []


def test_a_database_keeps_several_jobs_and_sinks_apart(table):
    """Each has its own epochs and staging tables, even at one target."""
    sinks = [
        table.opened(),
        table.opened(sink_name="out2"),
        table.opened(job="f" * 32),
    ]
    payloads = [flushed(sink, 0, rows((number, "x"))) for number, sink in enumerate(sinks)]
    assert [sink.commit(1, [payload]) for sink, payload in zip(sinks, payloads, strict=True)] == [
        1,
        1,
        1,
    ]
    sinks[1].clean(2)
    assert table.shown() == [(0, "x"), (1, "x"), (2, "x")]


def test_the_newest_commit_of_each_job_is_listed_before_the_sink_is_opened(table):
    """A job does not start over rows that it does not know (PROTOCOL P21)."""
    context = table.opened()._context
    assert list(PostgresTable(table.dsn, "t").commits(context)) == []
    for job, epoch in ((JOB, 3), ("f" * 32, 9)):
        sink = table.opened(job=job)
        sink.commit(epoch, [flushed(sink, 0, rows((epoch, "x")))])
    found = list(PostgresTable(table.dsn, "t").commits(context))
    assert [(one.job_id, one.checkpoint_id, one.sink) for one in found] == [
        ("f" * 32, 9, "out"),
        (JOB, 3, "out"),
    ]
    assert found[1].job_directory == f"/checkpoints/{JOB}"
    assert abs(found[0].timestamp_ms - time.time() * 1000) < 60_000


def test_staging_tables_go_when_their_batches_are_committed(table):
    """Each flush begins a new one, so that none is kept by later batches for ever."""
    sink = table.opened()
    first = staged(sink, 0, rows((1, "a")))
    second = staged(sink, 1, rows((2, "b")))
    (first,) = sink.flush([first])
    third = staged(sink, 2, rows((3, "c")))
    assert len(table.staging()) == 2
    sink.commit(1, [first])
    assert len(table.staging()) == 2, "the second batch is not committed"
    sink.commit(2, sink.flush([second, third]))
    assert table.staging() == []
    assert table.shown() == [(1, "a"), (2, "b"), (3, "c")]


def test_a_staging_table_says_whose_it_is(table):
    """A job that is given up for good leaves tables that somebody may want to drop."""
    payload = staged(table.opened(), 0, rows((1, "a")))
    assert table.sql(f"SELECT obj_description('weir.{payload['table']}'::regclass)") == [
        (f"Staged by job orders ({JOB}), sink out",)
    ]


def test_two_jobs_may_create_schema_and_table_at_once(database):
    """Neither fails because of the other."""
    failures: list[BaseException] = []

    def begin(job: str) -> None:
        try:
            sink = database.opened("t", job=job, create=True)
            sink.commit(1, [flushed(sink, 0, rows((int(job[0], 16), "a")))])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=begin, args=[f"{one:x}" * 32]) for one in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert database.shown() == [(one, "a") for one in range(8)]


def test_a_time_limit_for_statements_does_not_limit_commits(table):
    """A role may have one, for its queries; a large epoch takes as long as it takes."""
    table.sql(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END'"
    )
    table.sql("CREATE TRIGGER slow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION slow()")
    hurried = Database(table.server, f"{table.dsn} options='-c statement_timeout=100'")
    sink = hurried.opened()
    assert sink.commit(1, [flushed(sink, 0, rows((1, "a")))]) == 1


def test_rows_of_a_task_that_ran_twice_count_once(table):
    """A run whose result Spark did not use has staged rows under another writer's id."""
    sink = table.opened()
    payload = flushed(sink, 0, rows((1, "a")))
    table.sql(
        f"INSERT INTO weir.{payload['table']} SELECT id, v, weir_writer + 1, weir_row"
        f" FROM weir.{payload['table']}"
    )
    assert sink.commit(1, [payload]) == 1
    assert table.shown() == [(1, "a")]


def test_staged_rows_survive_a_crash_of_the_server(table):
    """Staging tables are logged: an unlogged one would be empty after the crash (PROTOCOL P23)."""
    sink = table.opened()
    payload = flushed(sink, 0, rows((1, "a")))
    table.server.restart()
    assert sink.commit(1, [payload]) == 1
    table.server.restart()
    assert sink.commit(1, [payload]) == 0
    assert table.shown() == [(1, "a")]


def test_a_server_that_is_away_is_a_passing_error(table):
    """The commit is repeated, and the job continues once the server is back."""
    sink = table.opened()
    payload = flushed(sink, 0, rows((1, "a")))
    table.server.kill()
    try:
        with pytest.raises(StorageError, match=r"PostgresTable\('t' at .*does not answer now"):
            sink.commit(1, [payload])
        with pytest.raises(StorageError, match="does not answer now"):
            staged(sink, 1, rows((2, "b")))
        with pytest.raises(SinkError, match="does not answer now"):
            PostgresTable(table.dsn, "t").check(sink._context)
    finally:
        table.server.start()
    assert sink.commit(1, [payload]) == 1


def test_lost_staged_rows_are_found_before_a_checkpoint_and_before_a_commit(table):
    """The first is repaired by the next attempt; the second is final, and shows nothing."""
    sink = table.opened()
    one = staged(sink, 0, rows((1, "a"), (2, "b")))
    table.sql(f"DELETE FROM weir.{one['table']} WHERE id = 2")
    with pytest.raises(LostWriteError, match="lacks rows"):
        sink.flush([one])
    two = flushed(sink, 1, rows((3, "c")))
    table.sql(f"DROP TABLE weir.{two['table']}")
    with pytest.raises(LostRowsError, match=r"Checkpoint 2 cannot .*is gone: none of its rows"):
        sink.commit(2, [two])
    assert table.shown() == []
    assert sink.newest_committed() is None


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_target_that_has_gone_back_is_not_written_to(table, attempt):
    """A standby that lagged behind took over: rows of an epoch are missing, which no commit of a
    later one may hide, not even after a restart of the driver."""
    sink = table.opened()
    for epoch in (1, 2):
        sink.commit(epoch, [flushed(sink, epoch, rows((epoch, "a")))])
    third = flushed(sink, 3, rows((3, "a")))
    table.sql("UPDATE weir.commits SET epoch = 1")
    table.sql("DELETE FROM t WHERE id = 2")
    later = sink if attempt == 1 else table.opened(attempt=2)
    with pytest.raises(LostRowsError, match="gone back to checkpoint 1, though checkpoint 2 was"):
        later.commit(3, [third])
    assert table.shown() == [(1, "a")]


def test_a_target_that_has_gone_back_is_noticed_by_the_next_attempt_of_its_driver(table):
    """Though nothing was pending: the driver remembers what it has committed."""
    sink = table.opened()
    for epoch in (1, 2):
        sink.commit(epoch, [flushed(sink, epoch, rows((epoch, "a")))])
    table.sql("UPDATE weir.commits SET epoch = 1")
    table.sql("DELETE FROM t WHERE id = 2")
    sink.open(replace(sink._context, attempt=2))
    third = flushed(sink, 3, rows((3, "a")))
    with pytest.raises(LostRowsError, match="gone back to checkpoint 1, though checkpoint 2 was"):
        sink.commit(3, [third])


def test_pending_rows_of_a_savepoint_may_go_to_another_table(table):
    """The new table has a ledger of its own, and the old job keeps what it staged."""
    old = table.opened()
    old.commit(1, [flushed(old, 0, rows((1, "a")))])
    pending = flushed(old, 1, rows((2, "b")))
    table.sql("CREATE TABLE other (id bigint, v text)")
    new = table.opened("other", attempt=1)
    assert new.commit(2, [pending]) == 1
    assert table.sql("TABLE other") == [(2, "b")]
    assert old.commit(2, [pending]) == 1
    assert table.shown() == [(1, "a"), (2, "b")]


def test_of_two_drivers_that_commit_one_epoch_one_lands(table):
    """The fenced one may still be at it; the lock in the ledger decides (PROTOCOL P18)."""
    old = table.opened()
    payload = flushed(old, 0, rows((1, "a")))
    new = table.opened(attempt=2)
    counts: list[int] = []
    threads = [
        threading.Thread(target=lambda sink=sink: counts.append(sink.commit(1, [payload])))
        for sink in (old, new)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(counts) == [0, 1]
    assert table.shown() == [(1, "a")]


def test_a_driver_that_hangs_within_its_commit_holds_up_the_next_one_for_seconds(
    table, monkeypatch
):
    """The server ends its idle transaction, whose rows nobody has seen."""
    quick = postgres_session._SETTINGS.replace("'10000'", "'1000'")
    monkeypatch.setattr(postgres_session, "_SETTINGS", quick)
    old = table.opened()
    payload = flushed(old, 0, rows((1, "a")))
    with pytest.raises(StorageError, match="idle"), old._session("hangs") as connection:
        started = time.monotonic()
        assert old._commit(connection, 1, decode_flushed([payload], TablePayload, "t"), []) == 1
        assert table.opened(attempt=2).commit(1, [payload]) == 1
        assert time.monotonic() - started > 1.0
        connection.execute("SELECT 1")
    assert table.shown() == [(1, "a")]


def test_cleaning_ends_the_sessions_of_dead_attempts_and_drops_what_they_staged(table):
    """A task of a dead attempt that still copies would keep its table (PROTOCOL P22)."""
    old = table.opened()
    staged(old, 0, rows((1, "a")))
    hanging = psycopg.connect(f"{table.dsn} application_name='{old._session_name}'")
    cursor = hanging.cursor()
    with (
        pytest.raises(psycopg.OperationalError),
        cursor.copy(f"COPY weir.{table.staging()[0]} FROM STDIN") as copy,
    ):
        copy.write(b"")
        new = table.opened(attempt=2)
        mine = staged(new, 0, rows((2, "b")))
        new.clean(2)
        assert table.staging() == [mine["table"]]
        while True:
            copy.write(b"1\ta\t1\t1\n" * 1000)
    hanging.close()
    assert new.commit(1, new.flush([mine])) == 1
    assert table.shown() == [(2, "b")]


def test_closing_leaves_no_staging_table(table):
    """Every epoch is committed by then (MISSION E5)."""
    sink = table.opened()
    sink.commit(1, [flushed(sink, 0, rows((1, "a")))])
    staged(sink, 1, rows((2, "b")))
    sink.close()
    assert table.staging() == []


def test_an_upsert_keeps_the_last_row_of_a_key(keyed):
    """The one of the latest batch, then of the latest in its task."""
    sink = keyed.opened(mode="upsert", key=["id"])
    first = staged(sink, 0, rows((1, "old"), (2, "b"), (2, "b2")))
    second = staged(sink, 1, rows((1, "new")))
    assert sink.commit(1, sink.flush([first, second])) == 2
    assert keyed.shown() == [(1, "new"), (2, "b2")]
    assert sink.commit(2, [flushed(sink, 2, rows((2, None), (3, "c")))]) == 2
    assert keyed.shown() == [(1, "new"), (2, None), (3, "c")]


def test_with_order_by_checkpoints_make_no_difference(keyed):
    """The greatest value wins within an epoch, and no later epoch brings back a smaller one."""
    sink = keyed.opened(mode="upsert", key="id", order_by="v")
    sink.commit(1, [flushed(sink, 0, rows((1, "c"), (1, "b"), (1, None), (2, None)))])
    assert keyed.shown() == [(1, "c"), (2, None)]
    assert sink.commit(2, [flushed(sink, 1, rows((1, "a"), (2, "x")))]) == 1
    sink.commit(3, [flushed(sink, 2, rows((1, None)))])
    assert keyed.shown() == [(1, "c"), (2, "x")]


def test_the_table_is_created_on_wish_with_its_first_rows(database):
    """With the key as primary key; an empty job creates nothing."""
    sink = database.opened("t", "upsert", key=["id"], create=True)
    assert database.sql("SELECT to_regclass('t')") == [(None,)]
    payload = flushed(sink, 0, rows((1, "a")))
    assert sink.commit(1, [payload]) == 1
    assert database.shown() == [(1, "a")]
    database.opened("t", "upsert", key=["id"])


def test_a_row_that_the_table_refuses_fails_its_epoch_by_name(keyed):
    """Neither its rows nor its record are there; once the rival is gone, the commit lands."""
    sink = keyed.opened()
    keyed.sql("INSERT INTO t VALUES (2, 'mine')")
    payload = flushed(sink, 0, rows((1, "a"), (2, "b")))
    with pytest.raises(
        SinkMismatchError,
        match=r"Checkpoint 7 cannot .*duplicate key .*\(id\)=\(2\) already exists",
    ):
        sink.commit(7, [payload])
    assert keyed.shown() == [(2, "mine")]
    keyed.sql("DELETE FROM t")
    assert sink.commit(7, [payload]) == 2


def test_rows_that_the_table_refuses_go_to_the_table_of_rejects(database, caplog):
    """With epoch, reason and row, in the transaction that commits the others."""
    database.sql(
        "CREATE TABLE t (id bigint PRIMARY KEY CHECK (id > 0), v varchar(3) UNIQUE"
        " DEFERRABLE INITIALLY DEFERRED)"
    )
    sink = database.opened(rejects="bad %")
    good = [(number, f"{number}") for number in range(1, 40)]
    payload = flushed(sink, 0, rows(*good, (-1, "x"), (41, "long"), (42, "1"), (None, "n")))
    assert sink.commit(3, [payload]) == 39
    refused = 'public.t refuses 4 rows of checkpoint 3: they are in "public"."bad %"'
    assert refused in caplog.messages
    assert sink.commit(3, [payload]) == 0
    assert database.shown() == good
    found = database.sql(
        'SELECT sink, epoch, sqlstate, constraint_name, "row" FROM "bad %" ORDER BY 3, 5'
    )
    assert found == [
        ("out", 3, "22001", None, {"id": 41, "v": "long"}),
        ("out", 3, "23502", None, {"id": None, "v": "n"}),
        ("out", 3, "23505", "t_v_key", {"id": 42, "v": "1"}),
        ("out", 3, "23514", "t_id_check", {"id": -1, "v": "x"}),
    ]
    assert sink.commit(4, [flushed(sink, 1, rows((50, "f")))]) == 1


def test_an_upsert_sets_refused_rows_aside_too(database):
    """The last row of its key is refused, and the table keeps what it had."""
    database.sql("CREATE TABLE t (id bigint PRIMARY KEY, v text CHECK (v <> 'bad'))")
    sink = database.opened(mode="upsert", key=["id"], rejects="bad")
    sink.commit(1, [flushed(sink, 0, rows((1, "a"), (2, "b")))])
    assert sink.commit(2, [flushed(sink, 1, rows((1, "bad"), (2, "c"), (3, "d")))]) == 2
    assert database.shown() == [(1, "a"), (2, "c"), (3, "d")]
    assert database.sql('SELECT epoch, "row" FROM bad') == [(2, {"id": 1, "v": "bad"})]


def test_a_deadlock_passes(table, monkeypatch):
    """The commit is undone by the server and repeated."""
    patience = f"'{postgres_session._LOCK_TIMEOUT_MS}'"
    endless = postgres_session._SETTINGS.replace(patience, "'0'")
    monkeypatch.setattr(postgres_session, "_SETTINGS", endless)
    sink = table.opened()
    payload = flushed(sink, 0, rows((1, "a")))
    failures: list[BaseException] = []

    def commit() -> None:
        try:
            sink.commit(1, [payload])
        except StorageError as error:
            failures.append(error)

    def wait_for_queue(length: int) -> None:
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'weir.commits'::regclass"
        wait_until(lambda: len(table.sql(waiting)) == length, "they wait for the ledger")

    # The rival waits for the ledger before the commit has it, so that they are locked as soon as
    # the commit waits for the table.
    with psycopg.connect(table.dsn) as rival:
        rival.execute("SET deadlock_timeout = '1h'")
        rival.execute("LOCK TABLE t")
        with psycopg.connect(table.dsn) as first:
            first.execute("LOCK TABLE weir.commits")
            committing = threading.Thread(target=commit)
            committing.start()
            wait_for_queue(1)
            waiting = threading.Thread(target=rival.execute, args=["LOCK TABLE weir.commits"])
            waiting.start()
            wait_for_queue(2)
        committing.join()
        waiting.join()
    assert "deadlock" in str(failures[0])
    assert sink.commit(1, [payload]) == 1
    assert table.shown() == [(1, "a")]


def test_a_users_transaction_over_two_tables_stops_no_job(table):
    """Sinks commit one after the other, each in a transaction that holds its own table only."""
    table.sql("CREATE TABLE t2 (LIKE t)")
    sinks = [table.opened(), table.opened("t2", sink_name="out2")]
    payloads = [flushed(sink, 0, rows((number, "x"))) for number, sink in enumerate(sinks)]
    committed: list[int] = []

    def commit() -> None:
        for sink, payload in zip(sinks, payloads, strict=True):
            committed.append(sink.commit(1, [payload]))

    with psycopg.connect(table.dsn) as user:
        user.execute("LOCK TABLE t2")
        committing = threading.Thread(target=commit)
        committing.start()
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 't2'::regclass"
        wait_until(lambda: table.sql(waiting), "the second commit waits for the user")
        # A deadlock if the first commit still held it.
        user.execute("LOCK TABLE t")
    committing.join()
    assert committed == [1, 1]
    assert table.shown() == [(0, "x")]
    assert table.sql("SELECT id, v FROM t2") == [(1, "x")]


def test_a_connection_lost_while_the_commit_is_answered_doubles_nothing(table, monkeypatch):
    """Whether the transaction landed is in the ledger."""
    sink = table.opened()
    payload = flushed(sink, 0, rows((1, "a")))
    close = psycopg.Connection.__exit__

    def lose(connection: Any, *arguments: Any) -> None:
        close(connection, *arguments)
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Connection, "__exit__", lose)
        with pytest.raises(StorageError, match="closed the connection"):
            sink.commit(1, [payload])
    assert table.shown() == [(1, "a")]
    assert sink.commit(1, [payload]) == 0
    assert table.shown() == [(1, "a")]


@pytest.mark.parametrize(
    ("ddl", "options", "message"),
    [
        ("t (id int, v text)", {}, "'id' is bigint in the rows, integer in the table"),
        ("t (id bigint)", {}, "the table lacks 'v'"),
        ("t (id bigint, v text, w int NOT NULL)", {}, "the rows lack 'w', which must not be null"),
        ("t (id bigint, v text GENERATED ALWAYS AS ('x') STORED)", {}, "'v' is generated"),
        ("t (id bigint, v text[])", {}, "'v' is text in the rows, text.. in the table"),
        ("t (id bigint, v bytea)", {}, "'v' is text in the rows, bytea in the table"),
        ("t (id numeric(18,0), v text)", {}, "'id' is bigint in the rows, numeric.18,0. in"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_the_first(database, ddl, options, message):
    """The differences are named, and nothing is staged."""
    database.sql(f"CREATE TABLE {ddl}")
    sink = database.opened(**options)
    with pytest.raises(SinkMismatchError, match=message):
        staged(sink, 0, rows((1, "a")))
    assert database.staging() == []


@pytest.mark.parametrize(
    "ddl",
    [
        "t (id numeric, v varchar(9), w int)",
        "t (id numeric(19,0), v jsonb, w int NOT NULL DEFAULT 5)",
        "t (w bigserial PRIMARY KEY, v char(1), id bigint) PARTITION BY RANGE (w)",
        "t (id bigint, v mood)",
        "t (id bigint, v word)",
    ],
)
def test_wider_and_further_columns_are_accepted(database, ddl):
    """Defaults, identities, domains, enums and partitioned tables work as for any insert."""
    database.sql("CREATE TYPE mood AS ENUM ('1', '2')")
    database.sql("CREATE DOMAIN word AS text CHECK (value <> '')")
    database.sql(f"CREATE TABLE {ddl}")
    if "PARTITION" in ddl:
        database.sql("CREATE TABLE p PARTITION OF t DEFAULT")
    sink = database.opened()
    assert sink.commit(1, [flushed(sink, 0, rows((1, "1")))]) == 1
    assert database.sql("SELECT id::int, v::text FROM t") == [(1, "1")]


@pytest.mark.parametrize(
    ("ddl", "arguments", "message"),
    [
        ("TABLE u (id int)", {"table": "t"}, "does not exist: create the table, or give .*create"),
        ("TABLE t (id int)", {"table": "none.t"}, "no schema 'none'"),
        ("VIEW t AS SELECT 1 AS id", {"table": "t"}, "is not a table"),
        (
            "TABLE t (id bigint UNIQUE, v text)",
            {"table": "t", "mode": "upsert", "key": ["id"]},
            'no unique index over exactly its key ."id".*ADD PRIMARY KEY',
        ),
    ],
)
def test_a_target_that_cannot_work_is_refused_at_the_start(database, ddl, arguments, message):
    """In a sentence with the way out, and without a trace at the target."""
    database.sql(f"CREATE {ddl}")
    with pytest.raises(SinkError, match=message):
        database.opened(**arguments)
    assert database.sql("SELECT to_regnamespace('weir')") == [(None,)]


def test_a_role_that_may_not_write_is_refused_at_the_start(table):
    """With the statement that helps."""
    table.sql("DROP ROLE IF EXISTS guest")
    table.sql("CREATE ROLE guest LOGIN")
    guest = Database(table.server, table.dsn.replace(f"user={table.server.role}", "user=guest"))
    with pytest.raises(SinkError, match="CREATE SCHEMA weir AUTHORIZATION"):
        guest.opened()
    table.sql("CREATE SCHEMA weir AUTHORIZATION guest")
    with pytest.raises(SinkError, match=r'GRANT INSERT ON "public"\."t"'):
        guest.opened()
    table.sql("GRANT INSERT ON t TO guest")
    sink = guest.opened()
    assert sink.commit(1, [flushed(sink, 0, rows((1, "a")))]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "replace"}, "unknown mode 'replace'"),
        ({"rejects": ""}, "has the name '': write tables as in the catalogue"),
        ({"rejects": "sales."}, "has the name 'sales.'"),
        ({"rejects": "t\0"}, "was given the name"),
        ({"mode": "upsert"}, "needs key= for mode='upsert'"),
        ({"key": ["id"]}, "needs key= for mode='upsert'"),
        ({"order_by": "v"}, "order_by='v', which only mode='upsert' uses"),
    ],
)
def test_contradicting_arguments_are_refused(options, message):
    """When the pipeline is loaded, without a server."""
    with pytest.raises(SinkError, match=message):
        PostgresTable("host=nowhere", "t", **options)


def test_a_missing_psycopg_is_named_when_the_pipeline_is_loaded(monkeypatch):
    """With the command that installs it; Weir itself does without."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UnsupportedEnvironmentError, match=r"pip install 'weir-spark\[postgres\]'"):
        PostgresTable("host=db", "t")


@pytest.mark.parametrize(
    "dsn",
    [
        f"host=db user=weir password={PASSWORD}",
        f"postgresql://weir:{PASSWORD}@db/shop",
        f"postgresql://weir@db/shop?sslpassword={PASSWORD}",
        f"host=db scram_client_key={PASSWORD}",
        f"postgresql://weir:{PASSWORD}@[db/shop",
        f"host=db password='{PASSWORD}",
    ],
)
def test_a_connection_string_with_a_password_is_refused_without_repeating_it(dsn):
    """It would reach executors and logs; the message names ~/.pgpass and its kin."""
    with pytest.raises(SinkError) as refused:
        PostgresTable(dsn, "t")
    assert PASSWORD not in str(refused.value)
    assert refused.value.__cause__ is None


def test_the_password_comes_from_the_environment_and_is_written_nowhere(
    server, table, monkeypatch, tmp_path
):
    """PGPASSWORD or a password file; no message and no payload has it."""
    dsn = table.dsn.replace(f"host={server.dsn.split()[0][5:]}", "host=127.0.0.1")
    loopback = Database(server, dsn)
    with pytest.raises(SinkError, match="password") as refused:
        loopback.opened()
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    sink = loopback.opened()
    payload = flushed(sink, 0, rows((1, "a")))
    monkeypatch.delenv("PGPASSWORD")
    passwords = tmp_path / "pgpass"
    passwords.write_text(f"*:*:*:*:{PASSWORD}\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    assert sink.commit(1, [payload]) == 1
    assert table.shown() == [(1, "a")]
    everything = [str(refused.value), json.dumps(payload), sink.describe(), repr(vars(sink))]
    assert PASSWORD not in "".join(everything)


@pytest.mark.parametrize(
    "change",
    [
        {"table": "t; DROP TABLE t"},
        {"table": "public.t"},
        {"columns": [{"name": "id", "type": "text); DROP TABLE t"}]},
        {"rows": 5},
        {"writers": [["1", 1]]},
        {"position": "0"},
    ],
)
def test_a_payload_from_elsewhere_is_checked_before_it_becomes_sql(table, change):
    """A checkpoint may have been written by anyone."""
    sink = table.opened()
    payload = flushed(sink, 0, rows((1, "a")))
    with pytest.raises(SinkMismatchError, match="cannot commit what the checkpoint records"):
        sink.commit(1, [{**payload, **change}])
    assert table.shown() == []


def test_odd_names_are_quoted(database):
    """Columns and tables may be called anything that PostgreSQL allows."""
    database.sql('CREATE SCHEMA "Sales %s"')
    database.sql('CREATE TABLE "Sales %s"."a ""b"" %" ("id %s" bigint, "select" text)')
    sink = database.opened('Sales %s.a "b" %')
    frame: Any = Frame(
        [{"id %s": 1, "select": 'x"\n,\\.'}], **{"id %s": "long", "select": "string"}
    )
    payload = sink.stage(frame, Batch(batch_id=0))
    assert payload is not None
    assert sink.commit(1, sink.flush([payload])) == 1
    assert database.sql('TABLE "Sales %s"."a ""b"" %"') == [(1, 'x"\n,\\.')]


def test_text_with_the_character_nul_is_refused_by_name(table):
    """PostgreSQL cannot hold it, so no retry helps."""
    sink = table.opened()
    with pytest.raises(SinkMismatchError, match=r"cannot take a row .*line 2.*character NUL"):
        staged(sink, 0, rows((1, "a"), (2, "b\0")))
