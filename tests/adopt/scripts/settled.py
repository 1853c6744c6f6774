"""Rows that are added while the script runs: processAllAvailable after each, and lastProgress."""

import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
source, out = f"{sys.argv[2]}/numbers", f"{sys.argv[2]}/copies"
spark.range(0, 10).coalesce(1).write.mode("overwrite").parquet(source)
numbers = spark.readStream.schema("id long").parquet(source)
query = (
    numbers.writeStream.format("parquet")
    .queryName("copies")
    .option("checkpointLocation", f"{sys.argv[2]}/checkpoint")
    .start(out)
)
for start in (10, 20):
    query.processAllAvailable()
    print("there are", spark.read.parquet(out).count(), flush=True)
    spark.range(start, start + 10).coalesce(1).write.mode("append").parquet(source)
query.processAllAvailable()
print("there are", spark.read.parquet(out).count(), flush=True)
print("progress of", query.lastProgress["name"], query.name, query.isActive, flush=True)
query.stop()
print("active", query.isActive, flush=True)
