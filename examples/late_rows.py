"""Late rows set aside instead of dropped.

Spark drops a row that a window can no longer take. This operator looks at the watermark first: what
is older goes to a table of its own, from which a nightly job may correct the totals::

    python sample_input.py
    weir run late_rows.py --until-idle

``weir top late-rows`` and the web page show how many rows came too late for a window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import weir
from weir.operators import Operator

ORDERS = "id long, customer string, product string, amount long, at timestamp"


class InTime(Operator):
    """Lets rows pass that are not older than the watermark."""

    side_outputs: Mapping[str, str] = {"late": ORDERS}

    def process_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Send each row to one of the two outputs."""
        watermark_ms = self.context.watermark_ms
        if watermark_ms is None:
            yield batch
            return
        times_ms = batch["at"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        late = pc.less(times_ms, watermark_ms)
        self.context.output("late", batch.filter(late))
        yield batch.filter(pc.invert(late))


def landed(spark: SparkSession) -> DataFrame:
    """The orders in their order, of which some come six hours late."""
    read = spark.readStream.schema(ORDERS).option("maxFilesPerTrigger", 1).json("in/orders")
    return read.withWatermark("at", "30 minutes")


def by_hour(orders: DataFrame) -> DataFrame:
    """What was ordered in each hour."""
    amounts = orders.groupBy(F.window("at", "1 hour").alias("hour")).agg(F.sum("amount"))
    return amounts.select("hour.start", F.col("sum(amount)").alias("amount"))


job = weir.Job("late-rows")
in_time = job.source("orders", landed).process("in_time", InTime())
in_time.transform("by_hour", by_hour).sink(weir.sinks.DeltaTable("out/by_hour"))
in_time.side_output("late").sink("late", weir.sinks.DeltaTable("out/late"))
