"""The pipeline of the end-to-end tests: numbers with times, counted by the minute, and copied as they are.

Two vertices, three sinks: a stateful window into ``Files``, and a vertex with two sinks, a Delta table and files. All
paths are relative to the directory in which the command runs. The environment variable ``NUMBERS`` is ``bounded`` (all
files that are there at the start, then the end) or ``unbounded``; ``NUMBERS_RAW`` names another directory for the copies.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import weir

BOUNDED = os.environ.get("NUMBERS", "bounded") == "bounded"
RAW = os.environ.get("NUMBERS_RAW", "out")


def numbers(spark: SparkSession) -> DataFrame:
    """One file in each step."""
    reader = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1)
    return reader.parquet("in")


def by_minute(frame: DataFrame) -> DataFrame:
    """How many numbers each minute has."""
    windows = frame.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute"))
    return windows.agg(F.count("*").alias("n")).select(F.col("window.start").alias("start"), "n")


job = weir.Job("numbers")
counted = job.source("numbers", numbers, bounded=BOUNDED).transform("by_minute", by_minute)
counted.sink("minutes", weir.sinks.Files(f"{RAW}/minutes"))
copied = job.source("numbers_again", numbers, bounded=BOUNDED)
copied.sink("raw", weir.sinks.DeltaTable(f"{RAW}/raw"))
copied.sink("raw_files", weir.sinks.Files(f"{RAW}/raw_files"))
