"""What merged files and fewer commits are worth to readers: ``python -m benchmarks.file_sizes``.

``benchmarks/jobs/file_sizes_weir.py`` runs as a user runs it, with ``weir run`` and a checkpoint
each second: 20,000 rows a second into a table with four partitions: Delta's, or with ``--sink
iceberg`` Iceberg's. It runs once as it is, and once with ``target_file_size`` and
``min_commit_interval="15 s"``; then it is stopped with a savepoint, so that every row is committed.
For each side it prints the files and versions per minute, and the time in which delta-rs or
pyiceberg opens the table and reads a column of all rows, the median of several reads.

``file_sizes`` is the time for a million rows with both settings, divided by that without; at most
0.5.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import deltalake
from pyiceberg.catalog import Catalog, load_catalog

from benchmarks.commands import JOBS, weir_command, weir_run
from benchmarks.machine import make_parser, working_directory
from benchmarks.processes import check_alive, end_on_sigterm, started
from benchmarks.rest import address_of

TARGET = 0.5

_INTERVAL = "1 s"
_PATIENCE_S = 300.0
_LOOK_S = 0.1
_READS = 7
#: What there is in the table's directory from its first commit on.
_FIRST = {"delta": "_delta_log", "iceberg": "bench/rows/metadata/snap-*"}


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


def run(directory: Path, seconds: float, *, sink: str, merged: bool) -> Outcome:
    """Run the job for some time after its first commit, stop it, and read its table."""
    directory.mkdir()
    command = weir_run(JOBS / "file_sizes_weir.py", interval=_INTERVAL)
    environment = {"WEIR_BENCHMARK_MERGED": "1" if merged else "0", "WEIR_BENCHMARK_SINK": sink}
    if sink == "iceberg":
        catalog_in(directory).create_namespace("bench")
    with started(command, directory, environment) as process:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not any((directory / "table").glob(_FIRST[sink])):
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
    reader = {"delta": read_delta, "iceberg": read_iceberg}[sink]
    return read(lambda: reader(directory), minutes)


def read(reader: Callable[[], tuple[int, int, int]], minutes: float) -> Outcome:
    """Read the table several times."""
    times = []
    for _ in range(_READS):
        begun = time.perf_counter()
        rows, files, versions = reader()
        times.append(time.perf_counter() - begun)
    return Outcome(
        rows=rows,
        files=files,
        versions=versions,
        minutes=minutes,
        read_ms=statistics.median(times) * 1_000 / (rows / 1e6),
    )


def read_delta(directory: Path) -> tuple[int, int, int]:
    """Rows, files and versions."""
    table = deltalake.DeltaTable(str(directory / "table"))
    rows = table.to_pyarrow_table(columns=["value"]).num_rows
    return rows, len(table.file_uris()), table.version() + 1


def read_iceberg(directory: Path) -> tuple[int, int, int]:
    """Rows, files and snapshots."""
    table = catalog_in(directory).load_table("bench.rows")
    rows = table.scan(selected_fields=("value",)).to_arrow().num_rows
    summary = table.metadata.snapshots[-1].summary
    assert summary is not None
    return rows, int(summary["total-data-files"] or 0), len(table.metadata.snapshots)


def catalog_in(directory: Path) -> Catalog:
    """The job's Iceberg catalog; paths are those of its working directory."""
    uri, warehouse = f"sqlite:///{directory / 'catalog.db'}", str(directory / "table")
    return load_catalog("default", type="sql", uri=uri, warehouse=warehouse)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the target is met: the exit code."""
    parser = make_parser("benchmarks.file_sizes", __doc__)
    parser.add_argument("--sink", choices=sorted(_FIRST), default="delta")
    parser.add_argument("--seconds", type=float, default=120, help="how long each side runs")
    options = parser.parse_args(arguments)
    end_on_sigterm()
    with working_directory(options) as directory:
        plain = run(directory / "plain", options.seconds, sink=options.sink, merged=False)
        print(f"as it is: {plain}", flush=True)
        merged = run(directory / "merged", options.seconds, sink=options.sink, merged=True)
        print(f"merged, a commit every 15 s: {merged}", flush=True)
    ratio = merged.read_ms / plain.read_ms
    print(f"file_sizes ratio={ratio:.3f} target={TARGET}")
    return 0 if ratio <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
