"""Cost of a checkpoint against state size: ``python -m benchmarks.incremental``.

The cost of an incremental checkpoint should depend on the changes since the last one, not on the
size of the state. A keyed count runs as a Weir job twice, once with a small state and once with a
hundred times as many keys; then both get the same changes, each followed by a checkpoint. The
checkpoints should cost the same in both runs. How the two are kept comparable:

1. *State*: one batch fills it, one row for each key. All rows have the same day, which is part of
   the key and never passes the watermark, so nothing is ever evicted.
2. *Settling*: a dozen batches of changes follow, until Spark's maintenance has replaced the
   changelogs of every state partition with a snapshot. The next checkpoint takes these files, the
   whole state, and is not measured.
3. *Measured*: each change updates the same few thousand keys in one batch. When it is processed, a
   checkpoint is requested, as ``weir checkpoint`` does; there are no periodic checkpoints. Duration
   (trigger to completion) and new bytes come from the job's own statistics. The figure of a run is
   the median: Spark occasionally uploads a snapshot, and the checkpoint after it writes more; the
   means, which are printed too, show that.
4. *Pairs*: each run is a process and JVM of its own; the sizes alternate, every other pair in
   reverse order. The ratio is the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

import weir
from benchmarks.machine import make_parser, working_directory
from benchmarks.measured_job import check_running, measure_job
from benchmarks.processes import RunFailedError, run_as_child, run_in_process
from benchmarks.weir_side import job_options
from weir.core.checkpoints.stats import CheckpointStats
from weir.core.types import CheckpointType
from weir.demo.landing import write_atomically
from weir.gateway.job_gateway import JobGateway
from weir.sinks.foreach.sink import BatchInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DURATION_TARGET = 1.2
BYTES_TARGET = 1.2

#: Batches of changes before Spark snapshots the state: it does so after ten
#: (``minDeltasForSnapshot``).
_SETTLING = 12
#: 2024-01-01T00:00:00Z, the day of every row.
_DAY_US = 1_704_067_200_000_000
_LOOK_S = 0.2
#: How long Spark's maintenance may take to write its snapshots; it runs every 15 seconds.
_SNAPSHOT_WAIT_S = 180
#: The module that runs one side, and its option.
_RUN = ("benchmarks.incremental", "--run")


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a process of its own."""

    #: Keys of the state.
    keys: int
    #: Keys that each change updates.
    changed: int
    #: Measured checkpoints.
    checkpoints: int
    #: An empty directory for everything that the run writes.
    directory: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of the measured checkpoints, in order."""

    duration_ms: list[int]
    #: Bytes that each checkpoint wrote itself.
    new_bytes: list[int]
    #: Bytes of the whole state in the last checkpoint.
    full_bytes: int


def run(spec: Spec) -> Result:
    """Run the job, fill its state, and measure its checkpoints."""
    changes = _Changes(Path(spec.directory) / "input", spec.changed)
    changes.fill(spec.keys)
    staging = threading.Event()
    sessions: list[SparkSession] = []

    def numbers(spark: SparkSession) -> DataFrame:
        sessions.append(spark)
        source = spark.readStream.schema("key long, day timestamp").option("maxFilesPerTrigger", 1)
        return source.parquet(str(changes.directory))

    def count(frame: DataFrame) -> DataFrame:
        return frame.withWatermark("day", "1 day").groupBy("key", "day").count()

    def consume(frame: DataFrame, batch: BatchInfo) -> None:
        staging.set()
        frame.write.format("noop").mode("append").save()

    job = weir.Job("incremental")
    source = job.source("numbers", numbers)
    source.transform("count", count).sink("nothing", weir.sinks.Foreach(consume))

    def measure(gateway: JobGateway, over: threading.Event) -> Result:
        while not staging.wait(_LOOK_S):
            check_running(over)
        (query,) = sessions[-1].streams.active
        return _Measurement(spec, changes, query, gateway, over).result()

    return measure_job(job, job_options(spec.directory, interval="disabled"), measure)


class _Changes:
    """The files of the job's input."""

    def __init__(self, directory: Path, changed: int) -> None:
        self.directory = directory
        self._changed = changed
        self._numbers = itertools.count()
        directory.mkdir(parents=True)

    def fill(self, keys: int) -> None:
        """Write one row for each key."""
        self._write(np.arange(keys, dtype=np.int64))

    def change(self) -> None:
        """Write one row for each of the keys that change."""
        self._write(np.arange(self._changed, dtype=np.int64))

    def _write(self, keys: np.ndarray) -> None:
        days = pa.array(np.full(len(keys), _DAY_US), pa.timestamp("us", tz="UTC"))
        name = f"{next(self._numbers):06}.parquet"
        write_atomically(pa.table({"key": keys, "day": days}), self.directory / name)


class _Measurement:
    """Measures the running job."""

    def __init__(
        self,
        spec: Spec,
        changes: _Changes,
        query: StreamingQuery,
        gateway: JobGateway,
        over: threading.Event,
    ) -> None:
        self._spec = spec
        self._changes = changes
        self._query = query
        self._gateway = gateway
        self._over = over

    def result(self) -> Result:
        """Settle, then measure."""
        self._query.processAllAvailable()
        for _ in range(_SETTLING):
            self._change()
        self._wait_for_snapshots()
        self._change()
        self._checkpoint()
        measured = [self._changed_checkpoint() for _ in range(self._spec.checkpoints)]
        return Result(
            duration_ms=[stats.end_to_end_duration_ms for stats in measured],
            new_bytes=[stats.checkpointed_size for stats in measured],
            full_bytes=measured[-1].state_size,
        )

    def _change(self) -> None:
        self._changes.change()
        self._query.processAllAvailable()

    def _changed_checkpoint(self) -> CheckpointStats:
        self._change()
        return self._checkpoint()

    def _checkpoint(self) -> CheckpointStats:
        completed = self._gateway.trigger_checkpoint(CheckpointType.CONFIGURED).result()
        history = self._gateway.view().checkpoints.history
        return next(stats for stats in history if stats.checkpoint_id == completed.checkpoint_id)

    def _wait_for_snapshots(self) -> None:
        """Wait until Spark has written a snapshot of every state partition."""
        end = time.monotonic() + _SNAPSHOT_WAIT_S
        work = Path(self._spec.directory) / "work"
        while True:
            partitions = [path for path in work.rglob("state/0/[0-9]*") if path.is_dir()]
            if partitions and all(any(one.glob("*.zip")) for one in partitions):
                return
            check_running(self._over)
            if time.monotonic() > end:
                raise RunFailedError(
                    f"Spark wrote no snapshots under {work} within {_SNAPSHOT_WAIT_S} seconds."
                )
            time.sleep(_LOOK_S)


def _figures(keys: int, result: Result) -> str:
    durations, sizes = result.duration_ms, result.new_bytes
    return (
        f"{keys:,} keys ({result.full_bytes / 1e6:.1f} MB): duration median"
        f" {statistics.median(durations):.0f} mean {statistics.mean(durations):.0f} max"
        f" {max(durations)} ms, new bytes median {statistics.median(sizes):,.0f} mean"
        f" {statistics.mean(sizes):,.0f} max {max(sizes):,}"
    )


def measure_pairs(directory: Path, options: argparse.Namespace) -> tuple[float, float]:
    """The ratios of large to small state, for durations and for new bytes."""
    durations, sizes = [], []
    large = options.keys * options.times
    for number in range(options.pairs):
        order = (options.keys, large) if number % 2 == 0 else (large, options.keys)
        results = {}
        for keys in order:
            spec = Spec(
                keys=keys,
                changed=options.changed,
                checkpoints=options.checkpoints,
                directory=str(directory / f"{number}-{keys}"),
            )
            results[keys] = run_in_process(_RUN, spec, Path(spec.directory), Result)
            print(f"pair {number + 1}: {_figures(keys, results[keys])}", flush=True)
        durations.append(_ratio(results[large].duration_ms, results[options.keys].duration_ms))
        sizes.append(_ratio(results[large].new_bytes, results[options.keys].new_bytes))
    return statistics.median(durations), statistics.median(sizes)


def _ratio(large: list[int], small: list[int]) -> float:
    return statistics.median(large) / statistics.median(small)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the targets are met: the exit code."""
    parser = make_parser("benchmarks.incremental", __doc__)
    parser.add_argument(
        "--pairs", type=int, default=3, help="pairs of runs with small and large state"
    )
    parser.add_argument("--keys", type=int, default=20_000, help="keys of the small state")
    parser.add_argument(
        "--times",
        type=int,
        default=100,
        help="size of the large state, as a multiple of the small one",
    )
    parser.add_argument(
        "--changed", type=int, default=2_000, help="keys that change before each checkpoint"
    )
    parser.add_argument("--checkpoints", type=int, default=20, help="measured checkpoints per run")
    parser.add_argument("--run", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.run is not None:
        run_as_child(options.run, Spec, run)
        return 0
    with working_directory(options) as directory:
        duration, size = measure_pairs(directory, options)
    print(f"incremental_duration ratio={duration:.3f} target={DURATION_TARGET}")
    print(f"incremental_bytes ratio={size:.3f} target={BYTES_TARGET}")
    return 0 if duration <= DURATION_TARGET and size <= BYTES_TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
