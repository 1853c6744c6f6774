"""The flights on plain Spark, for ``benchmarks/start.py``: four queries in one session.

It is the counterpart of ``examples/flights.py``. ``python flights_plain.py KEY=VALUE...`` takes
Spark's settings; the environment variables of the example set the directories of the data. Each
query reads the landing files itself, since in plain Spark several queries cannot read the output of
a common step. A constant selects the anomalies, in place of a rule that can be changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LANDING = os.environ.get("WEIR_FLIGHTS_LANDING", "landing")
OUT = os.environ.get("WEIR_FLIGHTS_OUT", "out")

_FLIGHTS = """
    year long, month long, day long, dep_time double, sched_dep_time long, dep_delay double,
    arr_time double, sched_arr_time long, arr_delay double, carrier string, flight long,
    tailnum string, origin string, dest string, air_time double, distance long, hour long,
    minute long, time_hour string
"""
_WEATHER = """
    origin string, year long, month long, day long, hour long, temp double, dewp double,
    humid double, wind_dir double, wind_speed double, wind_gust double, precip double,
    pressure double, visib double, time_hour string
"""
_INTEGERS = (
    "flight",
    "sched_dep_time",
    "dep_time",
    "dep_delay",
    "arr_delay",
    "air_time",
    "distance",
)
_OBSERVED = ("temp", "wind_speed", "wind_gust", "precip", "visib")
_DELAY = "1 day"
_ANOMALY_MINUTES = 120


def read_flights(spark: SparkSession) -> DataFrame:
    """Flights that took place."""
    landed = (
        spark.readStream.schema(_FLIGHTS)
        .option("maxFilesPerTrigger", 2)
        .parquet(f"{LANDING}/flights")
    )
    departure = (
        "timestamp_seconds(unix_timestamp(to_timestamp(time_hour)) + minute * 60) AS event_time"
    )
    integers = [f"cast({name} AS int) AS {name}" for name in _INTEGERS]
    return (
        landed.filter("dep_time IS NOT NULL")
        .selectExpr(departure, "carrier", "tailnum", "origin", "dest", *integers)
        .withWatermark("event_time", _DELAY)
    )


def read_weather(spark: SparkSession) -> DataFrame:
    """The weather at each airport in each hour."""
    landed = (
        spark.readStream.schema(_WEATHER)
        .option("maxFilesPerTrigger", 2)
        .parquet(f"{LANDING}/weather")
    )
    return landed.selectExpr(
        "to_timestamp(time_hour) AS observed", "origin AS airport", *_OBSERVED
    ).withWatermark("observed", _DELAY)


def carrier_delays(flights: DataFrame) -> DataFrame:
    """Arrival delays of each carrier on each day."""
    delays = flights.groupBy(F.window("event_time", "1 day").alias("day"), "carrier").agg(
        F.count("*").alias("flights"),
        F.sum(F.col("arr_delay").cast("long")).alias("arr_delay_sum"),
        F.max("arr_delay").alias("arr_delay_max"),
    )
    return delays.select(
        "day.start", "day.end", "carrier", "flights", "arr_delay_sum", "arr_delay_max"
    )


def flights_weather(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Each flight with the weather at its airport in the hour of its departure."""
    condition = (
        "origin = airport"
        " AND floor(unix_timestamp(event_time) / 3600) = floor(unix_timestamp(observed) / 3600)"
        " AND event_time >= observed AND event_time < observed + INTERVAL 1 HOUR"
    )
    return flights.join(weather, F.expr(condition), "left_outer").select(
        *("event_time", "carrier", "flight", "origin", "dest", "dep_delay", "observed"), *_OBSERVED
    )


def anomalies(flights: DataFrame) -> DataFrame:
    """Flights that left far too late."""
    late = F.col("dep_delay")
    severity = F.when(late >= 480, "extreme").when(late >= 240, "severe").otherwise("long")
    return flights.filter(late >= _ANOMALY_MINUTES).select(
        *("event_time", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay"),
        severity.alias("severity"),
        (late - F.col("arr_delay")).alias("made_up"),
        F.lit(_ANOMALY_MINUTES).alias("limit_minutes"),
    )


def start_query(name: str, frame: DataFrame, *partition_by: str) -> None:
    """Write a stream to the table of that name."""
    writer = frame.writeStream.format("parquet").partitionBy(*partition_by)
    writer.option("checkpointLocation", f"{OUT}/_checkpoints/{name}").start(f"{OUT}/{name}")


def main(settings: Sequence[str]) -> None:
    """Run until the process is killed."""
    builder = SparkSession.builder.appName("flights")
    for setting in settings:
        key, _, value = setting.partition("=")
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    start_query("flights_clean", read_flights(spark), "origin")
    start_query("carrier_delays", carrier_delays(read_flights(spark)))
    start_query("flights_weather", flights_weather(read_flights(spark), read_weather(spark)))
    start_query("anomalies", anomalies(read_flights(spark)))
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(sys.argv[1:])
