"""The duration of a stop with savepoint under load: ``python -m benchmarks.stopping``.

``weir run`` copies Parquet files to a Delta table, one file a batch, as fast as it can. In the
middle of that ``weir stop`` is called, and the clock runs from that command until the process of
``weir run`` is gone. Then ``weir run --from-savepoint`` resumes the job, which is stopped again.
The input does not end before the last stop.

``stopping`` is the longest of these times over all stops; its target is the longest batch of the
run plus 3 seconds. It includes the start of the ``weir stop`` process itself, about a second.

Proof: after each stop the table must hold each number from 0 up to the end of a file exactly once,
and more of them than before: the resumed job continues exactly where the stopped one ended.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks.commands import weir_command
from benchmarks.machine import make_parser, working_directory
from benchmarks.processes import (
    LOG,
    RunFailedError,
    check_alive,
    end_on_sigterm,
    log_of,
    started,
)
from benchmarks.tables import TablesDifferError

SLACK_MS = 3_000

#: How long a process may take for anything.
_PATIENCE_S = 180
_LOOK_S = 0.05
#: How many files a life must have committed before it is stopped.
_FILES_BEFORE_STOP = 3

_PIPELINE = '''
import time
import weir

class Timed(weir.sinks.DeltaTable):
    """Notes how long each batch takes to write."""

    def stage(self, frame, step):
        begun = time.perf_counter()
        try:
            return super().stage(frame, step)
        finally:
            with open("batches", "a") as file:
                file.write(f"{(time.perf_counter() - begun) * 1000}\\n")

job = weir.Job("stopping")
job.source("numbers", lambda spark: spark.readStream.schema("id long, payload string")
           .option("maxFilesPerTrigger", 1).parquet("input")).sink("copy", Timed("copy"))
'''
_CONF = (
    "execution.checkpointing.interval=1s",
    "spark.ui.enabled=false",
    "spark.ui.showConsoleProgress=false",
)


class Bench:
    """A directory with a pipeline, its input and its table."""

    def __init__(self, directory: Path, files: int, rows: int) -> None:
        self._directory = directory
        self._rows = rows
        self._savepoint: str | None = None
        self._committed = 0
        (directory / "pipeline.py").write_text(_PIPELINE)
        (directory / "input").mkdir()
        for number in range(files):
            path = directory / "input" / f"{number:06}.parquet"
            ids = np.arange(number * rows, (number + 1) * rows)
            pq.write_table(pa.table({"id": ids, "payload": ids.astype(str)}), path)
            os.utime(path, (1_700_000_000 + number,) * 2)

    def stop_once(self) -> float:
        """Run, stop under load, and check the table.

        Returns the milliseconds from the stop command to the end of the ``weir run`` process.
        """
        arguments = [word for setting in _CONF for word in ("--conf", setting)]
        if self._savepoint is not None:
            arguments += ["--from-savepoint", self._savepoint]
        command = weir_command("run", "pipeline.py", "--rest-port", "0", *arguments)
        (self._directory / LOG).unlink(missing_ok=True)
        with started(command, self._directory) as run:
            address = self._wait_for_address(run)
            self._wait_for_rows(run)
            begun = time.perf_counter()
            stop = subprocess.run(
                weir_command("stop", "stopping", "-m", address),
                cwd=self._directory,
                capture_output=True,
                text=True,
                timeout=_PATIENCE_S,
                check=False,
            )
            found = re.search(r"Savepoint: (\S+)", stop.stdout)
            if found is None:
                raise RunFailedError(f"{stop.stdout}{stop.stderr}{log_of(self._directory)}")
            code = run.wait(_PATIENCE_S)
            elapsed_ms = (time.perf_counter() - begun) * 1000
        if stop.returncode or code:
            raise RunFailedError(f"{stop.stdout}{stop.stderr}{log_of(self._directory)}")
        self._savepoint = found[1]
        self._check()
        return elapsed_ms

    @property
    def longest_batch_ms(self) -> float:
        """The longest batch of all runs."""
        return max(map(float, (self._directory / "batches").read_text().split()))

    @property
    def committed(self) -> int:
        """The number of rows in the table."""
        return self._committed

    def _check(self) -> None:
        ids = np.sort(
            DeltaTable(self._directory / "copy").to_pyarrow_table(columns=["id"])["id"].to_numpy()
        )
        if not np.array_equal(ids, np.arange(len(ids))) or len(ids) % self._rows:
            raise TablesDifferError(
                f"The table's {len(ids)} rows are not the rows of whole files, each exactly once."
            )
        if len(ids) <= self._committed:
            raise TablesDifferError(
                f"The table did not grow: {len(ids)} rows, {self._committed} before."
            )
        self._committed = len(ids)

    def _wait_for_rows(self, run: subprocess.Popen[bytes]) -> None:
        """Wait until this life has committed some files."""
        wanted = self._committed + _FILES_BEFORE_STOP * self._rows
        deadline_s = time.monotonic() + _PATIENCE_S
        while self._count() < wanted:
            self._pause(run, deadline_s)

    def _count(self) -> int:
        if not (self._directory / "copy" / "_delta_log").exists():
            return 0
        return int(DeltaTable(self._directory / "copy").count())

    def _wait_for_address(self, run: subprocess.Popen[bytes]) -> str:
        deadline_s = time.monotonic() + _PATIENCE_S
        while (found := re.search(r"REST server: (\S+)", log_of(self._directory))) is None:
            self._pause(run, deadline_s)
        return found[1]

    def _pause(self, run: subprocess.Popen[bytes], deadline_s: float) -> None:
        check_alive(run, self._directory, deadline_s)
        time.sleep(_LOOK_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the target is met: the exit code."""
    parser = make_parser("benchmarks.stopping", __doc__)
    parser.add_argument(
        "--stops", type=int, default=5, help="number of times to stop and resume the job"
    )
    parser.add_argument(
        "--rows", type=int, default=500_000, help="rows per input file, and so per batch"
    )
    parser.add_argument(
        "--files", type=int, default=200, help="input files, more than the job reads"
    )
    options = parser.parse_args(arguments)
    end_on_sigterm()
    with working_directory(options) as directory:
        bench = Bench(directory, options.files, options.rows)
        elapsed = []
        for number in range(options.stops):
            elapsed.append(bench.stop_once())
            print(
                f"stop {number + 1}: {elapsed[-1]:,.0f} ms, {bench.committed:,} rows committed,"
                f" longest batch so far {bench.longest_batch_ms:,.0f} ms",
                flush=True,
            )
        target = bench.longest_batch_ms + SLACK_MS
    print(f"stopping ms={max(elapsed):.0f} target={target:.0f}")
    return 0 if max(elapsed) <= target else 1


if __name__ == "__main__":
    sys.exit(main())
