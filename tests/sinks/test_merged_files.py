"""Small files that are merged before their commit (``DeltaTable(target_file_size=...)``)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.kit.sink import sink_context
from tests.sinks.test_delta_sink import column, flushed

from weir.errors import SinkError, StorageError
from weir.sinks import DeltaTable, merging
from weir.sinks.merging import groups_to_merge

MIB = 1 << 20


def groups(sizes: list[int], target_size: int) -> list[list[int]]:
    return groups_to_merge(sizes, key=lambda _: 0, size=lambda size: size, target_size=target_size)


def test_files_are_grouped_up_to_the_target_and_one_alone_stays_as_it_is() -> None:
    """None exceeds it; those that have that size already are left out."""
    assert groups([40, 50, 100, 30, 20, 60], 100) == [[40, 50], [30, 20]]
    assert groups([40, 200], 100) == groups([], 100) == groups([100, 100], 100) == []


def test_only_files_of_one_kind_are_merged() -> None:
    """Another partition, or another schema, is another kind."""
    found = groups_to_merge(
        ["a1", "b1", "a2", "c1", "b2"], key=lambda one: one[0], size=lambda _: 1, target_size=9
    )
    assert found == [["a1", "a2"], ["b1", "b2"]]


@pytest.fixture
def opened(spark: SparkSession, tmp_path: Path) -> Callable[..., DeltaTable]:
    """Opens a table in ``tmp_path / name`` for an attempt."""

    def open_table(
        name: str = "t",
        *,
        target_file_size: int | None = 64 * MIB,
        partition_by: tuple[str, ...] = (),
        **changes: Any,
    ) -> DeltaTable:
        sink = DeltaTable(
            str(tmp_path / name), partition_by=partition_by, target_file_size=target_file_size
        )
        given = sink_context(**{"session": lambda: spark, **changes})
        sink.check(given)
        sink.open(given)
        return sink

    return open_table


def files_of(path: Path) -> list[str]:
    """The files of the table's newest version, below its root."""
    return deltalake.DeltaTable(str(path)).file_uris()


@pytest.mark.spark
def test_the_batches_of_an_epoch_become_one_file_with_the_same_rows(spark, tmp_path, opened):
    """Of every type; statistics are those of all rows, and readers skip by them."""
    old = dt.datetime(1066, 10, 14, tzinfo=dt.UTC)
    rows = [
        (1, Decimal("12345678901234567.89"), old, old.replace(tzinfo=None), dt.date(1, 1, 1)),
        (2, None, None, None, None),
        (3, Decimal("-0.01"), dt.datetime(9999, 1, 1, tzinfo=dt.UTC), None, dt.date(9999, 12, 31)),
    ]
    types = "id long, money decimal(19,2), at timestamp, local timestamp_ntz, day date"
    flat = spark.createDataFrame(rows, types)
    frame = flat.selectExpr(
        "*", "array(id, null) AS a", "map('k', id) AS m", "struct(id, money) AS s",
        "cast(id AS string) AS `odd,name`", "cast('x' AS binary) AS b", "float('nan') AS f",
    )  # fmt: skip
    tables = {}
    for name, target in (("merged", 64 * MIB), ("plain", None)):
        sink = opened(name, target_file_size=target)
        payloads = [flushed(sink, frame.where(f"id = {number}"), number) for number in (1, 2, 3)]
        assert sink.commit(7, payloads) == 3
        assert sink.commit(7, payloads) == 0
        tables[name] = deltalake.DeltaTable(str(tmp_path / name))
    assert [len(files_of(tmp_path / name)) for name in ("merged", "plain")] == [1, 3]

    def shown(name: str) -> list[str]:
        read = spark.read.parquet(*files_of(tmp_path / name)).orderBy("id")
        return [read._jdf.schema().toDDL(), *map(str, read.collect())]

    assert shown("merged") == shown("plain")
    actions = tables["merged"].get_add_actions(flatten=True)
    (statistics,) = pa.table(actions).to_pylist()
    assert (statistics["num_records"], statistics["min.id"], statistics["max.id"]) == (3, 1, 3)
    assert statistics["null_count.money"] == 1
    found = tables["merged"].to_pyarrow_table(filters=[("id", ">", 2)])
    assert found["id"].to_pylist() == [3]


@pytest.mark.spark
def test_each_partition_has_its_own_file(spark, tmp_path, opened):
    """Also those of nulls and of values that are no names of directories."""
    sink = opened(partition_by=("c",))
    values = "CASE id % 3 WHEN 0 THEN 'a/b' WHEN 1 THEN null ELSE 'x=1' END AS c"
    payloads = [
        flushed(sink, spark.range(start, start + 6).selectExpr("id", values), number)
        for number, start in enumerate((0, 6, 12))
    ]
    assert sink.commit(1, payloads) == 18
    assert len(files_of(tmp_path / "t")) == 3
    found = deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
    expected = {0: "a/b", 1: None, 2: "x=1"}
    assert sorted(one["id"] for one in found) == list(range(18))
    assert all(one["c"] == expected[one["id"] % 3] for one in found)


@pytest.mark.spark
def test_a_snapshot_taken_before_the_commit_finds_what_it_needs_until_the_sink_is_closed(
    spark, tmp_path, opened
):
    """A savepoint copies the staged files of its own pending rows (PROTOCOL P14)."""
    sink = opened()
    payloads = [flushed(sink, spark.range(number, number + 1), number) for number in range(3)]
    sink.commit(1, payloads)
    assert [sink.damaged(payload) for payload in payloads] == [None] * 3
    originals = [path for payload in payloads for path in sink.staged_files(payload)]
    sink.close()
    assert not any(Path(path).exists() for path in originals)
    assert column(tmp_path / "t") == [0, 1, 2]


@pytest.mark.spark
def test_originals_of_another_job_stay(spark, tmp_path, opened):
    """It has them pending, too, if this job has started from its savepoint and commits for it."""
    origin = opened(target_file_size=None)
    payloads = [flushed(origin, spark.range(number, number + 1), number) for number in range(2)]
    own = {"job_directory": "/checkpoints/" + "f" * 32, "session": lambda: spark}
    sink = opened(job_id="f" * 32, **own)
    sink.open(sink_context(**own))
    assert sink.commit(1, payloads) == 2
    sink.open(sink_context(job_id="f" * 32, **own))
    sink.close()
    assert len(files_of(tmp_path / "t")) == 1
    assert [origin.damaged(payload) for payload in payloads] == [None] * 2


@pytest.mark.spark
def test_merged_files_that_are_lost_before_the_commit_are_not_committed(
    spark, tmp_path, opened, monkeypatch
):
    """Delta would not look, and the table be unreadable; the originals are merged again."""
    sink = opened()
    payloads = [flushed(sink, spark.range(number, number + 1), number) for number in range(2)]
    sync_below = merging.sync_below

    def loses(*arguments: Any) -> None:
        sync_below(*arguments)
        (merged,) = tmp_path.glob("t/weir-*/m1-*/*/*/*.parquet")
        merged.unlink()

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="is gone: it went whi"):
        patch.setattr(merging, "sync_below", loses)
        sink.commit(1, payloads)
    assert not deltalake.DeltaTable.is_deltatable(str(tmp_path / "t"))
    assert sink.commit(1, payloads) == 2
    assert (len(files_of(tmp_path / "t")), column(tmp_path / "t")) == (1, [0, 1])


@pytest.mark.spark
def test_a_commit_that_is_repeated_adds_the_files_that_it_has_merged(
    spark, tmp_path, opened, monkeypatch
):
    """Else each try would leave a copy."""
    sink = opened()
    payloads = [flushed(sink, spark.range(number, number + 1), number) for number in range(2)]

    def fails(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(SinkError, match="no space left"):
        patch.setattr(sink, "_add_files", fails)
        sink.commit(1, payloads)
    assert sink.commit(1, payloads) == 2
    assert len(list(tmp_path.glob("t/weir-*/m1-*"))) == len(files_of(tmp_path / "t")) == 1


@pytest.mark.spark
def test_files_that_cannot_be_merged_are_committed_as_they_are(spark, tmp_path, opened, caplog):
    """Merging is a service to readers; the rows come first."""

    def gone() -> SparkSession:
        raise RuntimeError("the session is gone")

    sink = opened(session=gone)
    payloads = [flushed(sink, spark.range(number, number + 1), number) for number in range(3)]
    assert sink.commit(1, payloads) == 3
    assert (len(files_of(tmp_path / "t")), column(tmp_path / "t")) == (3, [0, 1, 2])
    assert "are committed as they are" in caplog.text


@pytest.mark.spark
def test_a_file_that_cannot_be_read_is_not_merged_away(spark, tmp_path, opened, caplog):
    """The user's settings let sources skip such files; here its rows would be lost for good."""
    sink = opened()
    # Without a second file that has no rows, and is not committed.
    frames = [spark.range(number, number + 1).coalesce(1) for number in range(3)]
    payloads = [flushed(sink, frame, number) for number, frame in enumerate(frames)]
    damaged = next(path for path in (tmp_path / "t").rglob("*.parquet"))
    content = damaged.read_bytes()
    damaged.write_bytes(bytes(len(content)))
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        sink.commit(1, payloads)
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    assert len(files_of(tmp_path / "t")) == 3
    assert "are committed as they are" in caplog.text
    damaged.write_bytes(content)
    assert column(tmp_path / "t") == [0, 1, 2]


@pytest.mark.spark
def test_what_a_dead_driver_had_merged_is_deleted_unless_it_is_committed(
    spark, tmp_path, opened, monkeypatch
):
    """It died before the transaction of epoch 2; the next attempt commits that again (P22)."""
    sink = opened()
    sink.commit(1, [flushed(sink, spark.range(number, number + 1), number) for number in (0, 1)])
    payloads = [flushed(sink, spark.range(number, number + 1), number) for number in (2, 3)]

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    for epoch in (2, 3):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(sink, "_add_files", dies)
            sink.commit(epoch, payloads)
    directory = tmp_path / "t" / "weir-01234567-out-1"
    assert {path.name.partition("-")[0] for path in directory.glob("m*")} == {"m1", "m2", "m3"}
    successor = opened(attempt=2)
    assert successor.commit(2, payloads) == 2
    successor.clean(2)
    # An older driver may have committed epoch 2 in the meantime, but never epoch 3.
    assert {path.name.partition("-")[0] for path in directory.glob("m*")} == {"m1", "m2"}
    assert column(tmp_path / "t") == [0, 1, 2, 3]
