"""Words in Kafka's values, counted; the whole result on the console."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import explode, split

KAFKA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
spark = SparkSession.builder.appName("StructuredKafkaWordCount").getOrCreate()
lines = spark.readStream.schema(KAFKA).parquet(f"{sys.argv[1]}/words")
lines = lines.selectExpr("CAST(value AS STRING)")
words = lines.select(explode(split(lines.value, " ")).alias("word"))
counts = words.groupBy("word").count()
query = (
    counts.writeStream.outputMode("complete")
    .format("console")
    .options(truncate=False, numRows=100000)
    .start()
)
query.awaitTermination()
