"""Three queries of one DataFrame: rows, counts, and sums whose output drops the window."""

import sys

import pyspark.sql.functions as F
from pyspark.sql import SparkSession

KAFKA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
world, out = sys.argv[1:3]


def parse_rides(df):
    assert df.isStreaming is True, "DataFrame doesn't receive streaming data"
    parts = F.split(F.col("value").cast("string"), ", ")
    return df.select(
        parts[0].cast("int").alias("vendor_id"),
        parts[1].cast("timestamp").alias("at"),
        parts[2].cast("double").alias("amount"),
        parts[3].alias("ride"),
    )


spark = SparkSession.builder.appName("streaming-examples").getOrCreate()
spark.sparkContext.setLogLevel("WARN")
df_rides = parse_rides(spark.readStream.schema(KAFKA).parquet(f"{world}/rides"))
console = {"truncate": False, "numRows": 100000}
rows = (
    df_rides.writeStream.outputMode("append")
    .trigger(processingTime="1 second")
    .format("console")
    .options(**console)
    .start()
)
counts = df_rides.groupBy("vendor_id").count()
(
    counts.writeStream.outputMode("complete")
    .trigger(processingTime="1 second")
    .format("console")
    .options(**console)
    .start()
)
per_window = df_rides.groupBy(F.window("at", "10 minutes", "5 minutes"), "vendor_id").count()
changed = per_window.select(
    F.col("vendor_id").alias("vendor"),
    F.col("window.start").alias("since"),
    F.col("count").alias("rides"),
)
(
    changed.writeStream.outputMode("update")
    .format("console")
    .options(**console)
    .queryName("per window")
    .start()
)
spark.streams.awaitAnyTermination()
