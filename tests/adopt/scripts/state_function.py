"""State kept by a function over pandas with event time; its checkpoint location has the time."""

import sys
import time

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json
from pyspark.sql.streaming.state import GroupStateTimeout

KAFKA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
world, out = sys.argv[1:3]
spark = SparkSession.builder.getOrCreate()
trades = (
    spark.readStream.schema(KAFKA)
    .parquet(f"{world}/trades")
    .select(
        from_json(
            col("value").cast("string"), "id string, at timestamp, type string, amount int"
        ).alias("v")
    )
    .select("v.type", "v.at", "v.amount")
    .withWatermark("at", "1 hour")
)


def running_total(key, frames, state):
    total = state.get[0] if state.exists else 0
    for frame in frames:
        total += int(frame.amount.sum())
    state.update((total,))
    yield pd.DataFrame({"type": [key[0]], "total": [total]})


totals = trades.groupBy("type").applyInPandasWithState(
    running_total,
    "type string, total long",
    "total long",
    "update",
    GroupStateTimeout.EventTimeTimeout,
)
query = (
    totals.writeStream.outputMode("update")
    .format("console")
    .options(truncate=False, numRows=100000)
    .option("checkpointLocation", f"{out}/checkpoint-{int(time.time())}")
    .start()
)
query.awaitTermination()
