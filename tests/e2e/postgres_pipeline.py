"""Numbers, one file per batch, into PostgreSQL tables: appended, and by key.

``WEIR_TEST_DSN`` is the connection string; ``NUMBERS`` as in ``numbers_pipeline``.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession

import weir

DSN = os.environ["WEIR_TEST_DSN"]
BOUNDED = os.environ.get("NUMBERS", "bounded") == "bounded"


def numbers(spark: SparkSession) -> DataFrame:
    """The numbers, one file per batch."""
    reader = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1)
    return reader.parquet("in").selectExpr("id", "ts", "id % 7 AS key")


newest = weir.sinks.PostgresTable(
    DSN, "newest", mode="upsert", key=["key"], order_by="id", create=True
)

job = weir.Job("postgres")
source = job.source("numbers", numbers, bounded=BOUNDED)
source.sink("raw", weir.sinks.PostgresTable(DSN, "raw"))
source.sink("newest", newest)
