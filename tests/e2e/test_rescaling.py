"""A job resumed from its savepoint with other state partitions and with changed steps."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.kit.live_job import Gate, LiveJob, WatchedFiles, assert_copied, numbers, settings
from tests.kit.numbers_pipeline import by_minute, timed
from tests.kit.place import Place, Rows, assert_same, files_rows
from tests.kit.waiting import PATIENCE_S

import weir
from weir.core.status import JobStatus
from weir.core.types import CompletedCheckpoint

pytestmark = pytest.mark.spark

KEYS = 7


@pytest.fixture(autouse=True)
def _number_of_the_session(spark: SparkSession) -> Iterator[None]:
    """The session is shared with other tests, which need its number of partitions."""
    number = spark.conf.get("spark.sql.shuffle.partitions")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", str(number))


def totals(frame: DataFrame) -> DataFrame:
    """The count per key, emitted at the end, with Python state variables and timers."""

    # Inside, so that it travels to Spark's workers by value.
    class Total(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N803
            known = self.total.get()[0] if self.total.exists() else 0
            if not known:
                # In the year 2100: only the end of the input gets there.
                self.handle.registerTimer(4_102_444_800_000)
            self.total.update((known + sum(len(some) for some in rows),))
            return iter(())

        def handleExpiredTimer(
            self,
            key: Any,
            timerValues: Any,  # noqa: N803
            expiredTimerInfo: Any,  # noqa: N803
        ) -> Iterator[pd.DataFrame]:
            yield pd.DataFrame({"k": [key[0]], "n": [self.total.get()[0]]})

        def close(self) -> None:
            """Nothing to close."""

    keyed = frame.select("ts", (F.col("id") % KEYS).alias("k")).groupBy("k")
    return keyed.transformWithStateInPandas(Total(), "k long, n long", "Append", "EventTime")


def rescaling_job(
    place: Place, stage: Callable[[], None], *, per_minute: str = "by_minute"
) -> weir.Job:
    """The numbers copied and, behind two channels, counted.

    One count is by minute, in a step of this name, the other by key.
    """
    job, out = weir.Job("rescaling"), place.directory / "out"
    copied = job.source("numbers", numbers(place), bounded=True).transform("timed", timed)
    copied.sink("raw", WatchedFiles(out / "raw", stage=stage))
    minutes = copied.transform(per_minute, by_minute, uid="minutes-by-window")
    minutes.sink("minutes", weir.sinks.Files(str(out / "minutes")))
    copied.transform("by_key", totals).sink("totals", weir.sinks.Files(str(out / "totals")))
    return job


class TimedJob(LiveJob):
    """Measures how long its tasks take to run again."""

    restored_at = 0.0

    def restored(self, checkpoint: CompletedCheckpoint) -> None:
        self.restored_at = time.monotonic()
        super().restored(checkpoint)

    def seconds_to_restore(self) -> float:
        """From finding the snapshot until every task runs."""
        self.wait_until_it_runs()
        return time.monotonic() - self.restored_at


def stopped(live: LiveJob, gate: Gate) -> CompletedCheckpoint:
    """Stop the job with a savepoint in the step that the gate holds."""
    live.wait_until_it_runs()
    stopping = live.gateway.stop_with_savepoint(None)
    gate.open()
    savepoint = stopping.result(PATIENCE_S)
    live.result()
    return savepoint


def state_partitions(savepoint: CompletedCheckpoint) -> dict[str, set[int]]:
    """The partitions with state in the savepoint, by vertex."""
    found: dict[str, set[int]] = {}
    for task in savepoint.tasks:
        for directory, _, partition, *_ in (handle.key.split("/") for handle in task.files):
            if directory == "state" and partition.isdigit():
                found.setdefault(task.vertex, set()).add(int(partition))
    return found


def print_restore(live: TimedJob, savepoint: CompletedCheckpoint, before: int, now: int) -> None:
    """Print one line for ``pytest -s``."""
    size = sum(task.state_size for task in savepoint.tasks)
    print(
        f"\nrestored {size:,} bytes, {before} -> {now} partitions:"
        f" {live.seconds_to_restore():.1f} s"
    )


@pytest.mark.slow
def test_savepoints_taken_in_mid_stream_continue_with_2_then_5_then_3_partitions(
    place: Place, spark: SparkSession
) -> None:
    """Windows and Python state after channels, a step renamed under its uid: the result equals the
    batch's."""
    place.land(10)
    gate = Gate(nth=3)
    with LiveJob(rescaling_job(place, gate), settings(place)) as first, gate:
        savepoint = stopped(first, gate)
    for before, now in ((2, 5), (5, 3)):
        # Held in its second step, the first query does not end before the others run.
        gate = Gate(nth=2)
        job = rescaling_job(place, gate, per_minute=f"per_minute_{now}")
        conf = settings(place, {"parallelism.default": str(now)})
        live = TimedJob(job, conf, from_savepoint=savepoint.external_path)
        with live, gate:
            print_restore(live, savepoint, before, now)
            assert {vertex.parallelism for vertex in live.gateway.view().vertices} == {now}
            if now == 5:
                savepoint = stopped(live, gate)
                assert state_partitions(savepoint) == {
                    "minutes-by-window": {*range(5)},
                    "by_key": {*range(5)},
                }
            else:
                gate.open()
                assert live.result().status is JobStatus.FINISHED
    assert_copied(place)
    out = place.directory / "out"
    assert_same(files_rows(out / "minutes"), place.minutes(), "the minutes")
    assert_same(files_rows(out / "totals"), totals_of(place), "the totals")


def totals_of(place: Place) -> Rows:
    """The total per key, computed without Spark."""
    return Rows(Counter(one % KEYS for one, _ in place.rows().elements()).items())


def test_a_plan_that_no_longer_fits_its_state_is_one_sentence(
    place: Place, spark: SparkSession
) -> None:
    """The error has the chain and Spark's text; the job fails at once, whatever its restart
    strategy. Such a start is accepted by a user who believes that the state still fits."""
    place.land(4)

    def counting(gate: Gate, count: Callable[[DataFrame], DataFrame]) -> weir.Job:
        job = weir.Job("counting")
        windows = job.source("numbers", numbers(place)).transform(
            "windows", lambda frame: count(timed(frame))
        )
        windows.sink("minutes", WatchedFiles(place.directory / "out" / "minutes", stage=gate))
        return job

    def with_another_column(frame: DataFrame) -> DataFrame:
        return frame.groupBy(F.window("ts", "1 minute")).agg(
            F.count("*").alias("n"), F.max("id").alias("id")
        )

    gate = Gate(nth=2)
    with LiveJob(counting(gate, by_minute), settings(place)) as live, gate:
        savepoint = stopped(live, gate)
    place.land(1)
    conf = settings(place, {"restart-strategy.type": "exponential-delay"})
    job = counting(Gate(nth=0), with_another_column)
    accepted = ("windows",)
    path = savepoint.external_path
    with LiveJob(job, conf, from_savepoint=path, accept_changed_state=accepted) as live:
        result = live.result()
    assert result.status is JobStatus.FAILED
    assert result.failure is not None
    begin, end = result.failure.split("STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE")
    assert begin.endswith(
        "The plan of the chain ending in 'windows' (its steps: 'numbers', 'windows') no longer"
        " fits its state. Spark says: ["
    )
    assert "new value_schema" in end
    assert "start from scratch with --fresh" in end
