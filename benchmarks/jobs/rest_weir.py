"""The job of ``benchmarks/rest.py``: a query that is never out of rows, and one behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import weir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS = 500_000


def numbers(spark: SparkSession) -> DataFrame:
    """Batches of numbers, as fast as they are read."""
    return (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", _BATCH_ROWS)
        .option("numPartitions", 2)
        .option("startTimestamp", 1_700_000_000_000)
        .load()
    )


def few(rows: DataFrame) -> DataFrame:
    """One row of a thousand, by a hash that takes Spark some work."""
    return rows.selectExpr("value", "sha2(string(value), 256) AS digest").filter(
        "value % 1000 = 0 AND digest > ''"
    )


job = weir.Job("rest")
thinned = job.source("numbers", numbers).transform("few", few)
thinned.sink("table", weir.sinks.Files("table"))
thinned.transform(
    "counted", lambda rows: rows.selectExpr("value % 10 AS digit", "digest")
).start_new_chain().sink("digits", weir.sinks.Files("digits"))
