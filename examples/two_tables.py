"""Two tables from one source, which agree at every checkpoint.

The orders are read once. All of them go to one table, and what each product earned in an hour to
another, once the hour is over::

    python sample_input.py
    weir run two_tables.py --until-idle

Read both as of the same checkpoint, also while the job runs::

    cut = weir.read_consistent({"orders": "out/orders", "revenue": "out/revenue"})
    cut.table("revenue").to_pandas()
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import weir

ORDERS = "id long, customer string, product string, amount long, at timestamp"


def landed(spark: SparkSession) -> DataFrame:
    """The orders as they come."""
    return spark.readStream.schema(ORDERS).json("in/orders")


def by_hour(orders: DataFrame) -> DataFrame:
    """What each product earned in an hour."""
    hours = F.window("at", "1 hour").alias("hour")
    revenue = orders.withWatermark("at", "8 hours").groupBy(hours, "product")
    return revenue.agg(F.sum("amount").alias("revenue")).select("hour.start", "product", "revenue")


job = weir.Job("two-tables")
orders = job.source("orders", landed)
orders.sink("orders", weir.sinks.DeltaTable("out/orders"))
orders.transform("revenue", by_hour).sink(weir.sinks.DeltaTable("out/revenue"))
