"""The Iceberg sink on real Spark, with pyiceberg's SQL catalog in a real PostgreSQL."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.kit.iceberg_warehouse import JOB, NAME, Warehouse, context, flushed, staged

from weir.errors import LostRowsError, StorageError

pytestmark = pytest.mark.spark


@pytest.fixture
def warehouse(server, tmp_path):
    return Warehouse(server, tmp_path / "warehouse")


def test_staged_rows_are_invisible_until_they_are_committed(spark, warehouse):
    """Readers of the table see neither staged nor flushed rows (rule 1 of the contract)."""
    sink = warehouse.opened()
    assert sink.commit(1, [flushed(sink, spark.range(3), 0)]) == 3
    payload = flushed(sink, spark.range(3, 5), 1)
    assert warehouse.ids() == [0, 1, 2]
    assert sink.commit(2, [payload]) == 2
    assert warehouse.ids() == [0, 1, 2, 3, 4]
    assert warehouse.snapshots() == 2


def test_committing_an_epoch_twice_shows_its_rows_once(spark, warehouse):
    """Also by a later attempt, which finds the epoch in the table's properties."""
    sink = warehouse.opened()
    payload = flushed(sink, spark.range(3), 0)
    assert sink.commit(4, [payload]) == 3
    assert sink.commit(4, [payload]) == 0
    assert warehouse.opened(attempt=2).commit(4, [payload]) == 0
    assert warehouse.ids() == [0, 1, 2]
    assert sink.newest_committed() == 4


def test_an_epoch_without_rows_adds_no_snapshot(spark, warehouse):
    """Neither no payload nor files without rows; the directory of the latter goes."""
    sink = warehouse.opened()
    assert sink.commit(1, []) == 0
    assert not warehouse.catalog.table_exists(NAME)
    assert sink.commit(2, [flushed(sink, spark.range(0), 0)]) == 0
    assert warehouse.snapshots() == 0
    assert warehouse.attempts() == []
    assert sink.newest_committed() is None


def test_a_snapshot_says_who_committed_it(spark, warehouse):
    """In its summary; the table's property names the same commit, for Weir."""
    sink = warehouse.opened()
    sink.commit(7, [flushed(sink, spark.range(3), 0)])
    snapshot = warehouse.table().current_snapshot()
    said = {key: snapshot.summary[key] for key in ("weir.job-id", "weir.sink", "weir.epoch")}
    assert said == {"weir.job-id": JOB, "weir.sink": "out", "weir.epoch": "7"}
    assert snapshot.summary["weir.job-name"] == "orders"
    assert snapshot.summary["weir.attempt"] == "1"
    assert snapshot.summary["added-records"] == "3"
    assert snapshot.summary.operation.value == "append"
    (commit,) = warehouse.sink().commits(context())
    assert (commit.job_id, commit.job_name, commit.sink) == (JOB, "orders", "out")
    assert (commit.checkpoint_id, commit.attempt, commit.runner) == (7, 1, JOB)
    assert abs(commit.timestamp_ms - snapshot.timestamp_ms) < 60_000


def test_commits_are_listed_newest_first(spark, warehouse):
    """One of each job and sink."""
    one = warehouse.opened()
    other = warehouse.opened(job_id="f" * 32, sink="late")
    one.commit(5, [flushed(one, spark.range(1), 0)])
    other.commit(2, [flushed(other, spark.range(1), 0)])
    one.commit(6, [flushed(one, spark.range(1), 1)])
    found = [(commit.sink, commit.checkpoint_id) for commit in one.commits(context())]
    assert found == [("out", 6), ("late", 2)]
    assert other.newest_committed() == 2


@pytest.mark.parametrize("table_exists", [False, True])
def test_of_two_drivers_that_commit_one_epoch_exactly_one_lands(
    spark, warehouse, monkeypatch, table_exists
):
    """The second has loaded the table before the first commits: a conflict makes it look again."""
    if table_exists:
        sink = warehouse.opened()
        sink.commit(1, [flushed(sink, spark.range(1), 0)])
    first = warehouse.opened()
    payload = flushed(first, spark.range(1, 4), 1)
    second = warehouse.opened()
    load = second._iceberg.load
    counts = []

    def overtaken():
        table = load()
        if not counts:
            counts.append(first.commit(2, [payload]))
        return table

    monkeypatch.setattr(second._iceberg, "load", overtaken)
    counts.append(second.commit(2, [payload]))
    assert counts == [3, 0]
    assert warehouse.ids() == [0] * table_exists + [1, 2, 3]
    assert warehouse.snapshots() == 1 + table_exists


def test_a_commit_of_another_writer_in_between_does_no_harm(spark, warehouse, monkeypatch):
    """The conflict is repeated over the new state; both writers' rows are there."""
    sink = warehouse.opened()
    sink.commit(1, [flushed(sink, spark.range(1), 0)])
    payload = flushed(sink, spark.range(1, 4), 1)
    load = sink._iceberg.load
    rows = warehouse.table().scan().to_arrow()

    def overtaken():
        table = load()
        if warehouse.snapshots() == 1:
            warehouse.table().append(rows)
        return table

    monkeypatch.setattr(sink._iceberg, "load", overtaken)
    assert sink.commit(2, [payload]) == 3
    assert warehouse.ids() == [0, 0, 1, 2, 3]


def test_a_lost_answer_of_the_catalog_doubles_nothing(spark, warehouse, monkeypatch):
    """The error is a passing one, and the commit that is repeated finds its epoch."""
    sink = warehouse.opened()
    payload = flushed(sink, spark.range(3), 0)
    commit_table = type(warehouse.catalog).commit_table

    def unanswered(*arguments):
        commit_table(*arguments)
        raise ConnectionResetError("the server closed the connection")

    with monkeypatch.context() as patched:
        patched.setattr(type(warehouse.catalog), "commit_table", unanswered)
        with pytest.raises(StorageError, match="the job continues once they are back"):
            sink.commit(1, [payload])
    assert warehouse.ids() == [0, 1, 2]
    assert sink.commit(1, [payload]) == 0
    assert warehouse.ids() == [0, 1, 2]


def test_an_epoch_is_known_after_its_snapshot_has_expired(spark, warehouse):
    """The property stays, in which a later attempt finds it."""
    sink = warehouse.opened()
    payload = flushed(sink, spark.range(3), 0)
    sink.commit(1, [payload])
    table = warehouse.table()
    table.append(table.scan().to_arrow())
    first = table.metadata.snapshots[0].snapshot_id
    table.maintenance.expire_snapshots().by_id(first).commit()
    again = warehouse.opened(attempt=2)
    assert again.newest_committed() == 1
    assert again.commit(1, [payload]) == 0
    assert again.commit(2, [flushed(again, spark.range(9, 10), 1)]) == 1
    assert warehouse.ids() == [0, 0, 1, 1, 2, 2, 9]


def test_lost_staged_files_are_found_before_anything_is_committed(spark, warehouse):
    """By their size, too; nothing becomes visible."""
    sink = warehouse.opened()
    payload = flushed(sink, spark.range(3), 0)
    assert sink.damaged(payload) is None
    path = Path(sink.staged_files(payload)[0])
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert "bytes instead of" in sink.damaged(payload)
    path.unlink()
    with pytest.raises(LostRowsError, match="is gone: none of its rows are visible"):
        sink.commit(1, [payload])
    assert warehouse.ids() == []
    path.write_bytes(whole)
    assert sink.commit(1, [payload]) == 3


def test_clean_removes_only_what_dead_attempts_staged_and_nobody_committed(spark, warehouse):
    """Nothing of the attempt that is running, and nothing of another sink."""
    dead = warehouse.opened()
    other = warehouse.opened(sink="other")
    flushed(other, spark.range(1), 0)
    dead.commit(1, [flushed(dead, spark.range(1), 0), flushed(dead, spark.range(1, 2), 1)])
    for position in (2, 3):
        staged(dead, spark.range(1), position)
    sink = warehouse.opened(attempt=2)
    staged(sink, spark.range(1), 2)
    sink.clean(2)
    assert warehouse.attempts() == ["1/0", "1/0", "1/1", "2/2"]
    assert warehouse.ids() == [0, 1]


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_table_that_was_rolled_back_is_not_written_to(spark, warehouse, attempt):
    """Its property still has the epoch, but its current snapshot is before that commit."""
    sink = warehouse.opened()
    for epoch in (1, 2):
        payload = flushed(sink, spark.range(epoch, epoch + 1), epoch)
        sink.commit(epoch, [payload])
    table = warehouse.table()
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[0].snapshot_id).commit()
    sink = warehouse.opened(attempt=attempt)
    with pytest.raises(LostRowsError, match="has gone back, though checkpoint 2 was committed"):
        sink.commit(3, [flushed(sink, spark.range(1), 3)])


def test_a_table_that_was_replaced_or_dropped_is_not_written_to(spark, warehouse):
    """Not by the attempt that has written to it, nor with rows that are pending in a checkpoint."""
    sink = warehouse.opened()
    sink.commit(1, [flushed(sink, spark.range(1), 0)])
    pending = flushed(sink, spark.range(1), 1)
    metadata, landmark = warehouse.table().metadata_location, sink.landmark()
    warehouse.catalog.drop_table(NAME)
    other = warehouse.opened(attempt=2, landmark="/lake/shop-of-yesterday/metadata")
    for one in (sink, other):
        with pytest.raises(StorageError, match="is gone, with the rows that were committed to it"):
            one.commit(2, [pending])
    with pytest.raises(StorageError, match="register the table again"):
        sink.open(context(attempt=2))
    with pytest.raises(StorageError, match="register the table again"):
        warehouse.opened(attempt=2, landmark=landmark)
    # That of another table, to which the job wrote before, does not matter.
    warehouse.opened(attempt=2, landmark="/elsewhere/_delta_log")
    warehouse.catalog.create_table(NAME, warehouse_schema())
    for one in (sink, warehouse.opened(attempt=2, landmark=landmark)):
        with pytest.raises(LostRowsError, match="has gone back, though checkpoint 1 was committed"):
            one.commit(2, [pending])
    warehouse.catalog.drop_table(NAME)
    warehouse.catalog.register_table(NAME, metadata)
    sink.open(context(attempt=2))
    assert sink.commit(2, [pending]) == 1


def warehouse_schema():
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    return Schema(NestedField(1, "id", LongType(), required=False))


TYPES = """bo boolean, by byte, sh short, i int, l long, f float, d double, de decimal(9,2),
    big decimal(30,5), s string, bi binary, da date, ts timestamp, n timestamp_ntz"""
NESTED = """a array<string>, st struct<x: int, y: struct<z: timestamp>>,
    m map<string, array<struct<q: decimal(20,3)>>>"""


def values_of_every_type():
    flat = (
        True, 7, 300, 70_000, 5_000_000_000, 1.5, 2.5, Decimal("12.34"),
        Decimal("1234567890123456789012345.67891"), "Zürich 🌊", b"\x00\xff",
        dt.date(1969, 12, 31), dt.datetime(2026, 3, 29, 1, 30, tzinfo=dt.UTC),
        dt.datetime(1582, 10, 4, 23, 59, 59, 999999),
    )  # fmt: skip
    nested = (["a", None], (1, (dt.datetime(2020, 1, 1, tzinfo=dt.UTC),)), {"k": [(Decimal(7),)]})
    return flat, nested


@pytest.mark.parametrize("nested", [False, True])
def test_types_make_the_round_trip(spark, warehouse, nested):
    """With field ids where Spark can write all of them, else by the table's name mapping."""
    flat, more = values_of_every_type()
    row = (*flat, *more) if nested else flat
    schema = f"{TYPES}, {NESTED}" if nested else TYPES
    frame = spark.createDataFrame([row, (None,) * len(row)], schema)
    sink = warehouse.opened()
    assert sink.commit(1, [flushed(sink, frame, 0)]) == 2
    table = warehouse.table()
    assert (table.metadata.name_mapping() is not None) == nested
    found, empty = sorted(table.scan().to_arrow().to_pylist(), key=lambda one: one["i"] is None)
    assert set(empty.values()) == {None}
    expected = dict(zip([field.name for field in frame.schema], row, strict=True))
    if nested:
        expected["st"] = {"x": 1, "y": {"z": more[1][1][0]}}
        expected["m"] = [("k", [{"q": Decimal("7.000")}])]
    assert found == expected
    kinds = {field.name: str(field.field_type) for field in table.schema().fields}
    assert (kinds["by"], kinds["sh"], kinds["ts"], kinds["n"]) == (
        "int", "int", "timestamptz", "timestamp",
    )  # fmt: skip
    for name, value in expected.items():
        if name not in ("bi", "ts", "n", "a", "st", "m", "f"):
            assert table.scan(f"{name} = {literal(value)}").to_arrow().num_rows == 1, name
            assert table.scan(f"{name} > {literal(value)}").to_arrow().num_rows == 0, name
        if name not in ("a", "st", "m"):  # pyiceberg does not filter by them
            assert table.scan(f"{name} is null").to_arrow().num_rows == 1, name


def literal(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str | dt.date) else str(value).lower()


def test_bounds_are_exact_or_absent(spark, warehouse):
    """NaN, years that Python lacks and long text hide no row from a reader that skips files."""
    rows = [
        (1, float("nan"), "x" * 6_000, "0001-01-01 00:00:00"),
        (2, 100.0, "b" * 40, "9999-12-31 23:59:59.999999"),
        (3, None, None, None),
    ]
    frame = spark.createDataFrame(rows, "id int, f double, s string, t string").selectExpr(
        "id", "f", "s", "cast(t AS timestamp) AS ts",
        "CASE WHEN id = 2 THEN timestamp_micros(253402300800000000 + 86400000000 * 400) END AS far",
    )  # fmt: skip
    sink = warehouse.opened()
    sink.commit(1, [flushed(sink, frame.coalesce(1), 0)])
    sink.commit(2, [flushed(sink, spark.range(50, 60).selectExpr(
        "cast(id AS int) AS id", "cast(id AS double) AS f", "concat('k', id) AS s",
        "timestamp_seconds(id) AS ts", "timestamp_seconds(id) AS far"), 1)])  # fmt: skip
    assert warehouse.ids("f > 60") == [2]
    assert warehouse.ids("f is null") == [3]
    assert warehouse.ids("f = 55") == [55]
    assert warehouse.ids("f is nan") == [1]
    assert warehouse.ids(f"s = '{'b' * 40}'") == [2]
    assert warehouse.ids("s > 'w'") == [1]
    assert warehouse.ids("ts > '9999-01-01T00:00:00+00:00'") == [2]
    assert warehouse.ids("ts < '1900-01-01T00:00:00+00:00'") == [1]
    files = warehouse.table().inspect.files().to_pylist()
    assert len({file["file_path"] for file in files}) == len(files)
    planned = warehouse.table().scan(row_filter="id = 55").plan_files()
    assert len(list(planned)) == 1, "bounds do skip files"
