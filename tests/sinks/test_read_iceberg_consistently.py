"""One cut over Iceberg and Delta tables: snapshots are read at the checkpoint that all show."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from tests.kit.iceberg_warehouse import JOB, Warehouse, context, stage_by_hand
from tests.sinks.test_read_consistent import Records
from tests.sinks.test_read_consistent import Writer as DeltaWriter

import weir
from weir.errors import CutNotFoundError, StorageError
from weir.sinks import IcebergTable


class Writer:
    """A sink of the job and its table."""

    def __init__(self, warehouse: Warehouse, name: str, **changes: Any) -> None:
        self.name = name
        self.sink = IcebergTable(warehouse.properties, f"shop.{name}")
        self.sink.open(context(**{"sink": name, **changes}))
        self._positions = itertools.count()

    def commit(self, checkpoint: int, *ids: int) -> None:
        """Commit rows as one checkpoint."""
        payload = stage_by_hand(self.sink, next(self._positions), *ids)
        assert self.sink.commit(checkpoint, self.sink.flush([payload])) == len(ids)


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(None, tmp_path / "warehouse")


def ids(cut: weir.ConsistentCut, name: str) -> list[int]:
    return sorted(cut.scan(name).to_arrow()["id"].to_pylist())


def test_tables_of_both_formats_are_read_at_one_checkpoint(warehouse, tmp_path):
    """Checkpoint 3 is committed in only one table; other writers' later rows are not in the cut."""
    clean = Writer(warehouse, "clean")
    revenue = Writer(warehouse, "revenue")
    refunds = DeltaWriter(tmp_path / "refunds")
    tables = {"clean": clean.sink, "revenue": revenue.sink, "refunds": str(refunds.path)}
    for checkpoint in (1, 2):
        clean.commit(checkpoint, checkpoint)
        revenue.commit(checkpoint, 10 * checkpoint)
        refunds.commit(checkpoint, 100 * checkpoint)
    clean.commit(3, 3)
    cut = weir.read_consistent(tables)
    assert (cut.checkpoint_id, cut.job_id) == (2, JOB)
    assert (ids(cut, "clean"), ids(cut, "revenue")) == ([1, 2], [10, 20])
    assert sorted(cut.table("refunds").to_pyarrow_table()["id"].to_pylist()) == [100, 200]
    revenue.commit(3, 30)
    refunds.commit(3, 300)
    table = warehouse.catalog.load_table("shop.revenue")
    table.append(table.scan("id = 10").to_arrow())
    newer = weir.read_consistent(tables)
    assert (newer.checkpoint_id, ids(newer, "revenue")) == (3, [10, 20, 30])
    assert ids(cut, "clean") == [1, 2]
    with pytest.raises(StorageError, match=r"is an Iceberg table: read cut\.scan"):
        cut.table("clean")
    with pytest.raises(StorageError, match="no Iceberg table named 'refunds'"):
        cut.scan("refunds")


def test_an_empty_epoch_does_not_hold_the_cut_back_and_a_pending_one_does(warehouse, tmp_path):
    """The job's records, whose directory each snapshot names, tell them apart."""
    records = Records(str(tmp_path / "checkpoints"))
    clean = Writer(warehouse, "clean", job_directory=records.directory)
    revenue = Writer(warehouse, "revenue", job_directory=records.directory)
    tables = {"clean": clean.sink, "revenue": revenue.sink}
    clean.commit(1, 1)
    revenue.commit(1, 10)
    clean.commit(4, 4)
    records.complete(4)
    cut = weir.read_consistent(tables)
    assert (cut.checkpoint_id, ids(cut, "clean"), cut.fallback) == (4, [1, 4], None)
    records.complete(5, revenue={3: 1})
    cut = weir.read_consistent(tables)
    assert (ids(cut, "clean"), ids(cut, "revenue")) == ([1], [10])


def test_a_table_that_cannot_be_part_of_a_cut_is_refused_by_name(warehouse):
    """It does not exist yet, has two sinks of the job, or its snapshot has expired."""
    clean = Writer(warehouse, "clean")
    revenue = IcebergTable(warehouse.properties, "shop.revenue")
    clean.commit(1, 1)
    with pytest.raises(CutNotFoundError, match=r"No Iceberg table found for table 'revenue'"):
        weir.read_consistent({"clean": clean.sink, "revenue": revenue})
    cut = weir.read_consistent({"clean": clean.sink})
    clean.commit(2, 2)
    table = warehouse.catalog.load_table("shop.clean")
    table.maintenance.expire_snapshots().by_id(cut.versions["clean"]).commit()
    with pytest.raises(StorageError, match="has expired: take a new cut"):
        cut.scan("clean")
    Writer(warehouse, "clean", sink="other").commit(3, 3)
    with pytest.raises(StorageError, match="Several sinks of job 'orders' write to table 'clean'"):
        weir.read_consistent({"clean": clean.sink})


def test_a_snapshot_with_nonsense_about_its_job_is_refused(warehouse):
    """Anyone may write summaries; those without Weir's words are other writers'."""
    clean = Writer(warehouse, "clean")
    clean.commit(1, 1)
    table = warehouse.catalog.load_table("shop.clean")
    rows = table.scan().to_arrow()
    table.append(rows, snapshot_properties={"weir": "7"})
    assert weir.read_consistent({"clean": clean.sink}).checkpoint_id == 1
    table.append(rows, snapshot_properties={"weir.epoch": "7", "weir.job-id": "../x"})
    with pytest.raises(StorageError, match=r"Snapshot \d+ of table 'clean' .* cannot be read"):
        weir.read_consistent({"clean": clean.sink})


def test_a_table_that_was_rolled_back_is_not_part_of_a_cut(warehouse, tmp_path):
    """It lacks rows of checkpoints that the job's records, which go on, call whole."""
    records = Records(str(tmp_path / "checkpoints"))
    clean = Writer(warehouse, "clean", job_directory=records.directory)
    revenue = Writer(warehouse, "revenue", job_directory=records.directory)
    for checkpoint in (1, 2):
        clean.commit(checkpoint, checkpoint)
        revenue.commit(checkpoint, 10 * checkpoint)
    records.complete(2)
    table = warehouse.catalog.load_table("shop.revenue")
    newest = table.metadata.snapshots[-1].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[0].snapshot_id).commit()
    tables = {"clean": clean.sink, "revenue": revenue.sink}
    with pytest.raises(StorageError, match=r"Table 'revenue' .* committed checkpoint 2 there"):
        weir.read_consistent(tables)
    table.manage_snapshots().set_current_snapshot(newest).commit()
    assert ids(weir.read_consistent(tables), "revenue") == [10, 20]
