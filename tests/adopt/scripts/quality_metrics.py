"""Counts of valid and invalid rows in update mode by a function, beside the rows themselves."""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, expr, from_json, sum, window

BASE = Path(sys.argv[2])


def upsert_metrics(batch_df, batch_id):
    if batch_df.isEmpty():
        return
    BASE.joinpath("metrics").mkdir(parents=True, exist_ok=True)
    for row in batch_df.collect():
        key = f"{row['window_start']:%Y-%m-%d-%H-%M}"
        partial = BASE / "metrics" / f".{key}"
        partial.write_text(json.dumps({"start": key, "total": row["total"], "valid": row["valid"]}))
        os.replace(partial, BASE / "metrics" / f"{key}.json")


def main():
    spark = (
        SparkSession.builder.appName("Quality")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.streaming.stopGracefullyOnShutdown", "true")
        .getOrCreate()
    )
    raw = spark.readStream.schema("value binary, timestamp timestamp").parquet(
        f"{sys.argv[1]}/trades"
    )
    parsed = raw.select(
        from_json(col("value").cast("string"), "id string, at timestamp, amount int").alias("data")
    ).select("data.*")
    flagged = parsed.withColumn("is_valid", expr("id IS NOT NULL AND amount BETWEEN 50 AND 450"))
    summary = (
        flagged.withWatermark("at", "1 hour")
        .groupBy(window(col("at"), "15 minutes"))
        .agg(
            count("*").alias("total"),
            sum(expr("CASE WHEN is_valid THEN 1 ELSE 0 END")).alias("valid"),
        )
        .select(col("window.start").alias("window_start"), "total", "valid")
    )
    (
        flagged.filter("is_valid")
        .drop("is_valid")
        .writeStream.format("parquet")
        .option("path", str(BASE / "valid"))
        .option("checkpointLocation", str(BASE / "checkpoints" / "valid"))
        .start()
    )
    (
        summary.writeStream.foreachBatch(upsert_metrics)
        .option("checkpointLocation", str(BASE / "checkpoints" / "metrics"))
        .outputMode("update")
        .start()
    )
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
