"""Python workers that start warm: ``python -m benchmarks.workers``.

A session on two cores runs a function in two Python workers, then one that fails, which costs its
workers, then the first function again, and so on. In each pair one session forks its workers from
Weir's daemon (``weir/spark/session/worker_daemon.py``), the other from Spark's own; every other
pair runs in reverse order.

- ``workers_first`` is the time of the first function, with Weir's daemon over Spark's own.
- ``workers_mb`` is the memory that a worker has for itself (USS), with both.
- ``workers`` is the time of the function after a failure, with Weir's daemon over Spark's own: what
  a restart waits for. At most 0.5, by the median of the pairs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from benchmarks.machine import make_parser, working_directory
from benchmarks.processes import run_as_child, run_in_process
from weir.spark.session.start import create_session
from weir.spark.session.worker_daemon import MODULE

if TYPE_CHECKING:
    import pyarrow as pa

TARGET = 0.5

_SPARKS_OWN = "pyspark.daemon"

_FAILURES = 5


class Spec(msgspec.Struct):
    """A run, by the module of its daemon."""

    daemon: str


class Result(msgspec.Struct):
    """What a run has measured."""

    first_s: float
    #: After each failure.
    again_s: list[float]
    #: Of one worker.
    uss_mb: float


def run(spec: Spec) -> Result:
    """One session."""
    spark = create_session(
        name="workers",
        master="local[2]",
        conf={"spark.python.daemon.module": spec.daemon},
        parallelism=2,
        fast_working_directory=True,
        log_file=None,
    )

    def pids(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        import pyarrow

        # A worker that has not read all of its input is not used again.
        for _ in batches:
            pass
        pid = pyarrow.array([os.getpid()], pyarrow.int64())
        yield pyarrow.RecordBatch.from_pydict({"pid": pid})

    def fail(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("a failure")

    two = spark.range(0, 2, 1, 2)
    took: list[float] = []
    uss: list[float] = []
    for _ in range(1 + _FAILURES):
        begun = time.perf_counter()
        workers = two.mapInArrow(pids, "pid long").collect()
        took.append(time.perf_counter() - begun)
        uss += [psutil.Process(row["pid"]).memory_full_info().uss / 2**20 for row in workers]
        # Spark reports the failure.
        with suppress(Exception):
            two.mapInArrow(fail, "pid long").collect()
    spark.stop()
    return Result(first_s=took[0], again_s=took[1:], uss_mb=statistics.median(uss))


def _ratio(pairs: Sequence[dict[str, Result]], figure: Callable[[Result], float]) -> float:
    """The median over the pairs of a figure with Weir's daemon over that with Spark's own."""
    return statistics.median(figure(one[MODULE]) / figure(one[_SPARKS_OWN]) for one in pairs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the target is met: the exit code."""
    parser = make_parser("benchmarks.workers", __doc__)
    parser.add_argument("--pairs", type=int, default=5, help="pairs of sessions")
    parser.add_argument("--run", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.run:
        run_as_child(options.run, Spec, run)
        return 0
    pairs: list[dict[str, Result]] = []
    with working_directory(options) as directory:
        for number in range(1, options.pairs + 1):
            found: dict[str, Result] = {}
            for daemon in (MODULE, _SPARKS_OWN)[:: 1 if number % 2 else -1]:
                place = directory / f"{number}-{daemon}"
                found[daemon] = run_in_process(
                    ["benchmarks.workers", "--run"], Spec(daemon), place, Result
                )
            pairs.append(found)
            told = (
                f"{name} {one.first_s:.2f} s, after a failure {statistics.median(one.again_s):.2f}"
                for name, one in sorted(found.items())
            )
            print(f"pair {number}: {'; '.join(told)}", flush=True)
    first = _ratio(pairs, lambda one: one.first_s)
    again = _ratio(pairs, lambda one: statistics.median(one.again_s))
    ours, theirs = (
        statistics.median(pair[name].uss_mb for pair in pairs) for name in (MODULE, _SPARKS_OWN)
    )
    print(f"workers_first ratio={first:.3f}")
    print(f"workers_mb weir={ours:.0f} spark={theirs:.0f}")
    print(f"workers ratio={again:.3f} target={TARGET}")
    return 0 if again <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
