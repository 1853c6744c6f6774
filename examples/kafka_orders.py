"""Orders from a Kafka topic into another topic and a Delta table, both at one cut.

::

    orders -> clean -+-> orders-clean (topic)
                     +-> orders (Delta table)

Each checkpoint is published in one Kafka transaction and appended in one Delta commit, so readers
with ``isolation.level=read_committed`` see every order once, whatever is killed. ``at_one_cut``
reads both as of the same checkpoint.

The topics must exist; docs/KAFKA.md has the commands. Environment variables set where they are, and
where the table is::

    WEIR_ORDERS_SERVERS=127.0.0.1:9092 WEIR_ORDERS_OUT=out weir run examples/kafka_orders.py
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import weir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SERVERS = os.environ.get("WEIR_ORDERS_SERVERS", "127.0.0.1:9092")
OUT = os.environ.get("WEIR_ORDERS_OUT", "out")
TABLE = f"{OUT}/orders"


def clean(orders: DataFrame) -> DataFrame:
    """The orders that have an amount."""
    return orders.select("value.*").where("amount > 0")


def published() -> weir.sinks.KafkaTopic:
    """The topic with the clean orders, one record each; an order's id is its key."""
    return weir.sinks.KafkaTopic(
        "orders-clean", servers=SERVERS, staging=f"{OUT}/staged", value="json", key="id"
    )


def at_one_cut() -> weir.ConsistentCut:
    """The topic and the table as of the newest checkpoint that both have."""
    return weir.read_consistent({"topic": published(), "table": TABLE})


job = weir.Job("kafka-orders", conf={"execution.checkpointing.interval": "5 s"})
orders = job.source(
    "orders",
    weir.sources.kafka(
        "orders",
        servers=SERVERS,
        value="json",
        schema="id long, country string, amount double, at timestamp",
        max_offsets_per_batch=100_000,
    ),
)
cleaned = orders.transform("clean", clean)
cleaned.sink("topic", published())
cleaned.sink("table", weir.sinks.DeltaTable(TABLE))

# For ``weir sim``, which runs the sinks over a simulated cluster and table.
job.simulation(rows={"clean": "id long, country string, amount double, at timestamp"})
