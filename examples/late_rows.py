"""Late rows set aside instead of dropped.

Spark drops a row whose window has closed, and only counts it. This operator adds up the hours
itself: a timer of event time closes an hour when the watermark has passed it, and an order that
comes later goes to a table of its own, from which a nightly job may correct the totals::

    python sample_input.py
    weir run late_rows.py --until-idle
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import weir
from weir.operators import Operator

ORDERS = "id long, customer string, product string, amount long, at timestamp"


class Hours(Operator):
    """The amount of each hour, once it is over."""

    output_schema = "end timestamp, amount long"
    side_outputs: Mapping[str, str] = {"late": ORDERS}

    def initialize_state(self, state: Any) -> None:
        """By hour: its amount, and when it closes."""
        self.amount = state.keyed_state("amount", pa.int64(), 0)
        self.closing = state.event_timers("closing")

    def process_batch(self, batch: pa.RecordBatch) -> None:
        """Add each order to its hour, or set it aside."""
        watermark_ms = self.context.watermark_ms
        ends_ms = batch["end"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        late = pc.less_equal(ends_ms, -1 if watermark_ms is None else watermark_ms)
        self.context.output("late", batch.filter(late).drop_columns(["end"]))
        in_time = pa.Table.from_batches([batch.filter(pc.invert(late))])
        hours = in_time.group_by("end").aggregate([("amount", "sum")]).combine_chunks()
        if hours.num_rows:
            ends = hours["end"].combine_chunks()
            before = self.amount.get(ends)
            self.amount.put(ends, pc.add(before, hours["amount_sum"].combine_chunks()))
            self.closing.register(ends, ends)

    def on_timer(self, timers: Any, due: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Emit the hours that are over."""
        ends = due["key"]
        yield pa.RecordBatch.from_pydict({"end": ends, "amount": self.amount.get(ends)})
        self.amount.delete(ends)


def landed(spark: SparkSession) -> DataFrame:
    """The orders in their order, of which some come six hours late, with the end of their hour."""
    read = spark.readStream.schema(ORDERS).option("maxFilesPerTrigger", 1).json("in/orders")
    end = F.date_trunc("hour", "at") + F.expr("INTERVAL 1 HOUR")
    return read.withWatermark("at", "30 minutes").withColumn("end", end)


job = weir.Job("late-rows")
hours = job.source("orders", landed).process("hours", Hours(), key_by="end")
hours.sink(weir.sinks.DeltaTable("out/by_hour"))
hours.side_output("late").sink("late", weir.sinks.DeltaTable("out/late"))
