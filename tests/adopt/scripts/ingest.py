"""A class that starts a query for each topic into a table, listens to them, and watches them."""

import argparse
import time

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener


class Progress(StreamingQueryListener):
    seen = 0

    def onQueryStarted(self, event):
        print("LISTENER started", event.name, flush=True)

    def onQueryProgress(self, event):
        Progress.seen += event.progress.numInputRows
        print("LISTENER progress", event.progress.name, event.progress.numInputRows, flush=True)

    def onQueryTerminated(self, event):
        print("LISTENER terminated", event.exception, flush=True)

    def onQueryIdle(self, event):
        pass


class Ingest:
    def __init__(self, spark, world, out, topics):
        self.spark, self.world, self.out, self.topics = spark, world, out, topics

    def run(self):
        queries = []
        for topic in self.topics:
            df = self.spark.readStream.schema("value binary, offset long").parquet(
                f"{self.world}/{topic}"
            )
            df = df.selectExpr("CAST(value AS STRING) AS value", "offset")
            queries.append(
                df.writeStream.format("parquet")
                .queryName(f"ingest_{topic}")
                .option("checkpointLocation", f"{self.out}/ck/{topic}")
                .trigger(availableNow=True)
                .toTable(f"bronze.{topic}")
            )
        while any(q.isActive for q in queries):
            for q in queries:
                if q.lastProgress:
                    print("BATCH", q.lastProgress["batchId"], flush=True)
            time.sleep(1)
        for q in queries:
            print("LAST", q.name, q.lastProgress["numInputRows"], q.exception(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("world")
    parser.add_argument("out")
    parser.add_argument("--topics", default="words,trades")
    args = parser.parse_args()
    spark = (
        SparkSession.builder.appName("ingest")
        .config("spark.sql.warehouse.dir", f"{args.out}/warehouse")
        .getOrCreate()
    )
    spark.streams.addListener(Progress())
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    spark.sql("CREATE DATABASE IF NOT EXISTS bronze")
    try:
        Ingest(spark, args.world, args.out, args.topics.split(",")).run()
    finally:
        spark.stop()
