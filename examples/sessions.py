"""Sessions in Python: a customer's orders with no gap of more than an hour between them.

An operator keeps the times of orders whose session is still open. A timer of event time closes a
session when the watermark has passed its last order by an hour. Timers and times are part of every
checkpoint, and follow their customers to another parallelism. State is read and written for all
customers of a batch at once::

    python sample_input.py
    weir run sessions.py --until-idle
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

import weir
from weir.operators import Operator

ORDERS = "id long, customer string, product string, amount long, at timestamp"
GAP_MS = 3_600_000


class Sessions(Operator):
    """Emits each session once it has closed."""

    output_schema = "customer string, begin timestamp, end timestamp, orders long"

    def initialize_state(self, state: Any) -> None:
        """By customer: the times of orders in open sessions, and when these may close."""
        self.times = state.keyed_list_state("times", pa.int64())
        self.closing = state.event_timers("closing")

    def process_batch(self, batch: pa.RecordBatch) -> None:
        """Keep the times of the orders."""
        times = batch["at"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        self.times.append(batch["customer"], times)
        self.closing.register(batch["customer"], pc.add(times, GAP_MS))

    def on_timer(self, timers: Any, due: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Close the sessions that end before the timers."""
        customers = due["key"]
        found = zip(
            customers.to_pylist(),
            due["time_ms"].cast(pa.int64()).to_pylist(),
            self.times.get(customers).to_pylist(),
            strict=True,
        )
        closed: list[tuple[str, int, int, int]] = []
        kept: list[tuple[str, int]] = []
        for customer, now, times in found:
            for session in _sessions(sorted(times)):
                if session[-1] + GAP_MS <= now:
                    closed.append((customer, session[0], session[-1], len(session)))
                else:
                    kept.extend((customer, time) for time in session)
        self.times.clear(customers)
        self.times.append(
            pa.array([customer for customer, _ in kept], pa.string()),
            pa.array([time for _, time in kept], pa.int64()),
        )
        if closed:
            customer, begin, end, orders = zip(*closed, strict=True)
            yield pa.RecordBatch.from_pydict(
                {
                    "customer": customer,
                    "begin": pa.array(begin, pa.timestamp("ms", "UTC")),
                    "end": pa.array(end, pa.timestamp("ms", "UTC")),
                    "orders": orders,
                }
            )


def _sessions(times: list[int]) -> Iterator[list[int]]:
    session: list[int] = []
    for time in times:
        if session and time - session[-1] >= GAP_MS:
            yield session
            session = []
        session.append(time)
    if session:
        yield session


def landed(spark: SparkSession) -> DataFrame:
    """The orders, up to eight hours late."""
    read = spark.readStream.schema(ORDERS).option("maxFilesPerTrigger", 1).json("in/orders")
    return read.withWatermark("at", "8 hours")


job = weir.Job("sessions")
sessions = job.source("orders", landed).process("sessions", Sessions(), key_by="customer")
sessions.sink(weir.sinks.DeltaTable("out/sessions"))
