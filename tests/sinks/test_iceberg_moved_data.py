"""Pending rows whose Iceberg table has moved, or is another one by now."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.kit.iceberg_warehouse import NAME, Warehouse, stage_by_hand

from weir.errors import LostRowsError, StorageError


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(None, tmp_path / "warehouse")


def move(warehouse: Warehouse, place: Path) -> None:
    with warehouse.table().transaction() as transaction:
        transaction.set_properties({"write.data.path": str(place)})


def test_pending_rows_are_committed_where_they_were_staged(warehouse, tmp_path):
    """By the next attempt, which stages in the new place; also what it has yet to flush."""
    sink = warehouse.opened()
    flushed = sink.flush([stage_by_hand(sink, 0, 1)])
    staged = stage_by_hand(sink, 1, 2)
    move(warehouse, tmp_path / "moved")
    after = warehouse.opened(attempt=2)
    assert after.staged_files(flushed[0]) == sink.staged_files(flushed[0])
    assert [after.damaged(one) for one in (*flushed, staged)] == [None, None]
    new = stage_by_hand(after, 0, 3)
    assert after.commit(1, [*flushed, *after.flush([staged, new])]) == 3
    assert warehouse.ids() == [1, 2, 3]
    assert len(list((tmp_path / "moved").glob("weir-*/0/*.parquet"))) == 1
    after.clean(3)
    assert warehouse.ids() == [1, 2, 3]


def test_a_location_that_the_table_never_had_is_not_used(warehouse, tmp_path):
    """A forged checkpoint could else add files of others; an older one has no location."""
    sink = warehouse.opened()
    (flushed,) = sink.flush([stage_by_hand(sink, 0, 1)])
    (real,) = sink.staged_files(flushed)
    forged = {**flushed, "location": str(tmp_path / "elsewhere")}
    place = tmp_path / "elsewhere" / flushed["directory"] / "0" / Path(real).name
    place.parent.mkdir(parents=True)
    Path(real).rename(place)
    assert sink.staged_files(forged) == [real]
    with pytest.raises(LostRowsError, match="is gone"):
        sink.commit(1, [forged])
    place.rename(real)
    del forged["location"]
    assert sink.commit(1, [forged]) == 1
    assert warehouse.ids() == [1]


@pytest.mark.parametrize("is_created", [False, True])
def test_a_job_that_accepts_duplicates_goes_on_without_a_dropped_table(warehouse, is_created):
    """It has no landmark then; the files of its pending rows are still there."""
    sink = warehouse.opened()
    assert sink.commit(1, sink.flush([stage_by_hand(sink, 0, 1)])) == 1
    pending = sink.flush([stage_by_hand(sink, 1, 2)])
    landmark, schema = sink.landmark(), warehouse.table().schema()
    warehouse.catalog.drop_table(NAME)
    with pytest.raises(StorageError, match="continue without its rows with --accept-duplicates"):
        warehouse.opened(attempt=2, landmark=landmark)
    if is_created:
        warehouse.catalog.create_table(NAME, schema)
    assert warehouse.opened(attempt=2).commit(2, pending) == 1
    assert warehouse.ids() == [2]


def test_a_savepoint_may_move_to_another_catalog_of_the_same_name(warehouse, tmp_path):
    """Its rows are pending above commits that the table there has never had."""
    origin = warehouse.opened()
    assert origin.commit(1, origin.flush([stage_by_hand(origin, 0, 1)])) == 1
    (pending,) = origin.flush([stage_by_hand(origin, 1, 2)])
    (tmp_path / "other").mkdir()
    other = Warehouse(None, tmp_path / "other" / "warehouse")
    other.properties["name"] = warehouse.properties["name"]
    other.catalog = SqlCatalog(**other.properties)
    other.catalog.create_namespace("shop")
    sink = other.opened(attempt=3)
    (source,) = origin.staged_files(pending)
    (place,) = map(Path, sink.staged_files(pending))
    assert place.is_relative_to(other.directory)
    place.parent.mkdir(parents=True)
    place.write_bytes(Path(source).read_bytes())
    assert sink.commit(2, [pending]) == 1
    assert other.ids() == [2]
