"""Weir's side: the same query as a job with a checkpoint every second.

The job is unbounded, like the plain query. A watcher waits with Spark's own ``processAllAvailable`` until all input is
processed, asks for a checkpoint at once, as ``weir checkpoint`` does, and stops the clock when the sink has committed
that checkpoint's epoch. Without the request the last rows would wait for the next second's checkpoint, which says
something about the interval and nothing about cost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import weir
from benchmarks.query import COMMON_SETTINGS, MASTER, batches_of, read_input, revenue
from benchmarks.runs import RunResult, RunSpec
from weir.core.job_status import JobStatus
from weir.core.types import CompletedCheckpoint, Payload
from weir.errors import JobFailedError
from weir.kernel.gateway import JobGateway
from weir.runner import RunOptions, run_job
from weir.sinks.base import Step
from weir.spark.session import create_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: How often a wait looks whether the job has failed meanwhile.
_LOOK_S = 0.5


def run_weir(spec: RunSpec) -> RunResult:
    """Warm up, then measure from the start of the job until its sink has committed every row."""
    session = create_session(
        name="benchmark",
        master=MASTER,
        conf=COMMON_SETTINGS,
        parallelism=None,
        fast_working_directory=True,
        log_file=f"{spec.directory}/spark.log",
    )
    try:
        _run_job(spec, spec.warm_up, f"{spec.directory}/warm-up")
        return _run_job(spec, spec.input, spec.directory)
    finally:
        session.stop()


def _run_job(spec: RunSpec, directory: str, output: str) -> RunResult:
    sink = _WatchedFiles(f"{output}/table")
    job = weir.Job("overhead")

    def orders(spark: SparkSession) -> DataFrame:
        sink.session = spark
        return read_input(spark, directory, spec.files_per_batch)

    source = job.source("orders", orders)
    source.transform("revenue", revenue).sink("table", sink)
    options = RunOptions(
        master=MASTER,
        conf={
            **COMMON_SETTINGS,
            "execution.checkpointing.interval": "1 s",
            "execution.checkpointing.dir": f"{output}/checkpoints",
            "execution.checkpointing.savepoint-dir": f"{output}/savepoints",
            "weir.working-dir": f"{output}/work",
            # A run that was restarted measures something else.
            "restart-strategy.type": "none",
            "web.checkpoints.history": "10000",
            "rest.port": "0",
        },
    )
    with ThreadPoolExecutor(1) as pool:
        watcher = _Watcher(sink, pool)
        try:
            result = run_job(job, options, watcher)
        finally:
            watcher.over.set()
        if result.status is not JobStatus.CANCELED:
            raise JobFailedError(f"The job ended as {result.status.name}: {result.failure}")
        return watcher.result()


class _WatchedFiles(weir.sinks.Files):
    """The sink, telling which query it belongs to and what it has committed."""

    def __init__(self, path: str) -> None:
        super().__init__(path, format="parquet")
        #: The job's session; the frames of ``stage`` have a copy of it, which knows no queries.
        self.session: SparkSession | None = None
        self.staging = threading.Event()
        self.committed_epoch = 0
        self.committing = threading.Condition()

    def stage(self, frame: DataFrame, step: Step) -> Payload | None:
        """Stage, and tell the watcher that the query runs."""
        self.staging.set()
        return super().stage(frame, step)

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """Commit, and tell the watcher."""
        rows = super().commit(epoch, payloads)
        with self.committing:
            self.committed_epoch = epoch
            self.committing.notify_all()
        return rows

    def the_query(self) -> StreamingQuery:
        """The job's only query, once it is staging."""
        if self.session is None:
            raise JobFailedError("The job staged rows before it asked for its source.")
        (query,) = self.session.streams.active
        return query


class _Watcher:
    """The run's listener: starts the clock when the job starts, ends the job when its rows are committed."""

    def __init__(self, sink: _WatchedFiles, pool: ThreadPoolExecutor) -> None:
        self.over = threading.Event()
        self._sink = sink
        self._pool = pool

    def submitted(self, job_id: str, gateway: JobGateway, rest_address: str) -> None:
        """The job begins its first attempt as soon as this returns."""
        self._begun_ms = time.time() * 1000
        self._future = self._pool.submit(self._watch, gateway, time.perf_counter())

    def restored(self, checkpoint: CompletedCheckpoint) -> None:
        """A restored attempt would be measured as part of the run, so it must not be."""
        raise JobFailedError(f"The job failed and was restored from checkpoint {checkpoint.checkpoint_id}.")

    def note(self, message: str) -> None:
        """Into the run's log."""
        print(message, flush=True)

    def result(self) -> RunResult:
        """What was measured; raises what stopped the measurement."""
        return self._future.result()

    def _watch(self, gateway: JobGateway, begun: float) -> RunResult:
        try:
            while not self._sink.staging.wait(_LOOK_S):
                self._check_running()
            query = self._sink.the_query()
            query.processAllAvailable()
            requested = gateway.trigger_checkpoint().result().checkpoint_id
            with self._sink.committing:
                while self._sink.committed_epoch < requested:
                    self._sink.committing.wait(_LOOK_S)
                    self._check_running()
            elapsed_ms = (time.perf_counter() - begun) * 1000
            history = gateway.view().checkpoints.history
            return RunResult(
                elapsed_ms=elapsed_ms,
                begun_ms=self._begun_ms,
                batches=batches_of(query),
                checkpoint_ms=[
                    stats.end_to_end_duration_ms
                    for stats in history
                    if stats.status == "COMPLETED" and stats.checkpoint_id != requested
                ],
            )
        finally:
            gateway.cancel()

    def _check_running(self) -> None:
        if self.over.is_set():
            raise JobFailedError("The job ended before all of its input was committed.")
