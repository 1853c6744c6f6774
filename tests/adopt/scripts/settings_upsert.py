"""Options from a dictionary, a function made by another, which keeps the newest row of each key."""

import sys

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

SETTINGS = {
    "source": f"{sys.argv[1]}/logins",
    "destination": f"{sys.argv[2]}/logins",
    "readStreamOptions": {"maxFilesPerTrigger": "1"},
    "writeStreamOptions": {"checkpointLocation": f"{sys.argv[2]}/_checkpoints/logins"},
    "key": ["login", "number"],
}


def silver_upsert(spark, settings):
    keys = settings["key"]

    def upsert(microBatchDF, batchId):
        newest = Window.partitionBy(*keys).orderBy(F.col("at").desc())
        rows = microBatchDF.withColumn("rank", F.row_number().over(newest)).filter("rank = 1")
        rows.drop("rank").write.mode("append").parquet(settings["destination"])

    return upsert


def process(spark, settings):
    (
        spark.readStream.options(**settings["readStreamOptions"])
        .schema("value binary")
        .parquet(settings["source"])
        .select(
            F.from_json(F.col("value").cast("string"), "login string, at string, number int").alias(
                "d"
            )
        )
        .select("d.*")
        .writeStream.queryName("silver_logins")
        .options(**settings["writeStreamOptions"])
        .foreachBatch(silver_upsert(spark, settings))
        .outputMode("update")
        .start()
    )


spark = SparkSession.builder.appName("silver").getOrCreate()
process(spark, SETTINGS)
spark.streams.awaitAnyTermination()
