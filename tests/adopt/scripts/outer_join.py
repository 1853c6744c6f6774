"""Two streams joined with watermarks; impressions without a click come out at the end."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, expr, from_json

KAFKA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
world, out = sys.argv[1:3]
spark = SparkSession.builder.appName("Streaming Outer Join Demo").getOrCreate()


def events(topic, name):
    parsed = from_json(col("value").cast("string"), "id string, at timestamp").alias("v")
    df = spark.readStream.schema(KAFKA).parquet(f"{world}/{topic}").select(parsed)
    df = df.selectExpr(f"v.id as {name}", f"v.at as {name}_at")
    return df.withWatermark(f"{name}_at", "30 minute")


joined = events("impressions", "impression").join(
    events("clicks", "click"),
    expr(
        """impression == click AND
        click_at BETWEEN impression_at AND impression_at + interval 15 minute"""
    ),
    "leftOuter",
)
query = (
    joined.writeStream.format("parquet")
    .outputMode("append")
    .option("path", f"{out}/joined")
    .option("checkpointLocation", f"{out}/chk")
    .trigger(processingTime="1 second")
    .start()
)
query.awaitTermination()
