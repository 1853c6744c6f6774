"""Numbers in S3 into every sink that can lie there: copied, counted by minute, ranked by digit.

``WHERE`` is the URI of a directory that has the input, and ``OUT`` that of the sinks, if that is
not below it. For the ranks the input is read by ``FileSource``, and they are counted by a Python
operator, in keyed state. ``NUMBERS`` is ``bounded`` (all files that are there at the start, then
the end) or ``unbounded``; ``CATALOG`` is the address of an Iceberg catalog, if there is to be such
a table. With ``KAFKA`` and ``POSTGRES``, the addresses of servers, it has every sink that may stand
beside these (``on_servers.py``), and merges the count of each digit into a Delta table.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from ranking import Ranks

import weir

WHERE = os.environ["WHERE"]
OUT = os.environ.get("OUT", f"{WHERE}/out")
#: By the scheme that readers of Iceberg know.
LAKE = OUT.replace("s3a:", "s3:") + "/lake"


def numbers(spark: SparkSession) -> DataFrame:
    """The numbers, one file per batch."""
    reader = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1)
    return reader.parquet(f"{WHERE}/in")


def timed(frame: DataFrame) -> DataFrame:
    """Numbers arrive in order; any delay would do."""
    return frame.withWatermark("ts", "10 seconds")


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


job = weir.Job("far")
bounded = os.environ.get("NUMBERS", "bounded") == "bounded"
copied = job.source("numbers", numbers, bounded=bounded).transform("timed", timed)
copied.sink("raw", weir.sinks.DeltaTable(f"{OUT}/raw"))
copied.sink("raw_files", weir.sinks.Files(f"{OUT}/raw_files"))
if catalog := os.environ.get("CATALOG"):
    properties = {"name": "far", "type": "sql", "uri": catalog, "warehouse": LAKE}
    copied.sink("lake", weir.sinks.IcebergTable(properties, "shop.numbers"))
copied.transform("by_minute", by_minute).sink("minutes", weir.sinks.Files(f"{OUT}/minutes"))
files = weir.sources.FileSource(
    f"{WHERE}/in", format="parquet", schema="id long, ts timestamp", bounded=bounded
)
read = job.source("files", files, parallelism=2).transform("digits", digits)
ranked = read.process("ranks", Ranks(), key_by="digit", parallelism=2)
ranked.sink("ranked", weir.sinks.Files(f"{OUT}/ranks"))
if servers := [os.environ[name] for name in ("KAFKA", "POSTGRES") if name in os.environ]:
    from on_servers import add_sinks

    counted = copied.transform("totals", totals, output_mode="update")
    merged = weir.sinks.DeltaTable(f"{OUT}/totals", mode="upsert", key=["digit"])
    counted.sink("merged", merged)
    add_sinks(copied, ranked, staging=f"{WHERE}/staged", servers=servers)
