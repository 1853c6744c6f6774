"""Weir's side of ``benchmarks/start.py``: the query of ``copy_plain.py``, as a job.

``weir run copy_weir.py`` runs it. The environment variable ``WEIR_BENCH_LANDING`` is the input
directory; the table is in the working directory.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import weir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_rows(spark: SparkSession) -> DataFrame:
    """The files as a stream."""
    return spark.readStream.schema("id long, amount long").parquet(os.environ["WEIR_BENCH_LANDING"])


job = weir.Job("copy")
job.source("rows", read_rows).transform("valid", lambda rows: rows.filter("amount >= 0")).sink(
    "table", weir.sinks.Files("table")
)
