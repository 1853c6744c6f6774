"""Sinks for this folder's jobs that reach servers: PostgreSQL, Kafka, and functions of its own.

The functions keep what they have seen in PostgreSQL, as functions that write exactly once must.
Each writes into a table of its own without a key, so a row that comes twice is there twice.
"""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
from pyspark.sql import DataFrame

import weir


def add_sinks(
    numbers: weir.Stream, ranks: weir.Stream, *, staging: str, servers: list[str]
) -> None:
    """``servers``: Kafka's, and a connection string of PostgreSQL. ``staging``: a directory."""
    kafka, dsn = servers

    def insert(table: str, key: str, rows: Iterable[tuple[int, ...]]) -> None:
        with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO seen VALUES (%s) ON CONFLICT DO NOTHING", (key,))
            if cursor.rowcount:
                with cursor.copy(f"COPY {table} FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)

    def by_batch(frame: DataFrame, batch_id: int) -> None:
        insert("by_batch", f"batch {batch_id}", map(tuple, frame.collect()))

    def by_epoch(frame: DataFrame, epoch: weir.sinks.CommitInfo) -> None:
        insert("by_epoch", epoch.key, map(tuple, frame.select("id").collect()))

    def stage(frame: DataFrame, batch: weir.sinks.BatchInfo) -> list[int]:
        return [row.id for row in frame.collect()]

    def commit(epoch: weir.sinks.CommitInfo, batches: list[list[int]]) -> None:
        insert("by_commit", epoch.key, ((number,) for batch in batches for number in batch))

    numbers.sink("table", weir.sinks.PostgresTable(dsn, "numbers"))
    topic = weir.sinks.KafkaTopic(
        "numbers", servers=kafka, staging=f"{staging}/topic", value="json", key="id"
    )
    numbers.sink("topic", topic)
    numbers.sink("by_epoch", weir.sinks.ForeachEpoch(by_epoch, staging=f"{staging}/by_epoch"))
    numbers.sink("by_commit", weir.sinks.Foreach(stage, commit=commit))
    ranks.sink("by_batch", weir.sinks.ForeachBatch(by_batch, staging=f"{staging}/by_batch"))
