"""Numbers, one file per batch, into two Iceberg tables: plain, and partitioned with a list.

The catalog is pyiceberg's ``shop``, which its environment describes; ``NUMBERS`` as in
``numbers_pipeline``.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession

import weir

BOUNDED = os.environ.get("NUMBERS", "bounded") == "bounded"


def numbers(spark: SparkSession) -> DataFrame:
    """The numbers, one file per batch."""
    reader = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1)
    return reader.parquet("in")


job = weir.Job("iceberg")
source = job.source("numbers", numbers, bounded=BOUNDED)
source.sink("raw", weir.sinks.IcebergTable("shop", "sales.raw"))
source.transform(
    "with_keys",
    lambda df: df.selectExpr("id", "ts", "concat('k', id % 3) AS key", "array(id) AS ids"),
).sink("keyed", weir.sinks.IcebergTable("shop", "sales.keyed", partition_by=["key"]))
