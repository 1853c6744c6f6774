"""Three readings into partitioned Parquet files, with a function from a module beside."""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json, hour, to_timestamp
from song_text import string_decode

KAFKA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
WORLD = os.path.abspath(sys.argv[1])
OUT = os.path.abspath(sys.argv[2])
spark = SparkSession.builder.appName("Eventsim Stream").master("local[2]").getOrCreate()
spark.streams.resetTerminated()


def processed(topic):
    schema = "song string, ts string, page string"
    stream = spark.readStream.schema(KAFKA).parquet(f"{WORLD}/{topic}")
    stream = stream.select(from_json(col("value").cast("string"), schema).alias("data"))
    stream = stream.select("data.*").withColumn("ts", to_timestamp("ts"))
    return stream.withColumn("hour", hour("ts")).withColumn("song", string_decode("song"))


def writer(stream, topic):
    return (
        stream.writeStream.format("parquet")
        .partitionBy("hour")
        .option("path", f"{OUT}/{topic}")
        .option("checkpointLocation", f"{OUT}/checkpoint/{topic}")
        .trigger(processingTime="1 second")
        .outputMode("append")
    )


listen_events = writer(processed("listen_events"), "listen_events")
page_view_events = writer(processed("page_view_events"), "page_view_events")
auth_events = writer(processed("auth_events"), "auth_events")
listen_events.start()
auth_events.start()
page_view_events.start()
spark.streams.awaitAnyTermination()
