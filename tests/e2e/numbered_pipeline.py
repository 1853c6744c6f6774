"""Numbers, one file per batch, into a Delta table and a PostgreSQL table with a history.

``WEIR_TEST_DSN`` is the connection string, ``COLUMN`` has the numbers of checkpoints; ``NUMBERS``
as in ``numbers_pipeline``.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession

import weir


def numbers(spark: SparkSession) -> DataFrame:
    """The numbers, one file per batch."""
    reader = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1)
    return reader.parquet("in")


job = weir.Job("numbered")
source = job.source("numbers", numbers, bounded=os.environ.get("NUMBERS", "bounded") == "bounded")
source.sink("delta", weir.sinks.DeltaTable("out/delta"))
source.sink(
    "postgres",
    weir.sinks.PostgresTable(
        os.environ["WEIR_TEST_DSN"],
        "numbers",
        create=True,
        schema_evolution="add",
        epoch_column=os.environ["COLUMN"],
    ),
)
