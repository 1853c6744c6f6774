"""A foreachBatch that catches what fails, and writes such rows elsewhere."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

world, out = sys.argv[1:3]
spark = SparkSession.builder.appName("Streaming errors").getOrCreate()
kafka_df = spark.readStream.schema("value binary, offset long").parquet(f"{world}/devices")
json_df = kafka_df.withColumn("value", F.expr("cast(value as string)"))
flat_df = json_df.select("offset", F.get_json_object("value", "$.event").alias("event"), "value")


def handle(df, batch_id):
    bad = df.where("offset % 10 = 0")
    good = df.where("offset % 10 != 0")
    try:
        good.write.mode("append").parquet(f"{out}/good")
        if not bad.isEmpty():
            raise ValueError("some rows are bad")
    except Exception as e:
        print(e)
        bad.withColumn("batch_id", F.lit(batch_id)).drop("batch_id").write.mode("append").parquet(
            f"{out}/errors"
        )


query = flat_df.writeStream.foreachBatch(handle).start()
query.awaitTermination()
