"""Pipelines whose rows change (``DeltaTable(schema_evolution="add")``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pytest
from tests.kit.sink import sink_context
from tests.sinks.test_delta_sink import flushed

from weir.errors import SinkError, SinkMismatchError
from weir.sinks import Batch, DeltaTable
from weir.sinks.delta.schema import widened

ADDS: dict[str, Any] = {"schema_evolution": "add"}


def opened(path: Path, **given: Any) -> DeltaTable:
    sink = DeltaTable(str(path), **given)
    sink.check(sink_context())
    sink.open(sink_context())
    return sink


def rows(path: Path) -> list[dict[str, Any]]:
    table = deltalake.DeltaTable(str(path)).to_pyarrow_table()
    return sorted(table.to_pylist(), key=lambda row: int(row["id"]))


@pytest.mark.spark
def test_columns_may_come_and_go(spark, tmp_path):
    """Old rows have null in a new column, new rows in one that went."""
    sink = opened(tmp_path, **ADDS)
    sink.commit(1, [flushed(sink, spark.sql("SELECT 1L AS id, 'x' AS a"), 0)])
    again = opened(tmp_path, **ADDS)
    again.commit(2, [flushed(again, spark.sql("SELECT 2L AS id, map('k', 1.5BD) AS b"), 1)])
    assert rows(tmp_path) == [
        {"id": 1, "a": "x", "b": None},
        {"id": 2, "a": None, "b": rows(tmp_path)[1]["b"]},
    ]
    assert [float(value) for _, value in rows(tmp_path)[1]["b"]] == [1.5]


@pytest.mark.spark
def test_one_epoch_may_have_rows_from_before_and_after_the_change(spark, tmp_path):
    """What an older pipeline had staged is committed by the new one, also into a new table."""
    sink = opened(tmp_path, **ADDS)
    before = flushed(sink, spark.sql("SELECT 1L AS id, 'x' AS a"), 0)
    after = flushed(sink, spark.sql("SELECT 2L AS id, 'y' AS a, true AS new"), 1)
    assert sink.commit(1, [before, after]) == 2
    assert [row["new"] for row in rows(tmp_path)] == [None, True]


@pytest.mark.spark
def test_values_are_cast_to_a_wider_type_of_the_table(spark, tmp_path):
    """Exactly, also where the task had written files with the narrower type."""
    sink = opened(tmp_path, **ADDS)
    wide = "SELECT 1L AS id, 1.5D AS d, CAST(1 AS decimal(20,4)) AS m"
    sink.commit(1, [flushed(sink, spark.sql(wide), 0)])
    again = opened(tmp_path, **ADDS)
    narrow = spark.sql("SELECT 2S AS id, CAST(2.5 AS float) AS d, CAST(2.25 AS decimal(9,2)) AS m")
    narrow.write.parquet(str(tmp_path / "weir-written-x-1"))
    written = tuple(map(str, (tmp_path / "weir-written-x-1").glob("*.parquet")))
    payload = again.stage(narrow, Batch(batch_id=1, files=written))
    assert payload is not None
    again.commit(2, again.flush([payload]))
    assert [(row["d"], float(row["m"])) for row in rows(tmp_path)] == [(1.5, 1.0), (2.5, 2.25)]


@pytest.mark.spark
def test_an_upsert_leaves_a_column_alone_that_its_rows_lack(spark, tmp_path):
    """And adds one that the table lacks."""
    upserts: dict[str, Any] = {**ADDS, "mode": "upsert", "key": ["id"]}
    sink = opened(tmp_path, **upserts)
    sink.commit(1, [flushed(sink, spark.sql("SELECT 1L AS id, 'x' AS a"), 0)])
    again = opened(tmp_path, **upserts)
    changed = spark.sql("SELECT id, 'new' AS b FROM VALUES (1L), (2L) AS t(id)")
    again.commit(2, [flushed(again, changed, 1)])
    assert rows(tmp_path) == [
        {"id": 1, "a": "x", "b": "new"},
        {"id": 2, "a": None, "b": "new"},
    ]


@pytest.mark.spark
def test_what_does_not_fit_is_one_sentence_that_shows_both(spark, tmp_path):
    """A type that the table would have to widen, with and without evolution."""
    sink = opened(tmp_path)
    sink.commit(1, [flushed(sink, spark.sql("SELECT 1 AS id, 'x' AS a"), 0)])
    with pytest.raises(SinkMismatchError, match="schema_evolution='add' adds columns"):
        opened(tmp_path).stage(spark.sql("SELECT 1 AS id"), Batch(batch_id=1))
    with pytest.raises(SinkMismatchError, match="'id' is long in the rows and integer in the tab"):
        opened(tmp_path, **ADDS).stage(spark.sql("SELECT 1L AS id"), Batch(batch_id=1))
    with pytest.raises(SinkMismatchError, match="'ID' of the rows is 'id' in the table"):
        opened(tmp_path, **ADDS).stage(spark.sql("SELECT 1 AS ID"), Batch(batch_id=1))
    with pytest.raises(SinkError, match="schema_evolution='merge': use 'add', or None"):
        DeltaTable(str(tmp_path), schema_evolution="merge")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ours", "theirs", "fits"),
    [
        ("integer", "long", True),
        ("byte", "short", True),
        ("float", "double", True),
        ("decimal(9,2)", "decimal(20,4)", True),
        ("decimal(9,2)", "decimal(9,4)", False),
        ("decimal(9,2)", "decimal(9,2)", False),
        ("long", "integer", False),
        ("integer", "double", False),
        ("string", "long", False),
    ],
)
def test_a_wider_type_holds_every_value_of_the_narrower_one(
    ours: str, theirs: str, fits: bool
) -> None:
    """Nothing is rounded."""

    def of(kind: str) -> str:
        return json.dumps({"fields": [{"name": "c", "type": kind}]})

    assert widened(of(theirs), of(ours))[1] == ({"c": theirs} if fits else {})
