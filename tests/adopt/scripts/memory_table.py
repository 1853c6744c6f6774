"""Counts in a table in memory, which the script reads again and again."""

import sys
from time import sleep

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("activity").getOrCreate()
words = (
    spark.readStream.schema("value binary, offset long")
    .parquet(f"{sys.argv[1]}/words")
    .select(F.explode(F.split(F.col("value").cast("string"), " ")).alias("word"))
)
activityQuery = (
    words.groupBy("word")
    .count()
    .writeStream.queryName("activity_counts")
    .format("memory")
    .outputMode("complete")
    .start()
)
for _ in range(int(sys.argv[3])):
    spark.sql("SELECT word, count FROM activity_counts ORDER BY word").show(100000, False)
    sleep(1)
activityQuery.stop()
