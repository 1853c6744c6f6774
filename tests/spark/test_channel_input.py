"""A query that reads another query's output with its watermark (P7, P25).

A few lines here stand in for the driver.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StructField, StructType, TimestampType
from tests.kit.rig import START, Landing, Rows
from tests.kit.waiting import PATIENCE_S, wait_until

from weir.core.messages.channel import Segment
from weir.errors import PipelineError
from weir.spark.channels import (
    EVENT_TIME,
    ChannelSource,
    OutputSegments,
    channel_frame,
    check_channel_schema,
    plain_schema,
)
from weir.spark.control_input import CHANNEL_SCHEMA, ControlInput, PlanningAnswer, PlanningRounds
from weir.spark.java import Jvm
from weir.spark.query.output_watermark import output_watermark_ms
from weir.spark.state.directory import SPARK_MAX_WATERMARK_MS, QueryDirectory
from weir.storage.local import LocalFileSystem

pytestmark = pytest.mark.spark

SCHEMA = StructType([StructField("id", LongType()), StructField("ts", TimestampType())])
START_S = int(START.timestamp())


class Running:
    """One run of a query, driven by the test: one planning call at a time."""

    def __init__(self, session: SparkSession, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.session = session
        self.path = path
        self.directory = QueryDirectory(LocalFileSystem(), str(path))
        self.steps: dict[int, list[tuple[Any, ...]]] = {}
        self.channels: list[ChannelSource] = []
        self._query: StreamingQuery | None = None
        self._calls = 0
        self._changed = threading.Condition()
        self._jvm = Jvm(session)
        self._rounds = PlanningRounds(self._planned)

    @property
    def query(self) -> StreamingQuery:
        """The query once it has started."""
        assert self._query is not None
        return self._query

    def control(self, schema: StructType = CHANNEL_SCHEMA) -> DataFrame:
        """The control input of this run."""
        return ControlInput(self._jvm, schema, self._rounds).frame()

    def channel(self, schema: StructType, control: DataFrame | None = None) -> DataFrame:
        """The next channel of this run."""
        index = len(self.channels)
        source = ChannelSource(self._jvm, f"c{index}", plain_schema(schema), self._rounds)
        self.channels.append(source)
        control = self.control() if control is None else control
        return channel_frame(control, source.frame(), index=index, schema=schema)

    def admit(self, position: int, files: Iterable[Path], index: int = 0) -> None:
        """Let the next batch read the files of a segment."""
        self.channels[index].admit(position, [f"file://{file}" for file in files])

    def start(
        self, frame: DataFrame, stage: Callable[[DataFrame, int], None] | None = None
    ) -> Running:
        """Run to the first planning call; keep the query's rows unless ``stage`` takes them."""
        writer = frame.writeStream.foreachBatch(stage or self._keep).outputMode("append")
        self._query = writer.option("checkpointLocation", str(self.path)).start()
        self._wait()
        return self

    def step(self, watermarks: Mapping[int, int] | None = None) -> int:
        """Answer the waiting call; return the newest position once the next call has come."""
        self._rounds.reply(PlanningAnswer(watermarks_ms=watermarks or {}))
        self._wait()
        return max(int(path.name) for path in (self.path / "commits").glob("[0-9]*"))

    def rows(self) -> Rows:
        """All rows of all batches."""
        return Counter(row for rows in self.steps.values() for row in rows)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self._query is not None:
            stop = threading.Thread(target=self._query.stop)
            stop.start()
            wait_until(lambda: not self._query.isActive, "the query is being stopped")
            self._rounds.release()
            stop.join()

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self.steps[batch] = [tuple(row) for row in frame.collect()]

    def _planned(self) -> None:
        with self._changed:
            self._calls += 1
            self._changed.notify_all()

    def _wait(self) -> None:
        with self._changed:
            called = partial(self._changed.wait_for, lambda: self._calls > 0, 0.2)
            waited = 0.0
            while not called():
                waited += 0.2
                if not self.query.isActive:
                    raise AssertionError(str(self.query.exception()))
                assert waited < PATIENCE_S, "no planning call came"
            self._calls = 0


def segment(frame: DataFrame, path: Path) -> list[Path]:
    """Write rows as Spark writes a batch; return the files."""
    frame.write.parquet(str(path))
    return sorted(path.glob("*.parquet"))


# -- watermarks ------------------------------------------------------------------------------------


def joined(left: DataFrame, right: DataFrame) -> DataFrame:
    """Each row with the even numbers near in time: an odd row is emitted half a minute late."""
    lefts = left.withWatermark("ts", "20 seconds").alias("l")
    evens = right.filter("id % 2 = 0").withWatermark("ts", "20 seconds").alias("r")
    near = "l.id = r.id AND r.ts BETWEEN l.ts - INTERVAL 30 SECONDS AND l.ts + INTERVAL 30 SECONDS"
    return lefts.join(evens, F.expr(near), "leftOuter").select(
        "l.ts", "l.id", F.col("r.id").alias("other")
    )


def counted(frame: DataFrame) -> DataFrame:
    """Rows and matches by minute.

    The filter is false on nulls, which must not hide the watermark.
    """
    minutes = frame.filter("id >= 0").groupBy(F.window("ts", "1 minute"))
    start = F.col("window.start").cast("long").alias("start")
    return minutes.agg(F.count("*").alias("n"), F.count("other").alias("m")).select(start, "n", "m")


def produced(spark: SparkSession, tmp_path: Path, landing: Landing) -> dict[int, int | None]:
    """Run the join, one file and one segment per batch; return the output watermark after each."""
    watermarks: dict[int, int | None] = {}
    with Running(spark, tmp_path / "producer") as run:
        source = landing.source(spark)
        frame = joined(run.control(source.schema).union(source), landing.source(spark))
        run.start(
            frame, lambda rows, batch: rows.write.parquet(str(tmp_path / "segments" / str(batch)))
        )
        for _ in range(4):
            position = run.step()
            watermark = run.directory.commit_entry(position).next_watermark_ms
            watermarks[position] = output_watermark_ms(run.query, watermark, stateful=True)
            assert watermarks[position] is None or watermarks[position] < watermark - 30_000
            assert output_watermark_ms(run.query, 0, stateful=True) is None
    return watermarks


@pytest.mark.slow
def test_a_windowed_count_after_a_channel_keeps_what_an_outer_join_emits_late(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Cut after the join and restarted in the middle, it equals the batch computation, row for row
    (P25)."""
    landing = Landing(tmp_path / "in")
    landing.land(4)
    watermarks = produced(spark, tmp_path, landing)
    assert list(watermarks) == [0, 1, 2, 3]
    assert watermarks[0] is None
    rows, newest, dropped = Rows(), 0, 0
    schema = joined(landing.source(spark), landing.source(spark)).schema
    for positions in ([0, 1], [2, 3]):
        with Running(spark, tmp_path / "consumer") as run:
            frame = run.channel(schema)
            assert [(field.name, field.dataType) for field in frame.schema] == [
                (field.name, field.dataType) for field in schema
            ]
            run.start(counted(frame))
            for position in positions:
                files = sorted((tmp_path / "segments" / str(position)).glob("*.parquet"))
                times = [
                    int(one.timestamp())
                    for file in files
                    for one in pq.read_table(file)["ts"].to_pylist()
                ]
                dropped += sum(time // 60 * 60 + 60 <= newest - 20 for time in times)
                newest = max(newest, *times)
                run.admit(position, files)
                ms = watermarks[position]
                run.step({} if ms is None else {0: ms})
            if positions[-1] == 3:
                run.step({0: SPARK_MAX_WATERMARK_MS})
                run.step()
            rows += run.rows()
    assert dropped > 0, (
        "a watermark derived again from the rows would have lost nothing: a weak test"
    )
    table = landing.table(spark)
    expected = Counter(tuple(row) for row in counted(joined(table, table)).collect())
    # The producer emitted everything before its last watermark, which closed four minutes.
    cut = START_S + 4 * 60
    assert {row: n for row, n in rows.items() if row[0] < cut} == {
        row: n for row, n in expected.items() if row[0] < cut
    }
    assert len(rows) > 4


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_join_of_two_channels_loses_no_row_when_one_has_none_in_a_batch(
    spark: SparkSession, tmp_path: Path, first: int
) -> None:
    """If the optimizer sees only nulls, it concludes that the other side's key is null too."""
    ids = [
        StructField("id", LongType()),
        StructField("ts", TimestampType(), True, {EVENT_TIME: 60_000}),
    ]
    rows = spark.range(10).selectExpr("id", f"timestamp_seconds({START_S} + id) AS ts")
    files = [segment(rows, tmp_path / name) for name in ("left", "right")]
    with Running(spark, tmp_path / "consumer") as run:
        control = run.control()
        left, right = (run.channel(StructType(ids), control) for _ in files)
        other = right.withColumnsRenamed({"id": "other", "ts": "at"})
        run.start(left.join(other, F.expr("id = other AND ts = at")).select("id"))
        for index in (first, 1 - first):
            run.admit(0, files[index], index)
            run.step()
        assert run.rows() == Counter({(one,): 1 for one in range(10)})


def test_a_channel_that_has_ended_holds_back_no_other_and_windows_keep_their_event_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Minutes from two channels, one ended at once, and from a channel without a watermark, counted
    by five minutes."""
    landing = Landing(tmp_path / "in")
    landing.land(6)

    def minutes(frame: DataFrame) -> DataFrame:
        windows = frame.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "1 minute"))
        return windows.agg(F.count("*").alias("n"))

    schema = minutes(landing.source(spark)).schema
    table = minutes(landing.table(spark))
    early = segment(
        table.filter(f"window.start < timestamp_seconds({START_S + 300})"), tmp_path / "early"
    )
    late = segment(
        table.filter(f"window.start >= timestamp_seconds({START_S + 300})"), tmp_path / "late"
    )
    names = segment(spark.range(1), tmp_path / "names")
    with Running(spark, tmp_path / "consumer") as run:
        control = run.control()
        first, second = (run.channel(schema, control) for _ in range(2))
        plain = run.channel(spark.range(0).schema, control)
        fives = (
            first.union(second)
            .groupBy(F.window(F.window_time("window"), "5 minutes"))
            .agg(F.sum("n"))
        )
        ids = plain.select(-F.col("id") - 1, "id")
        run.start(fives.select(F.col("window.start").cast("long") - START_S, "sum(n)").union(ids))
        run.admit(0, early, 0)
        run.admit(0, names, 2)
        run.step({0: SPARK_MAX_WATERMARK_MS, 1: (START_S + 60) * 1000})
        run.step({1: (START_S + 299) * 1000})
        assert run.rows() == Counter([(-1, 0)])
        run.admit(0, late, 1)
        run.step({1: (START_S + 600) * 1000})
        run.step()
        assert run.rows() == Counter([(-1, 0), (0, 30), (300, 30)])
        run.step({1: SPARK_MAX_WATERMARK_MS})
        run.step()
    assert run.rows() == Counter([(-1, 0), (0, 30), (300, 30), (600, 12)])


def test_the_control_input_reports_what_rose_and_in_a_new_run_everything(
    spark: SparkSession, tmp_path: Path
) -> None:
    """To the millisecond in any time zone; a run's first batch needs no trigger, a replayed batch
    is the same (P25)."""

    def watermark_rows(run: Running) -> list[list[tuple[Any, ...]]]:
        run.start(run.control().select("channel", F.unix_millis("watermark")))
        answers: list[dict[int, int]] = [{}, {0: 1_000}, {0: 999, 1: SPARK_MAX_WATERMARK_MS}, {}]
        for answer in answers:
            run.step(answer)
        assert output_watermark_ms(run.query, 5, stateful=False) == 5
        return [sorted(run.steps[position]) for position in sorted(run.steps)]

    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        with Running(spark, tmp_path / "query") as run:
            assert watermark_rows(run) == [[], [(0, 1_000)], [(1, SPARK_MAX_WATERMARK_MS)]]
        everything = [(0, 1_000), (1, SPARK_MAX_WATERMARK_MS)]
        with Running(spark, tmp_path / "query") as run:
            assert watermark_rows(run) == [everything]
        (tmp_path / "query" / "commits" / "3").unlink()
        with Running(spark, tmp_path / "query") as run:
            assert watermark_rows(run) == [everything]
            assert list(run.steps) == [3]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


# -- rows ------------------------------------------------------------------------------------------

EVERY_TYPE = """
    cast(1 as byte) `a.b`, cast(-2 as short) `with space`, 3 `quo``te`, 4L `ünï ;,{}()=`,
    cast('NaN' as float) f, -0.0D d,
    cast('12345678901234567890.123456789012345678' as decimal(38,18)) de,
    'x' s, X'00FF' bi, true bo,
    date'0001-01-01' old, date'1582-10-15' da, timestamp'1850-01-01 00:00:00.123456Z' t1,
    timestamp'0001-01-03 00:00:00Z' t2, timestamp_ntz'1800-05-05 01:02:03.000001' t3,
    timestamp_ntz'9999-12-31 23:59:59.999999' t4, 'x' collate UNICODE_CI co,
    parse_json('{"a": [1, null]}') va,
    array(named_struct('x y', 1, 'z.w', array(cast(null as string)))) ar,
    map('k', cast(null as int)) ma,
    named_struct('in', named_struct('deep', decimal(1.5))) st,
    cast(null as string) nu, 1 channel, 2 watermark
"""


def test_rows_of_every_type_and_column_name_arrive_as_they_were(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nested, exact decimals, times before 1900 with and without zone, nulls, variants, names with
    dots and quotes."""
    rows = spark.sql(f"select {EVERY_TYPE}")
    check_channel_schema("every", rows.schema)
    with Running(spark, tmp_path / "consumer") as run:
        frame = run.channel(rows.schema)
        assert frame.dtypes == rows.dtypes
        run.start(frame)
        run.admit(7, segment(rows, tmp_path / "segment"))
        run.step()
        assert run.channels[0].consumed == 7
    assert [str(row) for row in run.steps[0]] == [str(tuple(row)) for row in rows.collect()]


@pytest.mark.parametrize(
    "ddl",
    [
        "i interval",
        "i interval day",
        "a array<interval year>",
        "n void",
        "m map<string, time>",
        "s struct<>",
    ],
)
def test_a_column_that_cannot_travel_is_refused_by_name(spark: SparkSession, ddl: str) -> None:
    """The error names the step, the column and the way out."""
    column = ddl.split(maxsplit=1)[0]
    with pytest.raises(
        PipelineError, match=rf"Column '{column}' of step 'made' .* cast the column, or drop"
    ):
        check_channel_schema("made", StructType.fromDDL(f"id long, {ddl}"))


def test_names_that_differ_by_case_only_are_refused(spark: SparkSession) -> None:
    """Spark could not distinguish them in the files."""
    with pytest.raises(PipelineError, match="two columns named 'id'"):
        check_channel_schema("made", StructType.fromDDL("id long, ID long"))


# -- offsets ---------------------------------------------------------------------------------------


def test_a_consumer_reads_exactly_what_is_admitted_and_a_restored_one_reads_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its offset is the position, no other log exists, and committed segments may be deleted (P3,
    P7)."""
    landing = Landing(tmp_path / "in", rows_per_file=2)
    landing.land(10)
    admitted: list[list[int]] = [[0], [1, 2, 3], [7], [8, 9]]
    for half in (admitted[:2], admitted[2:]):
        with Running(spark, tmp_path / "query") as run:
            run.start(run.channel(SCHEMA))
            assert run.channels[0].consumed is None
            for positions in half:
                for position in positions:
                    run.admit(position, [landing.path(position)])
                newest = run.step()
                assert sorted(row[0] for row in run.steps[newest]) == landing.ids(*positions)
                assert run.channels[0].consumed == positions[-1]
                for position in positions:
                    landing.path(position).unlink()
        offsets = (tmp_path / "query" / "offsets" / str(newest)).read_text().splitlines()
        assert json.loads(offsets[-1]) == {"channel": "c0", "position": half[-1][-1]}
        assert not (tmp_path / "query" / "sources").exists()


def test_spark_reads_of_a_segment_only_what_the_query_uses(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Columns are pruned and filters pushed down, as for Spark's own file source."""
    plans: list[str] = []

    def stage(rows: DataFrame, batch: int) -> None:
        rows.collect()
        plans.append(
            rows.sparkSession._jvm.PythonSQLUtils.explainString(
                run.query._jsq.streamingQuery().lastExecution(), "formatted"
            )
        )

    rows = spark.range(10).selectExpr("id", "id % 3 AS third", "'x' AS unused")
    with Running(spark, tmp_path / "query") as run:
        run.start(run.channel(rows.schema).filter("third = 1").select("id"), stage)
        run.admit(0, segment(rows, tmp_path / "segment"))
        run.step()
    assert "EqualTo(third,1)" in plans[0]
    assert "unused" not in plans[0].split("ReadSchema:")[1].splitlines()[0]


def test_a_channel_read_twice_by_one_query_is_one_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A stream joined with itself appears twice in the plan, and both read at the same position."""
    rows = spark.range(10)
    with Running(spark, tmp_path / "query") as run:
        once = run.channel(rows.schema)
        run.start(once.alias("a").join(once.alias("b"), F.expr("a.id = b.id")).select("a.id"))
        for position in range(2):
            part = rows.filter(f"id % 2 = {position}")
            run.admit(position, segment(part, tmp_path / str(position)))
            run.step()
    assert run.rows() == Counter({(one,): 1 for one in range(10)})


def test_six_channels_are_read_at_what_one_answer_admits(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With more than four sources Spark asks in the order of a hash map; each batch is still exact
    (P7)."""
    with Running(spark, tmp_path / "query") as run:
        control = run.control()
        frames = [run.channel(spark.range(0).schema, control) for _ in range(6)]
        run.start(functools.reduce(DataFrame.union, frames))
        for position in range(3):
            expected = []
            for index in range(6):
                one = position * 10 + index
                run.admit(position, segment(spark.range(one, one + 1), tmp_path / str(one)), index)
                expected.append(one)
            newest = run.step()
            assert sorted(row[0] for row in run.steps[newest]) == expected


def test_the_directory_of_an_empty_batch_is_deleted_at_the_next_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Otherwise a step whose output stays empty would leave a directory for each batch."""
    output = OutputSegments(LocalFileSystem(), str(tmp_path))

    def written(rows: int, position: int) -> Segment | None:
        output.write(spark.range(rows), position)
        return output.segment(position, None)

    assert [written(0, position) for position in range(3)] == [None] * 3
    assert written(5, 3) is not None
    assert written(0, 4) is None
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["3", "4"]
    output.release(4)
    assert written(5, 5) is not None
    assert [entry.name for entry in tmp_path.iterdir()] == ["5"]


def test_what_was_set_aside_is_a_file_of_its_own(tmp_path: Path) -> None:
    """A segment may have nothing else; without it there is none, and a release deletes it."""
    output = OutputSegments(LocalFileSystem(), str(tmp_path), has_rows=False, has_rejects=True)
    assert output.segment(1, None) is None
    segment = output.segment(2, b"rows")
    assert segment is not None
    assert segment.payload["files"] == [str(tmp_path / "2-rejects.parquet")]
    assert (tmp_path / "2-rejects.parquet").read_bytes() == b"rows"
    output.release(2)
    assert list(tmp_path.iterdir()) == []


def test_a_segment_whose_file_has_vanished_fails_the_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark would list it as no file, and its rows would be silently missing."""
    with Running(spark, tmp_path / "query") as run:
        run.start(run.channel(SCHEMA))
        run.admit(0, [tmp_path / "gone.parquet"])
        with pytest.raises(
            AssertionError, match=r"Files of channel 'c0' are missing: .*gone\.parquet"
        ):
            run.step()


def test_sinks_never_get_less_than_the_whole_segment(spark: SparkSession, tmp_path: Path) -> None:
    """The user's settings let sources skip unreadable files, but these are not the sources."""
    segments = OutputSegments(LocalFileSystem(), str(tmp_path))
    skipping = ("ignoreCorruptFiles", "ignoreMissingFiles")
    for name in skipping:
        spark.conf.set(f"spark.sql.files.{name}", "true")
    try:
        frame = spark.range(4).coalesce(1)
        segments.write(frame, 0)
        assert segments.read(frame, 0).count() == 4
        [file] = (tmp_path / "0").glob("part-*")
        file.write_bytes(file.read_bytes()[:40])
        with pytest.raises(Exception, match=re.escape(file.name)):
            segments.read(frame, 0).collect()
    finally:
        for name in skipping:
            spark.conf.unset(f"spark.sql.files.{name}")


def test_a_checkpoint_that_knows_no_position_of_the_channel_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The error is one sentence, and no row is read from the wrong position."""
    landing = Landing(tmp_path / "in")
    landing.land(1)
    with Running(spark, tmp_path / "query") as run:
        run.start(run.channel(SCHEMA))
        run.admit(0, [landing.path(0)])
        run.step()
    entry = tmp_path / "query" / "offsets" / "0"
    entry.write_text(entry.read_text().replace('"channel": "c0", "position"', '"logOffset"'))
    with (
        Running(spark, tmp_path / "query") as run,
        pytest.raises(AssertionError, match="reads channel 'c0', but its checkpoint says"),
    ):
        run.start(run.channel(SCHEMA))
        run.step()
