"""What merged files and fewer commits are worth to readers: ``python -m benchmarks.file_sizes``.

``benchmarks/jobs/file_sizes_weir.py`` runs as a user runs it, with ``weir run`` and a checkpoint
each second: 20,000 rows a second into a Delta table with four partitions. It runs once as it is,
and once with ``target_file_size`` and ``min_commit_interval="15 s"``; then it is stopped with a
savepoint, so that every row is committed. For each side it prints the files and versions per
minute, and the time in which delta-rs opens the table and reads a column of all rows, the median of
several reads.

``file_sizes`` is the time for a million rows with both settings, divided by that without; at most
0.5.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import deltalake

from benchmarks.commands import JOBS, weir_command, weir_run
from benchmarks.machine import make_parser, working_directory
from benchmarks.processes import check_alive, end_on_sigterm, started
from benchmarks.rest import address_of

TARGET = 0.5

_INTERVAL = "1 s"
_PATIENCE_S = 300.0
_LOOK_S = 0.1
_READS = 7


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The table of one side."""

    rows: int
    files: int
    versions: int
    minutes: float
    #: Milliseconds in which a million rows are read.
    read_ms: float

    def __str__(self) -> str:
        return (
            f"{self.files / self.minutes:,.0f} files a minute,"
            f" {self.versions / self.minutes:,.0f} versions a minute, {self.rows:,} rows,"
            f" {self.read_ms:.0f} ms to read a million rows"
        )


def run(directory: Path, seconds: float, *, merged: bool) -> Outcome:
    """Run the job for some time after its first commit, stop it, and read its table."""
    directory.mkdir()
    command = weir_run(JOBS / "file_sizes_weir.py", interval=_INTERVAL)
    environment = {"WEIR_BENCHMARK_MERGED": "1" if merged else "0"}
    table = directory / "table"
    with started(command, directory, environment) as process:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not (table / "_delta_log").exists():
            check_alive(process, directory, deadline_s)
            time.sleep(_LOOK_S)
        begun = time.monotonic()
        time.sleep(seconds)
        address = address_of(directory)
        assert address is not None
        stopper = directory / "stop"
        stopper.mkdir()
        with started(weir_command("stop", "file_sizes", "-m", address), stopper) as stop:
            stop.wait(_PATIENCE_S)
        process.wait(_PATIENCE_S)
        minutes = (time.monotonic() - begun) / 60
    return read(table, minutes)


def read(path: Path, minutes: float) -> Outcome:
    """Read the table several times."""
    times, rows = [], 0
    for _ in range(_READS):
        begun = time.perf_counter()
        table = deltalake.DeltaTable(str(path))
        rows = table.to_pyarrow_table(columns=["value"]).num_rows
        times.append(time.perf_counter() - begun)
    return Outcome(
        rows=rows,
        files=len(table.file_uris()),
        versions=table.version() + 1,
        minutes=minutes,
        read_ms=statistics.median(times) * 1_000 / (rows / 1e6),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the target is met: the exit code."""
    parser = make_parser("benchmarks.file_sizes", __doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long each side runs")
    options = parser.parse_args(arguments)
    end_on_sigterm()
    with working_directory(options) as directory:
        plain = run(directory / "plain", options.seconds, merged=False)
        print(f"as it is: {plain}", flush=True)
        merged = run(directory / "merged", options.seconds, merged=True)
        print(f"merged, a commit every 15 s: {merged}", flush=True)
    ratio = merged.read_ms / plain.read_ms
    print(f"file_sizes ratio={ratio:.3f} target={TARGET}")
    return 0 if ratio <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
