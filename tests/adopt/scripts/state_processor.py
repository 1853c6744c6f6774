"""A StatefulProcessor over pandas, as updates."""

import sys

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.functions import explode, split
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType

PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
spark = (
    SparkSession.builder.appName("tws")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.streaming.stateStore.providerClass", PROVIDER)
    .getOrCreate()
)


class Count(StatefulProcessor):
    def init(self, handle):
        self.n = handle.getValueState("n", StructType([StructField("n", LongType())]))

    def handleInputRows(self, key, rows, timerValues):
        n = self.n.get()[0] if self.n.exists() else 0
        n += sum(len(pdf) for pdf in rows)
        self.n.update((n,))
        yield pd.DataFrame({"word": [key[0]], "n": [n]})

    def close(self):
        pass


lines = spark.readStream.schema("value binary, offset long").parquet(f"{sys.argv[1]}/words")
words = lines.select(explode(split(lines.value.cast("string"), " ")).alias("word"))
counts = words.groupBy("word").transformWithStateInPandas(
    statefulProcessor=Count(),
    outputStructType=StructType([StructField("word", StringType()), StructField("n", LongType())]),
    outputMode="Update",
    timeMode="None",
)
query = (
    counts.writeStream.outputMode("update")
    .format("console")
    .options(truncate=False, numRows=100000)
    .start()
)
query.awaitTermination()
