"""A join with a table that is replaced now and then: orders with the price of their product.

Spark reads a static table of a streaming join once, when the query starts. Here each batch reads it
again, in the workers, so a new ``products.parquet`` counts from the next batch on. An order that is
processed again after a crash may get the newer price; no order is there twice::

    python sample_input.py
    weir run refreshed_table.py --until-idle
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import weir

ORDERS = "id long, customer string, product string, amount long, at timestamp"
# Workers have a directory of their own.
PRODUCTS = str(Path("in/products.parquet").resolve())


def landed(spark: SparkSession) -> DataFrame:
    """The orders as they come."""
    return spark.readStream.schema(ORDERS).json("in/orders")


def with_price(orders: DataFrame) -> DataFrame:
    """Orders with the price that their product has now; null for an unknown one."""

    def join(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        products = pq.read_table(PRODUCTS)
        for batch in batches:
            joined = pa.Table.from_batches([batch]).join(products, "product")
            yield from joined.select(["id", "product", "amount", "price"]).to_batches()

    return orders.mapInArrow(join, "id long, product string, amount long, price double")


job = weir.Job("refreshed-table")
priced = job.source("orders", landed).transform("priced", with_price)
priced.sink(weir.sinks.DeltaTable("out/priced"))
