"""Session windows in update mode, which Spark refuses where the query starts."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import session_window

spark = SparkSession.builder.appName("sessionization").getOrCreate()
events = spark.readStream.schema("value string, timestamp timestamp").parquet(
    f"{sys.argv[1]}/lines"
)
sessions = events.groupBy(session_window(events.timestamp, "10 seconds"), "value").count()
query = sessions.writeStream.outputMode("update").format("console").start()
query.awaitTermination()
