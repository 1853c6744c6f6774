"""The Delta sink on real Spark and delta-rs: staging, commits, ownership and clean-up."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import pytest
from deltalake import transaction
from tests.kit.disk import FaultyDisk
from tests.kit.sink import sink_context

from weir.errors import SinkError
from weir.sinks import Batch, DeltaTable
from weir.sinks.base import Sink
from weir.storage.local import LocalFileSystem

pytestmark = pytest.mark.spark

#: One value of each type that is not one of a partition column.
OTHER_TYPES = [
    ("x'00ff'", "binary"),
    ("float(1.5)", "float"),
    ("1.5D", "double"),
    ("timestamp_ntz'2024-01-01'", "timestamp_ntz"),
    ("array(1)", "array<integer>"),
    ("named_struct('a', 1)", "struct<a:integer>"),
    ("map('a', 1)", "map<string,integer>"),
]

JOB = "0123456789abcdef0123456789abcdef"
FILE_SYSTEM = LocalFileSystem()


def opened(path: Path, *, partition_by: tuple[str, ...] = (), **changes: Any) -> DeltaTable:
    sink = DeltaTable(str(path), partition_by=partition_by)
    sink.check(sink_context(**changes))
    sink.open(sink_context(**changes))
    return sink


def staged(sink: Sink, frame: Any, position: int) -> dict[str, Any]:
    payload = sink.stage(frame, Batch(batch_id=position))
    assert payload is not None
    return json.loads(json.dumps(payload))


def flushed(sink: Sink, frame: Any, position: int) -> dict[str, Any]:
    (payload,) = sink.flush([staged(sink, frame, position)])
    return json.loads(json.dumps(payload))


def column(path: Path, name: str = "id") -> list[Any]:
    return sorted(deltalake.DeltaTable(str(path)).to_pyarrow_table()[name].to_pylist())


def log_entry(path: Path, version: int) -> list[dict[str, Any]]:
    lines = (path / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_rows_that_the_task_has_written_are_not_written_again(spark, tmp_path):
    """A step's files become files of the table, under a second name that outlives the first."""
    written = tmp_path / "segment"
    frame = spark.createDataFrame(
        [(number, "x" * number) for number in range(9)], "id int, c string"
    )
    frame.coalesce(1).write.parquet(str(written))
    (file,) = written.glob("*.parquet")
    sink = opened(tmp_path / "t")
    payload = sink.stage(frame, Batch(batch_id=3, files=(str(file),)))
    (staged,) = (tmp_path / "t").glob("weir-*/3/*.parquet")
    assert staged.samefile(file)
    file.unlink()
    assert sink.commit(1, sink.flush([payload])) == 9
    assert column(tmp_path / "t") == list(range(9))


def test_a_partitioned_table_gets_files_of_its_own(spark, tmp_path):
    """Rows of one file belong in several directories."""
    frame = spark.createDataFrame([(1, "a"), (2, "b")], "id int, c string")
    sink = opened(tmp_path / "t", partition_by=("c",))
    payload = sink.stage(
        frame, Batch(batch_id=0, files=(str(tmp_path / "never-looked-at.parquet"),))
    )
    assert sink.commit(1, sink.flush([payload])) == 2
    assert column(tmp_path / "t") == [1, 2]


def test_staged_rows_are_invisible_until_they_are_committed(spark, tmp_path):
    """Readers of the table see neither staged nor flushed rows (rule 1 of the contract)."""
    sink = opened(tmp_path / "t")
    assert sink.commit(1, [flushed(sink, spark.range(3), 0)]) == 3
    payload = flushed(sink, spark.range(3, 5), 1)
    assert column(tmp_path / "t") == [0, 1, 2]
    assert sink.commit(2, [payload]) == 2
    assert column(tmp_path / "t") == [0, 1, 2, 3, 4]


def test_nothing_but_staged_directories_exists_before_the_first_commit(spark, tmp_path):
    """The table is created with its first rows; earlier staged files do not block another
    attempt."""
    sink = opened(tmp_path / "t")
    staged(sink, spark.range(3), 0)
    assert [entry.name for entry in (tmp_path / "t").iterdir()] == ["weir-01234567-out-1"]
    assert sink.newest_committed() is None
    opened(tmp_path / "t", attempt=2)


def test_committing_an_epoch_twice_shows_its_rows_once(spark, tmp_path):
    """The second commit, also by a new process, finds the transaction and returns 0 (rule 4)."""
    sink = opened(tmp_path / "t")
    payload = flushed(sink, spark.range(3), 0)
    assert sink.commit(1, [payload]) == 3
    assert sink.commit(1, [payload]) == 0
    assert opened(tmp_path / "t", attempt=2).commit(1, [payload]) == 0
    assert column(tmp_path / "t") == [0, 1, 2]
    assert deltalake.DeltaTable(str(tmp_path / "t")).version() == 0


def test_an_older_epoch_is_taken_for_committed(spark, tmp_path):
    """A zombie that commits an epoch older than the newest changes nothing (PROTOCOL P18)."""
    sink = opened(tmp_path / "t")
    old = flushed(sink, spark.range(3), 0)
    sink.commit(1, [old])
    sink.commit(2, [flushed(sink, spark.range(3, 4), 1)])
    assert sink.commit(1, [old]) == 0
    assert column(tmp_path / "t") == [0, 1, 2, 3]


@pytest.mark.parametrize("table_exists", [False, True])
def test_of_two_stale_handles_that_commit_one_epoch_exactly_one_lands(
    spark, tmp_path, monkeypatch, table_exists
):
    """The rival commits after this handle has checked and before it has written (PROTOCOL P18)."""
    sink, rival = opened(tmp_path / "t"), opened(tmp_path / "t")
    if table_exists:
        sink.commit(1, [flushed(sink, spark.range(1), 0)])
        rival.newest_committed()
    payload = flushed(sink, spark.range(1, 4), 1)
    owner, name = (
        (deltalake.DeltaTable, "create_write_transaction")
        if table_exists
        else (transaction, "create_table_with_add_actions")
    )
    original = getattr(owner, name)
    rows = []

    def after_the_rival(*args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(owner, name, original)
        rows.append(rival.commit(2, [payload]))
        original(*args, **kwargs)

    monkeypatch.setattr(owner, name, after_the_rival)
    rows.append(sink.commit(2, [payload]))
    assert rows == [3, 0]
    assert column(tmp_path / "t") == ([0, 1, 2, 3] if table_exists else [1, 2, 3])


def test_appends_of_another_writer_in_between_do_no_harm(spark, tmp_path):
    """Two sinks of one job share a table; each has its own transactions."""
    one, two = opened(tmp_path / "t"), opened(tmp_path / "t", sink="other")
    one.commit(1, [flushed(one, spark.range(1), 0)])
    two.commit(1, [flushed(two, spark.range(1, 2), 0)])
    one.commit(2, [flushed(one, spark.range(2, 3), 1)])
    assert column(tmp_path / "t") == [0, 1, 2]
    assert (one.newest_committed(), two.newest_committed()) == (2, 1)


def test_an_epoch_without_rows_adds_no_version(spark, tmp_path):
    """An idle job does not touch the table, and Spark's empty files are deleted (PROTOCOL P15)."""
    sink = opened(tmp_path / "t")
    sink.commit(1, [flushed(sink, spark.range(1), 0)])
    empty = flushed(sink, spark.range(0), 1)
    assert empty["files"] == []
    assert sink.commit(2, []) == 0
    assert sink.commit(3, [empty]) == 0
    assert deltalake.DeltaTable(str(tmp_path / "t")).version() == 0
    assert not (tmp_path / "t" / "weir-01234567-out-1" / "1").exists()


def test_an_empty_partitioned_batch_stages_nothing(spark, tmp_path):
    """Spark writes no file at all, so there is nothing to commit, and no directory stays."""
    sink = opened(tmp_path / "t", partition_by=("c",))
    assert sink.stage(spark.createDataFrame([], "id int, c string"), Batch(batch_id=0)) is None
    assert [path for path in (tmp_path / "t").rglob("*") if path.name == "0"] == []


def test_a_batch_known_to_have_no_rows_is_not_written(spark, tmp_path):
    """The task has written it for downstream tasks and found none: no Spark job is needed."""
    sink = opened(tmp_path / "t")
    assert sink.stage(spark.range(3), Batch(batch_id=0, files=())) is None


def test_files_without_rows_are_not_committed(spark, tmp_path):
    """An empty first partition makes Spark write an additional file without rows."""
    sink = opened(tmp_path / "t")
    frame = spark.range(0, 10, 1, 2).where("id >= 5")
    raw = staged(sink, frame, 0)
    (payload,) = sink.flush([raw])
    assert (len(raw["files"]), len(payload["files"])) == (2, 1)
    assert sink.commit(1, [payload]) == 5


def test_stage_runs_one_job_over_the_whole_frame(spark, tmp_path):
    """A stateful frame must be consumed entirely, and every step would pay for additional jobs."""
    seen = spark.sparkContext.accumulator(0)

    def count(batches: Any) -> Any:
        for batch in batches:
            seen.add(batch.num_rows)
            yield batch.slice(0, 0)

    sink = opened(tmp_path / "t")
    spark.sparkContext.setJobGroup("one-stage", "")
    sink.stage(spark.range(0, 100, 1, 2).mapInArrow(count, "id long"), Batch(batch_id=0))
    assert seen.value == 100
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup("one-stage")) == 1


def test_flush_syncs_files_and_all_directories_up_to_the_table(spark, tmp_path):
    """After a machine crash a file exists only if every directory entry above it does (PROTOCOL
    P23)."""
    file_system = FaultyDisk()
    sink = opened(tmp_path / "t", partition_by=("c",), file_system=lambda _: file_system)
    payload = staged(sink, spark.createDataFrame([(1, "US")], "id int, c string"), 0)
    sink.flush([payload])
    step = tmp_path / "t" / "weir-01234567-out-1" / "0"
    file = step / payload["files"][0]["path"]
    expected = [file, step / "c=US", step, step.parent, tmp_path / "t"]
    assert file_system.paths("sync") == [str(path) for path in expected]


def test_a_flushed_payload_is_recognised(spark, tmp_path):
    """It comes again after its checkpoint was aborted; it is neither synced nor read twice."""
    file_system = FaultyDisk()
    sink = opened(tmp_path / "t", file_system=lambda _: file_system)
    payload = flushed(sink, spark.range(3), 0)
    file_system.calls.clear()
    assert sink.flush([payload]) == [payload]
    assert file_system.paths("sync") == []


def test_a_commit_is_durable_when_it_returns(spark, tmp_path):
    """delta-rs does not sync its log, and the job forgets the files after the commit."""
    file_system = FaultyDisk()
    sink = opened(tmp_path / "t", file_system=lambda _: file_system)
    payload = flushed(sink, spark.range(3), 0)
    entry = str(tmp_path / "t" / "_delta_log" / f"{0:020}.json")
    for _ in ("first", "again"):
        file_system.calls.clear()
        sink.commit(1, [payload])
        assert entry in file_system.paths("sync")
        assert str(tmp_path / "t" / "_delta_log") in file_system.paths("sync")


def test_a_commit_whose_log_entry_a_crash_has_emptied_is_made_again(spark, tmp_path):
    """delta-rs reads such an entry as a version without actions."""
    sink = opened(tmp_path)
    sink.commit(1, [flushed(sink, spark.range(3), 0)])
    payload = flushed(sink, spark.range(3, 5), 1)
    sink.commit(2, [payload])
    (tmp_path / "_delta_log" / f"{1:020}.json").write_bytes(b"")
    sink = opened(tmp_path, attempt=2)
    assert [commit.checkpoint_id for commit in sink.commits(sink_context())] == [1]
    assert (sink.commit(2, [payload]), column(tmp_path)) == (2, [0, 1, 2, 3, 4])


@pytest.mark.parametrize(("version", "left"), [(1, 200), (0, 200), (0, 0)])
def test_a_log_entry_that_a_crash_has_cut_is_refused_with_the_way_out(
    spark, tmp_path, version: int, left: int
):
    """Once the entry is deleted, what it had is committed again."""
    sink = opened(tmp_path)
    payloads = [flushed(sink, spark.range(one, one + 1), one) for one in range(version + 1)]
    for epoch, payload in enumerate(payloads, 1):
        sink.commit(epoch, [payload])
    entry = tmp_path / "_delta_log" / f"{version:020}.json"
    entry.write_bytes(entry.read_bytes()[:left])
    with pytest.raises(SinkError, match="delete it: what this job had in it is committed") as said:
        opened(tmp_path, attempt=2)
    assert "<unknown>" not in str(said.value)
    entry.unlink()
    sink = opened(tmp_path, attempt=2)
    assert sink.commit(version + 1, [payloads[-1]]) == 1
    assert column(tmp_path) == list(range(version + 1))


def test_a_commit_says_who_made_it(spark, tmp_path):
    """The log entry names the job, its directory, sink, checkpoint and attempt."""
    sink = opened(tmp_path / "t", attempt=3, job_directory=f"/checkpoints/{JOB}")
    sink.commit(7, [flushed(sink, spark.range(3), 4)])
    info = next(
        action["commitInfo"] for action in log_entry(tmp_path / "t", 0) if "commitInfo" in action
    )
    assert {key: value for key, value in info.items() if key.startswith("weir.")} == {
        "weir.job.id": JOB, "weir.job.name": "orders", "weir.sink": "out",
        "weir.checkpoint.id": "7", "weir.attempt": "3", "weir.job.directory": f"/checkpoints/{JOB}",
        "weir.joins": "false",
    }  # fmt: skip
    transactions = [action["txn"] for action in log_entry(tmp_path / "t", 0) if "txn" in action]
    assert {entry["appId"]: entry["version"] for entry in transactions} == {
        f"weir-{JOB}-out": 7,
        "weir-01234567-out-3": 4,
    }


def test_statistics_are_exact_bounds_or_absent(spark, tmp_path):
    """Readers skip files by them: a bound that JSON cannot represent exactly is omitted, never
    rounded."""
    frame = spark.sql(
        "select * from values (1, 'b', 1.5D, timestamp'2024-01-01 00:00:00.123456',"
        " date'2024-01-02', 1.10BD, 'y'), (-2, 'a', double('nan'), timestamp'2023-01-01',"
        " date'2023-01-02', 2.25BD, repeat('x', 40)), (null, null, 0.5D, null, null, null, null) as"
        " t(i, s, d, ts, da, dec, long_text)"
    ).coalesce(1)
    sink = opened(tmp_path / "t")
    statistics = json.loads(flushed(sink, frame, 0)["files"][0]["statistics"])
    assert statistics["numRecords"] == 3
    assert statistics["nullCount"] == {
        "i": 1,
        "s": 1,
        "d": 0,
        "ts": 1,
        "da": 1,
        "dec": 1,
        "long_text": 1,
    }
    assert statistics["minValues"] == {
        "i": -2, "s": "a", "ts": "2023-01-01T00:00:00.000000Z", "da": "2023-01-02", "dec": 1.1,
    }  # fmt: skip
    assert statistics["maxValues"]["ts"] == "2024-01-01T00:00:00.123456Z"
    assert statistics["maxValues"].keys() == statistics["minValues"].keys()


def test_types_make_the_round_trip(spark, tmp_path):
    """Every Delta type reads back through delta-rs with the values that Spark wrote."""
    frame = spark.sql(
        "select 1Y b, 2S sh, 3 i, 4L l, cast(1.5 as float) f, 2.5D d, cast(1.10 as decimal(10,2))"
        " de, true bo, cast(123456789012345678901234.5 as decimal(38,4)) de38, 'x' s, cast('abc' as"
        " binary) bi, date'2024-02-03' da, timestamp'2024-02-03 04:05:06.789123' ts,"
        " timestamp_ntz'2024-02-03 04:05:06.789123' ntz, cast(null as int) n, named_struct('a', 1,"
        " 'b', array(named_struct('c', 'y'))) st, array(1, null) ar, map('k', 1) ma"
    )
    sink = opened(tmp_path / "t")
    sink.commit(1, [flushed(sink, frame, 0)])
    sink.commit(2, [flushed(sink, frame, 1)])
    rows = deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
    moment = dt.datetime(2024, 2, 3, 4, 5, 6, 789123)
    expected = {
        "b": 1, "sh": 2, "i": 3, "l": 4, "f": 1.5, "d": 2.5, "de": Decimal("1.10"), "bo": True,
        "de38": Decimal("123456789012345678901234.5000"), "s": "x", "bi": b"abc",
        "da": dt.date(2024, 2, 3), "ts": moment.replace(tzinfo=dt.UTC), "ntz": moment, "n": None,
        "st": {"a": 1, "b": [{"c": "y"}]}, "ar": [1, None], "ma": [("k", 1)],
    }  # fmt: skip
    assert rows == [expected, expected]


def test_partition_values_read_back_as_they_were(spark, tmp_path):
    """Nulls, slashes, percent signs, spaces and other scripts survive directory names and the
    log."""
    values = ["US", "a/b", None, "x y", "50%", "é=ü", "q'\"?#:*\\", "%2F"]
    frame = spark.createDataFrame(list(enumerate(values)), "id int, c string")
    sink = opened(tmp_path / "with space", partition_by=("c",))
    assert sink.commit(1, [flushed(sink, frame, 0)]) == len(values)
    rows = deltalake.DeltaTable(str(tmp_path / "with space")).to_pyarrow_table().to_pylist()
    assert {row["id"]: row["c"] for row in rows} == dict(enumerate(values))
    added = [
        action["add"]["path"] for action in log_entry(tmp_path / "with space", 0) if "add" in action
    ]
    assert all((tmp_path / "with space" / unquote(path)).is_file() for path in added)


def test_partition_columns_of_other_types_read_back(spark, tmp_path):
    """Dates, numbers and booleans have exact directory names."""
    frame = spark.sql(
        "select 1 id, date'2024-02-03' da, -5L l, true bo union all select 2, null, null, null"
    )
    sink = opened(tmp_path / "t", partition_by=("da", "l", "bo"))
    sink.commit(1, [flushed(sink, frame, 0)])
    rows = deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table().sort_by("id").to_pylist()
    assert rows == [
        {"id": 1, "da": dt.date(2024, 2, 3), "l": -5, "bo": True},
        {"id": 2, "da": None, "l": None, "bo": None},
    ]


def test_the_first_and_the_last_date_read_back_as_partitions(spark, tmp_path):
    """delta-rs reads the dates that Python has, and no others."""
    frame = spark.sql("select 1 id, date'0001-01-01' d union all select 2, date'9999-12-31'")
    sink = opened(tmp_path / "t", partition_by=("d",))
    sink.commit(1, [flushed(sink, frame, 0)])
    assert column(tmp_path / "t", "d") == [dt.date.min, dt.date.max]


@pytest.mark.parametrize("date", ["0000-12-31", "-0005-03-01", "+10000-01-01"])
def test_a_date_that_no_reader_of_partitions_knows_is_refused(spark, tmp_path, date):
    """The table could not be read any more, once it is committed."""
    frame = spark.sql(f"select 1 id, date'2024-01-01' d union all select 2, date'{date}'")
    sink = opened(tmp_path / "t", partition_by=("d",))
    with pytest.raises(SinkError, match=rf"'d' has the date {re.escape(date)}.*years 1 to 9999"):
        sink.stage(frame, Batch(batch_id=0))


@pytest.mark.parametrize(
    ("columns", "partition_by", "message"),
    [
        *((f"1 id, {value} c", "c", f"'c' of type {kind}") for value, kind in OTHER_TYPES),
        ("1 id, timestamp'2024-01-01' ts", "ts", "'ts' of type timestamp"),
        ("1 id, -0.50BD price", "price", r"'price' of type decimal\(2,2\)"),
        (
            "1 id, 'x' other",
            "c",
            "partitioned by 'c', but the rows have only the columns 'id', 'other'",
        ),
        ("1 c", "c", "by all of its columns"),
    ],
)
def test_a_partition_column_that_cannot_be_one_is_refused(
    spark, tmp_path, columns, partition_by, message
):
    """Before any row is written; a time zone or rounding would change the value, and delta-rs reads
    no decimal below zero."""
    sink = opened(tmp_path / "t", partition_by=(partition_by,))
    with pytest.raises(SinkError, match=message):
        sink.stage(spark.sql(f"select {columns}"), Batch(batch_id=0))
    assert list((tmp_path / "t").iterdir()) == []


def test_a_type_that_delta_lacks_is_refused_by_name(spark, tmp_path):
    """The message names column and type."""
    with pytest.raises(SinkError, match="'v' of type interval"):
        opened(tmp_path / "t").stage(spark.sql("select 1 id, interval 1 day v"), Batch(batch_id=0))


def test_columns_that_differ_from_the_tables_are_refused_when_staged(spark, tmp_path):
    """Before a row is written: a commit that can never succeed would be too late."""
    sink = opened(tmp_path / "t")
    sink.commit(1, [flushed(sink, spark.sql("select 1 id, 'x' name, 2 n"), 0)])
    again = opened(tmp_path / "t", attempt=2)
    with pytest.raises(
        SinkError,
        match=r"'n' is string in the rows and integer.*rows lack 'name'.*table lacks 'nom'",
    ):
        again.stage(spark.sql("select 1 id, 'x' nom, 'y' n"), Batch(batch_id=1))
    assert not (tmp_path / "t" / "weir-01234567-out-2").exists()


def test_a_table_that_was_changed_after_staging_refuses_the_commit(spark, tmp_path):
    """delta-rs would add the files regardless, and readers would fail."""
    sink = opened(tmp_path / "t")
    payload = flushed(sink, spark.sql("select 1 id"), 0)
    other = opened(tmp_path / "t", sink="other")
    other.commit(1, [flushed(other, spark.sql("select 'x' id"), 0)])
    with pytest.raises(SinkError, match="'id' is integer in the rows and string in the table"):
        sink.commit(1, [payload])


def test_the_metadata_of_columns_stays_out_of_the_table(spark, tmp_path):
    """Spark keeps watermarks there; a table read with one would never advance it."""
    frame = spark.sql("select timestamp'2024-01-01' ts, 1 id").withMetadata(
        "ts", {"spark.watermarkDelayMs": 10}
    )
    sink = opened(tmp_path / "t")
    sink.commit(1, [flushed(sink, frame, 0)])
    schema = json.loads(deltalake.DeltaTable(str(tmp_path / "t")).schema().to_json())
    assert [(field["metadata"], field["nullable"]) for field in schema["fields"]] == [
        ({}, True),
        ({}, True),
    ]


def test_newest_committed_is_this_jobs_newest_epoch(spark, tmp_path):
    """Another job's epochs do not count (PROTOCOL P21)."""
    sink = opened(tmp_path / "t")
    sink.commit(4, [flushed(sink, spark.range(1), 0)])
    sink.commit(9, [flushed(sink, spark.range(1), 1)])
    assert opened(tmp_path / "t", attempt=2).newest_committed() == 9
    assert opened(tmp_path / "t", job_id="f" * 32).newest_committed() is None


def test_the_table_shows_who_committed_newest_first_and_past_entries_of_others(spark, tmp_path):
    """With name, records, epoch and attempt, even before the table is opened (PROTOCOL P21)."""
    first = opened(tmp_path / "t", job_directory="/c/" + JOB, attempt=3)
    first.commit(9, [flushed(first, spark.range(1), 0)])
    second = opened(tmp_path / "t", job_id="f" * 32, job_name="returns")
    second.commit(1, [flushed(second, spark.range(1), 0)])
    deltalake.DeltaTable(str(tmp_path / "t")).optimize.compact()
    told = list(DeltaTable(str(tmp_path / "t")).commits(sink_context()))
    assert [(one.job_id, one.job_name, one.checkpoint_id) for one in told] == [
        ("f" * 32, "returns", 1),
        (JOB, "orders", 9),
    ]
    assert (told[1].job_directory, told[1].sink, told[1].attempt) == ("/c/" + JOB, "out", 3)
    assert list(DeltaTable(str(tmp_path / "none")).commits(sink_context())) == []


def test_clean_removes_only_what_dead_attempts_staged_and_nobody_committed(spark, tmp_path):
    """Committed steps, live attempts, other sinks, other jobs and foreign files stay (PROTOCOL
    P22)."""
    sink = opened(tmp_path / "t")
    sink.commit(1, [flushed(sink, spark.range(2), 0)])
    flushed(sink, spark.range(2), 1)
    keep = [
        staged(opened(tmp_path / "t", attempt=2), spark.range(2), 1),
        staged(opened(tmp_path / "t", sink="out-1"), spark.range(2), 1),
        staged(opened(tmp_path / "t", job_id="f" * 32), spark.range(2), 1),
    ]
    staged(opened(tmp_path / "t", attempt=0), spark.range(2), 0)
    (tmp_path / "t" / "notes.txt").write_text("mine")
    sink = opened(tmp_path / "t", attempt=2)
    sink.clean(2)
    base = tmp_path / "t"
    assert sorted(entry.name for entry in (base / "weir-01234567-out-1").iterdir()) == ["0"]
    assert not (base / "weir-01234567-out-0").exists()
    assert (base / "notes.txt").exists()
    assert all(
        (base / payload["directory"] / "1" / payload["files"][0]["path"]).exists()
        for payload in keep
    )
    assert column(base) == [0, 1]


def test_clean_keeps_committed_files_that_optimize_has_replaced(spark, tmp_path):
    """Time travel still reads them, although the newest version does not list them."""
    sink = opened(tmp_path / "t")
    for epoch in (1, 2):
        sink.commit(epoch, [flushed(sink, spark.range(epoch), epoch)])
    deltalake.DeltaTable(str(tmp_path / "t")).optimize.compact()
    sink = opened(tmp_path / "t", attempt=2)
    sink.clean(2)
    assert deltalake.DeltaTable(str(tmp_path / "t"), version=1).to_pyarrow_table().num_rows == 3


def test_clean_before_the_first_commit_removes_all_that_dead_attempts_staged(spark, tmp_path):
    """No table can refer to it yet; late temporary files of executors are deleted too."""
    staged(opened(tmp_path / "t"), spark.range(2), 0)
    late = tmp_path / "t" / "weir-01234567-out-1" / "5" / "_temporary" / "0"
    late.mkdir(parents=True)
    opened(tmp_path / "t", attempt=2).clean(2)
    assert list((tmp_path / "t").iterdir()) == []


def test_a_batch_that_is_staged_again_replaces_its_first_files(spark, tmp_path):
    """Spark repeats a batch whose end it did not record."""
    sink = opened(tmp_path / "t")
    staged(sink, spark.range(5), 0)
    sink.commit(1, [flushed(sink, spark.range(2), 0)])
    assert column(tmp_path / "t") == [0, 1]


def test_a_directory_with_foreign_files_is_refused(tmp_path):
    """check names a file and the way out, and leaves nothing behind."""
    (tmp_path / "data.csv").write_text("1")
    with pytest.raises(
        SinkError, match=r"not empty and not a Delta table.*'data.csv'.*move its files elsewhere"
    ):
        DeltaTable(str(tmp_path)).check(sink_context())
    DeltaTable(str(tmp_path / "new")).check(sink_context())
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["data.csv"]


def test_a_file_in_place_of_the_directory_is_refused(tmp_path):
    """The error says what to choose instead."""
    (tmp_path / "t").write_text("1")
    with pytest.raises(SinkError, match="is a file: choose a directory"):
        DeltaTable(str(tmp_path / "t")).check(sink_context())


def test_an_existing_table_with_other_partitions_is_refused(spark, tmp_path):
    """Its files are in other directories than the sink would use."""
    sink = opened(tmp_path / "t", partition_by=("c",))
    sink.commit(1, [flushed(sink, spark.sql("select 1 id, 'x' c"), 0)])
    with pytest.raises(
        SinkError, match=r"partitioned by \['c'\], not by \[\]: give the sink partition_by"
    ):
        DeltaTable(str(tmp_path / "t")).check(sink_context())


def test_a_table_with_constraints_is_refused(spark, tmp_path):
    """Files added without the engines could silently violate them."""
    sink = opened(tmp_path / "t")
    sink.commit(1, [flushed(sink, spark.range(2), 0)])
    deltalake.DeltaTable(str(tmp_path / "t")).alter.add_constraint({"small": "id < 10"})
    with pytest.raises(
        SinkError, match=r"keep the property delta\.constraints\.small: remove these"
    ):
        DeltaTable(str(tmp_path / "t")).check(sink_context())


def test_a_table_that_forgets_transactions_is_refused(spark, tmp_path):
    """A repeated commit is harmless only because the table remembers this job's epochs."""
    sink = opened(tmp_path / "t")
    sink.commit(1, [flushed(sink, spark.range(2), 0)])
    properties = {"delta.setTransactionRetentionDuration": "interval 7 days"}
    deltalake.DeltaTable(str(tmp_path / "t")).alter.set_table_properties(properties)
    with pytest.raises(
        SinkError, match=r"keep the property delta\.setTransactionRetentionDuration"
    ):
        DeltaTable(str(tmp_path / "t")).check(sink_context())


def test_clean_deletes_nothing_if_delta_rs_does_not_see_the_table(spark, tmp_path, monkeypatch):
    """Without access to the log, committed files would look like orphans."""
    sink = opened(tmp_path / "t")
    sink.commit(1, [flushed(sink, spark.range(2), 0)])
    monkeypatch.setattr(deltalake.DeltaTable, "is_deltatable", lambda *_: False)
    blind = DeltaTable(str(tmp_path / "t"))
    blind.open(sink_context(attempt=2))
    with pytest.raises(SinkError, match="does not see, so nothing is deleted"):
        blind.clean(2)
    assert column(tmp_path / "t") == [0, 1]


def test_relative_paths_are_made_absolute_when_the_sink_is_made(tmp_path, monkeypatch):
    """A later change of the working directory moves no table."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t").write_text("1")
    sink = DeltaTable("t")
    monkeypatch.chdir("/")
    with pytest.raises(SinkError, match=r"DeltaTable\('t'\) is a file"):
        sink.check(sink_context())


@pytest.mark.parametrize("character", ["\n", "\t", "\x7f", "\\"])
def test_a_character_that_delta_rs_cannot_read_in_a_path_is_refused(tmp_path, character):
    """When the sink is created, not in every attempt."""
    with pytest.raises(SinkError, match="since delta-rs misreads"):
        DeltaTable(f"{tmp_path}/a{character}b")


def test_a_percent_sign_in_the_path_is_refused(tmp_path):
    """delta-rs decodes it and would write the log next to the files."""
    with pytest.raises(SinkError, match="misreads '%'"):
        DeltaTable(str(tmp_path / "a%20b"))


def test_vacuum_finds_what_nobody_cleaned(spark, tmp_path):
    """Orphans have visible names, so Delta's own VACUUM lists exactly those."""
    sink = opened(tmp_path / "t")
    sink.commit(1, [flushed(sink, spark.range(0, 2, 1, 2), 0)])
    orphan = staged(sink, spark.range(3), 1)
    table = deltalake.DeltaTable(str(tmp_path / "t"))
    listed = table.vacuum(
        retention_hours=0, dry_run=True, enforce_retention_duration=False, full=True
    )
    visible = [path for path in listed if not Path(path).name.startswith(".")]
    assert sorted(visible) == [
        f"{orphan['directory']}/1/{file['path']}" for file in orphan["files"]
    ]
