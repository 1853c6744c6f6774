"""Four tables by one helper; Ctrl-C stops the queries one by one, and then the session."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

WORLD, OUT = sys.argv[1:3]
KAFKA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"


def get_session():
    session = (
        SparkSession.builder.appName("Silver")
        .master("local[2]")
        .config("spark.sql.shuffle.partitions", "3")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("WARN")
    return session


def read_topic(spark, topic, schema):
    raw = spark.readStream.schema(KAFKA).option("maxFilesPerTrigger", 2).parquet(f"{WORLD}/{topic}")
    parsed = raw.select(F.from_json(F.col("value").cast("string"), schema).alias("j"))
    return parsed.select("j.*").na.drop(how="all")


def write_silver(df, name, partition_col=None):
    writer = (
        df.writeStream.format("parquet")
        .outputMode("append")
        .option("path", f"{OUT}/silver/{name}")
        .option("checkpointLocation", f"{OUT}/checkpoints/{name}")
        .trigger(processingTime="2 seconds")
    )
    if partition_col:
        writer = writer.partitionBy(partition_col)
    return writer.start()


def main():
    spark = get_session()
    votes = read_topic(spark, "votes", "voter string, candidate string, state string, at string")
    votes = votes.dropDuplicates(["voter"])
    trades = read_topic(spark, "trades", "id string, at string, type string, amount int")
    clean = trades.filter("amount > 10").withColumn("type", F.lower("type"))
    q1 = write_silver(votes, "votes", partition_col="state")
    q2 = write_silver(clean, "trades")
    q3 = write_silver(clean.filter("type = 'buy'").select("id", "amount"), "purchases")
    q4 = write_silver(clean.withColumn("at", F.to_timestamp("at")), "timed", partition_col="type")
    print("Streams are running. Ctrl+C stops them.")
    try:
        spark.streams.awaitAnyTermination()
    except KeyboardInterrupt:
        print("Stopping.")
        q1.stop()
        q2.stop()
        q3.stop()
        q4.stop()
    spark.stop()
    print("Session closed.")


if __name__ == "__main__":
    main()
