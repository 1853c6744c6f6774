"""Numbers from a topic, some of them aborted, through a window into three targets.

``jobs.py`` kills its driver, JVM and executors, and the broker.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import weir

SERVERS = os.environ["SERVERS"]


def numbers(spark: SparkSession) -> DataFrame:
    """The committed numbers, few at a time."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", SERVERS)
    reader = reader.option("subscribe", "in").option("startingOffsets", "earliest")
    reader = reader.option("kafka.isolation.level", "read_committed")
    return reader.option("maxOffsetsPerTrigger", 500).load()


def parsed(frame: DataFrame) -> DataFrame:
    """Each number, and the second that it stands for."""
    number = F.col("value").cast("string").cast("long")
    numbered = frame.select(number.alias("id"), F.timestamp_seconds(number).alias("ts"))
    return numbered.withWatermark("ts", "10 minutes")


def sums(frame: DataFrame) -> DataFrame:
    """Count and sum of each ten seconds."""
    windows = frame.groupBy(F.window("ts", "10 seconds"))
    found = windows.agg(F.count("id").alias("n"), F.sum("id").alias("total"))
    return found.select(F.col("window.start").cast("long").alias("start"), "n", "total")


job = weir.Job("jobs", conf={"spark.jars": os.environ["JARS"]})
totals = job.source("numbers", numbers).transform("parsed", parsed).transform("sums", sums)
totals.sink(
    "topic",
    weir.sinks.KafkaTopic(
        "windows", servers=SERVERS, staging="staged/windows", value="json", key="start"
    ),
)
totals.sink("table", weir.sinks.DeltaTable("out/windows"))
totals.sink("rows", weir.sinks.PostgresTable(os.environ["DSN"], "windows"))
