"""``DeltaTable(mode="upsert")``: the newest row of each key, exactly once."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.kit.sink import sink_context
from tests.sinks.test_delta_sink import flushed

from weir.errors import SinkError, SinkMismatchError
from weir.sinks import Batch, DeltaTable

pytestmark = pytest.mark.spark


def opened(path: Path, key: list[str], partition_by: tuple[str, ...] = ()) -> DeltaTable:
    sink = DeltaTable(str(path), mode="upsert", key=key, partition_by=partition_by)
    sink.check(sink_context())
    sink.open(sink_context())
    return sink


def batch(sink: DeltaTable, spark: SparkSession, position: int, *rows: Any) -> dict[str, Any]:
    """Stage and flush rows of (k, n), in one file."""
    frame = spark.createDataFrame(list(rows), "k string, n long").coalesce(1)
    return flushed(sink, frame, position)


def shown(path: Path) -> dict[Any, Any]:
    """The table's rows; fails if a key is there twice."""
    rows = deltalake.DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    found = {row["k"]: row["n"] for row in rows}
    assert len(found) == len(rows)
    return found


def test_the_row_of_the_latest_batch_counts_whatever_the_order_of_payloads(spark, tmp_path):
    """Null is a key like any other."""
    sink = opened(tmp_path, ["k"])
    first = batch(sink, spark, 0, ("a", 1), ("b", 1), (None, 1))
    second = batch(sink, spark, 1, ("a", 2))
    sink.commit(1, [second, first])
    assert shown(tmp_path) == {"a": 2, "b": 1, None: 1}
    sink.commit(2, [batch(sink, spark, 2, ("b", 5), (None, 5), ("c", 5))])
    assert shown(tmp_path) == {"a": 2, "b": 5, None: 5, "c": 5}


def test_a_repeated_or_late_commit_changes_nothing(spark, tmp_path):
    """By the driver itself, or by one that wrongly believes it is alone (P18)."""
    sink = opened(tmp_path, ["k"])
    zombie = opened(tmp_path, ["k"])
    old = [batch(sink, spark, 0, ("a", 1))]
    assert sink.commit(1, old) == 1
    sink.commit(2, [batch(sink, spark, 1, ("a", 2))])
    version = deltalake.DeltaTable(str(tmp_path)).version()
    assert (sink.commit(1, old), zombie.commit(1, old), zombie.newest_committed()) == (0, 0, 2)
    assert (shown(tmp_path), deltalake.DeltaTable(str(tmp_path)).version()) == ({"a": 2}, version)


def test_rows_of_others_in_the_table_are_kept_and_updated(spark, tmp_path):
    """A partitioned table that another writer made, and writes to between two commits."""

    def append(*rows: tuple[str, int]) -> None:
        keys, numbers = zip(*rows, strict=True)
        data = pa.table({"k": list(keys), "n": pa.array(numbers, pa.int64())})
        deltalake.write_deltalake(str(tmp_path), data, mode="append", partition_by=["k"])

    append(("a", 0), ("x", 0))
    sink = opened(tmp_path, ["k"], ("k",))
    sink.commit(1, [batch(sink, spark, 0, ("a", 1), ("b", 1))])
    append(("y", 0))
    sink.commit(2, [batch(sink, spark, 1, ("b", 2), ("y", 2))])
    assert shown(tmp_path) == {"a": 1, "b": 2, "x": 0, "y": 2}


def test_a_key_may_have_several_columns_of_many_types(spark, tmp_path):
    """Names with quotes, instants of any year, decimals."""
    at = dt.datetime(1066, 10, 14, tzinfo=dt.UTC)
    types = '`A" b` string, at timestamp, amount decimal(30,3), day date, n long'
    sink = opened(tmp_path, ['A" b', "at", "amount", "day"])
    for epoch in (1, 2):
        rows = [("x", at, Decimal("1.5"), at.date(), epoch), ("x", None, None, None, epoch)]
        sink.commit(epoch, [flushed(sink, spark.createDataFrame(rows, types), epoch)])
    found = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table()
    assert found["n"].to_pylist() == [2, 2]


def test_a_key_that_does_not_fit_is_refused_in_one_sentence(spark, tmp_path):
    """Before any row is written."""
    with pytest.raises(SinkError, match="needs key= for mode='upsert', and only for that"):
        DeltaTable(str(tmp_path), key=["k"])
    with pytest.raises(SinkError, match="as a list"):
        DeltaTable(str(tmp_path), mode="upsert", key="k")
    with pytest.raises(SinkError, match="unknown mode 'merge'"):
        DeltaTable(str(tmp_path), mode="merge")  # type: ignore[arg-type]
    rows = spark.sql("SELECT 1.5D AS d, 1 AS k")
    for key, said in ((["x"], "only the columns 'd', 'k'"), (["d"], "'d' of type double")):
        with pytest.raises(SinkMismatchError, match=said):
            opened(tmp_path / "t", key).stage(rows, Batch(batch_id=0))


def test_staged_files_are_deleted_when_the_sink_is_closed(spark, tmp_path):
    """Nobody reads them any more; until then a snapshot might need them."""
    sink = opened(tmp_path, ["k"])
    for epoch in (1, 2):
        sink.commit(epoch, [batch(sink, spark, epoch, ("a", epoch))])
    staged = tmp_path / "weir-01234567-out-1"
    assert len(list(staged.glob("*/*.parquet"))) >= 2
    sink.close()
    assert list(staged.iterdir()) == []
    assert shown(tmp_path) == {"a": 2}


def test_a_job_that_runs_on_deletes_staged_files_after_a_while(spark, tmp_path, monkeypatch):
    """With a later commit; the newest ones stay."""
    monkeypatch.setattr("weir.sinks.delta.sink.KEPT_S", 0.0)
    sink = opened(tmp_path, ["k"])
    for epoch in (1, 2):
        sink.commit(epoch, [batch(sink, spark, epoch, ("a", epoch))])
    staged = tmp_path / "weir-01234567-out-1"
    assert [path.name for path in staged.iterdir()] == ["2"]


def test_rows_that_were_staged_in_another_mode_are_not_committed(spark, tmp_path):
    """Their files lack partition columns, or have them; columns would be null (no row is lost)."""

    def appending() -> DeltaTable:
        sink = DeltaTable(str(tmp_path / "t"), partition_by=("k",))
        sink.open(sink_context())
        return sink

    appended = batch(appending(), spark, 0, ("a", 1))
    upserting = opened(tmp_path / "t", ["k"], ("k",))
    with pytest.raises(SinkMismatchError, match="were staged with another mode"):
        upserting.commit(1, [appended])
    with pytest.raises(SinkMismatchError, match="were staged with another mode"):
        appending().commit(1, [batch(upserting, spark, 1, ("a", 1))])
    assert appending().commit(1, [appended]) == 1
    assert shown(tmp_path / "t") == {"a": 1}


def test_what_delta_could_not_do_at_a_commit_is_refused_before_it(spark, tmp_path):
    """A table that forbids to replace rows, and a name that delta-rs misreads in a merge."""
    deltalake.DeltaTable.create(
        str(tmp_path),
        deltalake.Schema.from_arrow(pa.schema([("k", pa.string()), ("n", pa.int64())])),
        configuration={"delta.appendOnly": "true"},
    )
    with pytest.raises(SinkMismatchError, match=r"delta\.appendOnly forbids to replace rows"):
        opened(tmp_path, ["k"])
    odd = spark.sql("SELECT 'a' AS k, 1 AS `a``b`")
    with pytest.raises(SinkMismatchError, match="misreads the column name 'a`b'"):
        opened(tmp_path / "t", ["k"]).stage(odd, Batch(batch_id=0))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("date'+10000-01-01'", r"'c' has the date 2932897 days from 1970-01-01"),
        ("date'0000-12-31'", r"'c' has the date -719163 days from 1970-01-01"),
        ("repeat('x', 300)", "'c' starts with 'xxx.*too long for the name of a directory"),
        ("repeat('é', 43)", "'c' starts with 'ééé.*too long for the name of a directory"),
    ],
)
def test_a_value_that_cannot_be_a_partition_is_refused_before_its_checkpoint(
    spark, tmp_path, value, message
):
    """delta-rs would refuse it in each commit, when the checkpoint is complete."""
    sink = opened(tmp_path, ["k"], ("c",))
    frame = spark.sql(f"select 'a' k, {value} c")
    with pytest.raises(SinkError, match=message):
        sink.stage(frame, Batch(batch_id=0))


def test_the_longest_values_of_a_partition_are_committed(spark, tmp_path):
    """A directory's name has 255 bytes, of which an encoded letter takes six."""
    sink = opened(tmp_path, ["k"], ("my.c",))
    longest = ["é" * 41, "~" * 83, "x" * 250]
    frame = spark.createDataFrame([(text, text) for text in longest], "k string, `my.c` string")
    sink.commit(1, [flushed(sink, frame, 0)])
    rows = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist()
    assert sorted(row["my.c"] for row in rows) == sorted(longest)
