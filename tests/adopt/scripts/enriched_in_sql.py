"""Deduplicated within the watermark, joined with a static table, written by SQL over a view."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

world, out = sys.argv[1:3]
spark = SparkSession.builder.appName("orders silver").getOrCreate()
candidates = spark.createDataFrame(
    [(f"c{n}", f"Candidate {n}") for n in range(3)], "candidate string, name string"
)
raw = spark.readStream.schema("value binary").parquet(f"{world}/votes")
votes = raw.select(
    F.from_json(
        F.col("value").cast("string"), "voter string, candidate string, at timestamp"
    ).alias("v")
).select("v.*")
clean = (
    votes.withWatermark("at", "2 hours")
    .dropDuplicatesWithinWatermark(["voter"])
    .join(candidates, "candidate", "left")
    .select("voter", "name", "at")
)


def append_to_silver(batch_df, batch_id):
    batch_df.createOrReplaceTempView("updates")
    found = batch_df.sparkSession.sql(
        "SELECT upper(name) AS name, voter, at FROM updates WHERE voter IS NOT NULL"
    )
    found.write.mode("append").parquet(f"{out}/silver")


query = (
    clean.writeStream.foreachBatch(append_to_silver)
    .option("checkpointLocation", f"{out}/checkpoint")
    .start()
)
query.awaitTermination()
