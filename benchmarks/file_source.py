"""``FileSource`` against Spark's own file source: ``python -m benchmarks.file_source``.

The same Parquet files go through a Weir job into ``weir.sinks.Files``, with a checkpoint every
second. One side reads them with ``weir.sources.FileSource`` in two subtasks, the other with
``spark.readStream.parquet``, each with its defaults.

``file_source``: all files exist before the start, and the job is bounded. The clock runs from the
first status RUNNING until the job has finished, its session's end included on both sides.

``file_source_growing``: the job is unbounded, and the files land while it runs, twenty every 50 ms,
which is faster than they are read. The clock runs from the first status RUNNING until a checkpoint,
requested when the last row was read, is complete.

The sides alternate, and so does their order within a pair, after one pair for warm-up. The figures
are medians of the pairs' ratios of rows per second. Proof: after each run the sink holds the ids of
the input, each once.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import weir
from benchmarks.machine import make_parser, working_directory
from benchmarks.measured_job import check_running, measure_job
from benchmarks.process import all_completed
from benchmarks.tables import TablesDifferError
from benchmarks.weir_side import job_options
from weir.core.status import JobStatus
from weir.core.types import TaskStatus
from weir.gateway.job_gateway import JobGateway

RATIO_TARGET = 0.8

_SCHEMA = "id long, key long, amount double, word string"
_SIDES = ("weir", "spark")


def write_files(directory: Path, *, files: int, rows: int) -> None:
    """Write ``files`` files of ``rows`` rows; the same numbers give the same rows."""
    directory.mkdir(parents=True)
    random = np.random.default_rng(11)
    words = np.array([f"word-{number}" for number in range(1000)])
    for number in range(files):
        columns = {
            "id": np.arange(number * rows, (number + 1) * rows),
            "key": random.integers(0, 100_000, rows),
            "amount": random.random(rows),
            "word": words[random.integers(0, len(words), rows)],
        }
        path = directory / f"{number:06}.parquet"
        pq.write_table(pa.table(columns), path)
        os.utime(path, (1_700_000_000 + number,) * 2)


def make_job(side: str, source: Path, out: Path, *, bounded: bool) -> weir.Job:
    """A job that copies the source's files to files."""
    job = weir.Job("file_source")
    if side == "weir":
        files = weir.sources.FileSource(
            str(source), format="parquet", schema=_SCHEMA, bounded=bounded
        )
        stream = job.source("in", files, parallelism=2)
    else:
        stream = job.source(
            "in",
            lambda spark: spark.readStream.schema(_SCHEMA).parquet(str(source)),
            bounded=bounded,
        )
    stream.sink("out", weir.sinks.Files(str(out)))
    return job


def measure_bounded(side: str, source: Path, target: Path, rows: int) -> float:
    """Seconds until the job has read all files and has finished."""
    job = make_job(side, source, target / "out", bounded=True)
    return measure_job(job, job_options(str(target)), _finished, status=JobStatus.FINISHED)


def measure_growing(side: str, source: Path, target: Path, rows: int) -> float:
    """Seconds until all files that landed are committed."""
    landing = target / "in"
    landing.mkdir(parents=True)

    def committed(gateway: JobGateway, over: threading.Event) -> float:
        with ThreadPoolExecutor(1) as pool:
            landed = pool.submit(_land, source, landing, gateway, over)
            seconds = all_completed(rows, gateway, over)
            landed.result()
            return seconds

    job = make_job(side, landing, target / "out", bounded=False)
    return measure_job(job, job_options(str(target)), committed)


def rate(
    measure: Callable[[str, Path, Path, int], float],
    side: str,
    directory: Path,
    files: int,
    rows: int,
) -> float:
    """Rows per second of one run, whose output is checked."""
    target, total = directory / "run", files * rows
    seconds = measure(side, directory / "in", target, total)
    found = ds.dataset(target / "out", format="parquet").to_table(["id"])["id"].to_numpy()
    shutil.rmtree(target)
    if not np.array_equal(np.sort(found), np.arange(total)):
        raise TablesDifferError(f"The rows of {side} differ from the input.")
    print(f"{side}: {total:,} rows in {seconds:.1f} s: {total / seconds:,.0f} rows/s", flush=True)
    return total / seconds


def _finished(gateway: JobGateway, over: threading.Event) -> float:
    _wait_until_running(gateway, over)
    begun = time.perf_counter()
    over.wait()
    return time.perf_counter() - begun


def _land(source: Path, landing: Path, gateway: JobGateway, over: threading.Event) -> None:
    """Land the files as links, so each appears whole and keeps its own modification time."""
    _wait_until_running(gateway, over)
    for number, path in enumerate(sorted(source.iterdir())):
        (landing / path.name).hardlink_to(path)
        if number % 20 == 19:
            time.sleep(0.05)


def _wait_until_running(gateway: JobGateway, over: threading.Event) -> None:
    while gateway.view().vertices[0].status is not TaskStatus.RUNNING:
        check_running(over)
        time.sleep(0.01)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the targets are met: the exit code."""
    parser = make_parser("benchmarks.file_source", __doc__)
    parser.add_argument("--files", type=int, default=1000, help="input files")
    parser.add_argument("--rows", type=int, default=10_000, help="rows per file")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each side, after a warm-up")
    chosen = parser.parse_args(arguments)
    medians = {}
    with working_directory(chosen) as directory:
        write_files(directory / "in", files=chosen.files, rows=chosen.rows)
        for figure, measure in (
            ("file_source_growing", measure_growing),
            ("file_source", measure_bounded),
        ):
            ratios = []
            for pair in range(chosen.pairs + 1):
                order = _SIDES if pair % 2 == 0 else tuple(reversed(_SIDES))
                rates = {
                    side: rate(measure, side, directory, chosen.files, chosen.rows)
                    for side in order
                }
                ratios.append(rates["weir"] / rates["spark"])
                print(
                    f"{figure}, {f'pair {pair}' if pair else 'warm-up'}: ratio {ratios[-1]:.3f}",
                    flush=True,
                )
            medians[figure] = statistics.median(ratios[1:])
    for figure, ratio in medians.items():
        print(f"{figure} ratio={ratio:.3f} target={RATIO_TARGET}")
    return 0 if min(medians.values()) >= RATIO_TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
