"""What the Iceberg sink's clean-up spares when the catalog shows another table than it had."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from tests.kit.disk import FaultyDisk
from tests.kit.iceberg_warehouse import NAME, Warehouse, context, stage_by_hand

from weir.sinks import IcebergTable
from weir.sinks.iceberg.files import written_as
from weir.sinks.iceberg.merging import replaceable
from weir.sinks.iceberg.payload import IcebergPayload
from weir.sinks.staging import decode_staged


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(None, tmp_path / "warehouse")


def commit(sink: IcebergTable, epoch: int) -> None:
    """Commit the epoch's number as a row."""
    assert sink.commit(epoch, sink.flush([stage_by_hand(sink, epoch, epoch)])) == 1


def ids(warehouse: Warehouse, name: str = NAME) -> list[int]:
    return sorted(warehouse.catalog.load_table(name).scan().to_arrow()["id"].to_pylist())


def test_files_of_a_renamed_table_stay_when_a_new_one_has_its_place(warehouse):
    """Both have their data in the same directory, and the new one knows no older attempt."""
    sink = warehouse.opened()
    commit(sink, 1)
    commit(sink, 2)
    stage_by_hand(sink, 3, 3)
    warehouse.catalog.rename_table(NAME, "shop.old")
    after = warehouse.opened(attempt=2)
    stage_by_hand(after, 0, 9)
    after.clean(2)
    commit(after, 3)
    after.clean(2)
    assert ids(warehouse, "shop.old") == [1, 2]
    assert warehouse.attempts() == ["1/1", "1/2", "2/0", "2/3"]


@pytest.mark.parametrize("is_known", [False, True])
def test_files_of_a_newer_state_stay_while_the_catalog_is_restored(warehouse, is_known):
    """Whether or not the process knows it: the newer state is brought back afterwards."""
    sink = warehouse.opened()
    commit(sink, 1)
    older = warehouse.table().metadata_location
    commit(sink, 2)
    newer = warehouse.table().metadata_location
    warehouse.catalog.drop_table(NAME)
    warehouse.catalog.register_table(NAME, older)
    if is_known:
        stage_by_hand(sink, 3, 3)
    after = sink if is_known else warehouse.opened(attempt=2)
    after.open(context(attempt=2))
    after.clean(2)
    assert warehouse.attempts() == (["1/1", "1/2", "1/3"] if is_known else ["1/1", "1/2"])
    warehouse.catalog.drop_table(NAME)
    warehouse.catalog.register_table(NAME, newer)
    assert ids(warehouse) == [1, 2]


def test_nothing_is_deleted_below_a_table_that_was_rolled_back(warehouse):
    """The rows of the newer state can come back, and so can what was staged after it."""
    sink = warehouse.opened()
    commit(sink, 1)
    commit(sink, 2)
    stage_by_hand(sink, 3, 3)
    table = warehouse.table()
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[0].snapshot_id).commit()
    warehouse.opened(attempt=2).clean(2)
    assert warehouse.attempts() == ["1/1", "1/2", "1/3"]


def test_files_stay_when_somebody_has_created_the_table_anew(warehouse):
    """Its metadata knows of no commit; nor is a mark that cannot be understood trusted."""
    sink = warehouse.opened()
    commit(sink, 1)
    stage_by_hand(sink, 2, 2)
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    warehouse.catalog.drop_table(NAME)
    warehouse.catalog.create_table(NAME, schema)
    (mark,) = warehouse.directory.glob("shop/orders/data/weir-*/_committed")
    text = mark.read_text()
    mark.write_text("-1")
    warehouse.opened(attempt=2).clean(2)
    assert warehouse.attempts() == ["1/1", "1/2"]
    mark.write_text(text)
    warehouse.opened(attempt=2).clean(2)
    assert warehouse.attempts() == ["1/1"]


def test_an_epoch_of_many_batches_is_looked_at_once(warehouse):
    """Its schema is parsed once, and the file beside the batches of an attempt is read once."""
    sink = warehouse.opened()
    commit(sink, 1)
    payloads = sink.flush([stage_by_hand(sink, number, number) for number in (2, 3, 4)])
    decoded = decode_staged(payloads, IcebergPayload, sink.describe())
    disk = FaultyDisk()
    found = replaceable(lambda _: disk, sink._staged_in(decoded))
    assert [one.payload.position for one in found] == [2, 3, 4]
    assert [Path(path).name for path in disk.paths("read")] == ["_committed"]
    first, _, last = (one.payload for one in found)
    assert written_as(first)[0] is written_as(last)[0]
