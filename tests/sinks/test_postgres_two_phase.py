"""``PostgresTable(two_phase=True)`` on a real server, without Spark: prepared transactions."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.sinks.postgres_database import JOB, Database, flushed, rows, staged

from weir.core.types import Payload
from weir.demo import postgres_server
from weir.demo.postgres_server import running_server
from weir.errors import LostRowsError, LostWriteError, SinkError, SinkMismatchError, StorageError
from weir.sinks import PostgresTable
from weir.sinks.postgres import prepared as postgres_prepared
from weir.sinks.postgres.prepared import PrepareRows
from weir.sinks.postgres.target import Ledger
from weir.sinks.postgres.types import StagedColumn


def opened(database: Database, **options: Any) -> PostgresTable:
    return database.opened("t", two_phase=True, **options)


def records(database: Database) -> list[Any]:
    return database.sql("SELECT name FROM weir.prepared ORDER BY name")


def die_after(
    commits: int,
    monkeypatch: pytest.MonkeyPatch,
    sink: PostgresTable,
    epoch: int,
    payload: Payload,
) -> None:
    """Commit an epoch; the driver dies when it has committed so many of its transactions."""
    end_prepared = postgres_prepared.end_prepared

    def end_some(connection: psycopg.Connection, how: str, names: Any) -> None:
        end_prepared(connection, how, list(names)[:commits])
        raise StorageError("the driver dies")

    with monkeypatch.context() as patched:
        patched.setattr(postgres_prepared, "end_prepared", end_some)
        with pytest.raises(StorageError, match="the driver dies"):
            sink.commit(epoch, [payload])


def test_rows_lie_in_prepared_transactions_until_their_epoch_is_committed(table):
    """One for each task that has rows; nothing is written a second time."""
    sink = opened(table)
    payload = flushed(sink, 0, rows((1, "a"), (2, None)), [], rows((3, "")))
    assert (table.shown(), len(table.prepared())) == ([], 2)
    assert sink.commit(1, [payload]) == 3
    assert table.shown() == [(1, "a"), (2, None), (3, "")]
    assert (table.prepared(), table.staging(), records(table)) == ([], [], [])


def test_committing_an_epoch_twice_shows_its_rows_once(table):
    """The ledger has the epoch, for this process and any later one (PROTOCOL P13)."""
    sink = opened(table)
    payload = flushed(sink, 0, rows((1, "a")))
    assert sink.commit(4, [payload]) == 1
    assert sink.commit(4, [payload]) == 0
    assert opened(table, attempt=2).commit(4, [payload]) == 0
    assert table.shown() == [(1, "a")]


@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_commit_that_was_cut_short_is_finished_by_the_next_driver(table, monkeypatch, commits):
    """What is committed is told from what waits by its record (PROTOCOL P18)."""
    sink = opened(table)
    payload = flushed(sink, 0, rows((1, "a")), rows((2, "b")))
    die_after(commits, monkeypatch, sink, 1, payload)
    assert len(table.shown()) == commits
    successor = opened(table, attempt=2)
    # So it may be restored from checkpoint 1, and from none before (PROTOCOL P21).
    assert (successor.newest_begun(), successor.newest_committed()) == (1, None)
    assert successor.commit(1, [payload]) == 2
    assert table.shown() == [(1, "a"), (2, "b")]
    assert (successor.newest_committed(), records(table)) == (1, [])
    # The slower one wakes up.
    assert sink.commit(1, [payload]) == 0


def test_a_target_that_shows_an_epoch_in_part_says_so(table, monkeypatch):
    """Its records are visible exactly then."""
    sink = opened(table)
    payload = flushed(sink, 0, rows((1, "a")), rows((2, "b")))
    assert records(table) == []
    die_after(1, monkeypatch, sink, 1, payload)
    assert table.sql("SELECT DISTINCT target FROM weir.prepared") == [("public.t",)]
    sink.commit(1, [payload])
    assert records(table) == []


def test_prepared_rows_survive_a_crash_of_the_server(table):
    """They are as durable as committed ones (PROTOCOL P23)."""
    sink = opened(table)
    payload = flushed(sink, 0, rows((1, "a")))
    table.server.restart()
    assert sink.commit(1, [payload]) == 1
    assert table.shown() == [(1, "a")]


def test_a_transaction_that_somebody_rolled_back_is_missed(table):
    """Before a checkpoint its rows are recomputed; after it the job stops, and shows nothing."""
    sink = opened(table)
    payload = staged(sink, 0, rows((1, "a")))
    kept = flushed(sink, 1, rows((2, "b")), rows((3, "c")))
    for name in (payload["transactions"][0][0], kept["transactions"][1][0]):
        table.sql(f"ROLLBACK PREPARED '{name}'")
    with pytest.raises(LostWriteError, match="is gone: its rows are recomputed"):
        sink.flush([payload])
    with pytest.raises(LostRowsError, match="Checkpoint 1 cannot be committed"):
        sink.commit(1, [kept])
    assert table.shown() == []


def test_records_that_somebody_deleted_are_missed(table, monkeypatch):
    """Without them nobody knows what is committed."""
    sink = opened(table)
    payload = flushed(sink, 0, rows((1, "a")), rows((2, "b")))
    die_after(1, monkeypatch, sink, 1, payload)
    table.sql("DELETE FROM weir.prepared")
    with pytest.raises(LostRowsError):
        sink.commit(1, [payload])


def test_what_a_task_prepared_that_does_not_count_is_rolled_back_with_the_next_checkpoint(table):
    """Such as a task's that Spark ran twice at once. What a later batch staged stays."""
    sink = opened(table)
    payload = staged(sink, 0, rows((1, "a")))
    twin = payload["transactions"][0][0][:-16] + "0" * 16
    with psycopg.connect(table.dsn) as connection:
        connection.execute("INSERT INTO t VALUES (1, 'a')")
        connection.execute(f"PREPARE TRANSACTION '{twin}'")
    later = staged(sink, 1, rows((2, "b")))
    assert len(table.prepared()) == 3
    (kept,) = sink.flush([payload])
    assert len(table.prepared()) == 2
    (then,) = sink.flush([later])
    sink.commit(1, [json.loads(json.dumps(kept))])
    sink.commit(2, [json.loads(json.dumps(then))])
    assert table.shown() == [(1, "a"), (2, "b")]


def prepare_again(sink: PostgresTable, payload: Payload) -> None:
    """A late run of a batch's task."""
    name = payload["transactions"][0][0]
    run = PrepareRows(
        parameters=sink._parameters,
        table='"public"."t"',
        columns=(StagedColumn("id", "bigint"), StagedColumn("v", "text")),
        place="t",
        session="late",
        target="public.t",
        prefix=name.rpartition("_")[0],
        types={"id": "bigint", "v": "text"},
    )
    batch = pa.RecordBatch.from_pydict({"id": [1], "v": ["a"]})
    assert list(run(iter([batch])))


def test_a_late_run_of_a_task_ends_nothing_that_counts(table):
    """Its checkpoint may be complete already (PROTOCOL P22)."""
    sink = opened(table)
    payload = flushed(sink, 0, rows((1, "a")))
    prepare_again(sink, payload)
    assert sink.commit(1, [payload]) == 1
    assert table.shown() == [(1, "a")]


def test_what_a_late_task_prepared_is_rolled_back_with_the_next_checkpoint(table):
    """Also one of a dead attempt, once this one has committed something."""
    old = staged(opened(table, attempt=1), 0, rows((1, "a")))
    sink = opened(table, attempt=2)
    sink.clean(2)
    payload = flushed(sink, 0, rows((1, "a")))
    prepare_again(sink, old)
    sink.commit(1, [payload])
    sink.clean(2)
    prepare_again(sink, old)
    prepare_again(sink, payload)
    assert len(table.prepared()) == 2
    then = flushed(sink, 1, rows((2, "b")))
    assert table.prepared() == [then["transactions"][0][0]]


def test_a_checkpoint_while_a_commit_is_half_done_loses_nothing(table, monkeypatch):
    """Its epoch is flushed again with the next one (PROTOCOL P5)."""
    sink = opened(table)
    payload = flushed(sink, 0, rows((1, "a")), rows((2, "b")))
    die_after(1, monkeypatch, sink, 1, payload)
    both = sink.flush([payload, staged(sink, 1, rows((3, "c")))])
    sink.commit(1, [payload])
    sink.commit(2, json.loads(json.dumps(both[1:])))
    assert table.shown() == [(1, "a"), (2, "b"), (3, "c")]


def test_an_epoch_that_is_shown_in_part_is_a_commit_to_those_who_look(table, monkeypatch):
    """A new job would write the rows again (PROTOCOL P21)."""
    sink = opened(table)
    payload = flushed(sink, 0, rows((1, "a")), rows((2, "b")))
    die_after(1, monkeypatch, sink, 3, payload)
    (found,) = sink.commits(sink._context)
    assert (found.job_id, found.sink, found.checkpoint_id) == (JOB, "out", 3)


def test_a_fenced_driver_leaves_no_sign_of_an_epoch_that_is_finished(table, monkeypatch):
    """It waits for the lock on the ledger before it says that it shows the epoch."""
    slow, quick = opened(table), opened(table, attempt=2)
    payload = flushed(slow, 0, rows((1, "a")))
    lock = Ledger.lock

    def overtaken(ledger: Ledger, connection: psycopg.Connection) -> int:
        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "lock", lock)
            quick.commit(1, [payload])
        return lock(ledger, connection)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "lock", overtaken)
        assert slow.commit(1, [payload]) == 0
    assert (table.shown(), records(table)) == ([(1, "a")], [])


def test_the_isolation_that_the_server_prefers_does_not_matter(table, monkeypatch):
    """What another driver ends between two statements is seen by the second."""
    table.sql(
        "ALTER DATABASE {} SET default_transaction_isolation = 'serializable'".format(
            table.sql("SELECT current_database()")[0][0]
        )
    )
    sink = opened(table)
    payload = flushed(sink, 0, rows((1, "a")))
    name = payload["transactions"][0][0]
    look = postgres_prepared.waiting_here

    def ended_before(connection: psycopg.Connection, prefix: str) -> set[str]:
        table.sql(f"COMMIT PREPARED '{name}'")
        return look(connection, prefix)

    monkeypatch.setattr(postgres_prepared, "waiting_here", ended_before)
    assert sink.commit(1, [payload]) == 1
    assert table.shown() == [(1, "a")]


def test_transactions_of_another_role_are_not_lost(table):
    """They are there; the server says who may end them."""
    payload = flushed(opened(table), 0, rows((1, "a")))
    table.sql("CREATE ROLE heir LOGIN")
    table.sql("GRANT ALL ON SCHEMA weir TO heir")
    table.sql("GRANT ALL ON ALL TABLES IN SCHEMA weir, public TO heir")
    heir = Database(table.server, f"{table.dsn} user=heir")
    with pytest.raises(SinkError, match="permission denied to finish prepared transaction"):
        opened(heir, attempt=2).commit(1, [payload])
    assert opened(table, attempt=3).commit(1, [payload]) == 1
    table.sql("DROP OWNED BY heir")
    table.sql("DROP ROLE heir")


def test_a_column_that_changes_its_type_fails_the_batch(table):
    """Binary values of one type would be read as another."""
    sink = opened(table)
    staged(sink, 0, rows((1, "a")))
    sink.close()
    table.sql("ALTER TABLE t ALTER id TYPE double precision")
    with pytest.raises(SinkMismatchError, match="was bigint when the job started"):
        staged(sink, 1, rows((2, "b")))


def test_cleaning_rolls_back_what_dead_attempts_prepared(table):
    """Not this attempt's, and not what belongs to another job (PROTOCOL P22)."""
    staged(opened(table, attempt=1), 0, rows((1, "a")))
    sink = opened(table, attempt=2)
    payload = flushed(sink, 0, rows((1, "a")))
    staged(opened(table, job="f" * 32), 0, rows((9, "z")))
    sink.clean(2)
    assert len(table.prepared()) == 2
    sink.commit(1, [payload])
    assert table.shown() == [(1, "a")]


def test_closing_leaves_no_prepared_transaction(table):
    """Whatever is left does not count."""
    sink = opened(table)
    staged(sink, 0, rows((1, "a")))
    sink.close()
    assert table.prepared() == []


def test_a_sink_that_prepares_no_longer_commits_what_was_prepared(table):
    """The way may change while rows are pending."""
    payload = flushed(opened(table), 0, rows((1, "a")))
    other = flushed(table.opened(), 1, rows((2, "b")))
    assert table.opened(attempt=2).commit(1, [payload, other]) == 2
    assert table.shown() == [(1, "a"), (2, "b")]


def test_pending_rows_of_a_savepoint_go_to_no_other_table(table):
    """They are in their table already."""
    payload = flushed(opened(table), 0, rows((1, "a")))
    table.sql("CREATE TABLE u (id bigint, v text)")
    sink = table.opened("u", two_phase=True, job="f" * 32)
    with pytest.raises(SinkMismatchError, match=r"in prepared transactions for public\.t"):
        sink.commit(1, [payload])
    with pytest.raises(SinkMismatchError, match="of this job did not make"):
        opened(table, job="f" * 32).commit(1, [payload])
    assert opened(table).commit(1, [payload]) == 1


def test_a_row_that_the_table_refuses_fails_its_batch_by_name(keyed):
    """The server checks it while it is copied."""
    sink = opened(keyed)
    with pytest.raises(SinkMismatchError, match="null value in column"):
        staged(sink, 0, rows((None, "a")))


def test_deferred_constraints_are_checked_when_the_batch_ends(database):
    """Not when it is too late."""
    database.sql("CREATE TABLE t (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, v text)")
    sink = opened(database)
    with pytest.raises(SinkMismatchError, match="duplicate key"):
        staged(sink, 0, rows((1, "a"), (1, "b")))


@pytest.mark.parametrize(
    "ddl", ["(id numeric, v text)", "(id bigint, v jsonb)", "(id bigint, v char(9))"]
)
def test_columns_of_another_type_than_the_rows_are_refused(database, ddl):
    """Nothing is converted in a binary copy."""
    database.sql(f"CREATE TABLE t {ddl}")
    sink = opened(database)
    with pytest.raises(SinkMismatchError, match="rows are copied as they are"):
        staged(sink, 0, rows((1, "{}")))


def test_the_table_is_created_on_wish_before_its_first_rows(database):
    """Empty, since rows need a table to be prepared in."""
    sink = opened(database, create=True)
    payload = flushed(sink, 0, rows((1, "a")))
    assert database.shown() == []
    sink.commit(1, [payload])
    assert database.shown() == [(1, "a")]


@pytest.mark.parametrize("options", [{"mode": "upsert", "key": ["id"]}, {"rejects": "r"}])
def test_contradicting_options_are_refused(options):
    """What two_phase cannot do."""
    with pytest.raises(SinkError, match="two_phase=True"):
        PostgresTable("dbname=x", "t", two_phase=True, **options)


def test_a_server_without_prepared_transactions_is_refused_at_the_start(monkeypatch):
    """It would fail every batch; PostgreSQL comes like that."""
    monkeypatch.delitem(postgres_server.SETTINGS, "max_prepared_transactions")
    with running_server() as server:
        database = Database(server, server.create_database("plain"))
        database.sql("CREATE TABLE t (id bigint, v text)")
        with pytest.raises(SinkError, match="set max_prepared_transactions"):
            opened(database)
