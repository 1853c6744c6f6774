"""Valid rows into Parquet, invalid ones as JSON to a place for dead letters; two named queries."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json, struct, to_json, when

world, out = sys.argv[1:3]
spark = SparkSession.builder.appName("bronze user events").getOrCreate()
raw = spark.readStream.schema("key binary, value binary, offset long").parquet(f"{world}/trades")
events = raw.select(
    col("offset"),
    col("value").cast("string").alias("raw_value"),
    from_json(col("value").cast("string"), "id string, type string, amount long").alias("event"),
)
checked = events.withColumn(
    "reason",
    when(col("event.id").isNull(), "no id")
    .when(col("event.amount") % 7 == 0, "amount not allowed")
    .otherwise(None),
)
valid_df = checked.filter(col("reason").isNull()).select("event.*")
invalid_df = checked.filter(col("reason").isNotNull()).select(
    to_json(struct("reason", "raw_value")).alias("value")
)

valid_query = (
    valid_df.writeStream.format("parquet")
    .option("path", f"{out}/bronze/user_events")
    .option("checkpointLocation", f"{out}/checkpoints/bronze_user_events")
    .outputMode("append")
    .queryName("bronze_user_events_writer")
    .start()
)

invalid_query = (
    invalid_df.writeStream.format("json")
    .option("path", f"{out}/dead_letters")
    .option("checkpointLocation", f"{out}/checkpoints/dlq")
    .outputMode("append")
    .queryName("invalid_events_dlq_stream")
    .start()
)

spark.streams.awaitAnyTermination()
