"""Windows with a watermark, whose changes the console shows every second."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, expr, from_json, sum, to_timestamp, window

KAFKA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
spark = (
    SparkSession.builder.appName("Watermark Demo")
    .config("spark.sql.shuffle.partitions", 2)
    .getOrCreate()
)
trades = (
    spark.readStream.schema(KAFKA)
    .parquet(f"{sys.argv[1]}/trades")
    .select(
        from_json(
            col("value").cast("string"), "id string, at string, type string, amount int"
        ).alias("v")
    )
    .select("v.*")
    .withColumn("at", to_timestamp("at"))
    .withColumn("buy", expr("case when type == 'BUY' then amount else 0 end"))
)
window_agg_df = (
    trades.withWatermark("at", "30 minute")
    .groupBy(window(col("at"), "15 minute"))
    .agg(sum("buy").alias("total"))
    .select("window.start", "window.end", "total")
)
query = (
    window_agg_df.writeStream.format("console")
    .options(truncate=False, numRows=100000)
    .outputMode("update")
    .trigger(processingTime="1 second")
    .start()
)
query.awaitTermination()
