"""Rows per second from a Kafka topic into a topic, exactly once: ``python -m benchmarks.kafka``.

A broker of one node (``make test-kafka`` fetches it) has a topic of records of some hundred bytes.
``weir`` is a job that copies them with ``KafkaTopic`` and a checkpoint every second, staging
included: the clock runs from the task's status RUNNING until the last row is committed. ``spark``
is plain Structured Streaming with Spark's own sink, at least once. Both read the same batches, and
run in pairs; the ratio is the median over the pairs.

Proof: after each run, readers of committed records find each value of the input once.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from tests.kafka import jars
from tests.kafka.reading import records
from tests.kafka.server import KafkaServer, running_server

import weir
from benchmarks.machine import make_parser, working_directory
from benchmarks.measured_job import check_running, measure_job
from benchmarks.process import all_completed
from benchmarks.query import COMMON_SETTINGS, MASTER
from benchmarks.tables import TablesDifferError
from benchmarks.weir_side import job_options
from weir.gateway.job_gateway import JobGateway
from weir.spark.session.class_archive import java_options
from weir.spark.session.start import create_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Of Spark's own sink: what is wanted at least.
TARGET = 0.8
_PARTITIONS = 6
_VALUE_BYTES = 100


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run reads and where it writes."""

    server: KafkaServer
    source: str
    target: str
    directory: Path
    rows: int
    rows_per_batch: int

    def read(self, spark: SparkSession) -> DataFrame:
        """The input as a stream."""
        reader = spark.readStream.format("kafka").option("subscribe", self.source)
        reader = reader.option("kafka.bootstrap.servers", self.server.address)
        reader = reader.option("kafka.isolation.level", "read_committed")
        reader = reader.option("startingOffsets", "earliest")
        frame = reader.option("maxOffsetsPerTrigger", self.rows_per_batch).load()
        return frame.select("key", "value")


def by_weir(run: Run) -> float:
    """Seconds of a job with ``KafkaTopic``."""
    job = weir.Job("kafka")
    sink = weir.sinks.KafkaTopic(
        run.target,
        servers=run.server.address,
        staging=f"{run.directory}/staged",
        ledger=f"ledger-{run.target}",
    )
    job.source("in", run.read).sink("out", sink)

    def measure(gateway: JobGateway, over: threading.Event) -> float:
        seconds = all_completed(run.rows, gateway, over)
        begun = time.perf_counter() - seconds
        # A checkpoint is complete before its rows are committed.
        while gateway.view().vertices[0].records_committed < run.rows:
            check_running(over)
            time.sleep(0.01)
        return time.perf_counter() - begun

    return measure_job(job, job_options(str(run.directory)), measure)


def by_spark(run: Run) -> float:
    """Seconds of Spark's own sink, at least once."""
    from pyspark.sql import SparkSession

    begun = time.perf_counter()
    writer = run.read(SparkSession.active()).writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", run.server.address)
    writer = writer.option("kafka.compression.type", "lz4").option("topic", run.target)
    query = writer.option("checkpointLocation", f"{run.directory}/spark").start()
    query.processAllAvailable()
    seconds = time.perf_counter() - begun
    query.stop()
    return seconds


SIDES: dict[str, Callable[[Run], float]] = {"weir": by_weir, "spark": by_spark}


def fill(server: KafkaServer, topic: str, rows: int) -> None:
    """Write the input."""
    producer = Producer(
        {
            "bootstrap.servers": server.address,
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    for number in range(rows):
        value = b"%d " % number
        while True:
            try:
                producer.produce(topic, value.ljust(_VALUE_BYTES, b"x"), b"%d" % (number % 1000))
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def check(run: Run) -> None:
    """Check that each row is there once. Raises ``TablesDifferError``."""
    found = [int((each.value() or b"").split()[0]) for each in records(run.server, run.target)]
    if sorted(found) != list(range(run.rows)):
        raise TablesDifferError(
            f"{run.rows} rows went in, {len(found)} with {len(set(found))} numbers came out."
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the medians; the exit code says whether the target was met."""
    parser = make_parser("benchmarks.kafka", __doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the input")
    parser.add_argument("--rows-per-batch", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3, help="pairs, after a warm-up")
    chosen = parser.parse_args(arguments)
    if not jars.are_there():
        print(f"kafka was not measured: {jars.WHY_NOT}")
        return 1
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    with working_directory(chosen) as directory, running_server() as server:
        fill(server, server.create_topic("bench-in", partitions=_PARTITIONS), chosen.rows)
        session = create_session(
            name="benchmark",
            master=MASTER,
            conf={**COMMON_SETTINGS, "spark.jars": jars.connector()},
            parallelism=None,
            fast_working_directory=True,
            log_file=f"{directory}/spark.log",
            java_options=java_options(archive=False),
        )
        try:
            for number in range(chosen.runs + 1):
                for side, measure in SIDES.items():
                    run = Run(
                        server=server,
                        source="bench-in",
                        target=server.create_topic(f"bench-{side}-{number}", _PARTITIONS),
                        directory=directory / "run",
                        rows=chosen.rows,
                        rows_per_batch=chosen.rows_per_batch,
                    )
                    rate = run.rows / measure(run)
                    check(run)
                    server.delete_topic(run.target)
                    shutil.rmtree(run.directory, ignore_errors=True)
                    when = f"run {number}" if number else "warm-up"
                    print(f"{side}, {when}: {rate:,.0f} rows/s", flush=True)
                    rates[side] += [rate] if number else []
        finally:
            session.stop()
    for side, found in rates.items():
        print(f"kafka_{side} rows_per_s={statistics.median(found):.0f}")
    ratio = statistics.median(
        mine / theirs for mine, theirs in zip(rates["weir"], rates["spark"], strict=True)
    )
    print(f"kafka ratio={ratio:.3f} target={TARGET}")
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
