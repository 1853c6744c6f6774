"""Two aggregations of one DataFrame, written as JSON by two queries in update mode."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json
from pyspark.sql.functions import sum as _sum

KAFKA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
world, out = sys.argv[1:3]

if __name__ == "__main__":
    spark = (
        SparkSession.builder.appName("ElectionAnalysis")
        .master("local[*]")
        .config("spark.sql.adaptive.enabled", "false")
        .getOrCreate()
    )
    votes_df = (
        spark.readStream.schema(KAFKA)
        .parquet(f"{world}/votes")
        .selectExpr("CAST(value AS STRING)")
        .select(
            from_json(
                col("value"), "voter string, candidate string, state string, at timestamp, vote int"
            ).alias("data")
        )
        .select("data.*")
    )
    enriched_votes_df = votes_df.withWatermark("at", "1 minute")
    votes_per_candidate = enriched_votes_df.groupBy("candidate").agg(
        _sum("vote").alias("total_votes")
    )
    turnout_by_location = enriched_votes_df.groupBy("state").count().alias("total")

    to_console = {"truncate": False, "numRows": 100000}
    first = (
        votes_per_candidate.writeStream.format("console")
        .options(**to_console)
        .option("checkpointLocation", f"{out}/checkpoint1")
        .outputMode("update")
        .start()
    )
    second = (
        turnout_by_location.writeStream.format("console")
        .options(**to_console)
        .option("checkpointLocation", f"{out}/checkpoint2")
        .outputMode("update")
        .start()
    )
    first.awaitTermination()
    second.awaitTermination()
