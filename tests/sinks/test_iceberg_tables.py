"""Partitions, existing tables and refusals of the Iceberg sink, with a catalog in PostgreSQL."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    DateType,
    DecimalType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)
from tests.kit.disk import synced_paths
from tests.kit.iceberg_warehouse import (
    NAME,
    Warehouse,
    catalog_uri,
    context,
    flushed,
    stage_by_hand,
    staged,
)

from weir.errors import SinkError, SinkMismatchError, UnsupportedEnvironmentError
from weir.sinks import IcebergTable
from weir.sinks.iceberg.target import data_location, data_root, metadata_directory

pytestmark = pytest.mark.spark


@pytest.fixture
def warehouse(server, tmp_path):
    return Warehouse(server, tmp_path / "warehouse")


def columns(*fields: tuple[str, Any], required: bool = False) -> Schema:
    return Schema(
        *(
            NestedField(number, name, kind, required=required)
            for number, (name, kind) in enumerate(fields, start=1)
        )
    )


def partitions(schema: Schema, *fields: tuple[str, str]) -> PartitionSpec:
    return PartitionSpec(
        *(
            PartitionField(
                source_id=schema.find_field(column).field_id,
                field_id=1000 + number,
                transform=parse_transform(transform),
                name=f"{column}_{number}",
            )
            for number, (column, transform) in enumerate(fields)
        )
    )


def test_partition_values_are_what_rows_have(spark, warehouse):
    """Filters skip files by them: odd text, nulls and empty text stay apart."""
    texts = ["a/b", "a b ", "", None, "ä%=", "__HIVE_DEFAULT_PARTITION__", "v", "1"]
    rows = [
        (number, text, dt.date(1969, 12, 30 + number % 2), Decimal(number) / 100, number % 2 == 0)
        for number, text in enumerate(texts)
    ]
    frame = spark.createDataFrame(rows, "id long, c string, d date, de decimal(9,7), bo boolean")
    sink = warehouse.opened(partition_by=("c", "d", "de", "bo"))
    assert sink.commit(1, [flushed(sink, frame, 0)]) == len(rows)
    table = warehouse.table()
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(len(rows)))
    for number, text, day, amount, even in rows:
        same = f"c = '{text}'" if text is not None else "c is null"
        row_filter = f"{same} and d = '{day}' and de = {amount:.7f} and bo = {str(even).lower()}"
        scan = table.scan(row_filter=row_filter)
        assert len(list(scan.plan_files())) == 1, row_filter
        (found,) = scan.to_arrow().to_pylist()
        assert (found["id"], found["c"], found["de"]) == (number, text, amount)


@pytest.mark.parametrize("nested", [False, True])
def test_columns_of_odd_names_arrive(spark, warehouse, nested):
    """By field ids and by the name mapping; also as partitions."""
    names = ["a b", "a/b=c", "Ä`{;", "x.y"]
    frame = spark.createDataFrame(
        [(1, 2, 3, 4)], ", ".join(f"`{n.replace('`', '``')}` int" for n in names)
    )
    if nested:
        frame = frame.selectExpr("*", "array(1) AS `l ;`")
    sink = warehouse.opened(partition_by=("a b", "a/b=c"))
    assert sink.commit(1, [flushed(sink, frame, 0)]) == 1
    (found,) = warehouse.table().scan().to_arrow().to_pylist()
    assert [found[name] for name in names] == [1, 2, 3, 4]
    assert found.get("l ;") == ([1] if nested else None)


INSTANTS = [
    "1583-01-01 00:00:00", "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00",
    "2026-03-29 00:59:59", "2026-03-29 01:30:00", "2026-10-25 00:30:00", "2026-10-25 01:30:00",
    "9999-12-31 23:59:59",
]  # fmt: skip


@pytest.mark.parametrize("zone", ["Europe/Berlin", pytest.param("UTC", marks=pytest.mark.slow)])
def test_transforms_of_existing_tables_are_computed_as_iceberg_does(spark, warehouse, zone):
    """pyiceberg computes every partition again, from the values that it reads from the file."""
    schema = columns(
        ("id", LongType()), ("ts", TimestamptzType()), ("n", TimestampType()), ("d", DateType()),
        ("s", StringType()), ("i", IntegerType()),
    )  # fmt: skip
    units = ("year", "month", "day", "hour")
    spec = partitions(
        schema, *((column, unit) for column in ("ts", "n") for unit in units),
        *(("d", unit) for unit in units[:3]), ("s", "truncate[3]"), ("i", "truncate[10]"),
        ("id", "truncate[7]"),
    )  # fmt: skip
    warehouse.catalog.create_table(NAME, schema, partition_spec=spec)
    rows = [
        (
            number - 4,
            text,
            text.replace("T", " "),
            text[:10],
            "🌊äbc"[: number % 5],
            number * 7 - 30,
        )
        for number, text in enumerate(INSTANTS)
    ]
    frame = spark.createDataFrame(rows, "id long, t string, n string, d string, s string, i int")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = frame.selectExpr(
            "id", "cast(concat(t, 'Z') AS timestamp) AS ts", "cast(n AS timestamp_ntz) AS n",
            "cast(d AS date) AS d", "s", "i",
        )  # fmt: skip
        sink = warehouse.opened()
        assert sink.commit(1, [flushed(sink, frame, 0)]) == len(rows)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    table = warehouse.table()
    files = [task.file for task in table.scan().plan_files()]
    assert len(files) == len(rows)
    micro = dt.timedelta(microseconds=1)
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    for file in files:
        (found,) = pq.read_table(file.file_path, partitioning=None).to_pylist()
        found["ts"] = (found["ts"] - epoch) // micro
        found["n"] = (found["n"].replace(tzinfo=dt.UTC) - epoch) // micro
        found["d"] = (found["d"] - epoch.date()).days
        expected = [
            field.transform.transform(schema.find_type(field.source_id))(
                found[schema.find_column_name(field.source_id)]
            )
            for field in spec.fields
        ]
        assert list(file.partition) == expected


def test_an_existing_table_keeps_its_columns_and_widens_what_is_narrower(spark, warehouse):
    """Rows may lack a column, which is null; integers, floats and decimals fit wider ones."""
    schema = columns(
        ("more", StringType()), ("id", LongType()), ("de", DecimalType(20, 2)), ("x", LongType())
    )
    warehouse.catalog.create_table(NAME, schema)
    frame = spark.createDataFrame([(Decimal("1.25"), 5, 7)], "de decimal(9,2), id int, x short")
    sink = warehouse.opened()
    assert sink.commit(1, [flushed(sink, frame, 0)]) == 1
    (found,) = warehouse.table().scan("id = 5 and de = 1.25").to_arrow().to_pylist()
    assert found == {"more": None, "id": 5, "de": Decimal("1.25"), "x": 7}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (columns(("id", IntegerType())), "'id' is long in the rows and int in the table"),
        (columns(("id", StringType())), "'id' is long in the rows and string in the table"),
        (columns(("key", LongType())), "the table lacks 'id'"),
        (columns(("id", LongType()), required=True), "'id' is required in the table"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_the_first(spark, warehouse, schema, message):
    """One sentence shows both sides, and nothing is staged."""
    warehouse.catalog.create_table(NAME, schema)
    sink = warehouse.opened()
    with pytest.raises(SinkMismatchError, match=message):
        staged(sink, spark.range(3), 0)
    assert warehouse.attempts() == []


def test_a_type_that_iceberg_lacks_is_refused_by_name(spark, warehouse):
    """And no table is created."""
    frame = spark.sql("SELECT 1 AS id, named_struct('a', INTERVAL 1 DAY) AS st")
    with pytest.raises(SinkMismatchError, match=r"column 'st\.a' of type interval day"):
        staged(warehouse.opened(), frame, 0)
    assert not warehouse.catalog.table_exists(NAME)


@pytest.mark.parametrize(
    ("column", "kind", "transform"),
    [
        ("id", LongType(), "bucket[4]"),
        ("ts", TimestamptzType(), "identity"),
        ("de", DecimalType(9, 2), "truncate[5]"),
    ],
)
def test_a_partition_that_spark_cannot_compute_is_refused_by_name(
    warehouse, column, kind, transform
):
    """When the job starts."""
    schema = columns((column, kind))
    spec = partitions(schema, (column, transform))
    warehouse.catalog.create_table(NAME, schema, partition_spec=spec)
    with pytest.raises(SinkMismatchError) as caught:
        warehouse.opened()
    assert f"which is {transform} of '{column}'" in str(caught.value)


def test_other_tables_that_cannot_be_appended_to_are_refused_at_the_start(warehouse):
    """Another format version, other partitions than asked for, no such namespace."""
    schema = columns(("id", LongType()), ("c", StringType()))
    warehouse.catalog.create_table("shop.old", schema, properties={"format-version": "1"})
    with pytest.raises(SinkMismatchError, match="has format version 1"):
        IcebergTable(warehouse.properties, "shop.old").check(context())
    spec = partitions(schema, ("c", "identity"))
    warehouse.catalog.create_table(NAME, schema, partition_spec=spec)
    warehouse.opened(partition_by=("c",))
    with pytest.raises(SinkMismatchError, match=r"not by \['id'\]: leave partition_by out"):
        warehouse.opened(partition_by=("id",))
    with pytest.raises(SinkError, match="has no namespace 'nowhere'"):
        IcebergTable(warehouse.properties, "nowhere.t").check(context())


def test_a_table_may_get_new_columns_and_names_while_rows_are_staged(spark, warehouse):
    """Files with field ids do not depend on names; a wider type reads narrower values."""
    frame = spark.createDataFrame([(1, 5)], "id int, x int")
    sink = warehouse.opened()
    payload = flushed(sink, frame, 0)
    with warehouse.table().update_schema() as update:
        update.add_column("more", StringType())
        update.rename_column("x", "y")
        update.update_column("id", LongType())
    assert sink.commit(1, [payload]) == 1
    (found,) = warehouse.table().scan("id = 1 and y = 5").to_arrow().to_pylist()
    assert found == {"id": 1, "y": 5, "more": None}
    with pytest.raises(SinkMismatchError, match="the table lacks 'x'"):
        staged(sink, frame, 1)


def test_a_partition_spec_that_changes_under_staged_rows_refuses_the_commit(spark, warehouse):
    """Until it is changed back."""
    sink = warehouse.opened()
    payload = flushed(sink, spark.range(3), 0)
    warehouse.table().update_spec().add_identity("id").commit()
    with pytest.raises(SinkMismatchError, match="its partition spec has changed"):
        sink.commit(1, [payload])
    warehouse.table().update_spec().remove_field("id").commit()
    assert sink.commit(1, [payload]) == 3


def test_a_mapping_that_does_not_find_the_rows_fields_is_refused(spark, warehouse):
    """Lists have no field ids in Spark's files."""
    kind = ListType(element_id=9, element_type=LongType(), element_required=False)
    mapping = '[{"field-id": 1, "names": ["id"]}]'
    warehouse.catalog.create_table(
        NAME, columns(("id", kind)), properties={"schema.name-mapping.default": mapping}
    )
    frame = spark.createDataFrame([([1, 2],)], "id array<long>")
    with pytest.raises(SinkMismatchError, match=r"does not have 'id\.element' under its id"):
        staged(warehouse.opened(), frame, 0)


def test_manifests_are_merged_as_the_table_says(spark, warehouse):
    """And rows stay what they are."""
    sink = warehouse.opened()
    flushed(sink, spark.range(1), 0)
    with warehouse.table().transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "2"})
    for epoch in range(1, 5):
        sink.commit(epoch, [flushed(sink, spark.range(epoch, epoch + 1), epoch)])
    table = warehouse.table()
    assert len(table.current_snapshot().manifests(table.io)) < 4
    assert warehouse.ids("id > 1") == [2, 3, 4]


def test_pending_rows_of_a_savepoint_may_go_to_another_table(spark, warehouse, tmp_path):
    """It is created for them; their files are put where it has its own."""
    origin = warehouse.opened()
    payload = flushed(origin, spark.range(3).coalesce(1), 0)
    (path,) = origin.staged_files(payload)
    other = IcebergTable(warehouse.properties, "shop.copies")
    other.open(context(attempt=3))
    (place,) = other.staged_files(payload)
    assert place != path
    Path(place).parent.mkdir(parents=True)
    Path(place).write_bytes(Path(path).read_bytes())
    assert other.commit(1, [payload]) == 3
    found = warehouse.catalog.load_table("shop.copies").scan("id > 0").to_arrow()
    assert sorted(found["id"].to_pylist()) == [1, 2]


def test_metadata_is_on_disk_before_the_catalog_refers_to_it(spark, warehouse, monkeypatch):
    """All files of the snapshot, and the directory that names them (PROTOCOL P23)."""
    sink = warehouse.opened()
    payload = flushed(sink, spark.range(3), 0)
    synced = synced_paths(monkeypatch)
    sink.commit(1, [payload])
    table = warehouse.table()
    snapshot = table.current_snapshot()
    needed = [table.metadata_location, snapshot.manifest_list]
    needed += [manifest.manifest_path for manifest in snapshot.manifests(table.io)]
    for path in needed:
        assert path in synced
        assert str(Path(path).parent) in synced[synced.index(path) :]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_data_may_lie_apart_from_the_metadata(warehouse, tmp_path, scheme):
    """Manifests spell the place as the table does; dead attempts are found there."""
    place = tmp_path / "data of orders"
    properties = {"write.data.path": f"{scheme}{place}/"}
    warehouse.catalog.create_table(NAME, columns(("id", LongType())), properties=properties)
    dead = warehouse.opened()
    assert dead.commit(1, dead.flush([stage_by_hand(dead, 0, 1, 2)])) == 2
    stage_by_hand(dead, 1, 3)
    sink = warehouse.opened(attempt=2)
    sink.clean(2)
    assert [path.name for path in place.glob("weir-*/[0-9]*")] == ["0"]
    assert warehouse.ids("id > 1") == [2]
    for task in warehouse.table().scan().plan_files():
        assert task.file.file_path.startswith(f"{scheme}{place}/weir-")


def test_a_location_in_s3_is_reached_as_hadoop_spells_it():
    """Manifests keep the spelling of the table."""
    schema = columns(("id", LongType()))
    metadata = new_table_metadata(schema, PartitionSpec(), UNSORTED_SORT_ORDER, "s3://lake/t", {})
    assert data_location(metadata) == "s3://lake/t/data"
    assert data_root(metadata) == "s3a://lake/t/data"
    assert metadata_directory(metadata) == "s3a://lake/t/metadata"


def test_a_warehouse_of_any_name_is_written_to(server, tmp_path):
    """Its path is plain, not a URI."""
    warehouse = Warehouse(server, tmp_path / "ware %20#house?")
    sink = warehouse.opened()
    assert sink.commit(1, sink.flush([stage_by_hand(sink, 0, 1, 2)])) == 2
    assert warehouse.ids("id > 1") == [2]


def test_a_damaged_ledger_is_named(spark, warehouse):
    """Nothing is committed on top of it."""
    sink = warehouse.opened()
    payload = flushed(sink, spark.range(1), 0)
    key = f"weir.commit.{context().job_id}.out"
    with warehouse.table().transaction() as transaction:
        transaction.set_properties({key: '{"epoch": "many"}'})
    with pytest.raises(SinkError, match=f"The property '{key}' of .* cannot be read"):
        sink.commit(1, [payload])


@pytest.mark.parametrize(
    "properties",
    [
        {"uri": "postgresql://weir:hunter2@db/shop"},
        {"uri": "postgresql:///shop?host=db&password=hunter2"},
        {"uri": "https://catalog", "token": "hunter2"},
        {"uri": "https://catalog", "s3.secret-access-key": "hunter2"},
        {"uri": "https://catalog", "header.Authorization": "hunter2"},
        {"uri": "https://catalog", "header.X-Anything": "hunter2"},
        {"uri": "https://catalog?apikey=hunter2"},
        {"uri": "https://catalog", "lake.api-key": "hunter2"},
        {"uri": "https://catalog", "auth": {"type": "basic", "basic": {"word": "hunter2"}}},
    ],
)
def test_properties_with_a_secret_are_refused_without_repeating_it(properties):
    """They would reach logs."""
    with pytest.raises(SinkError, match="may be a secret") as caught:
        IcebergTable(properties, NAME)
    assert "hunter2" not in str(caught.value)


def test_a_property_that_is_not_a_string_is_refused_without_repeating_it():
    """pyiceberg would fail with it later, and nested ones are not searched for secrets."""
    with pytest.raises(SinkError, match=r"'rest\.sigv4-enabled' of .* is not a string") as caught:
        IcebergTable({"uri": "https://catalog", "rest.sigv4-enabled": {"x": "hunter2"}}, NAME)
    assert "hunter2" not in str(caught.value)


def test_a_table_without_a_namespace_is_refused(warehouse):
    """Iceberg's catalogs have none at the top."""
    with pytest.raises(SinkError, match=r"needs a table such as 'sales\.orders'"):
        IcebergTable("prod", "orders")


def test_a_catalog_that_does_not_answer_is_a_refusal_at_the_start(server, tmp_path):
    """Its message names no password."""
    uri = catalog_uri(server, "nowhere")
    sink = IcebergTable({"type": "sql", "uri": uri, "warehouse": str(tmp_path)}, NAME)
    with pytest.raises(SinkError, match="does not answer now"):
        sink.check(context())


def test_a_missing_pyiceberg_is_named_when_the_pipeline_is_loaded(monkeypatch):
    """With what to install."""
    monkeypatch.setitem(__import__("sys").modules, "weir.sinks.iceberg.target", None)
    with pytest.raises(UnsupportedEnvironmentError, match=r"pip install 'weir-spark\[iceberg\]'"):
        IcebergTable("prod", NAME)
