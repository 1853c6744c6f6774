"""Pipelines whose rows change (``PostgresTable(schema_evolution="add")``), on a real server."""

from __future__ import annotations

import json
import threading
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from tests.kit.waiting import wait_until
from tests.sinks.postgres_database import Database, Frame, flushed, rows

from weir.core.types import Payload
from weir.errors import LostRowsError, SinkError, SinkMismatchError, StorageError
from weir.sinks import Batch, PostgresTable
from weir.sinks.postgres import sink as postgres
from weir.sinks.postgres.types import holds

ADDS: dict[str, Any] = {"schema_evolution": "add"}


def flushed_as(
    sink: PostgresTable, position: int, given: list[dict[str, Any]], **types: str
) -> Payload:
    """Like ``flushed``, for rows with these Spark types."""
    frame: Any = Frame(given, **types)
    payload = sink.stage(frame, Batch(batch_id=position))
    assert payload is not None
    (payload,) = sink.flush([payload])
    return json.loads(json.dumps(payload))


def columns(database: Database) -> list[tuple[str, str]]:
    return database.sql(
        "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 't'::regclass AND attnum > 0 ORDER BY attnum"
    )  # type: ignore[return-value]


def test_columns_may_come_and_go(table):
    """Old rows have null in a new column, new rows in one that went."""
    table.opened(**ADDS).commit(1, [flushed(table.opened(**ADDS), 0, rows((1, "a")))])
    sink = table.opened_again(attempt=2, **ADDS)
    new = flushed_as(sink, 1, [{"id": 2, "w x": 1.5}], **{"id": "long", "w x": "double"})
    assert columns(table) == [("id", "bigint"), ("v", "text")], "nothing changes before the commit"
    assert sink.commit(2, [new]) == 1
    assert table.sql('SELECT id, v, "w x" FROM t ORDER BY id') == [(1, "a", None), (2, None, 1.5)]


def test_an_epoch_that_does_not_land_changes_no_column(table, monkeypatch):
    """The column and the rows that need it are one transaction; a repeated commit does both."""
    sink = table.opened(**ADDS)
    payload = flushed_as(sink, 0, [{"id": 1, "w": 2}], id="long", w="long")
    with monkeypatch.context() as patched, pytest.raises(StorageError):
        patched.setattr(postgres.Ledger, "enter", _lose)
        sink.commit(1, [payload])
    assert columns(table) == [("id", "bigint"), ("v", "text")]
    table.sql(f"ALTER TABLE weir.{payload['table']} RENAME TO away")
    with pytest.raises(LostRowsError):
        sink.commit(1, [payload])
    assert columns(table) == [("id", "bigint"), ("v", "text")]
    table.sql(f"ALTER TABLE weir.away RENAME TO {payload['table']}")
    assert [sink.commit(1, [payload]), sink.commit(1, [payload])] == [1, 0]
    assert table.sql("SELECT id, w FROM t") == [(1, 2)]


def _lose(*_: Any) -> None:
    raise psycopg.OperationalError("server closed the connection unexpectedly")


def test_a_column_becomes_as_wide_as_the_rows(database):
    """Every value stays as it was; the unique index goes along."""
    database.sql("CREATE TABLE t (i smallint PRIMARY KEY, f real, n numeric(6,2), a int[])")
    database.sql("INSERT INTO t VALUES (32767, 0.1, 1234.56, '{1,NULL}')")
    sink = database.opened("t", "upsert", key=["i"], **ADDS)
    types = {"i": "long", "f": "double", "n": "decimal(12,4)", "a": "array<long>"}
    row = {"i": 2**40, "f": 1e-300, "n": Decimal("12345678.0001"), "a": [2**40]}
    again = {"i": 32767, "f": 0.5, "n": Decimal("1.5"), "a": None}
    assert sink.commit(1, [flushed_as(sink, 0, [row], **types)]) == 1
    assert database.sql("SELECT *, f = 0.1::real FROM t WHERE i = 32767") == [
        (32767, pytest.approx(0.1), Decimal("1234.5600"), [1, None], True)
    ]
    assert sink.commit(2, [flushed_as(sink, 1, [again], **types)]) == 1
    assert database.sql("SELECT i, n FROM t ORDER BY i") == [
        (32767, Decimal("1.5000")),
        (2**40, Decimal("12345678.0001")),
    ]
    assert columns(database) == [
        ("i", "bigint"),
        ("f", "double precision"),
        ("n", "numeric(12,4)"),
        ("a", "bigint[]"),
    ]


def test_one_epoch_may_have_rows_from_before_and_after_the_change(database):
    """What an older pipeline had staged is committed by the new one, also into a new table."""
    old = database.opened(create=True, **ADDS)
    before = flushed_as(old, 0, [{"id": 1, "v": "a"}], id="integer", v="string")
    new = database.opened_again(attempt=2, create=True, **ADDS)
    after = flushed_as(new, 1, [{"id": 2**40, "w": 7}], id="long", w="short")
    assert new.commit(1, [before, after]) == 2
    assert database.sql("SELECT id, v, w FROM t ORDER BY id") == [(1, "a", None), (2**40, None, 7)]


def test_the_table_is_changed_before_the_first_row_of_any_kind(table):
    """A commit that inserted older rows first would lock the table twice, and two such commits
    would wait for each other."""
    table.sql(
        "CREATE FUNCTION changed() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NOT EXISTS (SELECT"
        " FROM pg_attribute WHERE attrelid = TG_RELID AND attname = ''w'') THEN"
        " RAISE ''too early''; END IF; RETURN NULL; END'"
    )
    table.sql("CREATE TRIGGER early BEFORE INSERT ON t EXECUTE FUNCTION changed()")
    sink = table.opened(**ADDS)
    before = flushed(sink, 0, rows((1, "a")))
    after = flushed_as(sink, 1, [{"id": 2, "w": 7}], id="long", w="long")
    assert sink.commit(1, [before, after]) == 2


def test_an_upsert_leaves_a_column_alone_that_its_rows_lack(keyed):
    """And adds one that the table lacks, by which the newest row of a key may be found."""
    upserts: dict[str, Any] = {**ADDS, "mode": "upsert", "key": ["id"]}
    sink = keyed.opened(**upserts)
    sink.commit(1, [flushed(sink, 0, rows((1, "a")))])
    again = keyed.opened(**upserts, order_by="w", attempt=2)
    changed = [{"id": 1, "w": 5}, {"id": 1, "w": 4}, {"id": 2, "w": 6}]
    assert again.commit(2, [flushed_as(again, 1, changed, id="long", w="long")]) == 2
    assert keyed.sql("SELECT id, v, w FROM t ORDER BY id") == [(1, "a", 5), (2, None, 6)]


def test_rows_that_are_rejected_have_their_new_columns(keyed):
    """The table of rejects keeps each row whole, whatever its columns."""
    sink = keyed.opened(rejects="bad", **ADDS)
    given = [{"id": 1, "w": 1}, {"id": 1, "w": 2}]
    assert sink.commit(1, [flushed_as(sink, 0, given, id="long", w="long")]) == 1
    assert keyed.sql("SELECT id, w FROM t") == [(1, 1)]
    assert keyed.sql('SELECT "row" FROM bad') == [({"id": 1, "w": 2},)]


def test_two_jobs_may_change_one_table_at_once(database):
    """The wider type of the two stays, whichever comes last, and a column is added once."""
    database.sql("CREATE TABLE t (id smallint)")
    sinks = [database.opened(job=f"{one}" * 32, **ADDS) for one in range(2)]
    kinds = ("integer", "long")
    payloads = [
        flushed_as(sink, 0, [{"id": 1, "w": 1}], id=kind, w="long")
        for sink, kind in zip(sinks, kinds, strict=True)
    ]
    failures: list[BaseException] = []

    def commit(number: int) -> None:
        try:
            sinks[number].commit(1, [payloads[number]])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=commit, args=[number]) for number in range(2)]
    with psycopg.connect(database.dsn) as reader:
        reader.execute("SELECT * FROM t")
        for thread in threads:
            thread.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"
        wait_until(lambda: database.sql(waiting) == [(2,)], "both wait for the reader")
    for thread in threads:
        thread.join()
    assert failures == []
    assert columns(database) == [("id", "bigint"), ("w", "bigint")]
    assert database.sql("SELECT id, w FROM t") == [(1, 1), (1, 1)]


def test_an_older_driver_that_commits_the_same_epoch_changes_nothing(table):
    """The ledger is asked before the table is changed (PROTOCOL P18)."""
    old, new = table.opened(**ADDS), table.opened(attempt=2, **ADDS)
    payload = flushed_as(old, 0, [{"id": 1, "w": 2}], id="long", w="long")
    assert new.commit(1, [payload]) == 1
    table.sql("ALTER TABLE t DROP COLUMN w")
    assert old.commit(1, [payload]) == 0
    assert columns(table)[:2] == [("id", "bigint"), ("v", "text")]
    assert table.sql(
        "SELECT count(*) FROM pg_attribute WHERE attrelid = 't'::regclass AND attname = 'w'"
    ) == [(0,)]


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("t (id int, v bytea)", "'v' is text in the rows, bytea in the table"),
        ("t (id numeric(18,0), v text)", "'id' is bigint in the rows, numeric.18,0. in the table"),
        ("t (id small, v text)", "'id' is bigint in the rows, small in the table"),
        ('t ("ID" bigint)', "'id' of the rows is 'ID' in the table"),
        ("t (id bigint, w int NOT NULL)", "the rows lack 'w', which must not be null"),
        ("t (id int GENERATED ALWAYS AS IDENTITY)", "'id' is generated by the table"),
    ],
)
def test_what_does_not_fit_is_one_sentence_that_shows_both(database, ddl, message):
    """Before the first row is staged, and with the way out."""
    database.sql("CREATE DOMAIN small AS int CHECK (value < 100)")
    database.sql(f"CREATE TABLE {ddl}")
    with pytest.raises(SinkMismatchError, match=f"{message}.*, or change the table[.]"):
        flushed(database.opened(**ADDS), 0, rows((1, "a")))
    assert database.staging() == []


def test_without_the_option_a_difference_is_refused_and_the_option_named(database):
    """The table is changed only for a user who asks for it."""
    database.sql("CREATE TABLE t (id int)")
    with pytest.raises(SinkMismatchError, match=r"'v'.*integer in the table.*evolution='add' adds"):
        flushed(database.opened(), 0, rows((1, "a")))
    with pytest.raises(SinkError, match="schema_evolution='merge': use 'add', or None"):
        database.opened(schema_evolution="merge")


def test_a_change_that_postgresql_refuses_is_one_sentence_and_can_be_repeated(database):
    """A view shows the column that would have to change."""
    database.sql("CREATE TABLE t (id int, v text)")
    database.sql("CREATE VIEW shown AS SELECT id FROM t")
    sink = database.opened(**ADDS)
    payload = flushed(sink, 0, rows((1, "a")))
    with pytest.raises(
        SinkMismatchError, match=r"'id' is bigint in the rows, integer in.*by a view.*by hand"
    ):
        sink.commit(1, [payload])
    database.sql("DROP VIEW shown")
    assert sink.commit(1, [payload]) == 1


def test_a_role_that_does_not_own_the_table_is_refused_at_the_start(database):
    """Also if only a partition is another role's; a member of the owner may change it."""
    database.sql("CREATE TABLE t (id bigint, v text) PARTITION BY RANGE (id)")
    database.sql("CREATE TABLE p PARTITION OF t DEFAULT")
    ((name,),) = database.sql("SELECT current_database()")
    database.sql(f"CREATE ROLE writer_{name} LOGIN")
    database.sql(f"CREATE ROLE owner_{name} ROLE writer_{name}")
    database.sql(f"CREATE SCHEMA weir AUTHORIZATION writer_{name}")
    database.sql(f"GRANT INSERT ON t TO writer_{name}")
    database.sql(f"GRANT CREATE ON SCHEMA public TO owner_{name}")
    dsn = database.dsn.replace(f"user={database.server.role}", f"user=writer_{name}")
    writer = Database(database.server, dsn)
    for table in ("t", "p"):
        with pytest.raises(SinkError, match=f"ALTER TABLE {table} OWNER TO that role"):
            writer.opened(**ADDS)
        database.sql(f"ALTER TABLE {table} OWNER TO owner_{name}")
    sink = writer.opened(**ADDS)
    assert sink.commit(1, [flushed_as(sink, 0, [{"id": 1, "w": 2}], id="long", w="long")]) == 1
    assert database.sql("SELECT id, w FROM p") == [(1, 2)]


@pytest.mark.parametrize(
    ("narrow", "wide", "fits"),
    [
        ("smallint", "bigint", True),
        ("bigint", "numeric(20,1)", True),
        ("bigint", "numeric(19,1)", False),
        ("numeric(9,2)", "numeric(20,4)", True),
        ("numeric(9,2)", "numeric(9,4)", False),
        ("numeric(9,2)", "numeric(9,2)", False),
        ("numeric", "numeric(38,0)", False),
        ("real", "double precision", True),
        ("integer[]", "bigint[]", True),
        ("integer", "bigint[]", False),
        ("bigint", "integer", False),
        ("integer", "double precision", False),
        ("double precision", "numeric(38,18)", False),
        ("date", "timestamp", False),
        ("boolean", "smallint", False),
    ],
)
def test_a_wider_type_has_every_value_of_the_narrower_one(
    narrow: str, wide: str, fits: bool
) -> None:
    """Nothing is rounded, and no text or float becomes something else."""
    assert holds(wide, narrow) is fits
