"""Reads what is there, and ends."""

import sys

from pyspark.sql import SparkSession

source, out = sys.argv[1], sys.argv[2]
spark = SparkSession.builder.appName("kafka-read").getOrCreate()
df = spark.readStream.schema("value binary, offset long").parquet(f"{source}/words")
query = (
    df.selectExpr("offset", "CAST(value AS STRING)")
    .writeStream.format("parquet")
    .option("checkpointLocation", f"{out}/checkpoint")
    .trigger(availableNow=True)
    .start(f"{out}/words")
)
query.awaitTermination()
print("done", flush=True)
