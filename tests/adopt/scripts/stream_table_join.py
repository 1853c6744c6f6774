"""A stream joined with a table, written by foreachBatch in update mode."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

KAFKA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
world, out = sys.argv[1:3]


def write_to_table(target_df, batch_id):
    target_df.write.format("parquet").mode("append").save(f"{out}/logins")
    target_df.show(3)


spark = SparkSession.builder.appName("Stream Table Join Demo").getOrCreate()
login_df = (
    spark.readStream.schema(KAFKA)
    .parquet(f"{world}/logins")
    .select(
        from_json(col("value").cast("string"), "login string, at string, number int").alias("v")
    )
    .select("v.*")
)
user_df = spark.read.parquet(f"{world}/users.parquet")
output_df = login_df.join(user_df, login_df.login == user_df.user, "inner").drop("login")
query = (
    output_df.writeStream.foreachBatch(write_to_table)
    .outputMode("update")
    .option("checkpointLocation", f"{out}/chk")
    .trigger(processingTime="1 second")
    .start()
)
query.awaitTermination()
