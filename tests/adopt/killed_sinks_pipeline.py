"""Numbers into a function for each batch, a memory table, and the whole result of sums.

``test_killed_adopted_sinks.py`` kills drivers with it. Each call of a function is a line of
``calls`` or ``results``: its id and its rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType

import weir
from weir.adopt.outputs.memory import MemoryRows
from weir.adopt.outputs.whole_table import WholeTable


def numbers(spark: SparkSession) -> DataFrame:
    """The numbers, one file per batch."""
    reader = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1)
    return reader.parquet("in").select("id")


def sums(frame: DataFrame) -> DataFrame:
    """The sum of the numbers of each of seven keys."""
    return frame.groupBy((F.col("id") % 7).alias("key")).agg(F.sum("id").alias("total"))


def noted(path: str) -> Callable[[DataFrame, int], None]:
    """A function that appends its calls to a file."""

    def note(frame: DataFrame, batch_id: int) -> None:
        rows = sorted(tuple(row) for row in frame.collect())
        with Path(path).open("a") as file:
            file.write(json.dumps([batch_id, rows]) + "\n")

    return note


job = weir.Job("killed")
read = job.source("numbers", numbers, bounded=True)
read.sink("calls", weir.sinks.ForeachBatch(noted("calls"), staging="staged/calls"))
memory = MemoryRows("seen", StructType().add("id", LongType()), directory="staged/memory")
read.sink("memory", memory)
table = WholeTable(noted("results"), keys=["key"], staging="staged/results")
read.transform("sums", sums, output_mode="update").sink("results", table)
