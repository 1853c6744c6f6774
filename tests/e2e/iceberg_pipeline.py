"""Numbers, one file per batch, into two Iceberg tables: plain, and partitioned with a list.

The catalog is pyiceberg's ``shop``, which its environment describes; ``NUMBERS`` as in
``numbers_pipeline``. ``TARGET_FILE_SIZE``: small files are merged. ``EVOLVED``: rows of ``keyed``
have another column, and a wider type.
"""

from __future__ import annotations

import os
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import weir

OPTIONS: dict[str, Any] = {
    "schema_evolution": "add",
    "target_file_size": int(os.environ.get("TARGET_FILE_SIZE", "0")) or None,
}
MORE = ("id AS n", "id * 2 AS twice") if os.environ.get("EVOLVED") else ("cast(id AS int) AS n",)
BOUNDED = os.environ.get("NUMBERS", "bounded") == "bounded"


def numbers(spark: SparkSession) -> DataFrame:
    """The numbers, one file per batch."""
    reader = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1)
    return reader.parquet("in")


job = weir.Job("iceberg")
source = job.source("numbers", numbers, bounded=BOUNDED)
source.sink("raw", weir.sinks.IcebergTable("shop", "sales.raw", **OPTIONS))
source.transform(
    "with_keys",
    lambda df: df.selectExpr("id", "ts", "concat('k', id % 3) AS key", "array(id) AS ids", *MORE),
).sink("keyed", weir.sinks.IcebergTable("shop", "sales.keyed", partition_by=["key"], **OPTIONS))
