"""The job of ``benchmarks/file_sizes.py``: a steady trickle of rows into a partitioned table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import weir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS_PER_S = 20_000
_MERGED = os.environ.get("WEIR_BENCHMARK_MERGED") == "1"
_SIZE = (128 << 20) if _MERGED else None


def sink() -> weir.sinks.Sink:
    """The kind that the environment names, in the working directory."""
    if os.environ.get("WEIR_BENCHMARK_SINK") == "iceberg":
        here = Path.cwd()
        catalog = {"type": "sql", "uri": f"sqlite:///{here}/catalog.db"}
        return weir.sinks.IcebergTable(
            {**catalog, "warehouse": f"{here}/table"},
            "bench.rows",
            partition_by=["key"],
            target_file_size=_SIZE,
        )
    return weir.sinks.DeltaTable("table", partition_by=["key"], target_file_size=_SIZE)


def numbers(spark: SparkSession) -> DataFrame:
    """Rows as they come, at a steady rate."""
    reader = spark.readStream.format("rate").option("rowsPerSecond", _ROWS_PER_S)
    return reader.option("numPartitions", 2).load()


job = weir.Job("file_sizes")
rows = job.source("numbers", numbers).transform(
    "keyed", lambda frame: frame.selectExpr("value", "timestamp", "int(value % 4) AS key")
)
rows.sink(
    "table",
    sink(),
    min_commit_interval="15 s" if _MERGED else None,
)
