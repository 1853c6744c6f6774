"""Watermarks and timers in Python operators, on real Spark (MISSION B2, E1; PROTOCOL P25).

An operator counts numbers per minute with a timer at each minute's end, as a window does. A Spark
window in a query behind it adds its counts up again, by the event time that the operator emits.
"""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from tests.kit.live_job import RESTARTED, LiveJob, numbers, settings
from tests.kit.numbers_pipeline import timed
from tests.kit.place import ROWS_PER_FILE, Place, Rows, assert_same, files_rows
from tests.kit.waiting import wait_until

import weir
from weir.core.status import JobStatus
from weir.operators import Operator
from weir.operators.state.store import StateStore
from weir.operators.state.timers import Timers

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(300)]

# Spark's workers do not have this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

MINUTE_MS = 60_000


class MinuteCounts(Operator):
    """Counts the numbers of each minute, and emits the count in its last millisecond."""

    output_schema = "ts timestamp, n long"

    def __init__(self, mark: Path | None = None) -> None:
        """With ``mark``, fails at the first timer, once."""
        self._mark = mark

    def initialize_state(self, state: StateStore) -> None:
        self._counts = state.keyed_state("counts", pa.int64(), 0)
        self._ends = state.event_timers("ends")

    def process_batch(self, batch: pa.RecordBatch) -> None:
        watermark = self.context.watermark_ms
        if watermark is not None:
            starts = pc.cast(batch["minute"], pa.timestamp("ms", "UTC")).cast(pa.int64())
            assert pc.min(starts).as_py() + MINUTE_MS > watermark, "a late row was not to be here"
        counted = batch["minute"].value_counts()
        minutes, counts = counted.field("values"), counted.field("counts")
        self._counts.put(minutes, pc.add(self._counts.get(minutes), counts))
        self._ends.register(minutes, pc.add(minutes, pa.scalar(dt.timedelta(milliseconds=59_999))))

    def on_timer(self, timers: Timers, due: pa.RecordBatch) -> list[pa.RecordBatch]:
        assert timers is self._ends
        if self._mark is not None and not self._mark.exists():
            self._mark.touch()
            raise RuntimeError("fails once")
        assert pc.max(due["time_ms"]).as_py() <= self.context.watermark_ms
        counts = self._counts.get(due["key"])
        self._counts.delete(due["key"])
        times = due["time_ms"].cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
        return [pa.RecordBatch.from_arrays([times, counts], ["ts", "n"])]


def with_minute(frame: DataFrame) -> DataFrame:
    return timed(frame).withColumn("minute", F.date_trunc("minute", "ts"))


def added_up(frame: DataFrame) -> DataFrame:
    counted = frame.groupBy(F.window("ts", "1 minute")).agg(F.sum("n").alias("n"))
    return counted.select(F.col("window.start").alias("start"), "n")


def minutes_job(
    place: Place, *, bounded: bool, parallelism: int = 2, mark: Path | None = None
) -> weir.Job:
    job = weir.Job("minutes")
    stream = job.source("numbers", numbers(place), bounded=bounded).transform("minute", with_minute)
    counts = stream.process("counts", MinuteCounts(mark), key_by="minute", parallelism=parallelism)
    counts.sink("counted", weir.sinks.Files(str(place.directory / "counted")))
    again = counts.transform("added_up", added_up).start_new_chain()
    again.sink("out", weir.sinks.Files(str(place.directory / "out")))
    return job


def counted(place: Place) -> Rows:
    """The operator's own output: the start of each minute, and its count."""
    rows = Rows()
    for (ts, n), times in files_rows(place.directory / "counted").items():
        rows[ts - dt.timedelta(milliseconds=59_999), n] += times
    return rows


def assert_exact(place: Place) -> None:
    assert_same(counted(place), place.minutes(), "the operator's counts")
    assert_same(files_rows(place.directory / "out"), place.minutes(), "the sums of its counts")


def test_all_timers_fire_at_the_end_of_the_input_and_what_they_emit_is_not_late(
    place: Place,
) -> None:
    """E1 and P25: the window behind the operator gets every row, and its watermark."""
    place.land(5)
    with LiveJob(minutes_job(place, bounded=True), settings(place)) as live:
        assert live.result().status is JobStatus.FINISHED
    assert_exact(place)


@pytest.mark.slow
def test_timers_fire_without_further_records_and_move_with_their_keys(place: Place) -> None:
    """A batch runs for what the watermark makes due; the rest is in the savepoint, from which twice
    as many subtasks go on to a drain."""
    place.land(4)
    conf = settings(place)
    with LiveJob(minutes_job(place, bounded=False), conf) as live:

        def first_minute_is_out() -> bool:
            live.checkpoint()
            return counted(place).total() == 1

        wait_until(first_minute_is_out, "the timer of the first minute fires")
        savepoint = live.gateway.stop_with_savepoint(None, drain=False).result().external_path
        live.result()
    assert counted(place).total() == 1, "a stop without a drain fires no timer"
    place.land(3)
    rescaled = minutes_job(place, bounded=False, parallelism=4)
    with LiveJob(rescaled, conf, from_savepoint=savepoint) as live:
        read = 3 * ROWS_PER_FILE
        live.wait_for(lambda view: view.vertices[0].records_in >= read, "everything is read")
        live.gateway.stop_with_savepoint(None, drain=True).result()
        live.result()
    assert_exact(place)


@pytest.mark.slow
def test_a_timer_that_was_handled_in_a_failed_batch_fires_again(place: Place) -> None:
    """Timers are state: they go back with their task to the checkpoint."""
    place.land(5)
    mark = place.directory / "failed"
    conf = settings(place, RESTARTED, interval="200 ms")
    with LiveJob(minutes_job(place, bounded=True, mark=mark), conf) as live:
        assert live.result().status is JobStatus.FINISHED
        assert live.gateway.view().attempt == 2
    assert_exact(place)


class Later(Operator):
    """Emits each row half a second after it came."""

    def initialize_state(self, state: StateStore) -> None:
        self._timers = state.processing_timers()

    def process_batch(self, batch: pa.RecordBatch) -> None:
        at = self.context.processing_time_ms + 500
        self._timers.register(batch["id"], pa.array([at] * batch.num_rows, pa.int64()))

    def on_timer(self, timers: Timers, due: pa.RecordBatch) -> list[pa.RecordBatch]:
        assert pc.max(due["time_ms"]).as_py() <= self.context.processing_time_ms
        return [pa.RecordBatch.from_arrays([due["key"]], ["id"])]


@pytest.mark.parametrize("chained", [pytest.param(True, marks=pytest.mark.slow), False])
def test_timers_of_the_clock_fire_in_a_query_that_rests(place: Place, chained: bool) -> None:
    """In a query that reads the source, and in one whose channel stays empty."""
    place.land(1)
    job = weir.Job("later")
    stream = job.source("numbers", numbers(place)).transform("ids", lambda one: one.select("id"))
    later = stream.process("later", Later(), key_by="id", parallelism=2)
    if not chained:
        later.start_new_chain()
    later.sink("out", weir.sinks.Files(str(place.directory / "out")))
    with LiveJob(job, settings(place, interval="300 ms")) as live:
        expected = Rows((row[0],) for row in place.rows())
        wait_until(
            lambda: files_rows(place.directory / "out").total() == expected.total(), "all rows"
        )
        live.cancel()
    assert_same(files_rows(place.directory / "out"), expected, "the ids")
