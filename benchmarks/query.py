"""The query that both sides run: source and aggregation, and their common Spark settings."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from benchmarks.runs import Batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

MASTER = "local[2]"

#: Settings that could favour one side, set to the same values on both.
COMMON_SETTINGS = {
    "spark.driver.memory": "3g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def read_input(spark: SparkSession, directory: str, files_per_batch: int) -> DataFrame:
    """The files as a stream."""
    return (
        spark.readStream.schema("ts timestamp, key int, amount long")
        .option("maxFilesPerTrigger", files_per_batch)
        .parquet(directory)
    )


def revenue(frame: DataFrame) -> DataFrame:
    """Count and sum for each minute and key."""
    return (
        frame.withWatermark("ts", "10 seconds")
        .groupBy(F.window("ts", "1 minute"), "key")
        .agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
        .select(F.col("window.start").alias("minute"), "key", "orders", "amount")
    )


def batches_of(query: StreamingQuery) -> list[Batch]:
    """Every batch that the query has run, including those without data."""
    return [
        _batch(progress)
        for progress in query.recentProgress
        if "addBatch" in progress["durationMs"]
    ]


def _batch(progress: StreamingQueryProgress) -> Batch:
    begun_ms = datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000
    duration_ms = {phase: int(value) for phase, value in progress["durationMs"].items()}
    return Batch(
        rows=int(progress["numInputRows"]),
        end_ms=begun_ms + duration_ms["triggerExecution"],
        duration_ms=duration_ms,
    )
