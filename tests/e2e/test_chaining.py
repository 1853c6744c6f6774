"""Cutting a chain changes no result (PROTOCOL P25): the law of channels, on real Spark.

Two sources of different length, so that one branch ends early; a left outer join over time, whose
unmatched rows come late and would be dropped if a watermark were derived from them again; session
windows over what it emits; and a count that reads both sources. Every step is a plain function
of DataFrames, so the same functions over the whole input at once, as an ordinary batch of Spark's,
say what each table must hold.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.kit.live_job import LiveJob, settings
from tests.kit.place import Place, Rows, assert_same, delta_rows

import weir
from weir.core.status import JobStatus

pytestmark = pytest.mark.spark

_FIRST = datetime(2024, 1, 1, tzinfo=UTC)

#: The steps where a chain can be cut.
CUTS = ("timed", "paid_timed", "matched", "sessions", "both", "per_minute")


def land(directory: Path, *, files: int, rows: int, every: int) -> None:
    """Write files of ids with times one second apart; only every Nth id."""
    directory.mkdir(parents=True)
    for number in range(files):
        ids = [one for one in range(number * rows, (number + 1) * rows) if one % every == 0]
        columns = {
            "id": pa.array(ids, pa.int64()),
            "ts": pa.array(
                [_FIRST + timedelta(seconds=one) for one in ids], pa.timestamp("us", tz="UTC")
            ),
        }
        path = directory / f"{number:03}.parquet"
        pq.write_table(pa.table(columns), path)
        # Spark reads in the order of modification times.
        os.utime(path, (1_700_000_000 + number,) * 2)


def timed(frame: DataFrame) -> DataFrame:
    """Orders, with a watermark that covers the disorder of the files of one batch."""
    return frame.withWatermark("ts", "90 seconds")


def paid_timed(frame: DataFrame) -> DataFrame:
    """Payments, slightly later than their orders."""
    moved = frame.select(
        F.col("id").alias("paid_id"), (F.col("ts") + F.expr("INTERVAL 5 SECONDS")).alias("paid_ts")
    )
    return moved.withWatermark("paid_ts", "90 seconds")


def matched(orders: DataFrame, paid: DataFrame) -> DataFrame:
    """Every order, with its payment if there is one within half a minute."""
    within = F.expr("id = paid_id AND paid_ts >= ts AND paid_ts <= ts + INTERVAL 30 SECONDS")
    return orders.join(paid, within, "left_outer").select("id", "ts", "paid_ts")


def sessions(frame: DataFrame) -> DataFrame:
    """The unpaid orders in a row, odd and even separately: less than 2.5 seconds apart."""
    unpaid = frame.filter("paid_ts IS NULL").withColumn("parity", F.expr("id % 2"))
    counted = unpaid.groupBy(F.session_window("ts", "2500 milliseconds"), "parity").agg(
        F.count("*").alias("n")
    )
    return counted.select(F.col("session_window.start").alias("start"), "n")


def per_minute(frame: DataFrame) -> DataFrame:
    """The numbers of orders and payments per minute."""
    counted = frame.groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias("n"))
    return counted.select(F.col("window.start").alias("start"), "n")


def as_orders(frame: DataFrame) -> DataFrame:
    """Payments with the column names of orders."""
    return frame.select(F.col("paid_id").alias("id"), F.col("paid_ts").alias("ts"))


def pipeline(place: Place, cuts: tuple[str, ...]) -> weir.Job:
    """The job, with a new chain at each of the named steps."""
    out = place.directory / "out"

    def source(name: str, files: int) -> Callable[[SparkSession], DataFrame]:
        return lambda spark: (
            spark.readStream.schema("id long, ts timestamp")
            .option("maxFilesPerTrigger", files)
            .parquet(str(place.directory / name))
        )

    job = weir.Job("chaining")
    orders = job.source("orders", source("orders", 1), bounded=True).transform("timed", timed)
    payments = job.source("payments", source("payments", 3), bounded=True).transform(
        "paid_timed", paid_timed
    )
    joined = job.transform("matched", [orders, payments], matched)
    streaks = joined.transform("sessions", sessions)
    streaks.sink("streaks", weir.sinks.DeltaTable(str(out / "streaks")))
    union = orders.union(payments.transform("as_orders", as_orders), name="both")
    counted = union.transform("per_minute", per_minute)
    counted.sink("minutes", weir.sinks.DeltaTable(str(out / "minutes")))
    steps = {
        "timed": orders,
        "paid_timed": payments,
        "matched": joined,
        "sessions": streaks,
        "both": union,
        "per_minute": counted,
    }
    for name in cuts:
        steps[name].start_new_chain()
    return job


def expected(spark: SparkSession, place: Place) -> dict[str, Rows]:
    """The tables, computed from the whole input at once."""
    orders = timed(spark.read.parquet(str(place.directory / "orders")))
    payments = paid_timed(spark.read.parquet(str(place.directory / "payments")))
    tables = {
        "streaks": sessions(matched(orders, payments)),
        "minutes": per_minute(orders.union(as_orders(payments))),
    }
    return {
        name: Counter(_values(row) for row in frame.collect()) for name, frame in tables.items()
    }


def _values(row: Any) -> tuple[Any, ...]:
    return row.start.astimezone(UTC), row.n


# Chains that are cut are run by tests/e2e/test_changed_chains.py.
@pytest.mark.slow
@pytest.mark.parametrize(
    "cuts",
    [(), CUTS],
    ids=["where channels are needed", "everywhere"],
)
def test_a_chain_that_is_cut_gives_the_same_tables(
    place: Place, spark: SparkSession, cuts: tuple[str, ...]
) -> None:
    """Each table equals the batch computation, although payments end long before orders."""
    check(place, spark, cuts)


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS)
def test_a_chain_that_is_cut_at_one_step_gives_the_same_tables(
    place: Place, spark: SparkSession, cut: str
) -> None:
    """At every possible step alone."""
    check(place, spark, (cut,))


def check(place: Place, spark: SparkSession, cuts: tuple[str, ...]) -> None:
    """Run the job to its end and compare."""
    land(place.directory / "orders", files=8, rows=60, every=1)
    land(place.directory / "payments", files=3, rows=60, every=7)
    wanted = expected(spark, place)
    assert wanted["streaks"].total() > 20
    with LiveJob(pipeline(place, cuts), settings(place, interval="1s")) as live:
        assert live.result().status is JobStatus.FINISHED, live.notes
    for name, rows in wanted.items():
        assert_same(delta_rows(place.directory / "out" / name), rows, name)
