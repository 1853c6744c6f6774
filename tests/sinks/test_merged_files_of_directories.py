"""Small files that are merged before they get their names (``Files(target_file_size=...)``)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.sinks.test_files_sink import JOB, Killed, flushed, ids, visible

from weir.errors import LostRowsError, SinkError
from weir.sinks import Files, SinkContext
from weir.storage.filesystem import CreateResult
from weir.storage.local import LocalFileSystem

pytestmark = pytest.mark.spark

MIB = 1 << 20


class Dying(LocalFileSystem):
    """Dies at its next call of one name, after ``calls`` calls that went well."""

    def __init__(self, name: str, calls: int) -> None:
        super().__init__()
        self.name, self.calls = name, calls

    def _dies(self, name: str) -> None:
        if name == self.name:
            self.calls -= 1
            if self.calls < 0:
                raise Killed

    def create(self, path: str, data: bytes) -> CreateResult:
        self._dies("create")
        created = super().create(path, data)
        self._dies("created")
        return created

    def rename(self, source: str, target: str) -> None:
        self._dies("rename")
        super().rename(source, target)

    def write(self, path: str, data: bytes) -> None:
        self._dies("write")
        super().write(path, data)
        self._dies("written")


@pytest.fixture
def opened(spark: SparkSession, tmp_path: Path) -> Callable[..., Files]:
    """Opens the directory ``tmp_path / f`` for an attempt."""

    def open_sink(
        *,
        attempt: int = 1,
        job: str = JOB,
        file_system: LocalFileSystem | None = None,
        session: Callable[[], SparkSession] | None = None,
        **options: Any,
    ) -> Files:
        used = file_system or LocalFileSystem()
        context = SinkContext(
            job_id=job,
            job_name="orders",
            sink="out",
            attempt=attempt,
            file_system=lambda _: used,
            session=session or (lambda: spark),
        )
        sink = Files(str(tmp_path / "f"), **{"target_file_size": 64 * MIB, **options})
        sink.check(context)
        sink.open(context)
        return sink

    return open_sink


def batches(sink: Files, spark: SparkSession, *numbers: int) -> list[dict[str, Any]]:
    return [flushed(sink, spark.range(number, number + 1), number) for number in numbers]


def plans(path: Path) -> list[str]:
    return sorted(plan.name for plan in path.glob("_weir/plans/*/[0-9]*"))


def test_the_batches_of_an_epoch_become_one_file_with_the_same_rows(spark, tmp_path, opened):
    """Of every type, written with the sink's own options; the plan is gone once it is done."""
    old = dt.datetime(1066, 10, 14, tzinfo=dt.UTC)
    rows = [
        (1, Decimal("12345678901234567.89"), old, old.replace(tzinfo=None), dt.date(1, 1, 1)),
        (2, None, None, None, None),
        (3, Decimal("-0.01"), dt.datetime(9999, 1, 1, tzinfo=dt.UTC), None, dt.date(9999, 12, 31)),
    ]
    types = "id long, money decimal(19,2), at timestamp, local timestamp_ntz, day date"
    frame = spark.createDataFrame(rows, types).selectExpr(
        "*", "array(id, null) AS a", "map('k', id) AS m", "struct(id, money) AS s",
        "cast(id AS string) AS `odd,name`", "cast('x' AS binary) AS b", "interval 1 day AS i",
    )  # fmt: skip
    sink = opened(options={"compression": "zstd"})
    payloads = [flushed(sink, frame.where(f"id = {number}"), number) for number in (1, 2, 3)]
    assert sink.commit(7, payloads) == 3
    assert sink.commit(7, payloads) == 0
    (name,) = visible(tmp_path / "f")
    assert name.startswith("01234567-out-1-m7-")
    assert name.endswith("-0.zstd.parquet")
    assert pq.read_metadata(tmp_path / "f" / name).row_group(0).column(0).compression == "ZSTD"
    read = spark.read.parquet(str(tmp_path / "f"))
    assert read.schema.simpleString() == frame.schema.simpleString()
    assert str(read.orderBy("id").collect()) == str(frame.orderBy("id").collect())
    assert (sink.newest_committed(), plans(tmp_path / "f")) == (7, [])


@pytest.mark.slow
def test_each_partition_has_its_own_file_and_large_files_stay(spark, tmp_path, opened):
    """In the partition's directory; also those of nulls and of values that are odd names."""
    sink = opened(partition_by=("c",), target_file_size=8_000)
    values = "CASE id % 3 WHEN 0 THEN 'a/b' WHEN 1 THEN null ELSE 'x=1' END AS c"
    payloads = [
        flushed(sink, spark.range(start, start + 6).selectExpr("id", values), number)
        for number, start in enumerate((0, 6, 12))
    ]
    large = spark.range(18, 6_018, 1, 1).selectExpr("id", "'big' AS c")
    payloads += [flushed(sink, large, 3), *batches_of(sink, spark, 6_018, 6_019)]
    assert sink.commit(1, payloads) == 6_020
    names = visible(tmp_path / "f")
    assert [name.partition("/")[0] for name in names] == [
        "c=__HIVE_DEFAULT_PARTITION__", "c=a%2Fb", "c=big", "c=big", "c=x%3D1",
    ]  # fmt: skip
    read = spark.read.parquet(str(tmp_path / "f"))
    assert sorted(row.id for row in read.collect()) == list(range(6_020))
    expected = {0: "a/b", 1: None, 2: "x=1"}
    assert all(row.c == expected[row.id % 3] for row in read.where("id < 18").collect())


def batches_of(sink: Files, spark: SparkSession, *numbers: int) -> list[dict[str, Any]]:
    frames = [spark.range(number, number + 1).selectExpr("id", "'big' AS c") for number in numbers]
    return [flushed(sink, frame, number) for frame, number in zip(frames, numbers, strict=True)]


DEATHS = [
    ("created", 0),
    ("rename", 1),
    *(
        pytest.param(*death, marks=pytest.mark.slow)
        for death in (("create", 0), ("rename", 0), ("write", 0), ("written", 0))
    ),
]


@pytest.mark.parametrize(("name", "calls"), DEATHS)
def test_a_driver_may_die_at_every_step(spark, tmp_path, opened, name, calls):
    """Before and after the plan, between the renames, before and after the ledger's entry."""
    staging = opened(partition_by=("c",))
    frames = [spark.sql(f"SELECT {number}L AS id, {number % 2} AS c") for number in range(4)]
    payloads = [flushed(staging, frame, number) for number, frame in enumerate(frames)]
    dying = Dying("", 0)
    sink = opened(partition_by=("c",), file_system=dying)
    dying.name, dying.calls = name, calls
    with pytest.raises(Killed):
        sink.commit(1, payloads)
    again = opened(attempt=2, partition_by=("c",))
    again.commit(1, payloads)
    again.clean(2)
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "f")).collect()) == [
        0, 1, 2, 3,
    ]  # fmt: skip
    assert len(visible(tmp_path / "f")) == 2
    assert again.commit(2, [flushed(again, frames[0], 0), flushed(again, frames[1], 1)]) == 2
    assert (again.newest_committed(), plans(tmp_path / "f")) == (2, [])


@pytest.mark.slow
def test_a_merge_that_is_cut_short_shows_nothing(spark, tmp_path, opened, monkeypatch):
    """What it wrote goes with the attempt."""
    sink = opened()
    payloads = batches(sink, spark, 0, 1)

    def dies(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("weir.sinks.merging.sync_below", dies)
        sink.commit(1, payloads)
    assert ids(tmp_path / "f") == []
    again = opened(attempt=2)
    assert again.commit(1, payloads) == 2
    again.clean(2)
    assert ids(tmp_path / "f") == [0, 1]
    assert not list((tmp_path / "f").glob("_weir/staged/01234567-out-1"))


@pytest.mark.parametrize(
    ("ends", "target_file_size"),
    [
        (False, None),
        (True, 64 * MIB),
        pytest.param(False, 64 * MIB, marks=pytest.mark.slow),
        pytest.param(True, None, marks=pytest.mark.slow),
    ],
)
def test_of_two_drivers_the_plan_of_the_first_counts(
    spark, opened, monkeypatch, ends, target_file_size
):
    """Also if the second merges nothing, and if the first has ended and forgotten its plan."""
    first, second = opened(), opened(attempt=2, target_file_size=target_file_size)
    payloads, path = batches(first, spark, 0, 1), Path(first._root)
    merged = second._merged

    def overtaken(*arguments: Any) -> Any:
        moves = merged(*arguments)
        if ends:
            assert first.commit(1, payloads) == 2
        else:
            with monkeypatch.context() as patch, pytest.raises(Killed):
                patch.setattr(first, "_commit_moves", dies)
                first.commit(1, payloads)
        return moves

    def dies(*_: Any) -> None:
        raise Killed

    monkeypatch.setattr(second, "_merged", overtaken)
    assert second.commit(1, payloads) == (0 if ends else 2)
    (name,) = visible(path)
    assert name.startswith("01234567-out-1-m1-")
    assert (ids(path), plans(path)) == ([0, 1], [])


def test_originals_stay_until_the_sink_is_closed_or_they_are_due(
    spark, tmp_path, opened, monkeypatch
):
    """A savepoint copies the staged files of its own pending rows (PROTOCOL P14)."""
    sink = opened()
    first = batches(sink, spark, 0, 1)
    sink.commit(1, first)
    assert [sink.damaged(payload) for payload in first] == [None] * 2
    monkeypatch.setattr("weir.sinks.files.sink.KEPT_S", 0.0)
    second = batches(sink, spark, 2, 3)
    sink.commit(2, second)
    staged = tmp_path / "f" / "_weir" / "staged" / "01234567-out-1"
    assert sorted(path.name for path in staged.glob("[0-9]*")) == ["2", "3"]
    sink.close()
    assert not list(staged.glob("[0-9]*"))
    assert ids(tmp_path / "f") == [0, 1, 2, 3]


def test_rows_from_before_the_option_was_given_are_committed_with_others(spark, tmp_path, opened):
    """As they are, since a driver without it may be committing them, too."""
    plain = opened(target_file_size=None)
    payloads = batches(plain, spark, 0, 1)
    sink = opened(attempt=2)
    assert sink.commit(1, [*payloads, *batches(sink, spark, 2, 3)]) == 4
    assert [name.split("-m")[0] for name in visible(tmp_path / "f")] == [
        "01234567-out-1-0-0.snappy.parquet", "01234567-out-1-1-0.snappy.parquet",
        "01234567-out-2",
    ]  # fmt: skip
    assert ids(tmp_path / "f") == [0, 1, 2, 3]


def test_columns_of_partitions_are_found_in_whatever_case(spark, tmp_path, opened):
    """As Spark finds them; else merged files would have such a column with nulls."""
    sink = opened(partition_by=["P"])
    frames = [spark.sql(f"SELECT {number}L AS id, 'v' AS p") for number in (0, 1)]
    assert sink.commit(1, [flushed(sink, one, number) for number, one in enumerate(frames)]) == 2
    (name,) = visible(tmp_path / "f")
    assert pq.read_schema(tmp_path / "f" / name).names == ["id"]


def test_directories_of_merged_files_go_with_their_commit(spark, tmp_path, opened):
    """A job that runs for months would have as many as checkpoints, else."""
    sink = opened()
    sink.commit(1, batches(sink, spark, 0, 1))
    assert (len(visible(tmp_path / "f")), ids(tmp_path / "f")) == (1, [0, 1])
    assert not list((tmp_path / "f").glob("_weir/staged/*/m*"))


def test_an_epoch_of_which_files_may_have_their_names_counts_as_begun(spark, tmp_path, opened):
    """A checkpoint before it would double its rows (P21); it is not committed, though."""
    sink = opened(file_system=(dying := Dying("", 0)))
    assert sink.newest_begun() is None
    payloads = batches(sink, spark, 0, 1)
    dying.name = "rename"
    with pytest.raises(Killed):
        sink.commit(12, payloads)
    successor = opened(attempt=2)
    assert (successor.newest_begun(), successor.newest_committed()) == (12, None)
    assert successor.commit(12, payloads) == 2
    assert successor.newest_begun() == successor.newest_committed() == 12


@pytest.mark.slow
def test_files_that_cannot_be_merged_are_committed_as_they_are(spark, tmp_path, opened, caplog):
    """Merging is a service to readers; the rows come first."""

    def gone() -> SparkSession:
        raise RuntimeError("the session is gone")

    sink = opened(session=gone)
    assert sink.commit(1, batches(sink, spark, 0, 1, 2)) == 3
    assert (len(visible(tmp_path / "f")), ids(tmp_path / "f")) == (3, [0, 1, 2])
    assert "are committed as they are" in caplog.text


def test_lost_files_are_found_before_any_gets_its_name(spark, tmp_path, opened):
    """Originals before they are merged, and merged ones that the plan names."""
    sink = opened(file_system=(dying := Dying("", 0)))
    payloads = batches(sink, spark, 0, 1)
    original = Path(sink.staged_files(payloads[1])[0])
    whole = original.read_bytes()
    original.unlink()
    with pytest.raises(LostRowsError, match="is gone: none of its rows are visible"):
        sink.commit(1, payloads)
    original.write_bytes(whole)
    dying.name = "rename"
    with pytest.raises(Killed):
        sink.commit(1, payloads)
    (merged,) = (tmp_path / "f").glob("_weir/staged/*/m*/*/*/*.parquet")
    merged.unlink()
    with pytest.raises(LostRowsError, match="is gone: none of its rows are visible"):
        opened(attempt=2).commit(1, payloads)
    assert ids(tmp_path / "f") == []


def test_a_damaged_plan_is_named(spark, tmp_path, opened):
    """Nothing is committed without knowing what it says."""
    sink = opened(file_system=(dying := Dying("", 0)))
    payloads = batches(sink, spark, 0, 1)
    dying.name = "rename"
    with pytest.raises(Killed):
        sink.commit(1, payloads)
    (plan,) = (tmp_path / "f").glob("_weir/plans/*/1")
    plan.write_text('{"moves": "all"}')
    with pytest.raises(SinkError, match=r"The plan .*/1 of Files\(.* is damaged"):
        opened(attempt=2).commit(1, payloads)


def test_only_parquet_is_merged(tmp_path):
    """And the size is a number of bytes above 0."""
    with pytest.raises(SinkError, match="only Parquet files are merged: remove it, or use"):
        Files(str(tmp_path), format="csv", target_file_size=MIB)
    with pytest.raises(SinkError, match="is 0: give a number of bytes above 0"):
        Files(str(tmp_path), target_file_size=0)
