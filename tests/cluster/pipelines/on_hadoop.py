"""Numbers, copied into files and a Delta table, counted by minute, and ranked by a Python operator.

Arguments: ``bounded`` or ``unbounded``, the directory of the input, and that of the sinks. With the
servers of Kafka and PostgreSQL it has every sink that may stand beside these (``on_servers.py``),
and merges the count of each digit into a Delta table. The operator is in a package beside this
file, whose name no other file knows.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from ranking import Ranks

import weir

KIND, IN, OUT, *SERVERS = sys.argv[1:]


def numbers(spark: SparkSession) -> DataFrame:
    """The numbers, one file per batch."""
    reader = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1)
    return reader.parquet(IN).withWatermark("ts", "10 seconds")


def by_minute(frame: DataFrame) -> DataFrame:
    """The count of numbers per minute."""
    counted = frame.groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias("n"))
    return counted.select(F.col("window.start").alias("start"), "n")


def digits(frame: DataFrame) -> DataFrame:
    """The last digit of each number."""
    return frame.select((F.col("id") % 10).alias("digit"))


def totals(frame: DataFrame) -> DataFrame:
    """How many numbers there are of each last digit, so far."""
    return digits(frame).groupBy("digit").agg(F.count("*").alias("n"))


job = weir.Job("numbers")
copied = job.source("numbers", numbers, bounded=KIND == "bounded")
copied.sink("raw", weir.sinks.DeltaTable(f"{OUT}/raw"))
copied.sink("raw_files", weir.sinks.Files(f"{OUT}/raw_files"))
copied.transform("by_minute", by_minute).sink("minutes", weir.sinks.Files(f"{OUT}/minutes"))
ranked = copied.transform("digits", digits).process("ranks", Ranks(), key_by="digit", parallelism=2)
ranked.sink("ranked", weir.sinks.Files(f"{OUT}/ranks"))
if SERVERS:
    from on_servers import add_sinks

    counted = copied.transform("totals", totals, output_mode="update")
    merged = weir.sinks.DeltaTable(f"{OUT}/totals", mode="upsert", key=["digit"])
    counted.sink("merged", merged)
    add_sinks(copied, ranked, staging=f"{OUT}-staged", servers=SERVERS)
