"""The training run for a class archive: a short Spark program that loads what Weir's jobs load.

Only ``class_archive.make`` starts
``python -m weir.spark.session.class_training ARCHIVE DIRECTORY``. The archive holds the classes
that Java has loaded by the end, so each part of the program stands for one kind: streaming with the
RocksDB state store, a join of two streams, Parquet in and out, Python workers, calls back from the
JVM, and Spark's reader of saved state. The number of rows does not matter.

Java writes the archive when it exits through ``System.exit``. PySpark would kill it instead, so the
program makes that call itself and then waits for the process.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from weir.spark.session.class_archive import QUICK_COMPILER, SILENCE, quoted
from weir.spark.session.start import create_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Writing the archive takes about ten seconds on an idle machine.
_EXIT_PATIENCE_S = 300.0


def main() -> None:
    """Run the program, then exit its JVM so that it writes the archive."""
    archive, directory = sys.argv[1:]
    session = create_session(
        name="class archive",
        master="local[2]",
        conf={},
        parallelism=1,
        fast_working_directory=True,
        # A job has this log too, so its classes belong in the archive.
        log_file=f"{directory}/spark.log",
        java_options=f"{QUICK_COMPILER} {SILENCE} {quoted(f'-XX:ArchiveClassesAtExit={archive}')}",
    )
    _train(session, Path(directory))
    _exit(session)


def _train(session: SparkSession, directory: Path) -> None:
    source, joined, counted, checkpoint = (
        str(directory / name) for name in ("in", "joined", "out", "chk")
    )
    events = session.range(10).selectExpr("id", "timestamp_seconds(id) AS ts", "string(id) AS name")
    events.write.parquet(source)

    def write(frame: DataFrame, _: int) -> None:
        frame.mapInArrow(_unchanged, frame.schema).write.mode("append").parquet(counted)

    def stream() -> DataFrame:
        read = session.readStream.schema(events.schema).parquet(source)
        return read.withWatermark("ts", "1 second")

    counts = (
        stream()
        .groupBy(F.window("ts", "5 seconds"), "name")
        .agg(F.count("*").alias("n"), F.sum("id"))
    )
    pairs = stream().join(
        stream().selectExpr("id AS other", "ts AS at"), F.expr("id = other AND ts = at")
    )
    queries = [
        counts.writeStream.option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .foreachBatch(write)
        .start(),
        pairs.writeStream.option("checkpointLocation", joined)
        .trigger(availableNow=True)
        .format("memory")
        .queryName("joined")
        .start(),
    ]
    for query in queries:
        query.awaitTermination()
    read = session.read.parquet(counted)
    read.join(events, "name", "left").groupBy("name").count().orderBy("name").limit(5).collect()
    session.read.format("state-metadata").load(checkpoint).collect()
    state = session.read.format("statestore").load(checkpoint)
    state.selectExpr("to_json(struct(*))").toLocalIterator()
    state.selectExpr("CAST(key AS STRING)").limit(5).collect()


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _exit(session: SparkSession) -> None:
    gateway = session.sparkContext._gateway
    assert gateway is not None
    jvm, process = gateway.jvm, gateway.proc

    def call() -> None:
        # The call never returns: the JVM exits in it.
        with contextlib.suppress(Exception):
            jvm.java.lang.System.exit(0)

    threading.Thread(target=call, daemon=True).start()
    code = process.wait(_EXIT_PATIENCE_S)
    sys.stdout.flush()
    # Exit at once: PySpark's exit handlers would call the JVM.
    os._exit(code)


if __name__ == "__main__":
    main()
