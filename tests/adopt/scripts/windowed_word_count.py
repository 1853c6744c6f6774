"""Words in sliding windows without a watermark, sorted, the whole result on the console."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import explode, split, window

world, windowSize, slideSize = sys.argv[1], 60, 30
spark = SparkSession.builder.appName("StructuredWordCountWindowed").getOrCreate()
lines = spark.readStream.schema("value string, timestamp timestamp").parquet(f"{world}/lines")
words = lines.select(explode(split(lines.value, " ")).alias("word"), lines.timestamp)
counts = (
    words.groupBy(window(words.timestamp, f"{windowSize} seconds", f"{slideSize} seconds"), "word")
    .count()
    .orderBy("window")
)
query = (
    counts.writeStream.outputMode("complete")
    .format("console")
    .option("truncate", "false")
    .option("numRows", 100000)
    .start()
)
query.awaitTermination()
