"""The pipeline of the end-to-end tests: numbers with times, copied unchanged and counted by minute.

Two queries with a channel between them, three sinks: the first has a Delta table and files, the
second a stateful window into ``Files``, which closes by the watermark of the first. All paths are
relative to the directory in which the command runs. The environment variable ``NUMBERS`` is
``bounded`` (all files that are there at the start, then the end) or ``unbounded``; ``NUMBERS_IN``
and ``NUMBERS_RAW`` name other directories for the input and the sinks.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import weir

BOUNDED = os.environ.get("NUMBERS", "bounded") == "bounded"
IN = os.environ.get("NUMBERS_IN", "in")
RAW = os.environ.get("NUMBERS_RAW", "out")


def numbers(spark: SparkSession) -> DataFrame:
    """The numbers, one file per batch."""
    reader = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1)
    return reader.parquet(IN)


def timed(frame: DataFrame) -> DataFrame:
    """Numbers arrive in order; any delay would do."""
    return frame.withWatermark("ts", "10 seconds")


def by_minute(frame: DataFrame) -> DataFrame:
    """The count of numbers per minute."""
    counted = frame.groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias("n"))
    return counted.select(F.col("window.start").alias("start"), "n")


job = weir.Job("numbers")
copied = job.source("numbers", numbers, bounded=BOUNDED).transform("timed", timed)
copied.sink("raw", weir.sinks.DeltaTable(f"{RAW}/raw"))
copied.sink("raw_files", weir.sinks.Files(f"{RAW}/raw_files"))
copied.transform("by_minute", by_minute).sink("minutes", weir.sinks.Files(f"{RAW}/minutes"))
