"""The job in the pictures of the documentation, which ``scripts/pictures.py`` runs.

It makes its own orders, of which some have no id, a negative amount, no number as the amount, or
come ten minutes late.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import weir


def orders(spark: SparkSession) -> DataFrame:
    """200 orders a second."""
    rows = spark.readStream.load(format="rate", rowsPerSecond=200)
    number = F.col("value")

    def every(nth: int, text: str) -> Column:
        return F.when(number % nth == nth - 1, text)

    minutes = every(97, "10").otherwise("0").cast("int")
    return rows.select(
        F.when(number % 211 != 210, number).alias("id"),
        F.concat(F.lit("customer "), (number % 12).cast("string")).alias("customer"),
        every(41, "none")
        .when(number % 83 == 82, "-1")
        .otherwise((number % 90).cast("string"))
        .alias("amount"),
        every(29, "GBP").otherwise("EUR").alias("currency"),
        (F.col("timestamp") - F.make_dt_interval(mins=minutes)).alias("at"),
    )


def priced(frame: DataFrame) -> DataFrame:
    """Raises for an amount that is not a number."""
    return frame.withColumn("cents", F.col("amount").cast("int") * 100)


def by_customer(frame: DataFrame) -> DataFrame:
    """How many orders each customer has made."""
    return frame.groupBy("customer").count()


def by_window(frame: DataFrame) -> DataFrame:
    """What was earned in each ten seconds."""
    window = F.window("at", "10 seconds")
    sums = frame.withWatermark("at", "5 seconds").groupBy(window).agg(F.sum("cents").alias("cents"))
    return sums.select("window.start", "cents")


job = weir.Job("orders", conf={"execution.checkpointing.interval": "2 s"})
bad = job.rejects("bad")
bad.sink("bad_orders", weir.sinks.DeltaTable("out/bad_orders"))
landed = job.source("landed", orders)
landed.sink("orders", weir.sinks.DeltaTable("out/orders"))
customers = landed.transform("customers", by_customer, output_mode="update")
customers.sink("counts", weir.sinks.DeltaTable("out/counts", mode="upsert", key=["customer"]))
valid = landed.transform(
    "valid",
    weir.expect(
        warn={"known currency": "currency IN ('EUR', 'USD')"},
        drop={"has an id": "id IS NOT NULL"},
        reject={"positive": "amount NOT LIKE '-%'"},
    ),
    on_error=bad,
)
revenue = valid.transform("priced", priced, on_error=bad).transform("revenue", by_window)
revenue.sink("by_window", weir.sinks.DeltaTable("out/revenue"))
