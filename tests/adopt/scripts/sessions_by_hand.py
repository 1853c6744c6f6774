"""Sessions kept by a function over pandas, ended by a timeout of the clock, as updates."""

import sys

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.functions import explode, split
from pyspark.sql.streaming.state import GroupStateTimeout

spark = SparkSession.builder.appName("sessions").getOrCreate()
lines = spark.readStream.schema("value string, timestamp timestamp").parquet(f"{sys.argv[1]}/lines")
events = lines.select(explode(split(lines.value, " ")).alias("sessionId"), lines.timestamp)


def func(key, pdfs, state):
    if state.hasTimedOut:
        (count,) = state.get
        state.remove()
    else:
        count = state.get[0] if state.exists else 0
        count += sum(len(pdf) for pdf in pdfs)
        state.update((count,))
        state.setTimeoutDuration(600_000)
    yield pd.DataFrame({"sessionId": [key[0]], "count": [count]})


sessions = events.groupBy(events["sessionId"]).applyInPandasWithState(
    func,
    "sessionId string, count long",
    "count long",
    "Update",
    GroupStateTimeout.ProcessingTimeTimeout,
)
query = (
    sessions.writeStream.outputMode("update")
    .format("console")
    .options(truncate=False, numRows=100000)
    .start()
)
query.awaitTermination()
