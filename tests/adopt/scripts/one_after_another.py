"""A query for some seconds, then the next one."""

import sys

from pyspark.sql import SparkSession

world, out, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3])
spark = SparkSession.builder.appName("sequence").getOrCreate()


def run(topic):
    stream = spark.readStream.schema("value binary, offset long").parquet(f"{world}/{topic}")
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", f"{out}/ck/{topic}")
        .start(f"{out}/{topic}")
    )
    query.awaitTermination(seconds)
    query.stop()
    print("ACTIVE", query.isActive, flush=True)


run("logins")
run("trades")
