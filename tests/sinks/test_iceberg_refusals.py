"""Rows that an Iceberg table cannot take, without Spark: the commit says so and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.types import LongType, NestedField, StringType, StructType, TimestampType
from tests.kit.iceberg_warehouse import NAME, Warehouse, context, stage_by_hand

from weir.errors import SinkError, SinkMismatchError
from weir.sinks import IcebergTable
from weir.sinks.iceberg.evolution import evolve, prepare
from weir.sinks.iceberg.payload import IcebergPayload
from weir.sinks.iceberg.types import NEW_IDS


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(None, tmp_path / "warehouse")


def optional(field_id: int, name: str, kind: Any) -> NestedField:
    return NestedField(field_id, name, kind, required=False)


def staged(table: Table, rows: Schema) -> IcebergPayload:
    """A batch of such rows."""
    return IcebergPayload(
        directory="weir-01234567-out-1",
        position=0,
        flushed=True,
        after=0,
        owner="0" * 16,
        table=str(table.metadata.table_uuid),
        schema=rows.model_dump_json(),
        spec=table.spec().model_dump_json(),
        files=[],
    )


def prepared(table: Table, rows: Schema) -> dict[str, Schema]:
    """What a commit of such rows would do to the table."""
    return prepare(table.transaction(), [staged(table, rows)], adds=True, place="T")


@pytest.mark.parametrize("scheme", ["hdfs", "viewfs"])
@pytest.mark.parametrize("where", ["the pipeline", "the environment"])
def test_a_warehouse_on_hdfs_is_refused_when_the_pipeline_is_read(scheme, where, monkeypatch):
    """So ``weir plan`` refuses it too: nothing is asked, and no JVM starts."""
    location = f"{scheme}://nn:8020/warehouse"
    catalog = {"name": "far", "type": "sql", "uri": "sqlite://"}
    if where == "the pipeline":
        catalog["warehouse"] = location
    else:
        monkeypatch.setenv("PYICEBERG_CATALOG__FAR__WAREHOUSE", location)
    words = rf"'shop.orders'\) lies at {location}, but pyiceberg cannot commit to HDFS: choose a"
    with pytest.raises(SinkError, match=words):
        IcebergTable(catalog, "shop.orders")


def test_a_table_on_hdfs_is_refused_once_its_catalog_has_named_its_place(warehouse):
    """Before a JVM starts: the sinks are checked first."""
    table = warehouse.catalog.create_table(NAME, Schema(optional(1, "a", StringType())))
    location = "hdfs://nn/warehouse/orders"
    table.metadata = table.metadata.model_copy(update={"location": location})
    with pytest.raises(SinkError, match=f"lies at {location}, but pyiceberg"):
        warehouse.sink().target.check_table(table, ())


@pytest.mark.parametrize("is_nested", [False, True])
def test_two_fields_of_staged_rows_that_became_one_are_refused(warehouse, is_nested):
    """One got the name of the other, which was new; readers would find one. Until changed back."""
    old = optional(1, "a", StringType())
    new = optional(NEW_IDS, "c", StringType())
    rows, path = Schema(old, new), ("a",)
    table = Schema(old)
    if is_nested:
        inner = [optional(2, "a", StringType()), optional(NEW_IDS, "c", StringType())]
        rows, path = Schema(optional(1, "s", StructType(*inner))), ("s", "a")
        table = Schema(optional(1, "s", StructType(inner[0])))
    warehouse.catalog.create_table(NAME, table)
    with warehouse.table().update_schema() as update:
        update.rename_column(path, "c")
    with pytest.raises(SinkMismatchError, match=r"'(s\.)?a' and '(s\.)?c' are both '(s\.)?c' in"):
        prepared(warehouse.table(), rows)
    with warehouse.table().update_schema() as update:
        update.rename_column((*path[:-1], "c"), "a")
    (found,) = prepared(warehouse.table(), rows).values()
    assert len(set(found.field_ids)) == len(rows.field_ids)


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("ts_day", StringType(), "a name that exists in schema: ts_day"),
        ("q", StructType(optional(NEW_IDS + 1, "r", StringType())), "q.r"),
    ],
)
def test_a_column_that_iceberg_does_not_add_is_one_sentence(warehouse, name, kind, said):
    """It has the name of a partition field, or one of its fields that of a column with a dot."""
    table = Schema(optional(1, "ts", TimestampType()), optional(2, "q.r", StringType()))
    warehouse.catalog.create_table(NAME, table)
    with warehouse.table().update_spec() as update:
        update.add_field("ts", DayTransform(), "ts_day")
    rows = Schema(optional(1, "ts", TimestampType()), optional(NEW_IDS, name, kind))
    with pytest.raises(SinkMismatchError, match=f"^Rows do not fit T.*{said}.*another name"):
        evolve(warehouse.table().transaction(), [rows], adds=True, place="T")


@pytest.mark.parametrize("change", ["rename", "drop"])
def test_staged_rows_whose_new_column_has_changed_say_how_they_can_be_committed(warehouse, change):
    """An earlier epoch had added it; what the sentence says helps."""
    warehouse.catalog.create_table(NAME, Schema(optional(1, "id", LongType())))
    rows = Schema(optional(1, "id", LongType()), optional(NEW_IDS, "c", StringType()))
    with warehouse.table().transaction() as transaction:
        prepare(transaction, [staged(warehouse.table(), rows)], adds=True, place="T")
    with warehouse.table().update_schema() as update:
        if change == "rename":
            update.rename_column("c", "d")
        else:
            update.delete_column("c")
    with pytest.raises(SinkMismatchError, match=r"staged already, so change the table back: .*map"):
        prepared(warehouse.table(), rows)
    if change == "rename":
        with warehouse.table().update_schema() as update:
            update.rename_column("d", "c")
    else:
        mapping = json.loads(warehouse.table().properties["schema.name-mapping.default"])
        kept = json.dumps([one for one in mapping if "c" not in one["names"]])
        with warehouse.table().transaction() as transaction:
            transaction.set_properties({"schema.name-mapping.default": kept})
    (found,) = prepared(warehouse.table(), rows).values()
    assert [field.name for field in found.fields] == ["id", "c"]


def field(field_id: int, name: str, kind: Any, *, required: bool = False) -> dict[str, Any]:
    return {"id": field_id, "name": name, "type": kind, "required": required}


@pytest.mark.parametrize(
    "forged",
    [
        [field(NEW_IDS, "u", "uuid")],
        [field(NEW_IDS, "r", "int", required=True)],
        [field(NEW_IDS, "c", "int"), field(NEW_IDS, "d", "string")],
        [field(NEW_IDS, "s", {"type": "struct", "fields": []})],
        [
            field(
                NEW_IDS,
                "s",
                {"type": "struct", "fields": [field(NEW_IDS + 1, "x", "int", required=True)]},
            )
        ],
    ],
)
def test_a_checkpoint_that_was_tampered_with_does_not_change_the_table(warehouse, forged):
    """Spark stages no rows with such columns, and the next batch would not fit the table."""
    sink = warehouse.sink(schema_evolution="add")
    sink.check(context())
    sink.open(context())
    (payload,) = sink.flush([stage_by_hand(sink, 0, 1)])
    before = warehouse.table().schema()
    schema = json.loads(payload["schema"])
    schema["fields"] += forged
    with pytest.raises(SinkMismatchError, match="files cannot be understood"):
        sink.commit(1, [{**payload, "schema": json.dumps(schema)}])
    assert warehouse.table().schema() == before


def test_a_new_table_that_would_number_staged_fields_anew_is_not_created(warehouse, tmp_path):
    """In another catalog, from a savepoint (P14); one that came to be as the old one takes them."""
    first = Schema(optional(1, "gone", StringType()))

    def created(place: Warehouse) -> None:
        place.catalog.create_table(NAME, first)
        with place.table().update_schema() as update:
            update.add_column("id", LongType())

    created(warehouse)
    sink = warehouse.opened()
    (payload,) = sink.flush([stage_by_hand(sink, 0, 1)])
    (tmp_path / "other").mkdir()
    other = Warehouse(None, tmp_path / "other" / "warehouse")
    start = other.opened(attempt=2)
    with pytest.raises(SinkMismatchError, match=r"'id' has the id 2, .* and would have 1\. Create"):
        start.staged_files(payload)
    assert not other.catalog.table_exists(NAME)
    created(other)
    (path,) = other.opened(attempt=2).staged_files(payload)
    assert path.startswith(str(other.directory))
