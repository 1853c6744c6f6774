"""Processes and memory of a job of several queries: ``python -m benchmarks.memory``.

``benchmarks/jobs/many_weir.py`` is a job of eight queries, each from a source of files to a sink.
It runs as a user runs it, with ``weir run``. A few seconds after each table has rows, when the
start is done, every process of the driver's session is counted by its kind:

- *driver*: ``weir run``. One, whatever the number of queries.
- *JVM*: Spark.
- *worker daemon* and *workers*: Python processes that Spark forks for Python functions and shares
  among all queries.
- *other Python*: all others, for example a process for each streaming Python source.

``memory`` is the number of other Python processes for each query; the target is 0. The total is
informational. It is the sum of the processes' proportional set sizes, in which the processes that
share a page divide it among them (PSS, from ``smaps_rollup``). Where that cannot be read, it is the
sum of resident set sizes (RSS), in which each process counts its shared pages in full.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.commands import JOBS, weir_run
from benchmarks.machine import make_parser, working_directory
from benchmarks.processes import check_alive, end_on_sigterm, session_members, started
from benchmarks.tables import has_rows

PER_QUERY_TARGET = 0.0

_PATIENCE_S = 600.0
_LOOK_S = 0.1
_INTERVAL = "1 s"
_ROWS = 1_000

DRIVER, JVM, DAEMON, WORKER, OTHER_PYTHON, OTHER = (
    "driver",
    "JVM",
    "worker daemon",
    "worker",
    "other Python",
    "other",
)
KINDS = (DRIVER, JVM, DAEMON, WORKER, OTHER_PYTHON, OTHER)
_DAEMON_MODULE = "pyspark.daemon"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One process."""

    pid: int
    parent: int
    command: tuple[str, ...]
    #: Resident set size, in bytes.
    rss: int
    #: Proportional set size, in bytes; None if it cannot be read.
    pss: int | None


def look(leader: int) -> list[Seen]:
    """All processes of the leader's session."""
    found = []
    for process in session_members(leader):
        # A worker may exit meanwhile.
        with suppress(psutil.NoSuchProcess), process.oneshot():
            found.append(
                Seen(
                    pid=process.pid,
                    parent=process.ppid(),
                    command=tuple(process.cmdline()),
                    rss=process.memory_info().rss,
                    pss=read_pss(process.pid),
                )
            )
    return found


def read_pss(pid: int) -> int | None:
    """The proportional set size of a process in bytes; None if the system does not report it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), None)


def by_kind(processes: Sequence[Seen], leader: int) -> dict[str, list[Seen]]:
    """The processes of each kind, empty kinds included."""
    daemons = {
        process.pid
        for process in processes
        if _DAEMON_MODULE in process.command
        and not any(
            process.parent == other.pid and _DAEMON_MODULE in other.command for other in processes
        )
    }
    found: dict[str, list[Seen]] = {kind: [] for kind in KINDS}
    for process in processes:
        program = Path(process.command[0]).name if process.command else ""
        if process.pid == leader:
            kind = DRIVER
        elif process.pid in daemons:
            kind = DAEMON
        elif process.parent in daemons:
            kind = WORKER
        elif program == "java":
            kind = JVM
        else:
            kind = OTHER_PYTHON if program.startswith("python") else OTHER
        found[kind].append(process)
    return found


def table_lines(kinds: dict[str, list[Seen]]) -> list[str]:
    """The number and megabytes of each kind's processes."""
    lines = [f"{'kind':<15} {'processes':>9} {'RSS, MB':>9} {'PSS, MB':>9}"]
    for kind, processes in kinds.items():
        if processes:
            rss, pss = _rss(processes), _pss(processes)
            shown = "unknown" if pss is None else f"{pss / 1e6:.0f}"
            lines.append(f"{kind:<15} {len(processes):>9} {rss / 1e6:>9.0f} {shown:>9}")
    return lines


def verdict(kinds: dict[str, list[Seen]], queries: int) -> tuple[str, bool]:
    """The last line, and whether the target is met."""
    per_query = len(kinds[OTHER_PYTHON]) / queries
    everything = [process for processes in kinds.values() for process in processes]
    pss = _pss(everything)
    total = _rss(everything) if pss is None else pss
    line = (
        f"memory python_processes_per_query={per_query:.3f} target={PER_QUERY_TARGET:.0f}"
        f" total_mb={total / 1e6:.0f}"
    )
    return line, per_query <= PER_QUERY_TARGET


def _rss(processes: Sequence[Seen]) -> int:
    return sum(process.rss for process in processes)


def _pss(processes: Sequence[Seen]) -> int | None:
    """The sum of the proportional set sizes; None if one cannot be read."""
    found = [process.pss for process in processes]
    return None if None in found else sum(pss for pss in found if pss is not None)


def measure(directory: Path, queries: int, settle_s: float) -> dict[str, list[Seen]]:
    """Run the job until each table has rows, and list its processes by kind."""
    landing = directory / "rows"
    landing.mkdir()
    pq.write_table(pa.table({"id": range(_ROWS), "amount": range(_ROWS)}), landing / "0.parquet")
    environment = {"WEIR_BENCH_QUERIES": str(queries), "WEIR_BENCH_LANDING": str(landing)}
    deadline_s = time.monotonic() + _PATIENCE_S
    with started(
        weir_run(JOBS / "many_weir.py", interval=_INTERVAL), directory, environment
    ) as process:
        for number in range(queries):
            while not has_rows(directory / f"table_{number}"):
                check_alive(process, directory, deadline_s)
                time.sleep(_LOOK_S)
        time.sleep(settle_s)
        check_alive(process, directory, deadline_s)
        return by_kind(look(process.pid), process.pid)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the target is met: the exit code."""
    parser = make_parser("benchmarks.memory", __doc__)
    parser.add_argument("--queries", type=int, default=8, help="number of queries in the job")
    parser.add_argument(
        "--settle", type=float, default=10, help="seconds to wait once every query has read a row"
    )
    options = parser.parse_args(arguments)
    end_on_sigterm()
    with working_directory(options) as directory:
        kinds = measure(directory, options.queries, options.settle)
    print("\n".join(table_lines(kinds)))
    for process in kinds[OTHER_PYTHON]:
        print(f"other Python: {' '.join(process.command[1:])}")
    line, met = verdict(kinds, options.queries)
    print(line)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
