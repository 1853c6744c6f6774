"""Cells of a notebook: nobody makes the session."""

import sys

lines = spark.readStream.schema("value binary, offset long").parquet(f"{sys.argv[1]}/words")  # noqa: F821
lines.selectExpr("offset", "CAST(value AS STRING)").writeStream.option(
    "checkpointLocation", f"{sys.argv[2]}/checkpoint"
).start(f"{sys.argv[2]}/words")
