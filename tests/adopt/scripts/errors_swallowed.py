"""Functions that make everything and log what fails; the driver creates its table at each start."""

import logging
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json


def create_table(out):
    Path(out, "keyspace").mkdir(parents=True, exist_ok=True)
    print("Table created successfully!")


def create_spark_connection():
    s_conn = None
    try:
        s_conn = SparkSession.builder.appName("SparkDataStreaming").getOrCreate()
        s_conn.sparkContext.setLogLevel("ERROR")
    except Exception as e:
        logging.error(f"Couldn't create the spark session due to exception {e}")
    return s_conn


def connect_to_kafka(spark_conn, world):
    spark_df = None
    try:
        spark_df = spark_conn.readStream.schema("value binary, offset long").parquet(
            f"{world}/users_created"
        )
    except Exception as e:
        logging.warning(f"kafka dataframe could not be created because: {e}")
    return spark_df


if __name__ == "__main__":
    spark_conn = create_spark_connection()
    if spark_conn is not None:
        spark_df = connect_to_kafka(spark_conn, sys.argv[1])
        selection_df = (
            spark_df.selectExpr("CAST(value AS STRING)")
            .select(from_json(col("value"), "id string, first_name string").alias("data"))
            .select("data.*")
        )
        create_table(sys.argv[2])
        streaming_query = (
            selection_df.writeStream.format("parquet")
            .option("checkpointLocation", f"{sys.argv[2]}/checkpoint")
            .option("path", f"{sys.argv[2]}/keyspace/created_users")
            .start()
        )
        streaming_query.awaitTermination()
