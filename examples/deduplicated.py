"""Each order once, though the input has some of them twice.

Spark remembers the ids of the last eight hours of event time; that state is part of every
checkpoint, so an order that comes again after a crash is still recognised::

    python sample_input.py
    weir run deduplicated.py --until-idle
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

import weir

ORDERS = "id long, customer string, product string, amount long, at timestamp"


def landed(spark: SparkSession) -> DataFrame:
    """The orders as they come, some of them twice."""
    return spark.readStream.schema(ORDERS).json("in/orders")


def once(orders: DataFrame) -> DataFrame:
    """The first of all orders with the same id."""
    return orders.withWatermark("at", "8 hours").dropDuplicatesWithinWatermark(["id"])


job = weir.Job("deduplicated")
job.source("orders", landed).transform("once", once).sink(weir.sinks.DeltaTable("out/orders"))
