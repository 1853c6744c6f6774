"""One query reads what another one wrote, with its watermark (P7, P25): the blocks, with a driver of a few lines."""

from __future__ import annotations

import os
import shutil
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
from tests.spark.rig import PATIENCE_S, START, Landing, Rows

from weir.errors import ConfigurationError, PipelineError
from weir.spark.channel_input import EVENT_TIME, channel_frame, check_channel_schema
from weir.spark.control_input import CHANNEL_SCHEMA, ControlInput
from weir.spark.output_watermark import output_watermark_ms
from weir.spark.planning_server import PlanningServer
from weir.spark.query_directory import MAX_WATERMARK_MS, InboxLogs, QueryDirectory
from weir.state.local import LocalFileSystem

pytestmark = pytest.mark.spark

SCHEMA = StructType([StructField("id", LongType()), StructField("ts", TimestampType())])
START_S = int(START.timestamp())


class Running:
    """One run of a query; the test is its driver and answers one planning call at a time."""

    def __init__(self, session: SparkSession, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.session = session
        self.path = path
        self.directory = QueryDirectory(LocalFileSystem(), str(path))
        self.steps: dict[int, list[tuple[Any, ...]]] = {}
        self._query: StreamingQuery | None = None
        self._calls: list[int] = []
        self._changed = threading.Condition()
        self.server = PlanningServer(self._planned)

    @property
    def query(self) -> StreamingQuery:
        """The query, once it was started."""
        assert self._query is not None
        return self._query

    def control(self, schema: StructType | str = CHANNEL_SCHEMA) -> DataFrame:
        """The control input of this run."""
        source = ControlInput.of_vertex("tested")
        self.session.dataSource.register(source)
        options = {"directory": str(self.server.directory), "vertex": "tested", "attempt": "1"}
        return self.session.readStream.format(source.name()).schema(schema).options(**options).load()

    def start(self, frame: DataFrame, stage: Callable[[DataFrame, int], None] | None = None) -> Running:
        """Run the query up to its first planning call; its rows are kept unless ``stage`` takes them."""
        writer = frame.writeStream.foreachBatch(stage or self._keep).outputMode("append")
        self._query = writer.option("checkpointLocation", str(self.path)).start()
        self._wait()
        return self

    def step(self, watermarks: Mapping[int, int] | None = None) -> int:
        """Answer the call that waits; returns the newest position when the next one has come."""
        self.server.answer(self._calls.pop(), watermarks or {})
        self._wait()
        return max(int(path.name) for path in (self.path / "commits").glob("[0-9]*"))

    def rows(self) -> Rows:
        """All rows of all steps."""
        return Counter(row for rows in self.steps.values() for row in rows)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self._query is not None:
            self._query.stop()
        self.server.close()

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self.steps[batch] = [tuple(row) for row in frame.collect()]

    def _planned(self, vertex: str, attempt: int, call: int) -> None:
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()

    def _wait(self) -> None:
        with self._changed:
            called = partial(self._changed.wait_for, lambda: bool(self._calls), 0.2)
            waited = 0.0
            while not called():
                waited += 0.2
                assert self.query.isActive, self.query.exception()
                assert waited < PATIENCE_S, "no planning call came"


class Inbox:
    """Where a consumer finds a channel's segments."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)

    def admit(self, position: int, files: Iterable[Path]) -> None:
        """Link the files of a segment."""
        for part, file in enumerate(files):
            os.link(file, self.path / f"{position:020d}-{part}.parquet")

    def clear(self) -> None:
        """Unlink everything."""
        for path in self.path.iterdir():
            path.unlink()

    def frame(
        self, run: Running, schema: StructType, *, control: DataFrame | None = None, index: int = 0
    ) -> DataFrame:
        """The channel in a run."""
        control = run.control() if control is None else control
        return channel_frame(run.session, control, index=index, schema=schema, inbox=f"file://{self.path}")


def segment(frame: DataFrame, path: Path) -> list[Path]:
    """Write rows as Spark writes a batch; returns the files."""
    frame.write.parquet(str(path))
    return sorted(path.glob("*.parquet"))


# -- watermarks ----------------------------------------------------------------------------------------------------


def joined(left: DataFrame, right: DataFrame) -> DataFrame:
    """Each row, with the even numbers that are near in time: an odd one comes half a minute late."""
    lefts = left.withWatermark("ts", "20 seconds").alias("l")
    evens = right.filter("id % 2 = 0").withWatermark("ts", "20 seconds").alias("r")
    near = "l.id = r.id AND r.ts BETWEEN l.ts - INTERVAL 30 SECONDS AND l.ts + INTERVAL 30 SECONDS"
    return lefts.join(evens, F.expr(near), "leftOuter").select("l.ts", "l.id", F.col("r.id").alias("other"))


def counted(frame: DataFrame) -> DataFrame:
    """Rows and matches by the minute. The filter is false on nulls, which must not hide the watermark."""
    minutes = frame.filter("id >= 0").groupBy(F.window("ts", "1 minute"))
    start = F.col("window.start").cast("long").alias("start")
    return minutes.agg(F.count("*").alias("n"), F.count("other").alias("m")).select(start, "n", "m")


def produced(spark: SparkSession, tmp_path: Path, landing: Landing) -> dict[int, int | None]:
    """Run the join, one file and one segment a step; returns what it told of its output after each."""
    told: dict[int, int | None] = {}
    with Running(spark, tmp_path / "producer") as run:
        source = landing.source(spark)
        frame = joined(run.control(source.schema).union(source), landing.source(spark))
        run.start(frame, lambda rows, batch: rows.write.parquet(str(tmp_path / "segments" / str(batch))))
        for _ in range(4):
            position = run.step()
            watermark = int(run.directory.commit_entry(position)["nextBatchWatermarkMs"])
            told[position] = output_watermark_ms(run.query, watermark)
            assert told[position] is None or told[position] < watermark - 30_000
            assert output_watermark_ms(run.query, 0) is None
    return told


def test_a_windowed_count_behind_a_channel_keeps_what_an_outer_join_emits_late(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Cut after the join and restarted in the middle, the count equals the batch computation, row for row (P25)."""
    landing = Landing(tmp_path / "in")
    landing.land(4)
    told = produced(spark, tmp_path, landing)
    assert list(told) == [0, 1, 2, 3]
    assert told[0] is None
    inbox, rows, newest, dropped = Inbox(tmp_path / "inboxes" / "join"), Rows(), 0, 0
    schema = joined(landing.source(spark), landing.source(spark)).schema
    for positions in ([0, 1], [2, 3]):
        with Running(spark, tmp_path / "consumer") as run:
            frame = inbox.frame(run, schema)
            assert [(field.name, field.dataType) for field in frame.schema] == [
                (field.name, field.dataType) for field in schema
            ]
            run.start(counted(frame))
            for position in positions:
                files = sorted((tmp_path / "segments" / str(position)).glob("*.parquet"))
                times = [
                    int(one.timestamp()) for file in files for one in pq.read_table(file)["ts"].to_pylist()
                ]
                dropped += sum(time // 60 * 60 + 60 <= newest - 20 for time in times)
                newest = max(newest, *times)
                inbox.admit(position, files)
                ms = told[position]
                run.step({} if ms is None else {0: ms})
            if positions[-1] == 3:
                run.step({0: MAX_WATERMARK_MS})
                run.step()
            rows += run.rows()
    assert dropped > 0, "a watermark derived anew from the rows would have lost nothing: a weak test"
    table = landing.table(spark)
    expected = Counter(tuple(row) for row in counted(joined(table, table)).collect())
    # The producer has put out everything before its last watermark, which closed four minutes.
    cut = START_S + 4 * 60
    assert {row: n for row, n in rows.items() if row[0] < cut} == {
        row: n for row, n in expected.items() if row[0] < cut
    }
    assert len(rows) > 4


@pytest.mark.parametrize("first", [0, 1])
def test_a_join_of_two_channels_loses_no_row_when_one_has_none_in_a_batch(
    spark: SparkSession, tmp_path: Path, first: int
) -> None:
    """Of nulls that it can see the optimizer would conclude that the key of the other side is null too."""
    ids = [StructField("id", LongType()), StructField("ts", TimestampType(), True, {EVENT_TIME: 60_000})]
    rows = spark.range(10).selectExpr("id", f"timestamp_seconds({START_S} + id) AS ts")
    files = [segment(rows, tmp_path / name) for name in ("left", "right")]
    inboxes = [Inbox(tmp_path / "inboxes" / name) for name in ("left", "right")]
    with Running(spark, tmp_path / "consumer") as run:
        control = run.control()
        left, right = (
            inbox.frame(run, StructType(ids), control=control, index=index)
            for index, inbox in enumerate(inboxes)
        )
        other = right.withColumnsRenamed({"id": "other", "ts": "at"})
        run.start(left.join(other, F.expr("id = other AND ts = at")).select("id"))
        for index in (first, 1 - first):
            inboxes[index].admit(0, files[index])
            run.step()
        assert run.rows() == Counter({(one,): 1 for one in range(10)})


def test_a_channel_that_has_ended_holds_back_no_other_and_windows_keep_their_event_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Minutes from two channels, one ended at once, and from one without a watermark, counted by five minutes."""
    landing = Landing(tmp_path / "in")
    landing.land(6)

    def minutes(frame: DataFrame) -> DataFrame:
        windows = frame.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "1 minute"))
        return windows.agg(F.count("*").alias("n"))

    schema = minutes(landing.source(spark)).schema
    table = minutes(landing.table(spark))
    early = segment(table.filter(f"window.start < timestamp_seconds({START_S + 300})"), tmp_path / "early")
    late = segment(table.filter(f"window.start >= timestamp_seconds({START_S + 300})"), tmp_path / "late")
    names = segment(spark.range(1), tmp_path / "names")
    inboxes = [Inbox(tmp_path / "inboxes" / name) for name in ("first", "second", "names")]
    with Running(spark, tmp_path / "consumer") as run:
        control = run.control()
        first, second = (inboxes[i].frame(run, schema, control=control, index=i) for i in (0, 1))
        plain = inboxes[2].frame(run, spark.range(0).schema, control=control, index=2)
        fives = first.union(second).groupBy(F.window(F.window_time("window"), "5 minutes")).agg(F.sum("n"))
        ids = plain.select(-F.col("id") - 1, "id")
        run.start(fives.select(F.col("window.start").cast("long") - START_S, "sum(n)").union(ids))
        for inbox, files in zip(inboxes, (early, [], names), strict=True):
            inbox.admit(0, files)
        run.step({0: MAX_WATERMARK_MS, 1: (START_S + 60) * 1000})
        run.step({1: (START_S + 299) * 1000})
        assert run.rows() == Counter([(-1, 0)])
        inboxes[1].admit(0, late)
        run.step({1: (START_S + 600) * 1000})
        run.step()
        assert run.rows() == Counter([(-1, 0), (0, 30), (300, 30)])
        run.step({1: MAX_WATERMARK_MS})
        run.step()
    assert run.rows() == Counter([(-1, 0), (0, 30), (300, 30), (600, 12)])


def test_the_control_input_tells_what_rose_and_in_a_new_run_everything(
    spark: SparkSession, tmp_path: Path
) -> None:
    """To the millisecond in any time zone; a run's first batch comes by itself, a replayed one says the same (P25)."""

    def told(run: Running) -> list[list[tuple[Any, ...]]]:
        run.start(run.control().select("channel", F.unix_millis("watermark")))
        answers: list[dict[int, int]] = [{}, {0: 1_000}, {0: 999, 1: MAX_WATERMARK_MS}, {}]
        for answer in answers:
            run.step(answer)
        assert output_watermark_ms(run.query, 5) == 5
        return [sorted(run.steps[position]) for position in sorted(run.steps)]

    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        with Running(spark, tmp_path / "query") as run:
            assert told(run) == [[], [(0, 1_000)], [(1, MAX_WATERMARK_MS)]]
        everything = [(0, 1_000), (1, MAX_WATERMARK_MS)]
        with Running(spark, tmp_path / "query") as run:
            assert told(run) == [everything]
        (tmp_path / "query" / "commits" / "3").unlink()
        with Running(spark, tmp_path / "query") as run:
            assert told(run) == [everything]
            assert list(run.steps) == [3]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


# -- rows ----------------------------------------------------------------------------------------------------------

EVERY_TYPE = """
    cast(1 as byte) `a.b`, cast(-2 as short) `with space`, 3 `quo``te`, 4L `ünï ;,{}()=`, cast('NaN' as float) f, -0.0D d,
    cast('12345678901234567890.123456789012345678' as decimal(38,18)) de, 'x' s, X'00FF' bi, true bo,
    date'0001-01-01' old, date'1582-10-15' da, timestamp'1850-01-01 00:00:00.123456Z' t1,
    timestamp'0001-01-03 00:00:00Z' t2, timestamp_ntz'1800-05-05 01:02:03.000001' t3,
    timestamp_ntz'9999-12-31 23:59:59.999999' t4, 'x' collate UNICODE_CI co, parse_json('{"a": [1, null]}') va,
    array(named_struct('x y', 1, 'z.w', array(cast(null as string)))) ar, map('k', cast(null as int)) ma,
    named_struct('in', named_struct('deep', decimal(1.5))) st, cast(null as string) nu, 1 channel, 2 watermark
"""


def test_rows_of_every_type_and_column_name_arrive_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    """Nested, exact decimals, times before 1900 with and without zone, nulls, variants, names with dots and quotes."""
    rows = spark.sql(f"select {EVERY_TYPE}")
    check_channel_schema("every", rows.schema)
    inbox = Inbox(tmp_path / "inboxes" / "every type")
    with Running(spark, tmp_path / "consumer") as run:
        frame = inbox.frame(run, rows.schema)
        assert frame.dtypes == rows.dtypes
        run.start(frame)
        inbox.admit(7, segment(rows, tmp_path / "segment"))
        position = run.step()
        assert InboxLogs(run.directory).consumed(position) == {"every type": 7}
    assert [str(row) for row in run.steps[0]] == [str(tuple(row)) for row in rows.collect()]


@pytest.mark.parametrize(
    "ddl",
    ["i interval", "i interval day", "a array<interval year>", "n void", "m map<string, time>", "s struct<>"],
)
def test_a_column_that_cannot_travel_is_refused_by_name(spark: SparkSession, ddl: str) -> None:
    """One sentence with the step, the column and the way out."""
    column = ddl.split(maxsplit=1)[0]
    with pytest.raises(PipelineError, match=rf"Column '{column}' of step 'made' .* cast the column, or drop"):
        check_channel_schema("made", StructType.fromDDL(f"id long, {ddl}"))


def test_names_and_paths_that_would_read_something_else_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Names that differ by case only, and an inbox whose path is a pattern."""
    with pytest.raises(PipelineError, match="two columns named 'id'"):
        check_channel_schema("made", StructType.fromDDL("id long, ID long"))
    with pytest.raises(ConfigurationError, match="pattern"):
        channel_frame(spark, spark.range(1), index=0, schema=SCHEMA, inbox="file:///tmp/*/a")


# -- logs ----------------------------------------------------------------------------------------------------------


def test_a_restored_consumer_reads_on_from_empty_logs_exactly(spark: SparkSession, tmp_path: Path) -> None:
    """At any log offset, over the next compaction, trimmed or not; and what was read is known from the logs (P7)."""
    landing = Landing(tmp_path / "in", rows_per_file=2)
    landing.land(8)
    inbox = Inbox(tmp_path / "inboxes" / "base" / "p")
    with Running(spark, tmp_path / "base") as run:
        run.start(inbox.frame(run, SCHEMA))
        for position in (0, 1):
            inbox.admit(position, [landing.path(position)])
            assert run.step() == position
        inline, files = run.directory.source_entries(1, inboxes=True)
        assert not [key for key in (*inline, *files) if key.startswith("sources/1/")]
    for newest, steps in {0: 1, 8: 3, 9: 1, 17: 4, 19: 1, 106: 4}.items():
        restored = tmp_path / str(newest)
        shutil.copytree(tmp_path / "base", restored, ignore=shutil.ignore_patterns("sources"))
        for batch, offset in ((0, newest - 1), (1, newest)):
            entry = restored / "offsets" / str(batch)
            text = f'{{"logOffset":{offset}}}' if offset >= 0 else "-"
            entry.write_text(entry.read_text().replace(f'{{"logOffset":{batch}}}', text))
        inbox = Inbox(tmp_path / "inboxes" / str(newest) / "p")
        with Running(spark, restored) as run:
            run.directory.write_empty_source_logs(1)
            logs = InboxLogs(run.directory)
            assert logs.consumed(1) == {}
            run.start(inbox.frame(run, SCHEMA))
            for position in range(2, 2 + steps):
                inbox.admit(position, [landing.path(position)])
                assert run.step() == position
                assert sorted(row[0] for row in run.steps[position]) == landing.ids(position)
                assert logs.consumed(position) == {"p": position}
                inbox.clear()
                logs.trim()
            assert run.directory.log_offsets(position) == {1: newest + steps}
        log = {path.name: path.stat().st_size for path in (restored / "sources" / "1").iterdir()}
        numbers = {int(name.removesuffix(".compact")) for name in log}
        assert all(log[name] == 2 for name in log if name.endswith(".compact"))
        assert {number for number in numbers if f"{number}.compact" in log} == {
            number for number in numbers if number % 10 == 9
        }
        assert len(log) <= 11
