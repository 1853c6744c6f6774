"""Rows that are pending while the data location of their Iceberg table changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sinks.iceberg_warehouse import Warehouse, stage_by_hand

from weir.errors import LostRowsError


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
