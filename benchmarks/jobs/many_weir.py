"""The job of ``benchmarks/memory.py``: ``WEIR_BENCH_QUERIES`` queries from sources to sinks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import weir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_rows(spark: SparkSession) -> DataFrame:
    """The files as a stream."""
    return spark.readStream.schema("id long, amount long").parquet(os.environ["WEIR_BENCH_LANDING"])


job = weir.Job("many")
for number in range(int(os.environ["WEIR_BENCH_QUERIES"])):
    job.source(f"rows_{number}", read_rows).sink(
        f"table_{number}", weir.sinks.Files(f"table_{number}")
    )
