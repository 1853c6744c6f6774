"""A source in Python, whose classes are the script's own; runs for a time and stops itself."""

import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

spark = SparkSession.builder.appName("blocks").getOrCreate()
LAST_BLOCK = int(sys.argv[3])


class Blocks(SimpleDataSourceStreamReader):
    def initialOffset(self):
        return {"block": 0}

    def read(self, start):
        first = start["block"]
        last = min(first + 7, LAST_BLOCK)
        return iter([(number, f"block {number}") for number in range(first, last)]), {"block": last}

    def readBetweenOffsets(self, start, end):
        return iter([(number, f"block {number}") for number in range(start["block"], end["block"])])


class Chain(DataSource):
    @classmethod
    def name(cls):
        return "chain"

    def schema(self):
        return "number long, text string"

    def simpleStreamReader(self, schema):
        return Blocks()


spark.dataSource.register(Chain)
blocks = spark.readStream.format("chain").load()
query = blocks.writeStream.format("parquet").start(f"{sys.argv[2]}/blocks", outputMode="append")
time.sleep(8)
query.stop()
spark.stop()
