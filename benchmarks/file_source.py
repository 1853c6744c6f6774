"""``FileSource`` beside Spark's own file source: ``python -m benchmarks.file_source``.

The same Parquet files go through a Weir job into ``weir.sinks.Files``, with a checkpoint every second, once read by
``weir.sources.FileSource`` in two subtasks and once by ``spark.readStream.parquet``, each with its defaults. The clock runs
from the first status RUNNING until a checkpoint, asked for when the last row was read, has committed every row. The sides
take turns, and so does the order within a pair, behind one run of each that warms up; the figure is the median of the pairs'
ratios of rows per second. Proof: after each run the sink holds the ids of the input, each once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import weir
from benchmarks.machine import describe_machine
from benchmarks.measured_job import measure_job
from benchmarks.process import all_committed, options

RATIO_TARGET = 0.8

_SCHEMA = "id long, key long, amount double, word string"
_SIDES = ("weir", "spark")


def write_files(directory: Path, *, files: int, rows: int) -> None:
    """So many files of so many rows; the same numbers give the same rows."""
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


def make_job(side: str, source: Path, out: Path) -> weir.Job:
    """The files into files."""
    job = weir.Job("file_source")
    if side == "weir":
        files = weir.sources.FileSource(str(source), format="parquet", schema=_SCHEMA)
        stream = job.source("in", files, parallelism=2)
    else:
        stream = job.source("in", lambda spark: spark.readStream.schema(_SCHEMA).parquet(str(source)))
    stream.sink("out", weir.sinks.Files(str(out)))
    return job


def measure(directory: Path, side: str, rows: int) -> float:
    """Rows per second of one run, after its output was looked at."""
    target = directory / "run"
    job = make_job(side, directory / "in", target / "out")
    seconds = measure_job(job, options(target, "1s"), lambda g, over: all_committed(rows, g, over))
    found = ds.dataset(target / "out", format="parquet").to_table(["id"])["id"].to_numpy()
    shutil.rmtree(target)
    assert np.array_equal(np.sort(found), np.arange(rows)), f"the rows of {side} are not those of the input"
    print(f"{side}: {rows:,} rows in {seconds:.1f} s: {rows / seconds:,.0f} rows/s", flush=True)
    return rows / seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the target is met: the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.file_source", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--files", type=int, default=1000, help="files of the input")
    parser.add_argument("--rows", type=int, default=10_000, help="rows of each file")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each side, after one that warms up")
    chosen = parser.parse_args(arguments)
    print(describe_machine(), flush=True)
    ratios = []
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        directory = Path(name)
        write_files(directory / "in", files=chosen.files, rows=chosen.rows)
        for pair in range(chosen.pairs + 1):
            order = _SIDES if pair % 2 == 0 else tuple(reversed(_SIDES))
            rates = {side: measure(directory, side, chosen.files * chosen.rows) for side in order}
            if pair == 0:
                print("warm-up", flush=True)
                continue
            ratios.append(rates["weir"] / rates["spark"])
            print(f"pair {pair}: ratio {ratios[-1]:.3f}", flush=True)
    ratio = statistics.median(ratios)
    print(f"file_source ratio={ratio:.3f} target={RATIO_TARGET}")
    return 0 if ratio >= RATIO_TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
