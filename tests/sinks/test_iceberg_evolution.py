"""Pipelines whose rows change (``IcebergTable(schema_evolution="add")``), on real Spark."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField
from tests.kit.iceberg_warehouse import NAME, Warehouse, context, flushed, staged

from weir.errors import SinkError, SinkMismatchError, StorageError
from weir.sinks import IcebergTable

pytestmark = pytest.mark.spark

ADDS: dict[str, Any] = {"schema_evolution": "add"}
FIRST = "SELECT 1L AS id, 'x' AS a"
SECOND = "SELECT 2L AS id, 'y' AS b"


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(None, tmp_path / "warehouse")


def opened(warehouse: Warehouse, *, attempt: int = 1, **given: Any) -> IcebergTable:
    sink = warehouse.sink(**{**ADDS, **given})
    sink.check(context(attempt=attempt))
    sink.open(context(attempt=attempt))
    return sink


def rows(warehouse: Warehouse, row_filter: str = "id is not null") -> list[dict[str, Any]]:
    found = warehouse.table().scan(row_filter=row_filter).to_arrow().to_pylist()
    return sorted(found, key=lambda row: int(row["id"]))


def kinds(warehouse: Warehouse) -> dict[str, str]:
    return {field.name: str(field.field_type) for field in warehouse.table().schema().fields}


def has_ids(path: str) -> bool:
    return all(b"PARQUET:field_id" in (one.metadata or {}) for one in pq.read_schema(path))


def test_columns_may_come_and_go_and_each_epoch_is_one_version(spark, warehouse):
    """Old rows have null in a new column, new rows in one that went; readers skip by either."""
    sink = opened(warehouse)
    sink.commit(1, [flushed(sink, spark.sql(FIRST), 0)])
    versions = len(warehouse.table().metadata.metadata_log)
    assert sink.commit(2, [flushed(sink, spark.sql(SECOND), 1)]) == 1
    assert len(warehouse.table().metadata.metadata_log) == versions + 1
    assert sink.commit(3, [flushed(sink, spark.sql("SELECT 3L AS id, 'z' AS b"), 2)]) == 1
    expected = [(1, "x", None), (2, None, "y"), (3, None, "z")]
    assert [tuple(row.values()) for row in rows(warehouse)] == expected
    # Of a file without the column there is no bound to skip it by.
    for row_filter, ids, files in (("b = 'y'", [2], 2), ("b > 'y'", [3], 2), ("b is null", [1], 1)):
        assert warehouse.ids(row_filter) == ids
        assert len(list(warehouse.table().scan(row_filter=row_filter).plan_files())) == files
    snapshots = warehouse.table().metadata.snapshots
    assert [one.schema_id for one in snapshots] == [0, 1, 1]


def test_files_have_ids_again_once_the_table_has_the_column(spark, warehouse):
    """Until then none, and the name mapping has the names; other readers find the same columns."""
    sink = opened(warehouse)
    for position, query in enumerate((FIRST, SECOND, SECOND)):
        sink.commit(position + 1, [flushed(sink, spark.sql(query), position)])
    table = warehouse.table()
    paths = sorted(task.file.file_path for task in table.scan().plan_files())
    assert [has_ids(path) for path in paths] == [True, False, True]
    mapping = table.metadata.name_mapping()
    assert {field.names[0]: field.field_id for field in mapping} == {"id": 1, "a": 2, "b": 3}
    schema = table.schema().as_arrow()
    found = ds.dataset(paths, schema=schema).to_table().to_pylist()
    assert sorted(found, key=str) == sorted(table.scan().to_arrow().to_pylist(), key=str)


def test_types_become_wider_as_iceberg_allows(spark, warehouse):
    """Rows of the older pipeline are cast to them; bounds of older files still skip right."""
    narrow = "SELECT 1 AS id, float(1.5) AS f, CAST(1 AS decimal(9,2)) AS m"
    wide = "SELECT 5000000000L AS id, 2.25D AS f, CAST(2 AS decimal(30,2)) AS m"
    sink = opened(warehouse)
    before = flushed(sink, spark.sql(narrow), 0)
    sink.commit(1, [flushed(sink, spark.sql(narrow), 1)])
    assert sink.commit(2, [flushed(sink, spark.sql(wide), 2)]) == 1
    assert kinds(warehouse) == {"id": "long", "f": "double", "m": "decimal(30, 2)"}
    old = opened(warehouse, attempt=2)
    assert old.commit(3, [before, flushed(old, spark.sql(narrow), 0)]) == 2
    assert [(row["id"], row["f"], row["m"]) for row in rows(warehouse)] == [
        *[(1, 1.5, Decimal(1))] * 3,
        (5_000_000_000, 2.25, Decimal(2)),
    ]
    assert warehouse.ids("id > 4999999999") == warehouse.ids("f > 2") == [5_000_000_000]
    assert warehouse.ids("m < 2.00") == [1, 1, 1]
    assert kinds(warehouse) == {"id": "long", "f": "double", "m": "decimal(30, 2)"}


def test_nested_fields_come_go_and_widen(spark, warehouse):
    """In structs, also those within lists and values of maps."""
    first = """SELECT 1L AS id, struct(1 AS x, 'p' AS gone) AS st, array(struct(1 AS x)) AS l,
        map('k', struct(1 AS x)) AS m, array(1) AS n"""
    second = """SELECT 2L AS id, struct(struct(true AS deep) AS new, 2L AS x) AS st,
        array(struct(2 AS x, 'q' AS y)) AS l, map('k', struct(2L AS x, array('r') AS y)) AS m,
        array(2L) AS n"""
    sink = opened(warehouse)
    pending = flushed(sink, spark.sql(first), 0)
    sink.commit(1, [flushed(sink, spark.sql(first), 1)])
    assert sink.commit(2, [pending, flushed(sink, spark.sql(second), 2)]) == 2
    assert sink.commit(3, [flushed(sink, spark.sql(second), 3)]) == 1
    one = {
        "id": 1, "st": {"x": 1, "gone": "p", "new": None}, "l": [{"x": 1, "y": None}],
        "m": [("k", {"x": 1, "y": None})], "n": [1],
    }  # fmt: skip
    two = {
        "id": 2, "st": {"x": 2, "gone": None, "new": {"deep": True}}, "l": [{"x": 2, "y": "q"}],
        "m": [("k", {"x": 2, "y": ["r"]})], "n": [2],
    }  # fmt: skip
    assert rows(warehouse) == [one, one, two, two]
    assert kinds(warehouse)["n"] == "list<long>"


@pytest.mark.parametrize("newest_first", [pytest.param(False, marks=pytest.mark.slow), True])
def test_one_epoch_may_have_rows_from_before_and_after_the_change(spark, warehouse, newest_first):
    """What an older pipeline had staged is committed by the new one, in whatever order."""
    sink = opened(warehouse)
    old = flushed(sink, spark.sql("SELECT 1 AS id, 'x' AS a"), 0)
    new = flushed(sink, spark.sql("SELECT 2L AS id, 'y' AS a, true AS new"), 1)
    newest = flushed(sink, spark.sql("SELECT 3L AS id, false AS new, 7 AS more"), 2)
    pending = [newest, new, old] if newest_first else [old, new, newest]
    assert sink.commit(1, pending) == 3
    expected = [(1, "x", None, None), (2, "y", True, None), (3, None, False, 7)]
    names = ("id", "a", "new", "more")
    assert [tuple(row[name] for name in names) for row in rows(warehouse)] == expected


def test_pending_rows_of_a_savepoint_bring_their_columns_to_another_table(
    spark, warehouse, tmp_path
):
    """It is created with the columns of the oldest, and gets those of the others."""
    origin = opened(warehouse)
    old = flushed(origin, spark.sql("SELECT 1 AS id, 'x' AS a").coalesce(1), 0)
    new = flushed(origin, spark.sql("SELECT 2L AS id, 'y' AS a, true AS b").coalesce(1), 1)
    (tmp_path / "other").mkdir()
    other = Warehouse(None, tmp_path / "other" / "warehouse")
    other.properties["name"] = warehouse.properties["name"]
    other.catalog = SqlCatalog(**other.properties)
    other.catalog.create_namespace("shop")
    sink = opened(other, attempt=3)
    for payload in (old, new):
        for source, place in zip(
            origin.staged_files(payload), sink.staged_files(payload), strict=True
        ):
            Path(place).parent.mkdir(parents=True)
            Path(place).write_bytes(Path(source).read_bytes())
    assert sink.commit(1, [old, new]) == 2
    assert [tuple(row.values()) for row in rows(other)] == [(1, "x", None), (2, "y", True)]


@pytest.mark.parametrize("same_epoch", [True, False])
def test_of_two_drivers_that_add_a_column_the_second_finds_it(
    spark, warehouse, monkeypatch, same_epoch
):
    """It had loaded the table before; its conflict shows the epoch, or at least the column."""
    sink = opened(warehouse)
    sink.commit(1, [flushed(sink, spark.sql(FIRST), 0)])
    first, second = opened(warehouse), opened(warehouse)
    one, two = (flushed(first, spark.sql(SECOND), number) for number in (1, 2))
    load = second._iceberg.load
    counts = []

    def overtaken():
        table = load()
        if not counts:
            counts.append(first.commit(2, [one]))
        return table

    monkeypatch.setattr(second._iceberg, "load", overtaken)
    counts.append(second.commit(2, [one]) if same_epoch else second.commit(3, [two]))
    assert counts == [1, 0 if same_epoch else 1]
    assert warehouse.ids("b = 'y'") == ([2] if same_epoch else [2, 2])
    assert list(kinds(warehouse)) == ["id", "a", "b"]


@pytest.mark.parametrize("landed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_commit_that_is_cut_short_adds_the_column_with_its_rows_or_not_at_all(
    spark, warehouse, monkeypatch, landed
):
    """And the commit that is repeated by the next attempt shows them once."""
    sink = opened(warehouse)
    sink.commit(1, [flushed(sink, spark.sql(FIRST), 0)])
    payload = flushed(sink, spark.sql(SECOND), 1)
    commit_table = type(warehouse.catalog).commit_table

    def cut_short(*arguments):
        if landed:
            commit_table(*arguments)
        raise ConnectionResetError("the server closed the connection")

    with monkeypatch.context() as patched, pytest.raises(StorageError):
        patched.setattr(type(warehouse.catalog), "commit_table", cut_short)
        sink.commit(2, [payload])
    assert (list(kinds(warehouse)), warehouse.ids()) == (
        (["id", "a", "b"], [1, 2]) if landed else (["id", "a"], [1])
    )
    again = opened(warehouse, attempt=2)
    assert again.commit(2, [payload]) == (0 if landed else 1)
    assert (list(kinds(warehouse)), warehouse.ids("b = 'y'")) == (["id", "a", "b"], [2])


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT 'x' AS id", "'id' is string in the rows and int in the table"),
        ("SELECT 1D AS id", "'id' is double in the rows and int in the table"),
        ("SELECT 1 AS ID", "'ID' of the rows is 'id' in the table"),
        ("SELECT CAST(1 AS decimal(9,3)) AS de", r"'de' is decimal\(9,3\) in the rows and decim"),
        ("SELECT map(1L, 1) AS m", "'m' is map<long,integer> in the rows and map<int, int> in"),
        ("SELECT struct(1 AS X) AS st", "'st' is struct<X:integer> in the rows and struct<"),
        ("SELECT 1 AS id, INTERVAL 1 DAY AS i", "column 'i' of type interval day, which Iceberg"),
    ],
)
def test_other_changes_are_one_sentence_that_shows_both(spark, warehouse, query, said):
    """Before any row is staged; the table stays as it is."""
    sink = opened(warehouse)
    table = "SELECT 1 AS id, CAST(1 AS decimal(9,2)) AS de, map(1, 1) AS m, struct(1 AS x) AS st"
    staged(sink, spark.sql(table), 0)
    before = kinds(warehouse)
    with pytest.raises(SinkMismatchError, match=said):
        staged(sink, spark.sql(query), 1)
    assert (kinds(warehouse), warehouse.attempts()) == (before, ["1/0"])


def test_without_the_option_changes_are_refused_and_the_sentence_names_it(spark, warehouse):
    """Also for rows that were staged with it, until it is given again or the table has changed."""
    sink = opened(warehouse)
    sink.commit(1, [flushed(sink, spark.sql("SELECT 1 AS id"), 0)])
    added = flushed(sink, spark.sql("SELECT 2 AS id, 'x' AS a"), 1)
    wider = flushed(sink, spark.sql("SELECT 3L AS id"), 2)
    plain = opened(warehouse, attempt=2, schema_evolution=None)
    with pytest.raises(SinkMismatchError, match=r"lacks 'a'\..*schema_evolution='add' adds and"):
        staged(plain, spark.sql("SELECT 2 AS id, 'x' AS a"), 0)
    for payload, said in ((added, "the table lacks 'a'"), (wider, "'id' is long in the rows and")):
        with pytest.raises(SinkMismatchError, match=f"{said}.*Give the sink schema_evolution='add"):
            plain.commit(2, [payload])
    with warehouse.table().update_schema() as update:
        update.add_column("a", IntegerType())
    with pytest.raises(SinkMismatchError, match=r"'a' of type string in the rows and 'a' of type"):
        opened(warehouse).commit(2, [added])
    assert opened(warehouse).commit(2, [wider]) == 1
    with pytest.raises(SinkError, match="schema_evolution='merge': use 'add', or None"):
        opened(warehouse, schema_evolution="merge")


def test_a_required_column_that_the_rows_lack_is_refused(spark, warehouse):
    """Whatever else they bring."""
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "n", IntegerType(), required=True),
    )
    warehouse.catalog.create_table(NAME, schema)
    with pytest.raises(SinkMismatchError, match="'n' is required in the table"):
        staged(opened(warehouse), spark.sql(SECOND), 0)


def test_the_former_name_of_another_column_is_not_given_to_a_new_one(spark, warehouse):
    """Older files without ids would show their values in it; before rows are staged, and after."""
    sink = opened(warehouse)
    sink.commit(1, [flushed(sink, spark.sql(FIRST), 0)])
    sink.commit(2, [flushed(sink, spark.sql(SECOND), 1)])
    pending = flushed(sink, spark.sql("SELECT 3L AS id, 'z' AS c"), 2)
    with warehouse.table().update_schema() as update:
        update.rename_column("b", "c")
    assert sink.commit(3, [pending]) == 1
    again = opened(warehouse, attempt=2)
    with pytest.raises(SinkMismatchError, match=r"'b' is, by the table's property .* the former"):
        staged(again, spark.sql(SECOND), 0)
    assert [row["c"] for row in rows(warehouse)] == [None, "y", "z"]
    late = flushed(again, spark.sql("SELECT 4L AS id, 'w' AS d"), 1)
    with warehouse.table().update_schema() as update:
        update.rename_column("c", "d")
    with warehouse.table().update_schema() as update:
        update.rename_column("d", "e")
    with pytest.raises(SinkMismatchError, match="'d' is, by the table's property"):
        again.commit(4, [late])


def test_columns_of_partitions_may_widen(spark, warehouse):
    """Older manifests are read and merged with the wider type; filters skip by the values."""
    sink = opened(warehouse, partition_by=("n", "de"))
    types = [("int", "decimal(5,2)"), ("bigint", "decimal(5,2)"), ("bigint", "decimal(30,2)")]
    for number, (whole, decimal) in enumerate(types):
        if number == 1:
            with warehouse.table().transaction() as transaction:
                transaction.set_properties({"commit.manifest.min-count-to-merge": "2"})
        query = f"SELECT {number} AS id, {whole}(-{number}) AS n, CAST({number} AS {decimal}) AS de"
        assert sink.commit(number + 1, [flushed(sink, spark.sql(query), number)]) == 1
    assert kinds(warehouse) == {"id": "int", "n": "long", "de": "decimal(30, 2)"}
    for number in range(len(types)):
        scan = warehouse.table().scan(row_filter=f"n = -{number} and de = {number}.00")
        assert scan.to_arrow()["id"].to_pylist() == [number]
        assert len(list(scan.plan_files())) == 1
