"""Lets each JVM of the end-to-end tests start in half the time: it maps Spark's classes from an archive (Java's CDS).

The first process that asks for it makes the archive, by one small job, in the directory where pytest keeps its own things.
The JVM passes over an archive that does not fit.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parents[2]

#: A JVM of these tests lives for seconds: it starts faster with the quick compiler alone.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"
_JOB = """
import sys
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2").config(
    "spark.sql.streaming.stateStore.providerClass",
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider").getOrCreate()
root = sys.argv[1]
spark.range(10).selectExpr("id", "timestamp_seconds(id) AS ts").write.parquet(root + "/in")
read = spark.readStream.schema("id long, ts timestamp").parquet(root + "/in").withWatermark("ts", "1 second")
counted = read.groupBy(F.window("ts", "5 seconds")).count()
write = lambda frame, _: frame.write.mode("append").parquet(root + "/out")
counted.writeStream.option("checkpointLocation", root + "/chk").trigger(availableNow=True).foreachBatch(write).start(
).awaitTermination()
spark.stop()
"""


@functools.cache
def java_options() -> str:
    """Options for the JVMs of commands that a test runs."""
    archive = ROOT / ".pytest_cache" / f"spark-{pyspark.__version__}.jsa"
    if not archive.exists():
        archive.parent.mkdir(exist_ok=True)
        made = archive.with_suffix(f".{os.getpid()}")
        with tempfile.TemporaryDirectory() as directory:
            done = subprocess.run(
                [sys.executable, "-c", _JOB, directory],
                env={**os.environ, "JDK_JAVA_OPTIONS": f"{_QUICK} -XX:ArchiveClassesAtExit={made}"},
                check=False,
                capture_output=True,
                text=True,
            )
        assert made.exists(), f"the archive of classes was not made: {done.stderr}"
        made.rename(archive)
    return f"{_QUICK} -XX:SharedArchiveFile={archive}"
