"""The trigger is an argument; a lambda gives the function of foreachBatch session and settings."""

import argparse
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def process_batch(spark, frame, batch, config):
    limits = spark.createDataFrame([("BUY", 1), ("SELL", -1)], "type string, sign int")
    rows = frame.join(F.broadcast(limits), "type").withColumn(
        "signed", F.col("amount") * F.col("sign")
    )
    rows.select("id", "signed").write.mode("append").parquet(os.path.join(config["out"], "signed"))


def main():
    parser = argparse.ArgumentParser(description="Bronze to silver")
    parser.add_argument("world")
    parser.add_argument("out")
    parser.add_argument("--available-now", action="store_true")
    args = parser.parse_args()
    config = {"out": args.out}
    spark = SparkSession.builder.appName("lakehouse").getOrCreate()
    raw = (
        spark.readStream.schema("value binary")
        .option("maxFilesPerTrigger", os.getenv("LAKEHOUSE_MAX_FILES", "2"))
        .parquet(f"{args.world}/trades")
        .select(
            F.from_json(F.col("value").cast("string"), "id string, type string, amount int").alias(
                "t"
            )
        )
        .select("t.*")
    )
    writer = raw.writeStream.foreachBatch(
        lambda frame, batch: process_batch(spark, frame, batch, config)
    ).option("checkpointLocation", f"{args.out}/checkpoint")
    writer = (
        writer.trigger(availableNow=True)
        if args.available_now
        else writer.trigger(processingTime=os.getenv("LAKEHOUSE_TRIGGER_INTERVAL", "1 second"))
    )
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
