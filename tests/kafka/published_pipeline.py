"""Numbers from a topic, some of them aborted, into topics, a Delta table and files.

``test_published_pipeline.py`` kills drivers with it.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import weir

SERVERS = os.environ["SERVERS"]


def numbers(spark: SparkSession) -> DataFrame:
    """The committed numbers."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", SERVERS)
    reader = reader.option("subscribe", "in").option("startingOffsets", "earliest")
    reader = reader.option("kafka.isolation.level", "read_committed")
    frame = reader.option("maxOffsetsPerTrigger", 100).load()
    return frame.selectExpr(
        "CAST(CAST(value AS STRING) AS LONG) AS id",
        "timestamp_seconds(CAST(CAST(value AS STRING) AS LONG)) AS ts",
    ).withWatermark("ts", "10 minutes")


def sums(frame: DataFrame) -> DataFrame:
    """The sum of each minute."""
    windows = frame.groupBy(F.window("ts", "1 minute")).agg(F.sum("id").alias("total"))
    return windows.select(F.col("window.start").alias("minute"), "total")


def published(topic: str, key: str) -> weir.sinks.KafkaTopic:
    """A topic with values in JSON."""
    return weir.sinks.KafkaTopic(
        topic,
        servers=SERVERS,
        staging=f"staged/{topic}",
        value="json",
        key=key,
    )


job = weir.Job("published", conf={"spark.jars": os.environ["JARS"]})
read = job.source("numbers", numbers, bounded=True)
read.sink("raw", published("raw", "id"))
read.sink("files", weir.sinks.Files("out/files"))
totals = read.transform("sums", sums)
totals.sink("minutes", published("minutes", "minute"))
totals.sink("table", weir.sinks.DeltaTable("out/minutes"))
