"""Stop with drain on real Spark: every window and timer fires, tables equal a batch's (MISSION E1).

One unbounded job holds every kind of state that event time closes: session windows, a left outer
join, deduplication within the watermark, two chained aggregations, and timers of a Python function.
It is drained once it has read its input. Each table must then equal the same functions over the
whole input as an ordinary batch of Spark's; the one of the timers, whose function Spark runs only
on streams, a computation in Python.

Beside it: what Spark alone holds back of the same input.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from tests.kit.live_job import LiveJob, numbers, settings
from tests.kit.place import ROWS_PER_FILE, Place, Rows, assert_same, files_rows, parquet_rows

import weir
from weir.core.status import JobStatus
from weir.core.types import Payload
from weir.sinks.base import Batch, SinkContext

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

pytestmark = pytest.mark.spark

FILES = 6
#: The numbers are half a second apart; the watermark lags so that a drain has much to do.
DELAY = "30 seconds"
_GAP = timedelta(seconds=20)


def timed(frame: DataFrame) -> DataFrame:
    """The numbers under event time."""
    return frame.withWatermark("ts", DELAY)


def sessions(frame: DataFrame) -> DataFrame:
    """Numbers of one remainder that are less than twenty seconds apart: of 45 to 59 none is odd."""
    kept = frame.filter("id % 2 = 0 OR id % 60 < 45")
    counted = kept.groupBy(F.session_window("ts", "20 seconds"), (F.col("id") % 2).alias("parity"))
    return counted.agg(F.count("*").alias("n")).select("session_window.start", "parity", "n")


def joined(frame: DataFrame) -> DataFrame:
    """Every even number, with the one five higher where that is divisible by three."""
    left = frame.filter("id % 2 = 0")
    right = frame.filter("id % 3 = 0").select(
        (F.col("id") - 5).alias("before"), F.col("ts").alias("later")
    )
    near = F.expr("id = before AND later >= ts AND later <= ts + INTERVAL 10 SECONDS")
    return left.join(right, near, "left_outer").select("id", "later")


def distinct(frame: DataFrame) -> DataFrame:
    """One row in four: those between are its duplicates."""
    coarse = frame.select("ts", F.floor(F.col("id") / 4).alias("quarter"))
    return coarse.dropDuplicatesWithinWatermark(["quarter"]).select("quarter")


def chained(frame: DataFrame) -> DataFrame:
    """How many seconds of each minute have two numbers: an aggregation over another one."""
    seconds = frame.groupBy(F.window("ts", "1 second")).agg(F.count("*").alias("n"))
    full = (
        seconds.filter("n = 2")
        .groupBy(F.window("window", "1 minute"))
        .agg(F.count("*").alias("seconds"))
    )
    return full.select("window.start", "seconds")


def timers(frame: DataFrame) -> DataFrame:
    """The count of each ten numbers, twenty seconds after the first: all of them."""

    # Local, so that it travels to Spark's workers by value: they cannot import this module.
    class Timers(StatefulProcessor):
        """Counts the rows of a key; a timer twenty seconds after the first emits the count."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            """Declare one number per key."""
            self._handle = handle
            self._count = handle.getValueState("count", "n long")

        def handleInputRows(
            self, key: Any, rows: Iterator[pd.DataFrame], timer_values: TimerValues
        ) -> Iterator[pd.DataFrame]:
            """Count, and set the timer at the first row."""
            counted, first = 0, None
            for part in rows:
                counted += len(part)
                least = part["ts"].min()
                first = least if first is None else min(first, least)
            if not self._count.exists() and first is not None:
                self._handle.registerTimer(int((first + _GAP).timestamp() * 1000))
            before = self._count.get()[0] if self._count.exists() else 0
            self._count.update((before + counted,))
            yield pd.DataFrame({"tens": [], "n": []}).astype("int64")

        def handleExpiredTimer(
            self,
            key: Any,
            timerValues: TimerValues,  # noqa: N803 - Spark's names
            expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
        ) -> Iterator[pd.DataFrame]:
            """Emit the key's count."""
            yield pd.DataFrame({"tens": [key[0]], "n": [self._count.get()[0]]})

        def close(self) -> None:
            """Nothing is held."""

    tens = frame.select("ts", F.floor(F.col("id") / 10).alias("tens"))
    return tens.groupBy("tens").transformWithStateInPandas(
        statefulProcessor=Timers(),
        outputStructType="tens long, n long",
        outputMode="Append",
        timeMode="EventTime",
    )


STEPS = {
    "sessions": sessions,
    "joined": joined,
    "distinct": distinct,
    "chained": chained,
    "timers": timers,
}


def pipeline(place: Place) -> weir.Job:
    """One source and a query for each kind of state."""
    job = weir.Job("draining")
    read = job.source("numbers", numbers(place)).transform("timed", timed)
    for name, step in STEPS.items():
        read.transform(name, step).sink(
            f"{name}_files", weir.sinks.Files(str(place.directory / "out" / name))
        )
    return job


def expected(spark: SparkSession, place: Place, name: str) -> Rows:
    """The table computed from the whole input at once."""
    if name == "timers":
        return Rows(Counter(one // 10 for one, _ in place.rows().elements()).items())
    frame = timed(spark.read.parquet(str(place.directory / "in")))
    if name == "distinct":
        frame = frame.select(F.floor(F.col("id") / 4).alias("quarter")).distinct()
    else:
        frame = STEPS[name](frame)
    return Rows(tuple(map(_utc, row)) for row in frame.collect())


def _utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


@dataclass
class Drained:
    """What is left of the job after its end."""

    place: Place
    status: JobStatus
    savepoint: Path
    conf: dict[str, str]


@pytest.fixture(scope="module")
def drained(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterable[Drained]:
    """The job, drained once it has read all of its input."""
    del spark
    place = Place(tmp_path_factory.mktemp("drained"))
    place.land(FILES)
    conf = settings(place, interval="2s")
    with LiveJob(pipeline(place), conf) as live:
        live.wait_until_it_runs()
        live.wait_for(lambda view: _position(view, "timed") >= FILES - 1, "all input is read")
        completed = live.gateway.stop_with_savepoint(None, drain=True).result()
        status = live.result().status
    yield Drained(place=place, status=status, savepoint=Path(completed.external_path), conf=conf)
    place.clear()


def _position(view: Any, vertex: str) -> int:
    return next(one.position for one in view.vertices if one.vertex == vertex)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_drained_job_has_emitted_all_that_its_state_held(
    drained: Drained, spark: SparkSession, name: str
) -> None:
    """The table equals the batch computation: no window, timer or unmatched row is held back."""
    wanted = expected(spark, drained.place, name)
    assert wanted
    assert_same(files_rows(drained.place.directory / "out" / name), wanted, name)


@pytest.mark.slow
def test_a_drained_job_has_finished_and_its_savepoint_goes_straight_to_the_end(
    drained: Drained,
) -> None:
    """Restoring it runs nothing, even when new input has landed (PROTOCOL P35)."""
    assert drained.status is JobStatus.FINISHED
    tables = {name: files_rows(drained.place.directory / "out" / name) for name in STEPS}
    drained.place.land(1)
    with LiveJob(
        pipeline(drained.place), drained.conf, from_savepoint=str(drained.savepoint)
    ) as again:
        assert again.result().status is JobStatus.FINISHED
    for name, rows in tables.items():
        assert_same(files_rows(drained.place.directory / "out" / name), rows, name)


def windowed(place: Place) -> weir.Job:
    """One query: the count of numbers per minute."""
    job = weir.Job("windows")
    counted = job.source("numbers", numbers(place)).transform("by_minute", by_minute)
    counted.sink("minutes", weir.sinks.Files(str(place.directory / "out" / "minutes")))
    return job


def by_minute(frame: DataFrame) -> DataFrame:
    """The count of numbers per minute."""
    counted = timed(frame).groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias("n"))
    return counted.select(F.col("window.start").alias("start"), "n")


def test_a_job_that_is_stopped_and_resumed_loses_no_window_and_spark_alone_holds_some_back(
    place: Place, spark: SparkSession
) -> None:
    """Windows stay in the savepoint, which may be moved, and all are emitted in the end (MISSION
    G2, G3)."""
    place.land(FILES)
    conf = settings(place)
    with LiveJob(windowed(place), conf) as live:
        live.wait_for_records(FILES * ROWS_PER_FILE)
        stopped = live.gateway.stop_with_savepoint(None).result()
    held = place.minutes() - files_rows(place.directory / "out" / "minutes")
    assert held, "the newest windows are still open"
    place.land(2)
    moved = shutil.move(stopped.external_path, place.directory / "elsewhere")
    shutil.rmtree(place.directory / "checkpoints")
    with LiveJob(windowed(place), conf, from_savepoint=str(moved)) as again:
        again.wait_for_records(2 * ROWS_PER_FILE)
        again.gateway.stop_with_savepoint(None, drain=True).result()
    assert_same(files_rows(place.directory / "out" / "minutes"), place.minutes(), "the minutes")

    plain = place.directory / "plain"
    query = (
        by_minute(
            spark.readStream.schema("id long, ts timestamp").parquet(str(place.directory / "in"))
        )
        .writeStream.format("parquet")
        .option("checkpointLocation", str(plain / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(plain / "minutes"))
    )
    query.awaitTermination()
    shown = sum((parquet_rows(file) for file in (plain / "minutes").glob("*.parquet")), Rows())
    missing = place.minutes() - shown
    print(
        f"plain Structured Streaming holds back {missing.total()} of {place.minutes().total()}"
        " windows"
    )
    assert missing, "Spark alone has put out windows that its watermark has not passed"


class Tally(weir.sinks.Sink):
    """Reports the total number of rows once, at the end: all its output is staged in ``finish``."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.committed: list[int] = []
        self._rows = 0

    def describe(self) -> str:
        return "Tally()"

    def check(self, context: SinkContext) -> None:
        """Nothing to check."""

    def open(self, context: SinkContext) -> None:
        self._rows = 0

    def stage(self, frame: DataFrame, batch: Batch) -> Payload | None:
        self._rows += frame.count()
        return None

    def finish(self, batch: Batch) -> Payload | None:
        self.calls.append("finish")
        return {"rows": self._rows}

    def flush(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        self.calls += ["commit"] * len(payloads)
        self.committed += [payload["rows"] for payload in payloads]
        return len(payloads)

    def close(self) -> None:
        self.calls.append("close")

    def newest_committed(self) -> int | None:
        return None

    def clean(self, attempt: int) -> None:
        """Nothing lies anywhere."""


@pytest.mark.parametrize("drain", [True, False], ids=["drain", "no drain"])
def test_what_a_sink_has_held_back_is_committed_by_a_drain_and_only_by_a_drain(
    place: Place, spark: SparkSession, drain: bool
) -> None:
    """``finish`` after the last rows, then the commit, then ``close``; without a drain only
    ``close`` (MISSION E2, E5)."""
    del spark
    place.land(3)
    tally = Tally()
    job = weir.Job("tally")
    job.source("numbers", numbers(place)).sink("tally", tally)
    with LiveJob(job, settings(place)) as live:
        live.wait_for_steps(3)
        live.gateway.stop_with_savepoint(None, drain=drain).result()
        assert live.result().status is JobStatus.FINISHED
    assert tally.calls == (["finish", "commit", "close"] if drain else ["close"])
    assert tally.committed == ([place.rows().total()] if drain else [])
