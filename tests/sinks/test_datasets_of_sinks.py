"""The targets of sinks, and the inputs of sources, as lineage names them."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest
from tests.kit.iceberg_warehouse import Warehouse, stage_by_hand

from weir.lineage.datasets import Dataset
from weir.sinks import DeltaTable, Files, ForeachBatch, ForeachEpoch, PostgresTable
from weir.sources import FileSource


def test_tables_in_files_are_named_by_their_location() -> None:
    """Delta tables and plain files alike, and the input of a file source."""
    expected = Dataset(namespace="file", name="/data/orders")
    assert DeltaTable("/data/orders").dataset() == expected
    assert Files("/data/orders").dataset() == expected
    source = FileSource("/data/orders", format="parquet", schema="id long")
    assert source.dataset() == expected


@pytest.mark.parametrize(
    ("dsn", "table", "namespace", "name"),
    [
        ("host=db dbname=shop", "orders", "postgres://db:5432", "shop.public.orders"),
        ("postgresql://db:5433/shop", "sales.orders", "postgres://db:5433", "shop.sales.orders"),
        ("host=/run/pg dbname=shop", "t", "postgres://localhost:5432", "shop.public.t"),
    ],
)
def test_a_postgres_table_is_named_before_it_is_opened(
    dsn: str, table: str, namespace: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schema is the one it names, or else the usual one."""
    for variable in ("PGHOST", "PGPORT", "PGDATABASE"):
        monkeypatch.delenv(variable, raising=False)
    assert PostgresTable(dsn, table).dataset() == Dataset(namespace=namespace, name=name)


def test_a_postgres_table_without_a_database_is_in_that_of_its_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As for every client of PostgreSQL; variables hold too."""
    monkeypatch.delenv("PGDATABASE", raising=False)
    monkeypatch.delenv("PGUSER", raising=False)
    monkeypatch.setenv("PGHOST", "db")
    found = PostgresTable("", "t").dataset()
    assert found == Dataset(namespace="postgres://db:5432", name=f"{getpass.getuser()}.public.t")


def test_an_iceberg_table_is_named_by_its_location(tmp_path: Path) -> None:
    """Once it exists: the catalog decides where it lies."""
    warehouse = Warehouse(None, tmp_path / "warehouse")
    assert warehouse.sink().dataset() is None
    sink = warehouse.opened()
    stage_by_hand(sink, 0, 1)
    expected = Dataset(namespace="file", name=f"{tmp_path}/warehouse/shop/orders")
    assert sink.dataset() == warehouse.opened().dataset() == expected


def test_a_function_has_no_dataset() -> None:
    """Only it knows what it writes."""
    assert ForeachEpoch(lambda frame, epoch: None, staging="/tmp/x").dataset() is None
    assert ForeachBatch(lambda frame, batch_id: None, staging="/tmp/x").dataset() is None
