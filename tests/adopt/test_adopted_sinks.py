"""Which sink a script's query gets: its rows beside the same computed as a batch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.kit.live_job import RESTARTED, LiveJob, RaiseOnce, numbers, settings
from tests.kit.place import Place
from tests.kit.started_queries import started
from tests.kit.waiting import wait_until

import weir
from weir.adopt.outputs.calls import commit_interval
from weir.adopt.outputs.sinks import AdoptedSink, sink_of
from weir.core.status import JobStatus
from weir.spark.adopt.query import Trigger, TriggerKind

pytestmark = pytest.mark.spark

Rows = Counter[Any]
Plan = Callable[[DataFrame], DataFrame]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A directory with three files of numbers."""
    made = Place(tmp_path)
    made.land(3)
    return made


def as_it_is(frame: DataFrame) -> DataFrame:
    return frame.select("id", (F.col("id") % 3).alias("part"))


def totals(frame: DataFrame) -> DataFrame:
    """One row for each of seven keys."""
    keyed = frame.select((F.col("id") % 7).alias("key"), "id")
    return keyed.groupBy("key").agg(F.sum("id").alias("total"))


def adopted(place: Place, spark: SparkSession, plan: Plan = as_it_is, **asked: Any) -> AdoptedSink:
    """The sink of a query over the place's numbers; the rows of ``totals`` have the key ``key``."""
    query = started(plan(numbers(place)(spark)), **asked)
    return sink_of(
        query,
        uid="totals-1a2b",
        updates=query.output_mode != "append",
        keys=("key",) if plan is totals else None,
        directory=str(place.directory / "sinks"),
    )


def job_of(place: Place, sink: AdoptedSink, plan: Plan, *, bounded: bool = True) -> weir.Job:
    job = weir.Job("script")
    mode: Any = "update" if plan is totals else "append"
    stream = job.source("numbers", numbers(place), bounded=bounded)
    stream.transform("totals", plan, output_mode=mode).sink("totals_rows", sink.sink)
    return job


def run(place: Place, sink: AdoptedSink, plan: Plan = as_it_is) -> None:
    """Run the job to its end, through a restart if the sink raises."""
    conf = settings(place, RESTARTED, interval="200ms")
    with LiveJob(job_of(place, sink, plan), conf) as live:
        result = live.result()
        assert result.status is JobStatus.FINISHED, result.failure


def expected(place: Place, spark: SparkSession, plan: Plan = as_it_is) -> Rows:
    """The same plan as a batch computation."""
    return rows_of(plan(spark.read.parquet(str(place.directory / "in"))))


def rows_of(frame: DataFrame) -> Rows:
    return Counter(tuple(row) for row in frame.collect())


# -- files and tables ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "options"),
    [
        ("parquet", {}),
        ("json", {}),
        ("csv", {"header": "true", "sep": ";"}),
        ("orc", {"compression": "zlib"}),
    ],
)
def test_a_format_of_files_is_written_with_its_options(place, spark, written, options):
    """Partitioned, by Spark's own writer, and read by Spark."""
    path = str(place.directory / "out")
    sink = adopted(
        place, spark, format=written, options={"path": path, **options}, partition_by=("part",)
    )
    assert sink.says == ()
    run(place, sink)
    found = spark.read.format(written).options(**options).schema("id long, part long").load(path)
    assert rows_of(found) == expected(place, spark)


def test_text_is_written_as_lines(place, spark):
    """A query without a name is named by its step."""
    path = str(place.directory / "out")

    def lines(frame: DataFrame) -> DataFrame:
        return frame.select(F.col("id").cast("string").alias("value"))

    options = {"path": path, "retention": "1 day"}
    sink = adopted(place, spark, lines, format="text", options=options, name=None)
    assert sink.says == (
        "Query 'totals-1a2b' (script.py, line 12): the option 'retention' has no effect under"
        " Weir.",
    )
    run(place, sink, lines)
    assert rows_of(spark.read.text(path)) == expected(place, spark, lines)


def test_a_query_without_a_format_writes_the_sessions_default(place, spark):
    """Parquet, unless the session says otherwise."""
    path = str(place.directory / "out")
    assert adopted(place, spark, options={"path": path}).sink.describe().endswith("'parquet')")
    spark.conf.set("spark.sql.sources.default", "json")
    try:
        assert adopted(place, spark, options={"path": path}).sink.describe().endswith("'json')")
    finally:
        spark.conf.unset("spark.sql.sources.default")


def test_a_delta_table_gets_each_row_once(place, spark):
    """And the columns of ``partitionBy``; options that change no row are said."""
    path = str(place.directory / "out")
    options = {"path": path, "mergeschema": "true", "optimizewrite": "true"}
    sink = adopted(place, spark, format="delta", options=options, partition_by=("part",))
    (said,) = sink.says
    assert "'optimizewrite' has no effect" in said
    run(place, sink)
    table = deltalake.DeltaTable(path)
    assert table.metadata().partition_columns == ["part"]
    found = Counter((row["id"], row["part"]) for row in table.to_pyarrow_table().to_pylist())
    assert found == expected(place, spark)


def test_a_delta_table_in_complete_mode_has_the_newest_row_of_each_key(place, spark):
    """The step emits updates, which are merged by the aggregation's keys."""
    path = str(place.directory / "out")
    sink = adopted(
        place, spark, totals, format="delta", options={"path": path}, output_mode="complete"
    )
    run(place, sink, totals)
    rows = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
    assert Counter((row["key"], row["total"]) for row in rows) == expected(place, spark, totals)


def test_another_format_is_written_by_its_batch_writer_and_that_is_said(place, spark):
    """XML: at least once."""
    path = str(place.directory / "out")
    options = {"path": path, "rowtag": "row"}
    sink = adopted(place, spark, format="xml", options=options)
    assert sink.says == (
        "Query 'totals' (script.py, line 12): format 'xml' is written by Spark's batch writer, at"
        " least once: if the process is killed while a batch is written, its rows come again.",
    )
    run(place, sink)
    found = spark.read.format("xml").option("rowTag", "row").schema("id long, part long")
    assert rows_of(found.load(path)) == expected(place, spark)


def test_noop_takes_rows_and_says_nothing(place, spark):
    """Benchmarks write to it."""
    sink = adopted(place, spark, format="noop")
    assert sink.says == ()
    run(place, sink)


# -- functions -------------------------------------------------------------------------------------


class Batches:
    """A script's function: keeps what it gets, and fails once after its effect."""

    def __init__(self) -> None:
        self.had: list[tuple[int, Rows]] = []
        self.fail = RaiseOnce(OSError("the network is away"))

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.had.append((batch_id, rows_of(frame)))
        if batch_id == 1:
            self.fail()

    def once(self) -> list[Rows]:
        """The batches by their ids; fails unless ids count from 0 and name the same rows."""
        known: dict[int, Rows] = {}
        for batch_id, rows in self.had:
            assert known.setdefault(batch_id, rows) == rows
        assert list(known) == list(range(len(known)))
        assert len(self.had) == len(known) + 1
        return list(known.values())


def test_foreach_batch_is_called_with_each_batch_once_by_its_id(place, spark):
    """A call that failed is repeated with the same rows, and that it may be is said."""
    batches = Batches()
    sink = adopted(place, spark, each_batch=batches)
    (said,) = sink.says
    assert said.startswith("Query 'totals' (script.py, line 12): Batches is called with")
    assert "may come twice: use batch_id" in said
    run(place, sink)
    assert sum(batches.once(), Rows()) == expected(place, spark)


def test_foreach_batch_in_update_mode_gets_the_rows_that_changed(place, spark):
    """A key comes once in a batch, and its newest row is the result."""
    batches = Batches()
    run(place, adopted(place, spark, totals, each_batch=batches, output_mode="update"), totals)
    newest: dict[int, int] = {}
    for rows in batches.once():
        found = dict(rows.elements())
        assert len(found) == rows.total()
        newest |= found
    assert Counter(newest.items()) == expected(place, spark, totals)


@pytest.mark.parametrize("plan", [as_it_is, totals])
def test_with_an_interval_foreach_batch_is_called_once_for_all_that_came(place, spark, plan):
    """As Spark makes one batch of it; of updates it gets the newest row of each key."""
    calls: list[tuple[int, Rows]] = []
    sink = adopted(
        place,
        spark,
        plan,
        each_batch=lambda frame, batch_id: calls.append((batch_id, rows_of(frame))),
        output_mode="append" if plan is as_it_is else "update",
        trigger=Trigger(kind=TriggerKind.PROCESSING_TIME, interval="1 hour"),
    )
    assert sink.min_commit_interval == "3600000 ms"
    # Without checkpoints, the end of the input commits everything in one epoch.
    with LiveJob(job_of(place, sink, plan), settings(place)) as live:
        assert live.result().status is JobStatus.FINISHED
    assert calls == [(0, expected(place, spark, plan))]


def test_foreach_batch_in_complete_mode_gets_the_whole_result(place, spark):
    """Each call has at least the keys of the call before, and the last one has the result."""
    batches = Batches()
    run(place, adopted(place, spark, totals, each_batch=batches, output_mode="complete"), totals)
    calls = [dict(rows.elements()) for rows in batches.once()]
    assert all(old.keys() <= new.keys() for old, new in pairwise(calls))
    assert Counter(calls[-1].items()) == expected(place, spark, totals)


def writer(directory: Path) -> Any:
    """An object for ``foreach`` that writes what happens to it to files; its class is local, since
    workers cannot import this module."""

    class Writer:
        def open(self, partition_id: int, epoch_id: int) -> bool:
            self.file = (directory / f"{epoch_id}-{partition_id}.jsonl").open("a")
            self.note(["open"])
            return True

        def process(self, row: Any) -> None:
            self.note(["row", row.id, row.part])

        def close(self, error: Exception | None) -> None:
            self.note(["close", None if error is None else str(error)])
            self.file.close()

        def note(self, event: list[Any]) -> None:
            self.file.write(json.dumps(event) + "\n")

    return Writer()


def test_foreach_opens_and_closes_its_object_around_the_rows(place, spark, tmp_path):
    """In Spark's workers, with the number of the partition and of the batch."""
    events = tmp_path / "events"
    events.mkdir()
    sink = adopted(place, spark, each_row=writer(events))
    assert "passed again, with the same epoch_id" in sink.says[0]
    run(place, sink)
    found: Rows = Rows()
    for file in events.iterdir():
        first, *rows, last = map(json.loads, file.read_text().splitlines())
        assert (first, last) == (["open"], ["close", None])
        found.update((row[1], row[2]) for row in rows)
    assert found == expected(place, spark)


@pytest.mark.parametrize("opens", [True, False])
def test_foreach_skips_what_open_refuses_and_closes_with_the_error(spark, tmp_path, opens):
    """As in Spark: close is called in any case."""
    from weir.spark.adopt.rows import row_by_row

    file = tmp_path / "events"

    class Failing:
        def open(self, partition_id: int, epoch_id: int) -> bool:
            file.write_text(f"{partition_id} {epoch_id}")
            return opens

        def process(self, row: Any) -> None:
            raise ValueError(f"row {row.id}")

        def close(self, error: Exception | None) -> None:
            file.write_text(f"{file.read_text()} {error}")

    write = row_by_row(Failing())
    frame = spark.range(5, 6).coalesce(1)
    if opens:
        with pytest.raises(Exception, match="row 5"):
            write(frame, 3)
    else:
        write(frame, 3)
    assert file.read_text() == f"0 3 {'row 5' if opens else None}"


def test_foreach_takes_a_function(spark, tmp_path):
    """It is called with each row."""
    from weir.spark.adopt.rows import row_by_row

    row_by_row(lambda row: (tmp_path / str(row.id)).touch())(spark.range(3), 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


# -- console and memory ----------------------------------------------------------------------------


def test_the_console_shows_each_batch_as_spark_does(place, spark, capsys):
    """Batches count from 0; numRows and truncate are Spark's."""

    def wide(frame: DataFrame) -> DataFrame:
        return frame.where("id in (0, 1, 2)").select(F.repeat(F.lit("x"), 25).alias("text"))

    sink = adopted(place, spark, wide, format="console", options={"numrows": "2"})
    assert sink.says == ()
    run(place, sink, wide)
    rule = "-" * 43
    line = "+--------------------+"
    assert capsys.readouterr().out == "\n".join(
        [
            *(rule, "Batch: 0", rule, line, "|                text|", line),
            *("|xxxxxxxxxxxxxxxxx...|", "|xxxxxxxxxxxxxxxxx...|", line),
            *("only showing top 2 rows", ""),
        ]
    )


def test_the_console_in_complete_mode_shows_the_sorted_result(place, spark, capsys):
    """All keys, in the order that the script asks for, though the step emits what changed."""
    sink = adopted(
        place,
        spark,
        lambda frame: totals(frame).orderBy(F.desc("key")),
        format="console",
        output_mode="complete",
    )
    assert sink.says != ()
    by_key = sink_of(
        started(
            totals(numbers(place)(spark)).orderBy(F.desc("key")),
            format="console",
            output_mode="complete",
        ),
        uid="totals",
        updates=True,
        keys=("key",),
        directory=str(place.directory / "sinks"),
    )
    run(place, by_key, totals)
    printed = capsys.readouterr().out
    last = printed.split("Batch: ")[-1]
    shown = [
        tuple(map(int, line.strip("|").split("|")))
        for line in last.split("\n")
        if "|" in line and "key" not in line
    ]
    assert Counter(shown) == expected(place, spark, totals)
    assert [key for key, _ in shown] == [6, 5, 4, 3, 2, 1, 0]


def test_a_memory_table_has_what_is_committed_also_after_a_restart(place, spark):
    """It is empty when the job starts, and full again in another process, before new rows."""
    asked = {"format": "memory", "name": "seen"}
    conf = settings(place, RESTARTED, interval="200ms")
    with LiveJob(job_of(place, adopted(place, spark, **asked), as_it_is, bounded=False), conf):
        wait_until(lambda: "seen" in views(spark), "the view is there")
        complete = expected(place, spark)
        wait_until(lambda: rows_of(spark.table("seen")) == complete, "every row is committed")
    spark.catalog.dropTempView("seen")
    place.land(1)
    again = job_of(place, adopted(place, spark, **asked), as_it_is, bounded=False)
    with LiveJob(again, conf):
        wait_until(lambda: "seen" in views(spark), "the view is there")
        assert rows_of(spark.table("seen")) >= complete
        complete = expected(place, spark)
        wait_until(lambda: rows_of(spark.table("seen")) == complete, "every row is committed")


def test_a_memory_table_in_complete_mode_has_the_newest_row_of_each_key(place, spark):
    """Also after a restart, when only some keys change."""
    asked = {"format": "memory", "name": "result", "output_mode": "complete"}
    conf = settings(place, RESTARTED, interval="200ms")
    for _ in range(2):
        sink = adopted(place, spark, totals, **asked)
        with LiveJob(job_of(place, sink, totals, bounded=False), conf):
            wait_until(lambda: "result" in views(spark), "the view is there")
            wait_until(
                lambda: rows_of(spark.table("result")) == expected(place, spark, totals),
                "every row is there",
            )
        spark.catalog.dropTempView("result")
        place.land(1)


@pytest.mark.parametrize("mode", ["append", "complete"])
def test_what_is_only_shown_begins_with_nothing_in_a_fresh_job(place, spark, mode):
    """And goes on in a job that starts from a savepoint, with the rows of the other."""
    plan = totals if mode == "complete" else as_it_is
    asked = {"format": "memory", "name": "seen", "output_mode": mode}
    conf = settings(place, RESTARTED, interval="200ms")

    def live(**options: Any) -> LiveJob:
        sink = adopted(place, spark, plan, **asked)
        return LiveJob(job_of(place, sink, plan, bounded=False), conf, **options)

    def shows(rows: Rows) -> None:
        wait_until(lambda: "seen" in views(spark), "the view is there")
        wait_until(lambda: rows_of(spark.table("seen")) == rows, "its rows are")

    with live() as first:
        shows(expected(place, spark, plan))
        savepoint = str(first.savepoint())
    spark.catalog.dropTempView("seen")
    place.land(1)
    with live(from_savepoint=savepoint):
        shows(expected(place, spark, plan))
    spark.catalog.dropTempView("seen")
    # Other input: a fresh job that kept rows would show those of before.
    for file in sorted((place.directory / "in").iterdir())[1:]:
        file.unlink()
    with live(fresh=True):
        shows(expected(place, spark, plan))
    spark.catalog.dropTempView("seen")


def views(spark: SparkSession) -> set[str]:
    return {table.name for table in spark.catalog.listTables()}


# -- triggers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ("10 seconds", "10000 ms"),
        ("1 minute", "60000 ms"),
        ("1 minute 30 seconds", "90000 ms"),
        ("INTERVAL 2 Hours", "7200000 ms"),
        ("500 milliseconds", "500 ms"),
        ("0 seconds", None),
        (None, None),
    ],
)
def test_a_trigger_becomes_the_interval_of_commits(interval, expected):
    """Reading goes on meanwhile."""
    trigger = Trigger(kind=TriggerKind.PROCESSING_TIME, interval=interval)
    assert commit_interval(trigger) == expected
