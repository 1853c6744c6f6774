"""The plain side: one Structured Streaming query with Spark's own exactly-once file sink."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.query import COMMON_SETTINGS, MASTER, batches_of, read_input, revenue
from benchmarks.runs import RunResult, RunSpec, Side

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

_STATE_STORE = "spark.sql.streaming.stateStore"
ROCKSDB = {
    f"{_STATE_STORE}.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    f"{_STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
}


def run_plain(spec: RunSpec) -> RunResult:
    """Warm up, then measure from the start of the query until all input is committed."""
    spark = plain_session(spec.side)
    try:
        _run_query(spark, spec, spec.warm_up, f"{spec.directory}/warm-up")
        return _run_query(spark, spec, spec.input, spec.directory)
    finally:
        spark.stop()


def _run_query(spark: SparkSession, spec: RunSpec, directory: str, output: str) -> RunResult:
    begun_ms, begun = time.time() * 1000, time.perf_counter()
    frame = revenue(read_input(spark, directory, spec.files_per_batch))
    query = (
        frame.writeStream.format("parquet")
        .outputMode("append")
        .option("checkpointLocation", f"{output}/checkpoint")
        .start(f"{output}/table")
    )
    query.processAllAvailable()
    elapsed_ms = (time.perf_counter() - begun) * 1000
    batches = batches_of(query)
    query.stop()
    return RunResult(elapsed_ms=elapsed_ms, begun_ms=begun_ms, batches=batches)


def plain_session(side: Side) -> SparkSession:
    """A session with Spark's own defaults, and the state store provider of the side."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"benchmark: {side.value}").master(MASTER)
    settings = {**_LOOPBACK, **COMMON_SETTINGS, **(ROCKSDB if side is Side.PLAIN else {})}
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
