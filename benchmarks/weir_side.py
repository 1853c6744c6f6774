"""Weir's side: the same query as a job with a checkpoint every second.

The job is unbounded, like the plain query. A watcher waits with Spark's ``processAllAvailable``
until all input is processed, requests a checkpoint at that moment, as ``weir checkpoint`` does, and
stops the clock when the sink has committed that checkpoint's epoch. Without the request the last
rows would wait for the next periodic checkpoint, which would measure the interval, not the cost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import weir
from benchmarks.measured_job import check_running, measure_job
from benchmarks.query import COMMON_SETTINGS, MASTER, batches_of, read_input, revenue
from benchmarks.runs import RunResult, RunSpec
from weir.core.types import Payload
from weir.errors import JobFailedError
from weir.gateway.job_gateway import JobGateway
from weir.launch.options import RunOptions
from weir.sinks.base import Batch
from weir.spark.session.class_archive import java_options
from weir.spark.session.start import create_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: How often a wait checks whether the job has failed.
_LOOK_S = 0.5


def run_weir(spec: RunSpec) -> RunResult:
    """Warm up, then measure from the start of the job until its sink has committed every row."""
    session = weir_session(spec.directory)
    try:
        _run_job(spec, spec.warm_up, f"{spec.directory}/warm-up")
        return _run_job(spec, spec.input, spec.directory)
    finally:
        session.stop()


def weir_session(directory: str) -> SparkSession:
    """A session as every Weir job gets it, created early so that the warm-up warms it."""
    return create_session(
        name="benchmark",
        master=MASTER,
        conf=COMMON_SETTINGS,
        parallelism=None,
        fast_working_directory=True,
        log_file=f"{directory}/spark.log",
        # The options of a job; a class archive would only help before the clock starts.
        java_options=java_options(archive=False),
    )


def job_options(
    output: str, *, interval: str = "1 s", conf: Mapping[str, str] = MappingProxyType({})
) -> RunOptions:
    """Options with periodic checkpoints, and all files below ``output``."""
    return RunOptions(
        master=MASTER,
        conf={
            **COMMON_SETTINGS,
            "execution.checkpointing.interval": interval,
            "execution.checkpointing.dir": f"{output}/checkpoints",
            "execution.checkpointing.savepoint-dir": f"{output}/savepoints",
            "weir.working-dir": f"{output}/work",
            # A restarted run measures something else.
            "restart-strategy.type": "none",
            "web.checkpoints.history": "10000",
            "rest.port": "0",
            **conf,
        },
    )


def _run_job(spec: RunSpec, directory: str, output: str) -> RunResult:
    sink = _WatchedFiles(f"{output}/table")
    job = weir.Job("overhead")

    def orders(spark: SparkSession) -> DataFrame:
        sink.session = spark
        return read_input(spark, directory, spec.files_per_batch)

    source = job.source("orders", orders)
    source.transform("revenue", revenue).sink("table", sink)

    def measure(gateway: JobGateway, over: threading.Event) -> RunResult:
        begun_ms, begun = time.time() * 1000, time.perf_counter()
        while not sink.staging.wait(_LOOK_S):
            check_running(over)
        query = sink.the_query()
        query.processAllAvailable()
        requested = gateway.trigger_checkpoint().result().checkpoint_id
        sink.wait_for(requested, over)
        elapsed_ms = (time.perf_counter() - begun) * 1000
        history = gateway.view().checkpoints.history
        return RunResult(
            elapsed_ms=elapsed_ms,
            begun_ms=begun_ms,
            batches=batches_of(query),
            checkpoint_ms=[
                stats.end_to_end_duration_ms
                for stats in history
                if stats.status == "COMPLETED" and stats.checkpoint_id != requested
            ],
        )

    return measure_job(job, job_options(output), measure)


class _WatchedFiles(weir.sinks.Files):
    """A sink that reports the query it belongs to, and the epochs that it has committed."""

    def __init__(self, path: str) -> None:
        super().__init__(path, format="parquet")
        #: The job's session; the frames of ``stage`` have a copy of it, which lists no queries.
        self.session: SparkSession | None = None
        self.staging = threading.Event()
        self._committed_epoch = 0
        self._committing = threading.Condition()

    def stage(self, frame: DataFrame, batch: Batch) -> Payload | None:
        """Stage, and notify the watcher that the query runs."""
        self.staging.set()
        return super().stage(frame, batch)

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """Commit, and notify the watcher."""
        rows = super().commit(epoch, payloads)
        with self._committing:
            self._committed_epoch = epoch
            self._committing.notify_all()
        return rows

    def wait_for(self, epoch: int, over: threading.Event) -> None:
        """Wait until the epoch is committed."""
        with self._committing:
            while self._committed_epoch < epoch:
                self._committing.wait(_LOOK_S)
                check_running(over)

    def the_query(self) -> StreamingQuery:
        """The job's only query, once it has begun to stage."""
        if self.session is None:
            raise JobFailedError("The job staged rows before it created its source.")
        (query,) = self.session.streams.active
        return query
