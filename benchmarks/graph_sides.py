"""Both sides of the graph benchmark (``benchmarks/graph.py``), each in a process of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import weir
from benchmarks.inputs import link_input, write_row_after
from benchmarks.measured_job import check_running, measure_job
from benchmarks.plain_side import plain_session
from benchmarks.query import batches_of, read_input, revenue
from benchmarks.runs import Checkpoint, GraphResult, RunSpec
from benchmarks.weir_side import job_options, weir_session
from weir.core.checkpoints.stats import CheckpointStats
from weir.core.types import Payload
from weir.gateway.job_gateway import JobGateway
from weir.sinks.base import Batch, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_S = 0.05
#: The two queries: on Weir's side the first reads the source and the second reads its channel.
_RAW, _WINDOWS = "orders", "revenue"


def run_plain(spec: RunSpec) -> GraphResult:
    """Warm up, then measure two independent queries in one session."""
    spark = plain_session(spec.side)
    try:
        _run_queries(spark, spec, spec.warm_up, f"{spec.directory}/warm-up")
        return _run_queries(spark, spec, spec.input, spec.directory)
    finally:
        spark.stop()


def run_weir(spec: RunSpec) -> GraphResult:
    """Warm up, then measure one job of two queries with a channel between them."""
    session = weir_session(spec.directory)
    try:
        _run_job(session, spec, spec.warm_up, f"{spec.directory}/warm-up")
        return _run_job(session, spec, spec.input, spec.directory)
    finally:
        session.stop()


def _run_queries(
    spark: SparkSession, spec: RunSpec, input_directory: str, output: str
) -> GraphResult:
    link_input(Path(input_directory), Path(output, "input"))

    def start(name: str) -> StreamingQuery:
        frame = read_input(spark, f"{output}/input", spec.files_per_batch)
        table = "raw" if name == _RAW else "minutes"
        return (
            (frame if name == _RAW else revenue(frame))
            .writeStream.format("parquet")
            .outputMode("append")
            .option("checkpointLocation", f"{output}/checkpoint-{table}")
            .start(f"{output}/{table}")
        )

    started_ms = time.time() * 1000
    with ThreadPoolExecutor(2) as pool:
        queries = dict(zip((_RAW, _WINDOWS), pool.map(start, (_RAW, _WINDOWS)), strict=True))
    _process_all(queries.values())
    batches = {name: batches_of(query) for name, query in queries.items()}
    write_row_after(Path(output, "input"))
    _process_all(queries.values())
    for query in queries.values():
        query.stop()
    return GraphResult(
        started_ms=started_ms,
        committed_ms=max(
            batch.end_ms for found in batches.values() for batch in found if batch.rows
        ),
        batches=batches,
    )


def _process_all(queries: Iterable[StreamingQuery]) -> None:
    for query in queries:
        query.processAllAvailable()


def _run_job(
    session: SparkSession, spec: RunSpec, input_directory: str, output: str
) -> GraphResult:
    link_input(Path(input_directory), Path(output, "input"))
    commits = _Commits()
    job = weir.Job("graph")
    orders = job.source(
        _RAW, lambda spark: read_input(spark, f"{output}/input", spec.files_per_batch)
    )
    orders.sink("raw", _WatchedTable(f"{output}/raw", commits))
    orders.transform(_WINDOWS, revenue).sink("minutes", _WatchedFiles(f"{output}/minutes", commits))

    def measure(gateway: JobGateway, over: threading.Event) -> GraphResult:
        started_ms = time.time() * 1000
        queries = queries_of(session, (_RAW, _WINDOWS), over)
        newest = _commit_all(queries, gateway, commits, over)
        result = GraphResult(
            started_ms=started_ms,
            committed_ms=time.time() * 1000,
            batches={name: batches_of(query) for name, query in queries.items()},
            checkpoints=[
                _checkpoint(stats)
                for stats in reversed(gateway.view().checkpoints.history)
                if stats.status == "COMPLETED" and stats.checkpoint_id < newest
            ],
            stage_ms=commits.stage_ms(),
        )
        write_row_after(Path(output, "input"))
        _commit_all(queries, gateway, commits, over)
        return result

    return measure_job(job, job_options(output), measure)


def queries_of(
    session: SparkSession, names: Sequence[str], over: threading.Event
) -> dict[str, StreamingQuery]:
    """The job's queries by the names of their vertices, once all are running."""
    while True:
        found = {str(query.name).rpartition("-")[0]: query for query in session.streams.active}
        if found.keys() == set(names):
            return {name: found[name] for name in names}
        check_running(over)
        time.sleep(_LOOK_S)


def _commit_all(
    queries: Mapping[str, StreamingQuery],
    gateway: JobGateway,
    commits: _Commits,
    over: threading.Event,
) -> int:
    """Wait until the input is read, request a checkpoint, and wait for its commits; return its id.

    Its barrier follows the last segment through the channel, so the second query has read
    everything as well.
    """
    queries[_RAW].processAllAvailable()
    requested = gateway.trigger_checkpoint().result().checkpoint_id
    commits.wait_for(requested, over)
    return requested


def _checkpoint(stats: CheckpointStats) -> Checkpoint:
    return Checkpoint(
        triggered_ms=stats.trigger_timestamp_ms,
        duration_ms=stats.end_to_end_duration_ms,
        tasks={
            task.vertex: {
                "delay": task.metrics.start_delay_ms,
                "sync": task.metrics.sync_duration_ms,
                "async": task.metrics.async_duration_ms,
            }
            for task in stats.tasks
        },
    )


class _Commits:
    """The stages and commits of the job's two sinks."""

    def __init__(self) -> None:
        self._done = threading.Condition()
        self._epochs: dict[str, int] = {"raw": 0, "minutes": 0}
        self._stage_ms: dict[str, list[float]] = {"raw": [], "minutes": []}

    def staged(self, sink: str, begun: float) -> None:
        """Note that a sink has staged a batch, beginning at this time of ``perf_counter``."""
        self._stage_ms[sink].append((time.perf_counter() - begun) * 1000)

    def committed(self, sink: str, epoch: int) -> None:
        """Note that a sink has committed an epoch; sinks also commit epochs without rows."""
        with self._done:
            self._epochs[sink] = epoch
            self._done.notify_all()

    def wait_for(self, epoch: int, over: threading.Event) -> None:
        """Wait until both sinks have committed the epoch."""
        with self._done:
            while min(self._epochs.values()) < epoch:
                self._done.wait(_LOOK_S)
                check_running(over)

    def stage_ms(self) -> dict[str, list[float]]:
        """How long each batch so far took to stage, by sink."""
        return {sink: list(found) for sink, found in self._stage_ms.items()}


class _Watched(Sink):
    """A sink that reports its stages and commits."""

    watched_as: str
    watcher: _Commits

    def stage(self, frame: DataFrame, batch: Batch) -> Payload | None:
        """Stage, and report it."""
        begun = time.perf_counter()
        try:
            return super().stage(frame, batch)  # type: ignore[safe-super]
        finally:
            self.watcher.staged(self.watched_as, begun)

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """Commit, and report it."""
        rows = super().commit(epoch, payloads)  # type: ignore[safe-super]
        self.watcher.committed(self.watched_as, epoch)
        return rows


class _WatchedTable(_Watched, weir.sinks.DeltaTable):
    def __init__(self, path: str, commits: _Commits) -> None:
        super().__init__(path)
        self.watched_as, self.watcher = "raw", commits


class _WatchedFiles(_Watched, weir.sinks.Files):
    def __init__(self, path: str, commits: _Commits) -> None:
        super().__init__(path, format="parquet")
        self.watched_as, self.watcher = "minutes", commits
