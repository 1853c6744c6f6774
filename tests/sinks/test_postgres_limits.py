"""The PostgreSQL sink at the limits: rights, long and equal keys, tables that are gone or empty."""

from __future__ import annotations

import re
import secrets
from typing import Any

import pytest
from tests.sinks.postgres_database import Database, Frame, flushed, rows

from weir.errors import SinkError, SinkMismatchError
from weir.sinks import Batch


def named(database: Database) -> tuple[str, str]:
    """The names of the database and of a new role, which owns the schema weir."""
    ((name,),) = database.sql("SELECT current_database()")
    database.sql(f"CREATE ROLE guest_{name} LOGIN")
    database.sql(f"CREATE SCHEMA weir AUTHORIZATION guest_{name}")
    return name, f"guest_{name}"


def as_role(database: Database, role: str) -> Database:
    dsn = database.dsn.replace(f"user={database.server.role}", f"user={role}")
    return Database(database.server, dsn)


@pytest.mark.parametrize(
    ("options", "preparation", "needed"),
    [
        ({"table": "new", "create": True}, "", 'CREATE ON SCHEMA "public"'),
        ({"rejects": "bad"}, "", 'CREATE ON SCHEMA "public"'),
        ({"rejects": "bad"}, "CREATE TABLE bad (id int)", 'INSERT ON "public"."bad"'),
        (
            {"rejects": "public.t"},
            "REVOKE TEMPORARY ON DATABASE {} FROM public",
            "TEMPORARY ON DATABASE {}",
        ),
        ({}, "CREATE TABLE weir.commits (epoch int)", "INSERT ON weir.commits"),
    ],
)
def test_rights_that_the_first_rows_would_need_are_checked_at_the_start(
    table, options, preparation, needed
):
    """Not when the first row is refused, or the first epoch committed."""
    name, guest = named(table)
    table.sql(f"GRANT INSERT ON t TO {guest}")
    table.sql(preparation.format(name) or "SELECT 1")
    expected = needed.format(f'"{name}"')
    with pytest.raises(SinkError, match=re.escape(f"run GRANT {expected} ")):
        as_role(table, guest).opened(**options)


def test_an_existing_table_of_rejects_needs_no_right_to_create_one(keyed):
    """Only to insert rows."""
    _, guest = named(keyed)
    owner = keyed.opened(rejects="bad")
    owner.commit(1, [flushed(owner, 0, rows((1, "a"), (1, "b")))])
    keyed.sql(f"GRANT INSERT ON t, bad TO {guest}")
    keyed.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA weir TO {guest}")
    sink = as_role(keyed, guest).opened(rejects="bad", sink_name="other")
    assert sink.commit(1, [flushed(sink, 0, rows((1, "c"), (2, "d")))]) == 1
    assert keyed.sql("SELECT sink, count(*) FROM bad GROUP BY 1 ORDER BY 1") == [
        ("other", 1),
        ("out", 1),
    ]


def test_a_value_that_is_too_long_for_an_index_is_a_row_that_the_table_refuses(keyed):
    """It goes to the table of rejects; without one it would fail its epoch for ever."""
    keyed.sql("CREATE INDEX ON t (v)")
    sink = keyed.opened(rejects="bad")
    long = secrets.token_hex(8_000)
    assert sink.commit(1, [flushed(sink, 0, rows((1, "a"), (2, long), (3, "c")))]) == 2
    assert keyed.sql("SELECT sqlstate, \"row\"->>'id' FROM bad") == [("54000", "2")]


@pytest.mark.parametrize(
    ("kind", "first", "second"), [("citext", "Ab", "aB"), ("char(5)", "ab", "ab  ")]
)
def test_keys_are_compared_as_the_table_compares_them(database, kind, first, second):
    """Two spellings of one key in an epoch are one row, whose latest value counts."""
    database.sql("CREATE EXTENSION citext")
    database.sql(f"CREATE TABLE t (id bigint, v {kind} PRIMARY KEY)")
    sink = database.opened(mode="upsert", key=["v"])
    assert sink.commit(1, [flushed(sink, 0, rows((1, first), (2, second)))]) == 1
    assert database.sql("SELECT id FROM t") == [(2,)]


def test_a_value_that_is_too_long_for_its_column_is_not_cut_off(database):
    """Though a cast to char(5) would do that."""
    database.sql("CREATE TABLE t (id bigint, v char(5))")
    sink = database.opened()
    payload = flushed(sink, 0, rows((1, "abcdef")))
    with pytest.raises(SinkMismatchError, match="too long for type character"):
        sink.commit(1, [payload])


def test_a_table_with_committed_rows_that_is_gone_is_not_created_again(database):
    """The rows of earlier epochs would be missing, and nobody would notice."""
    sink = database.opened(create=True)
    sink.commit(1, [flushed(sink, 0, rows((1, "a")))])
    payload = flushed(sink, 1, rows((2, "b")))
    database.sql("DROP TABLE t")
    with pytest.raises(SinkError, match="is gone, with the rows that were committed to it"):
        sink.commit(2, [payload])
    database.sql("CREATE TABLE t (id bigint, v text)")
    assert sink.commit(2, [payload]) == 1


def test_a_new_job_may_start_once_the_table_was_dropped(database):
    """Its rows are gone with it, so none can be doubled (PROTOCOL P21)."""
    sink = database.opened(create=True)
    sink.commit(1, [flushed(sink, 0, rows((1, "a")))])
    context = sink._context
    assert len(list(sink.commits(context))) == 1
    database.sql("DROP TABLE t")
    assert list(sink.commits(context)) == []


def test_epochs_without_rows_share_a_staging_table(table):
    """A window that is open for hours emits nothing in hundreds of checkpoints."""
    sink = table.opened()
    empty: Any = Frame([], [])
    seen = set()
    for batch in range(5):
        assert sink.stage(empty, Batch(batch_id=batch)) is None
        sink.flush([])
        sink.commit(batch + 1, [])
        seen.update(table.staging())
    assert len(seen) == 1


def test_a_temporary_table_is_found_whatever_the_search_path(keyed):
    """It may name the schema of temporary tables after others."""
    keyed.sql("CREATE TABLE weir_rows (id bigint)")
    keyed.sql(
        "ALTER DATABASE "
        + keyed.sql("SELECT current_database()")[0][0]
        + " SET search_path = public, pg_temp"
    )
    sink = keyed.opened(rejects="bad")
    assert sink.commit(1, [flushed(sink, 0, rows((1, "a"), (1, "b")))]) == 1
