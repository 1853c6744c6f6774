"""Duplicates dropped within a watermark."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

world, out = sys.argv[1:3]
spark = SparkSession.builder.getOrCreate()
parsed = from_json(col("value").cast("string"), "login string, at timestamp, number int").alias("v")
logins = spark.readStream.schema("value binary, offset long").parquet(f"{world}/logins")
distinct = (
    logins.select(parsed)
    .select("v.login", "v.at", "v.number")
    .withWatermark("at", "10 days")
    .dropDuplicatesWithinWatermark(["login", "number"])
)
query = distinct.select("login", "number").writeStream.format("parquet").start(f"{out}/logins")
query.awaitTermination()
