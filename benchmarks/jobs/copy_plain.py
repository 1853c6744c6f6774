"""Plain Spark's side of ``benchmarks/start.py``: one query from files to files.

``python copy_plain.py KEY=VALUE...`` takes Spark's settings. The environment variable
``WEIR_BENCH_LANDING`` is the input directory; table and checkpoint are in the working directory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession


def main(settings: Sequence[str]) -> None:
    """Run until the process is killed."""
    builder = SparkSession.builder.appName("copy")
    for setting in settings:
        key, _, value = setting.partition("=")
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    rows = (
        spark.readStream.schema("id long, amount long")
        .parquet(os.environ["WEIR_BENCH_LANDING"])
        .filter("amount >= 0")
    )
    query = (
        rows.writeStream.format("parquet").option("checkpointLocation", "checkpoint").start("table")
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1:])
