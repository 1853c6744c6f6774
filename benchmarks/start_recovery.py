"""Recovery time of a killed job; a part of ``python -m benchmarks.start``.

``benchmarks/jobs/copy_weir.py`` copies files that land five times a second from the first start to
the end, even while no driver runs. Each row has a number, and the files have them in order. Each
life of the driver:

1. When the table holds every row that had landed by some moment of this life, and after a further
   fraction of a second that varies from life to life, the driver is killed with SIGKILL. Then its
   JVM and all other processes that it started are killed.
2. The same command is run again immediately; here the clock starts. It stops when the table holds a
   row that landed after the kill. An older row may come from a checkpoint that was complete before
   the kill, and proves nothing.

*Proof*: before each kill the table must hold every row that had landed by that moment, and no row
twice.
"""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.commands import JOBS, weir_run
from benchmarks.processes import check_alive, started
from benchmarks.tables import TablesDifferError, committed_files
from weir.demo.landing import write_atomically

_PATIENCE_S = 180.0
_LOOK_S = 0.02
_INTERVAL = "500 ms"
_LANDING_S = 0.2
_ROWS = 100


def measure_recoveries(directory: Path, recoveries: int) -> list[float]:
    """Milliseconds from the command to the first new row, for each recovery."""
    directory.mkdir()
    with Landing(directory / "rows") as landing:
        lives = Lives(directory, landing)
        lives.live(0)
        found = []
        for number in range(1, recoveries + 1):
            found.append(lives.live(number))
            print(
                f"recovery {number}: {found[-1]:.0f} ms, {landing.landed:,} rows landed", flush=True
            )
    return found


class Landing:
    """Lands files of numbered rows in a thread while the context is entered."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        #: All rows with lower numbers have landed.
        self.landed = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._land, name="landing")

    def __enter__(self) -> Landing:
        self.directory.mkdir()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _land(self) -> None:
        for number in itertools.count():
            numbers = range(self.landed, self.landed + _ROWS)
            table = pa.table({"id": numbers, "amount": numbers})
            write_atomically(table, self.directory / f"{number:06}.parquet")
            self.landed = numbers.stop
            if self._over.wait(_LANDING_S):
                return


class Numbers:
    """The row numbers in a growing table; each file is read once."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._read: set[Path] = set()
        self._found: set[int] = set()
        #: All numbers below it have been found.
        self._complete = 0

    @property
    def largest(self) -> int:
        """The largest number, -1 without rows. Raises ``TablesDifferError`` for a duplicate."""
        for path in set(committed_files(self._table)) - self._read:
            self._read.add(path)
            numbers = pq.ParquetFile(path).read(["id"])["id"].to_pylist()
            before = len(self._found)
            self._found.update(numbers)
            if len(self._found) != before + len(numbers):
                raise TablesDifferError(f"{path.name} contains a duplicate row.")
        return max(self._found, default=-1)

    def has_all(self, below: int) -> bool:
        """Whether all numbers below this one are there."""
        if self.largest < below - 1:
            return False
        while self._complete in self._found:
            self._complete += 1
        return self._complete >= below


class Lives:
    """Runs the job until it has recovered, and kills it, again and again."""

    def __init__(self, directory: Path, landing: Landing) -> None:
        self._directory = directory
        self._landing = landing
        self._table = Numbers(directory / "table")
        self._command = weir_run(JOBS / "copy_weir.py", interval=_INTERVAL)

    def live(self, number: int) -> float:
        """Run one life; return the milliseconds from its command to its first new row."""
        # The previous life has ended. It may have read one file that has landed but is not counted
        # yet, and no other.
        landed_before = self._landing.landed + _ROWS
        begun = time.perf_counter()
        with started(
            self._command, self._directory, {"WEIR_BENCH_LANDING": str(self._landing.directory)}
        ) as process:
            self._wait(process, lambda: self._table.largest >= landed_before)
            elapsed_ms = (time.perf_counter() - begun) * 1000
            landed = self._landing.landed
            self._wait(process, lambda: self._table.has_all(landed))
            # Kill at different moments between two checkpoints.
            time.sleep(number % 5 * 0.1)
        return elapsed_ms

    def _wait(self, process: subprocess.Popen[bytes], done: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not done():
            check_alive(process, self._directory, deadline_s)
            time.sleep(_LOOK_S)
