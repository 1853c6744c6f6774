"""The rate source, whose numbers have no gap and no duplicate."""

import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("rate").master("local[2]").getOrCreate()
df = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
df.select("value").writeStream.format("parquet").option("path", f"{sys.argv[2]}/numbers").start()
spark.streams.awaitAnyTermination()
