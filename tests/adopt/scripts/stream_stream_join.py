"""Two streams joined without a watermark."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, expr, from_json

KAFKA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
world, out = sys.argv[1:3]
spark = SparkSession.builder.appName("Stream Stream Join Demo").getOrCreate()


def events(topic, name):
    parsed = from_json(col("value").cast("string"), "id string, at timestamp").alias("v")
    df = spark.readStream.schema(KAFKA).parquet(f"{world}/{topic}").select(parsed)
    return df.selectExpr(f"v.id as {name}", f"v.at as {name}_at")


joined = events("impressions", "impression").join(
    events("clicks", "click"), expr("impression == click"), "inner"
)
query = (
    joined.writeStream.format("parquet")
    .option("path", f"{out}/joined")
    .option("checkpointLocation", f"{out}/chk")
    .start()
)
query.awaitTermination()
