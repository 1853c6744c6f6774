"""A foreachBatch that writes each batch twice, and shows it."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, explode, from_json

world, out = sys.argv[1:3]
spark = (
    SparkSession.builder.appName("Streaming Process Files")
    .config("spark.streaming.stopGracefullyOnShutdown", True)
    .config("spark.sql.shuffle.partitions", 4)
    .master("local[*]")
    .getOrCreate()
)
kafka_df = spark.readStream.schema("value binary, offset long").parquet(f"{world}/devices")
schema = "event string, data struct<devices:array<struct<device:string,temperature:int>>>"
flattened_df = (
    kafka_df.select(from_json(col("value").cast("string"), schema).alias("v"))
    .select("v.event", explode("v.data.devices").alias("d"))
    .select("event", "d.device", "d.temperature")
)


def device_data_output(df, batch_id):
    print("Batch id: " + str(batch_id))
    df.write.format("parquet").mode("append").save(f"{out}/device_data")
    df.write.mode("append").option("header", True).csv(f"{out}/device_table")
    df.show(2)


(
    flattened_df.writeStream.foreachBatch(device_data_output)
    .trigger(processingTime="1 seconds")
    .option("checkpointLocation", f"{out}/checkpoint_kafka")
    .start()
    .awaitTermination()
)
