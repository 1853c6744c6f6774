"""A consumer ten times slower than its producer: ``python -m benchmarks.backpressure``.

One job of two queries: one reads Parquet files, one file a batch, and writes a channel; the other
reads the channel and sleeps for each row. Soon the producer blocks in its planning calls: a batch
of such a consumer reads three segments, and a fourth one waits. Then checkpoints are taken, one
after the other, each triggered while the channel is full. There are two runs, each in a process and
JVM of its own:

1. *Aligned.* The barrier waits until the consumer has read all segments before it. A checkpoint
   should take as long as the backlog: the segments that were unread when it was triggered, at the
   pace at which the consumer reads segments. ``backpressure_aligned`` is the median of duration
   over backlog. It has no target: it shows what unaligned checkpoints save.
2. *Unaligned.* The barrier overtakes the unread segments. ``backpressure_unaligned`` is the longest
   duration of all these checkpoints; its target is two median batches of the consumer plus 200 ms.

In both runs the bytes below the channel's directory and the memory of the driver's processes are
sampled twice a second, from the first full channel to the end. ``backpressure_bytes`` is the
largest sample over the most that a full channel may hold. ``backpressure_memory`` is the mean of
the last third of the samples over the mean of the first third: more than a quarter above 1 is
growth. ``tests/e2e/test_backpressure.py``, not this benchmark, checks that both kinds of checkpoint
restore exactly.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

import weir
from benchmarks.graph_sides import queries_of
from benchmarks.inputs import InputSize, link_input, write_input
from benchmarks.machine import make_parser, working_directory
from benchmarks.measured_job import check_running, measure_job
from benchmarks.processes import run_as_child, run_in_process
from benchmarks.query import batches_of, read_input
from benchmarks.runs import Batch
from benchmarks.weir_side import job_options, weir_session
from weir.core.checkpoints.stats import CheckpointStats
from weir.core.task.output_channels import DEFAULT_BOUND
from weir.core.types import CheckpointType
from weir.gateway.job_gateway import JobGateway

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

#: How many times slower than the producer the consumer must be for a run to count.
SLOWER_TARGET = 10
#: How much longer than two batches an unaligned checkpoint may take.
UNALIGNED_SLACK_MS = 200
BYTES_TARGET = 1.0
MEMORY_TARGET = 1.25

#: Segments in a full channel: those of one batch, which is 2 MiB for so slow a consumer, and the
#: first one of the next batch.
_FULL = 4

_FAST, _SLOW = "numbers", "slow"
_LOOK_S = 0.5
#: The module that runs one mode, and its option.
_RUN = ("benchmarks.backpressure", "--run")


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a process of its own."""

    unaligned: bool
    checkpoints: int
    #: How long the consumer sleeps for each row.
    sleep_us: float
    input: str
    #: An empty directory for everything that the run writes.
    directory: str


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of the channel's and the processes' sizes, in bytes."""

    channel: int
    memory: int


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint."""

    #: Segments that the consumer had not read when it was triggered.
    unread: int
    duration_ms: int
    #: Bytes of the segments that the barrier overtook.
    persisted_size: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one run."""

    #: The batches of each query that read rows.
    batches: dict[str, list[Batch]]
    #: How many segments the consumer read during the measurement, and how long that took.
    segments: int
    elapsed_ms: float
    #: The largest segment in the channel at the end, in bytes.
    segment_size: int
    looks: list[Look]
    taken: list[Taken]

    @property
    def segment_ms(self) -> float:
        """How long the consumer takes for a segment."""
        return self.elapsed_ms / self.segments

    @property
    def consumer_batch_ms(self) -> float:
        """The median duration of the consumer's batches."""
        return statistics.median(batch.busy_ms for batch in self.batches[_SLOW])

    @property
    def times_slower(self) -> float:
        """The consumer's time for a segment, over the producer's time to write one."""
        return self.segment_ms / statistics.median(batch.busy_ms for batch in self.batches[_FAST])

    @property
    def backlog_ratio(self) -> float:
        """The median, over the checkpoints, of duration over the reading time of the backlog."""
        return statistics.median(
            one.duration_ms / (one.unread * self.segment_ms) for one in self.taken
        )

    @property
    def bytes_ratio(self) -> float:
        """The most bytes in the channel, over those of a full channel and a segment being read."""
        return max(look.channel for look in self.looks) / (
            (DEFAULT_BOUND.segments + 1) * self.segment_size
        )

    @property
    def memory_ratio(self) -> float:
        """Mean memory in the last third of the samples over that in the first third."""
        third = len(self.looks) // 3
        return statistics.mean(look.memory for look in self.looks[-third:]) / statistics.mean(
            look.memory for look in self.looks[:third]
        )


def run(spec: Spec) -> Result:
    """Run the job until its channel is full, then take the checkpoints."""
    session = weir_session(spec.directory)
    link_input(Path(spec.input), Path(spec.directory, "input"))
    sleep_s = spec.sleep_us / 1e6

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(batch.num_rows * sleep_s)
            yield batch

    def slow(frame: DataFrame) -> DataFrame:
        return frame.coalesce(1).mapInArrow(slowly, frame.schema)

    job = weir.Job("backpressure")
    numbers = job.source(_FAST, lambda spark: read_input(spark, f"{spec.directory}/input", 1))
    numbers.transform(_SLOW, slow).start_new_chain().sink(
        "copy", weir.sinks.Files(f"{spec.directory}/copy")
    )

    options = job_options(
        spec.directory,
        interval="disabled",
        conf={"execution.checkpointing.unaligned.enabled": str(spec.unaligned).lower()},
    )

    def measure(gateway: JobGateway, over: threading.Event) -> Result:
        return _Measurement(spec, gateway, over).result(queries_of(session, (_FAST, _SLOW), over))

    try:
        return measure_job(job, options, measure)
    finally:
        session.stop()


class _Measurement:
    """Measures the running job."""

    def __init__(self, spec: Spec, gateway: JobGateway, over: threading.Event) -> None:
        self._spec = spec
        self._gateway = gateway
        self._over = over
        self._driver = psutil.Process()

    def result(self, queries: dict[str, StreamingQuery]) -> Result:
        """Wait until the channel is full, then take checkpoints while a thread takes samples."""
        self._wait_until_full()
        done = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(self._look, done)
            try:
                before, begun = self._read_segments(), time.perf_counter()
                taken = [self._take(number) for number in range(self._spec.checkpoints)]
                self._wait_until_full()
                segments, elapsed_s = self._read_segments() - before, time.perf_counter() - begun
                segment_size = max(map(_size, self._segments()))
            finally:
                done.set()
        return Result(
            batches={
                name: [batch for batch in batches_of(query) if batch.rows]
                for name, query in queries.items()
            },
            segments=segments,
            elapsed_ms=elapsed_s * 1000,
            segment_size=segment_size,
            looks=looking.result(),
            taken=taken,
        )

    def _take(self, number: int) -> Taken:
        """Take a checkpoint when the channel is full.

        Checkpoints are triggered at five different moments in the consumer's batch.
        """
        self._wait_until_full()
        time.sleep(number % 5 * 0.2)
        unread = len(self._segments())
        completed = self._gateway.trigger_checkpoint(CheckpointType.CONFIGURED).result()
        stats = self._stats(completed.checkpoint_id)
        return Taken(
            unread=unread,
            duration_ms=stats.end_to_end_duration_ms,
            persisted_size=sum(task.metrics.persisted_size for task in stats.tasks),
        )

    def _stats(self, checkpoint_id: int) -> CheckpointStats:
        history = self._gateway.view().checkpoints.history
        return next(stats for stats in history if stats.checkpoint_id == checkpoint_id)

    def _wait_until_full(self) -> None:
        while len(self._segments()) < _FULL:
            check_running(self._over)
            time.sleep(0.02)

    def _segments(self) -> list[Path]:
        """The segments in the channel: those that the consumer has not read or is reading."""
        return list(Path(self._spec.directory).glob(f"work/*/*/_channels/{_FAST}/*"))

    def _read_segments(self) -> int:
        """How many segments the consumer has read."""
        (position,) = [
            view.position for view in self._gateway.view().vertices if view.vertex == _FAST
        ]
        return position + 1 - len(self._segments())

    def _look(self, done: threading.Event) -> list[Look]:
        looks = []
        while not done.wait(_LOOK_S):
            processes = [self._driver, *self._driver.children(recursive=True)]
            looks.append(
                Look(
                    channel=sum(map(_size, self._segments())), memory=sum(map(_resident, processes))
                )
            )
        return looks


def _size(segment: Path) -> int:
    """The bytes of a segment's files; 0 once it is deleted."""
    try:
        return sum(entry.stat().st_size for entry in os.scandir(segment))
    except FileNotFoundError:
        return 0


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def figures(unaligned: bool, result: Result) -> str:
    """One run, as a line of text."""
    durations = [one.duration_ms for one in result.taken]
    return (
        f"{'unaligned' if unaligned else 'aligned'}: the consumer is {result.times_slower:.1f}"
        f" times slower ({result.segment_ms:,.0f} ms per segment, median batch"
        f" {result.consumer_batch_ms:,.0f} ms); {len(durations)} checkpoints of {min(durations):,}"
        f" to {max(durations):,} ms, median {statistics.median(durations):,.0f} ms, with"
        f" {statistics.median(one.unread for one in result.taken):.0f} segments unread,"
        f" {statistics.median(one.persisted_size for one in result.taken) / 1e6:.1f} MB of them"
        f" stored; channel at most {max(look.channel for look in result.looks) / 1e6:.1f} MB,"
        f" memory at most {max(look.memory for look in result.looks) / 1e9:.2f} GB in"
        f" {len(result.looks)} samples"
    )


def verdict(aligned: Result, unaligned: Result) -> tuple[list[str], bool]:
    """The last lines, and whether all targets are met."""
    slower = min(aligned.times_slower, unaligned.times_slower)
    filled = max(aligned.bytes_ratio, unaligned.bytes_ratio)
    memory = max(aligned.memory_ratio, unaligned.memory_ratio)
    longest_ms = max(one.duration_ms for one in unaligned.taken)
    target_ms = 2 * unaligned.consumer_batch_ms + UNALIGNED_SLACK_MS
    lines = [
        f"backpressure_aligned ratio={aligned.backlog_ratio:.3f}",
        f"backpressure_slower ratio={slower:.1f} target={SLOWER_TARGET}",
        f"backpressure_bytes ratio={filled:.3f} target={BYTES_TARGET}",
        f"backpressure_memory ratio={memory:.3f} target={MEMORY_TARGET}",
        f"backpressure_unaligned ms={longest_ms} target={target_ms:.0f}",
    ]
    met = slower >= SLOWER_TARGET and filled <= BYTES_TARGET and memory <= MEMORY_TARGET
    return lines, met and longest_ms <= target_ms


def measure_both(directory: Path, options: argparse.Namespace) -> tuple[Result, Result]:
    """The aligned run, then the unaligned one."""
    size = InputSize(
        files=options.files, rows_per_file=options.rows, keys=1_000, seconds_per_file=60
    )
    write_input(directory / "input", size)
    results = []
    for unaligned in (False, True):
        spec = Spec(
            unaligned=unaligned,
            checkpoints=options.unaligned if unaligned else options.aligned,
            sleep_us=options.sleep_us,
            input=str(directory / "input"),
            directory=str(directory / ("unaligned" if unaligned else "aligned")),
        )
        results.append(run_in_process(_RUN, spec, Path(spec.directory), Result))
        print(figures(unaligned, results[-1]), flush=True)
    return results[0], results[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the targets are met: the exit code."""
    parser = make_parser("benchmarks.backpressure", __doc__)
    parser.add_argument("--aligned", type=int, default=3, help="number of aligned checkpoints")
    parser.add_argument("--unaligned", type=int, default=10, help="number of unaligned checkpoints")
    parser.add_argument(
        "--rows", type=int, default=50_000, help="rows per input file, and so per segment"
    )
    parser.add_argument(
        "--files", type=int, default=300, help="input files, more than the job reads"
    )
    parser.add_argument(
        "--sleep-us", type=float, default=150, help="microseconds the consumer sleeps per row"
    )
    parser.add_argument("--run", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.run is not None:
        run_as_child(options.run, Spec, run)
        return 0
    with working_directory(options) as directory:
        lines, met = verdict(*measure_both(directory, options))
    print("\n".join(lines))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
