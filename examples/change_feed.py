"""A change feed that becomes a table in PostgreSQL: the newest state of each customer.

A row of the feed replaces an older one of its customer, by the time of the change and not by the
order of arrival. A customer who was deleted stays in the table with the mark, since the sink
deletes no rows; a view hides them::

    python sample_input.py
    WEIR_EXAMPLE_POSTGRES="host=/var/run/postgresql dbname=shop" \
        weir run change_feed.py --until-idle

    CREATE VIEW living AS SELECT * FROM customers WHERE NOT deleted;
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession

import weir

CHANGES = "customer string, city string, deleted boolean, changed timestamp"
POSTGRES = os.environ.get("WEIR_EXAMPLE_POSTGRES", "dbname=shop")


def feed(spark: SparkSession) -> DataFrame:
    """What changed, oldest first."""
    return spark.readStream.schema(CHANGES).json("in/changes")


customers = weir.sinks.PostgresTable(
    POSTGRES, "customers", mode="upsert", key=["customer"], order_by="changed", create=True
)
job = weir.Job("change-feed")
job.source("changes", feed).sink("customers", customers)
