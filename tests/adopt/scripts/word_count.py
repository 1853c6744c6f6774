"""Words of a stream of lines, counted; the whole result on the console, as in Spark's examples."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import explode, split

if __name__ == "__main__":
    if len(sys.argv) != 3:
        print("Usage: word_count.py <world> <out>", file=sys.stderr)
        sys.exit(-1)

    world = sys.argv[1]
    spark = SparkSession.builder.appName("StructuredWordCount").getOrCreate()
    lines = spark.readStream.schema("value string, timestamp timestamp").parquet(f"{world}/lines")
    words = lines.select(explode(split(lines.value, " ")).alias("word"))
    counts = words.groupBy("word").count()

    query = (
        counts.writeStream.outputMode("complete")
        .format("console")
        .option("truncate", "false")
        .option("numRows", 100000)
        .start()
    )
    query.awaitTermination()
