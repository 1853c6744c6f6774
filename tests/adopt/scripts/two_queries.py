"""Two queries of one DataFrame, into two directories."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, expr, from_json

KAFKA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
world, out = sys.argv[1:3]
spark = SparkSession.builder.appName("Multi Query Demo").master("local[3]").getOrCreate()
kafka_df = spark.readStream.schema(KAFKA).parquet(f"{world}/trades")
value_df = kafka_df.select(
    from_json(col("value").cast("string"), "id string, at string, type string, amount int").alias(
        "value"
    )
)
notification_df = value_df.select("value.id", "value.amount").withColumn(
    "points", expr("amount * 0.2")
)
(
    notification_df.selectExpr("id as key", "to_json(struct(*)) as value")
    .writeStream.queryName("Notification Writer")
    .format("parquet")
    .option("path", f"{out}/notifications")
    .option("checkpointLocation", f"{out}/chk-point-dir/notify")
    .start()
)
(
    value_df.select("value.*")
    .writeStream.format("json")
    .queryName("Flattened Writer")
    .outputMode("append")
    .option("path", f"{out}/flattened")
    .option("checkpointLocation", f"{out}/chk-point-dir/flatten")
    .start()
)
spark.streams.awaitAnyTermination()
