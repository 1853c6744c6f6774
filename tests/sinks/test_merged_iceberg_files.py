"""Small files that are merged before their commit (``IcebergTable(target_file_size=...)``)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.table import FileScanTask
from pyspark.sql import SparkSession
from tests.kit.iceberg_warehouse import NAME, Warehouse, context, flushed

from weir.errors import LostRowsError, SinkMismatchError, StorageError
from weir.sinks import IcebergTable, merging

pytestmark = pytest.mark.spark

MIB = 1 << 20


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(None, tmp_path / "warehouse")


@pytest.fixture
def opened(spark: SparkSession, warehouse: Warehouse) -> Callable[..., IcebergTable]:
    """Opens the table for an attempt."""

    def open_table(
        table: str = NAME,
        *,
        target_file_size: int | None = 64 * MIB,
        partition_by: tuple[str, ...] = (),
        schema_evolution: Any = None,
        **changes: Any,
    ) -> IcebergTable:
        sink = IcebergTable(
            warehouse.properties,
            table,
            partition_by=partition_by,
            schema_evolution=schema_evolution,
            target_file_size=target_file_size,
        )
        given = context(**{"session": lambda: spark, **changes})
        sink.check(given)
        sink.open(given)
        return sink

    return open_table


def batches(sink: IcebergTable, spark: SparkSession, *numbers: int) -> list[Any]:
    return [flushed(sink, spark.range(number, number + 1), number) for number in numbers]


def tasks(warehouse: Warehouse, row_filter: str = "true", table: str = NAME) -> list[FileScanTask]:
    chosen = {} if row_filter == "true" else {"row_filter": row_filter}
    return list(warehouse.catalog.load_table(table).scan(**chosen).plan_files())


def shape(path: str) -> list[tuple[str, str, Any]]:
    """Names, types and ids of a file's columns."""
    return [
        (field.name, str(field.type).replace(" not null", ""), field.metadata)
        for field in pq.read_schema(path)
    ]


def merged_directories(warehouse: Warehouse) -> list[str]:
    """The epochs for which there are merged files."""
    return sorted(
        path.name.partition("-")[0] for path in warehouse.directory.glob("shop/orders/data/*/m*")
    )


def frame_of(spark: SparkSession, *, nested: bool) -> Any:
    old = dt.datetime(1066, 10, 14, tzinfo=dt.UTC)
    rows = [
        (1, Decimal("12345678901234567.89"), old, old.replace(tzinfo=None), dt.date(1, 1, 1)),
        (2, None, None, None, None),
        (3, Decimal("-0.01"), dt.datetime(9999, 1, 1, tzinfo=dt.UTC), None, dt.date(9999, 12, 31)),
    ]
    types = "id long, money decimal(19,2), at timestamp, local timestamp_ntz, day date"
    more = ("array(id, null) AS a", "map('k', struct(id)) AS m") if nested else ()
    return spark.createDataFrame(rows, types).selectExpr(
        "*", "struct(id, struct(money) AS deep) AS s", "cast(id AS string) AS `odd,name`",
        "cast('x' AS binary) AS b", "if(id = 2, float('nan'), float(id)) AS f", *more,
    )  # fmt: skip


@pytest.mark.parametrize("nested", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_batches_of_an_epoch_become_one_file_with_the_same_rows(
    spark, warehouse, opened, nested
):
    """Of every type, with the same field ids; the manifest's figures are those of all rows."""
    frame = frame_of(spark, nested=nested)
    names = ("shop.merged", "shop.plain")
    for name, target in zip(names, (64 * MIB, None), strict=True):
        sink = opened(name, target_file_size=target)
        payloads = [flushed(sink, frame.where(f"id = {number}"), number) for number in (1, 2, 3)]
        assert sink.commit(7, payloads) == 3
        assert sink.commit(7, payloads) == 0
    assert [len(tasks(warehouse, table=name)) for name in names] == [1, 3]
    merged, plain = (
        sorted(
            warehouse.catalog.load_table(name).scan().to_arrow().to_pylist(),
            key=lambda row: row["id"],
        )
        for name in names
    )
    assert str(merged) == str(plain)
    one, other = (shape(tasks(warehouse, table=name)[0].file.file_path) for name in names)
    assert one == other
    ((merged_file,), (file, *others)) = (
        [task.file for task in tasks(warehouse, table=name)] for name in names
    )
    assert (merged_file.record_count, merged_file.sort_order_id) == (3, None)
    assert merged_file.file_size_in_bytes == Path(merged_file.file_path).stat().st_size
    for field_id, count in merged_file.null_value_counts.items():
        assert count == sum(one.null_value_counts[field_id] for one in (file, *others))
    assert merged_file.lower_bounds[1] == min(one.lower_bounds[1] for one in (file, *others))
    assert merged_file.upper_bounds[1] == max(one.upper_bounds[1] for one in (file, *others))
    nan = next(
        one.field_id
        for one in warehouse.catalog.load_table("shop.merged").schema().fields
        if one.name == "f"
    )
    assert nan not in merged_file.lower_bounds
    assert tasks(warehouse, "id > 3", "shop.merged") == []


def test_each_partition_has_its_own_file(spark, warehouse, opened):
    """Also those of nulls and of values that are no names of directories; filters find them."""
    sink = opened(partition_by=("c",))
    values = "CASE id % 3 WHEN 0 THEN 'a/b' WHEN 1 THEN null ELSE 'x=1' END AS c"
    payloads = [
        flushed(sink, spark.range(start, start + 6).selectExpr("id", values), number)
        for number, start in enumerate((0, 6, 12))
    ]
    assert sink.commit(1, payloads) == 18
    assert len(tasks(warehouse)) == 3
    for row_filter, first in (("c = 'a/b'", 0), ("c is null", 1), ("c = 'x=1'", 2)):
        assert warehouse.ids(row_filter) == list(range(first, 18, 3))
        assert len(tasks(warehouse, row_filter)) == 1


def test_files_with_and_without_a_new_column_are_merged_apart(spark, warehouse, opened):
    """Each keeps its schema; those without ids are found by their names."""
    sink = opened(schema_evolution="add")
    payloads = batches(sink, spark, 0, 1)
    new = "SELECT {}L AS id, 'x' AS c"
    payloads += [flushed(sink, spark.sql(new.format(number)), number) for number in (2, 3)]
    assert sink.commit(1, payloads) == 4
    assert (len(tasks(warehouse)), warehouse.ids("c = 'x'")) == (2, [2, 3])
    assert warehouse.ids("c is null") == [0, 1]


@pytest.mark.slow
def test_large_files_stay_as_they_are(spark, warehouse, opened):
    """Beside merged ones."""
    sink = opened(target_file_size=8_000)
    large = flushed(sink, spark.range(100, 5_100).coalesce(1), 5)
    assert sink.commit(1, [large, *batches(sink, spark, 0, 1)]) == 5_002
    assert sorted(task.file.record_count for task in tasks(warehouse)) == [2, 5_000]
    assert len(warehouse.ids()) == 5_002


def test_originals_stay_until_the_sink_is_closed_or_they_are_due(
    spark, warehouse, opened, monkeypatch
):
    """A savepoint copies the staged files of its own pending rows (PROTOCOL P14)."""
    sink = opened()
    first = batches(sink, spark, 0, 1)
    sink.commit(1, first)
    assert [sink.damaged(payload) for payload in first] == [None] * 2
    second = batches(sink, spark, 2, 3)
    sink.commit(2, second)
    assert warehouse.attempts() == ["1/0", "1/1", "1/2", "1/3"]
    monkeypatch.setattr("weir.sinks.iceberg.sink.KEPT_S", 0.0)
    sink.commit(3, batches(sink, spark, 4, 5))
    assert warehouse.attempts() == ["1/4", "1/5"]
    sink.close()
    assert warehouse.attempts() == []
    assert warehouse.ids() == list(range(6))


def test_originals_of_another_job_stay(spark, warehouse, opened):
    """It has them pending, too, if this job has started from its savepoint and commits for it."""
    origin = opened(target_file_size=None)
    payloads = batches(origin, spark, 0, 1)
    own = {"job_directory": "/checkpoints/" + "f" * 32, "session": lambda: spark}
    sink = opened(job_id="f" * 32, **own)
    sink.open(context(**own))
    assert sink.commit(1, payloads) == 2
    sink.open(context(job_id="f" * 32, **own))
    sink.close()
    assert len(tasks(warehouse)) == 1
    assert [origin.damaged(payload) for payload in payloads] == [None] * 2


def test_merging_changes_no_session_and_uses_the_settings_of_the_job(spark, warehouse, opened):
    """Those set while it runs, too; ``toDF``, the active session and its settings stay."""
    sink = opened()
    payloads = batches(sink, spark, 0, 1)
    before = spark.conf.get("spark.sql.parquet.fieldId.write.enabled")
    codec = spark.conf.get("spark.sql.parquet.compression.codec")
    spark.conf.set("spark.sql.parquet.compression.codec", "zstd")
    frames = spark.sparkContext.parallelize([(1,)])
    session = frames.toDF(["x"]).sparkSession
    try:
        assert sink.commit(1, payloads) == 2
    finally:
        spark.conf.set("spark.sql.parquet.compression.codec", codec)
    (task,) = tasks(warehouse)
    assert pq.read_metadata(task.file.file_path).row_group(0).column(0).compression == "ZSTD"
    assert frames.toDF(["x"]).sparkSession is session
    active = SparkSession.getActiveSession()
    assert active is not None
    assert active.conf.get("spark.sql.parquet.fieldId.write.enabled") == before


@pytest.mark.parametrize("merges", [True, False])
def test_what_is_lost_while_files_are_merged_is_not_committed(
    spark, warehouse, opened, monkeypatch, merges
):
    """Iceberg would not look, and the table be unreadable; lost merged files are merged again."""
    sink = opened()
    payloads = batches(sink, spark, 0, 1, 2)
    sync_below = merging.sync_below

    def loses(*arguments: Any) -> None:
        sync_below(*arguments)
        if merges:
            (merged,) = warehouse.directory.glob("shop/orders/data/*/m1-*/*/*/*.parquet")
            merged.unlink()
            return
        Path(sink.staged_files(payloads[1])[0]).unlink()
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="is gone: it went whi"):
        patch.setattr(merging, "sync_below", loses)
        sink.commit(1, payloads)
    assert warehouse.ids() == []
    if merges:
        assert sink.commit(1, payloads) == 3
        assert (len(tasks(warehouse)), warehouse.ids()) == (1, [0, 1, 2])
        return
    with pytest.raises(LostRowsError, match="is gone: none of its rows are visible"):
        sink.commit(1, payloads)


def test_a_merge_that_fails_late_leaves_nothing(spark, warehouse, opened, monkeypatch):
    """Each commit would leave a copy, else."""
    sink = opened()
    payloads = batches(sink, spark, 0, 1)

    def fails(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(merging, "sync_below", fails)
    assert sink.commit(1, payloads) == 2
    assert (len(tasks(warehouse)), merged_directories(warehouse)) == (2, [])


def test_rows_that_the_table_does_not_take_are_not_merged(spark, warehouse, opened):
    """Each attempt of a job that cannot commit would leave a copy that nobody may delete."""
    sink = opened(schema_evolution="add")
    sink.commit(1, batches(sink, spark, 0))
    new = "SELECT {}L AS id, 'x' AS c"
    payloads = [flushed(sink, spark.sql(new.format(number)), number) for number in (1, 2)]
    with pytest.raises(SinkMismatchError, match="the table lacks 'c'"):
        opened(attempt=2).commit(2, payloads)
    assert merged_directories(warehouse) == []


@pytest.mark.slow
def test_files_that_cannot_be_merged_are_committed_as_they_are(spark, warehouse, opened, caplog):
    """Merging is a service to readers; the rows come first."""

    def gone() -> SparkSession:
        raise RuntimeError("the session is gone")

    sink = opened(session=gone)
    assert sink.commit(1, batches(sink, spark, 0, 1, 2)) == 3
    assert (len(tasks(warehouse)), warehouse.ids()) == (3, [0, 1, 2])
    assert "are committed as they are" in caplog.text
    sink.close()
    assert warehouse.ids() == [0, 1, 2]


@pytest.mark.parametrize(
    "step",
    ["commit", *(pytest.param(one, marks=pytest.mark.slow) for one in ("merge", "note", "after"))],
)
def test_a_driver_may_die_at_every_step(spark, warehouse, opened, monkeypatch, step):
    """The next attempt commits the epoch once, and deletes what nobody can have committed (P22)."""
    sink = opened()
    sink.commit(1, batches(sink, spark, 0, 1))
    payloads = batches(sink, spark, 2, 3)
    commit_table = type(warehouse.catalog).commit_table

    def dies(*arguments: Any, **_: Any) -> None:
        if step == "after":
            commit_table(*arguments)
        raise KeyboardInterrupt

    places = {
        "merge": "weir.sinks.merging.sync_below",
        "note": "weir.sinks.iceberg.merging.note_additions",
        "commit": "pyiceberg.catalog.sql.SqlCatalog.commit_table",
        "after": "pyiceberg.catalog.sql.SqlCatalog.commit_table",
    }
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(places[step], dies)
        sink.commit(2, payloads)
    assert merged_directories(warehouse) == ["m1", "m2"]
    successor = opened(attempt=2)
    assert successor.commit(2, payloads) == (0 if step == "after" else 2)
    assert successor.commit(3, batches(successor, spark, 4, 5)) == 2
    successor.clean(2)
    # Without a note nobody can have committed them; with one, they may be some table's.
    kept = ["m2"] if step in ("commit", "after") else []
    own = [] if step == "after" else ["m2"]
    assert merged_directories(warehouse) == sorted(["m1", *kept, *own, "m3"])
    successor.close()
    assert warehouse.ids() == [0, 1, 2, 3, 4, 5]
    assert len(tasks(warehouse)) == 3


def test_of_two_drivers_that_merge_one_epoch_exactly_one_lands(
    spark, warehouse, opened, monkeypatch
):
    """Each has files of its own, and the second meets a conflict."""
    first, second = opened(), opened(attempt=2)
    payloads = batches(first, spark, 0, 1)
    load = second._iceberg.load
    counts = []

    def overtaken():
        table = load()
        if not counts:
            counts.append(first.commit(2, payloads))
        return table

    monkeypatch.setattr(second._iceberg, "load", overtaken)
    counts.append(second.commit(2, payloads))
    second.close()
    assert (counts, warehouse.ids(), len(tasks(warehouse))) == ([2, 0], [0, 1], 1)
    assert [first.damaged(payload) for payload in payloads] == [None] * 2


def test_a_commit_that_is_repeated_adds_the_files_that_it_has_merged(
    spark, warehouse, opened, monkeypatch
):
    """Else each try would leave a copy; if one is damaged by then, they are merged again."""
    sink = opened()
    payloads = batches(sink, spark, 0, 1)

    def fails(*_: Any) -> None:
        raise ConnectionResetError("the server closed the connection")

    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(StorageError):
            patch.setattr(type(warehouse.catalog), "commit_table", fails)
            sink.commit(1, payloads)
    (path,) = warehouse.directory.glob("shop/orders/data/*/m*/*/*/*.parquet")
    path.unlink()
    assert sink.commit(1, payloads) == 2
    assert (merged_directories(warehouse), warehouse.ids()) == (["m1", "m1"], [0, 1])


def test_originals_that_a_commit_may_have_added_are_never_deleted(
    spark, warehouse, opened, monkeypatch
):
    """A table that was renamed has them, while a new one gets the same rows merged."""
    plain = opened(target_file_size=None)
    payloads = batches(plain, spark, 0, 1)
    commit_table = type(warehouse.catalog).commit_table

    def unanswered(*arguments: Any) -> None:
        commit_table(*arguments)
        raise ConnectionResetError("the server closed the connection")

    with monkeypatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(type(warehouse.catalog), "commit_table", unanswered)
        plain.commit(1, payloads)
    warehouse.catalog.rename_table(NAME, "shop.yesterday")
    sink = opened(attempt=2)
    assert sink.commit(1, payloads) == 2
    sink.close()
    assert warehouse.ids() == [0, 1]
    found = warehouse.catalog.load_table("shop.yesterday").scan().to_arrow()
    assert sorted(found["id"].to_pylist()) == [0, 1]


def test_lost_originals_are_found_before_they_are_merged(spark, warehouse, opened):
    """Nothing becomes visible."""
    sink = opened()
    payloads = batches(sink, spark, 0, 1)
    Path(sink.staged_files(payloads[1])[0]).unlink()
    with pytest.raises(LostRowsError, match="is gone: none of its rows are visible"):
        sink.commit(1, payloads)
    assert (warehouse.ids(), merged_directories(warehouse)) == ([], [])
