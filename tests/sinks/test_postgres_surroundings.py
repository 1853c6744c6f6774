"""The PostgreSQL sink amid what is not its own: settings, other tables, triggers, transactions."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import psycopg
import pytest
from tests.kit.waiting import wait_until
from tests.sinks.postgres_database import Frame, flushed, rows

from weir.errors import SinkMismatchError
from weir.sinks import Batch


def test_a_table_that_appears_earlier_on_the_search_path_gets_no_rows(table):
    """The name is looked up once: a schema of the role's own comes first on the default path."""
    sink = table.opened()
    sink.commit(1, [flushed(sink, 1, rows((1, "a")))])
    ((role,),) = table.sql("SELECT current_user::text")
    table.sql(f'CREATE SCHEMA "{role}"')
    table.sql(f'CREATE TABLE "{role}".t (id bigint, v text)')
    sink.commit(2, [flushed(sink, 2, rows((2, "b")))])
    sink.open(replace(sink._context, attempt=2))
    sink.commit(3, [flushed(sink, 3, rows((3, "c")))])
    assert table.sql("SELECT id FROM public.t ORDER BY id") == [(1,), (2,), (3,)]
    assert table.sql(f'SELECT id FROM "{role}".t') == []


def test_another_table_under_the_name_is_reported(table, caplog):
    """Somebody has renamed the table, and made another: rows go there, but it is said."""
    sink = table.opened()
    sink.commit(1, [flushed(sink, 1, rows((1, "a")))])
    table.sql("ALTER TABLE t RENAME TO before; CREATE TABLE t (LIKE before)")
    sink.commit(2, [flushed(sink, 2, rows((2, "b")))])
    assert table.shown() == [(2, "b")]
    assert caplog.text.count("is another table now") == 1


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("DateStyle", "German"),
        ("DateStyle", "SQL, DMY"),
        ("IntervalStyle", "sql_standard"),
        ("extra_float_digits", "-15"),
        ("bytea_output", "escape"),
        ("array_nulls", "off"),
        ("quote_all_identifiers", "on"),
        ("standard_conforming_strings", "off"),
        ("TimeZone", "Asia/Kathmandu"),
    ],
)
def test_no_setting_of_the_database_changes_what_is_written(database, setting, value):
    """Whatever the text of values looks like there by default; also that of rejects, and of the
    ledger when a job starts again."""
    database.sql("CREATE TABLE t (id bigint PRIMARY KEY, v text, d float8 CHECK (d > 0))")
    database.sql(f"ALTER DATABASE tests SET {setting} = '{value}'")
    kinds = {"id": "long", "v": "string", "d": "double"}
    sink = database.opened(rejects="bad")
    good = {"id": 1, "v": r"a\b'c", "d": 0.1 + 0.2}
    frame = Frame([good, {"id": 2, "v": "1.2.2026", "d": -1 / 3}], **kinds)
    sink.commit(1, sink.flush([sink.stage(frame, Batch(batch_id=1))]))
    again = database.opened(attempt=2, rejects="bad")
    assert [commit.checkpoint_id for commit in again.commits(again._context)] == [1]
    with psycopg.connect(database.dsn) as connection:
        connection.execute("SET extra_float_digits = 1")
        assert connection.execute("SELECT * FROM t").fetchall() == [tuple(good.values())]
        found = connection.execute('SELECT "row" FROM bad').fetchall()
    assert found == [({"id": 2, "v": "1.2.2026", "d": -1 / 3},)]


@pytest.mark.parametrize("kind", ["varchar(3)", "short_text"])
@pytest.mark.parametrize("value", ["abc ", "abc   ", "    ", "abcd"])
def test_a_text_that_is_too_long_is_refused_also_if_only_spaces_are_too_many(database, kind, value):
    """The SQL standard cuts them off without a word."""
    database.sql("CREATE DOMAIN short_text AS varchar(3)")
    database.sql(f"CREATE TABLE t (id bigint, v {kind})")
    sink = database.opened()
    sink.commit(1, [flushed(sink, 1, rows((1, "a  "), (2, "abc"), (3, None), (4, "äöü")))])
    with pytest.raises(SinkMismatchError, match=r"character varying\(3\)"):
        sink.commit(2, [flushed(sink, 2, rows((5, "b"), (6, value)))])
    assert database.shown() == [(1, "a  "), (2, "abc"), (3, None), (4, "äöü")]


def test_rows_whose_spaces_are_too_many_are_rejects_as_they_are(database):
    """With an upsert and its keys, too."""
    database.sql("CREATE TABLE t (id bigint, v varchar(3) PRIMARY KEY)")
    sink = database.opened("t", "upsert", key=["v"], rejects="bad")
    assert sink.commit(1, [flushed(sink, 1, rows((1, "abc"), (2, "abc ")))]) == 1
    assert database.shown() == [(1, "abc")]
    assert database.sql("SELECT \"row\" ->> 'v' FROM bad") == [("abc ",)]


def test_the_elements_of_an_array_are_not_cut_off_either(database):
    """They have the same limit."""
    database.sql("CREATE TABLE t (a varchar(2)[])")
    sink = database.opened()
    for number, (value, taken) in enumerate([(["ab", None], True), ([], True), (["ab "], False)]):
        frame = Frame([{"a": value}], a="array<string>")
        payloads = sink.flush([sink.stage(frame, Batch(batch_id=number))])
        if taken:
            sink.commit(number + 1, payloads)
        else:
            with pytest.raises(SinkMismatchError, match=r"character varying\(2\)"):
                sink.commit(number + 1, payloads)
    assert database.sql("SELECT a FROM t") == [(["ab", None],), ([],)]


@pytest.mark.parametrize("rejects", [None, "bad"])
def test_rows_that_a_trigger_leaves_out_are_reported(database, caplog, rejects):
    """The server reports no error, but fewer rows are there than were staged."""
    database.sql("CREATE TABLE t (id bigint CHECK (id > 0), v text)")
    database.sql(
        "CREATE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.id % 2 = 0 THEN RETURN NULL; END IF; RETURN NEW; END $$"
    )
    database.sql("CREATE TRIGGER odd BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION odd()")
    sink = database.opened(rejects=rejects)
    given = [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    if rejects:
        given[2] = (-1, "c")
    sink.commit(1, [flushed(sink, 1, rows(*given))])
    kept = 1 if rejects else 2
    assert len(database.shown()) == kept
    assert f"took {kept} of the {4 - (rejects is not None)} rows" in caplog.text
    caplog.clear()
    sink.commit(2, [flushed(sink, 2, rows((5, "e"), (7, "f")))])
    assert "took" not in caplog.text


def test_no_sink_waits_while_another_one_waits_for_a_user(database):
    """A user's transaction has a key of one table. The sink of that table waits for it, in the
    midst of setting rows aside; the other sinks of the job do not wait for that sink."""
    for name in ("t", "u"):
        database.sql(f"CREATE TABLE {name} (id bigint PRIMARY KEY CHECK (id > 0), v text)")
    first = database.opened("t", rejects="bad", sink_name="first")
    other = database.opened("u", rejects="bad", sink_name="other")
    waiting = flushed(first, 1, rows((-1, "a"), (5, "b")))
    payload = flushed(other, 1, rows((-2, "c"), (6, "d")))
    with psycopg.connect(database.dsn) as user:
        user.execute("INSERT INTO t VALUES (5, 'user')")
        commit = threading.Thread(target=first.commit, args=(1, [waiting]))
        commit.start()
        wait_until(
            lambda: database.sql("SELECT FROM pg_stat_activity WHERE wait_event = 'transactionid'"),
            "the first sink waits for the user",
        )
        began = time.monotonic()
        assert other.commit(1, [payload]) == 1
        assert time.monotonic() - began < 10
        user.rollback()
    commit.join()
    assert database.shown() == [(5, "b")]
    assert database.sql("SELECT sink, \"row\" ->> 'id' FROM bad ORDER BY 1") == [
        ("first", "-1"),
        ("other", "-2"),
    ]
