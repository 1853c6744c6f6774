"""A place for end-to-end tests: small inputs, ``weir`` as a child process, checks of the sinks.

Rules of these tests:

1. The command runs as a person would run it, in a directory of its own; what it left is all that
   the next run knows.
2. Results are compared as multisets with a computation over the input that knows neither Weir nor
   Spark.
3. Each command begins a session of its own, by whose id every process that it started can be found
   again, even after its parent has died. Nothing else is ever signalled.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from tests.kit.waiting import PATIENCE_S, wait_until

from weir.demo.landing import write_atomically

PIPELINE = Path(__file__).with_name("numbers_pipeline.py")
KILLING_DRIVER = Path(__file__).with_name("killing_driver.py")
SOURCES = Path(__file__).parents[2] / "src"

#: These tests' JVMs live for seconds: they start faster with only the quick compiler, and without
#: verifying the bytecode of Spark's jars. Java prints on standard error that it has picked these
#: up, unless its log is off.
QUICK_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions"
    " -XX:-BytecodeVerificationRemote -Xlog:disable -Xlog:all=error:stderr"
)

Rows = Counter[tuple[Any, ...]]

_FIRST = datetime(2024, 1, 1, tzinfo=UTC)
ROWS_PER_FILE = 40
#: Half a second between two numbers: three files make a minute.
_STEP = timedelta(milliseconds=500)
_POLL_S = 0.05


class Place:
    """A directory with an input, in which commands run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runs: list[Run] = []
        self._files = 0
        self._mark = directory / "mark"

    # -- input -------------------------------------------------------------------------------------

    def land(self, files: int) -> None:
        """Add this many files of numbers to ``in``, to be read in order; each appears whole."""
        landing = self.directory / "in"
        landing.mkdir(exist_ok=True)
        for number in range(self._files, self._files + files):
            ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
            columns = {
                "id": pa.array(ids, pa.int64()),
                "ts": pa.array([_FIRST + _STEP * one for one in ids], pa.timestamp("us", tz="UTC")),
            }
            # Spark reads in the order of modification times, which must increase from file to file.
            path = landing / f"{number:03}.parquet"
            write_atomically(pa.table(columns), path, mtime_s=1_700_000_000 + number)
        self._files += files

    def rows(self) -> Rows:
        """All rows of the input."""
        return rows_of_files(sorted(self.directory.glob("in/*.parquet")))

    def minutes(self) -> Rows:
        """The input's count of numbers per minute."""
        counts = Counter(ts.replace(second=0, microsecond=0) for _, ts in self.rows().elements())
        return Rows(counts.items())

    def ranks(self) -> Rows:
        """Each number's last digit, and its rank among those that have it."""
        return Rows((number % 10, number // 10 + 1) for number, _ in self.rows())

    def closed_minutes(self, delay: timedelta = timedelta(seconds=10)) -> Rows:
        """Those minutes that a watermark with this delay has passed."""
        newest = max(ts for _, ts in self.rows())
        minute = timedelta(minutes=1)
        closed = (row for row in self.minutes() if row[0] + minute <= newest - delay)
        return Rows(dict.fromkeys(closed, 1))

    # -- output ------------------------------------------------------------------------------------

    def assert_exact(self, out: str = "out") -> None:
        """Check that every sink of a finished bounded job has exactly the expected rows."""
        self.assert_copies_exact(out)
        assert_same(files_rows(self.directory / out / "minutes"), self.minutes(), "the minutes")

    def assert_copies_exact(self, out: str = "out") -> None:
        """Check that both copies have exactly the input."""
        assert_same(delta_rows(self.directory / out / "raw"), self.rows(), "the Delta table")
        assert_same(files_rows(self.directory / out / "raw_files"), self.rows(), "the files")

    def compared(
        self,
        out: Path,
        *,
        copies: Mapping[str, Rows] | None = None,
        minutes: Rows | None = None,
    ) -> int:
        """Check the sinks of ``tests/cluster/pipelines`` below a directory; the rows compared.

        ``copies``: the rows of further sinks that must have the input. ``minutes``: those that the
        windows must have, if not all.
        """
        rows = self.rows()
        minutes = self.minutes() if minutes is None else minutes
        wanted = {
            "the Delta table": (delta_rows(out / "raw"), rows),
            "the files": (files_rows(out / "raw_files"), rows),
            "the minutes": (
                files_rows(out / "minutes"),
                self.minutes() if minutes is None else minutes,
            ),
            "the ranks": (files_rows(out / "ranks"), self.ranks()),
        }
        wanted |= {what: (found, rows) for what, found in (copies or {}).items()}
        for what, (found, expected) in wanted.items():
            assert_same(found, expected, what)
        return sum(expected.total() for _, expected in wanted.values())

    # -- commands ----------------------------------------------------------------------------------

    def start(
        self,
        *arguments: str,
        pipeline: Path = PIPELINE,
        script: tuple[str, ...] = ("-m", "weir"),
        environment: dict[str, str] | None = None,
        python: str | Path = sys.executable,
    ) -> Run:
        """Start ``weir run`` with a short checkpoint interval on two state partitions.

        ``python`` may be that of another environment.
        """
        given = (*script, "run", str(pipeline), "--rest-port", "0", *arguments)
        settings = (
            "execution.checkpointing.interval=500ms",
            "parallelism.default=2",
            # A line for each checkpoint, for which tests wait.
            "weir.progress-interval=0",
        )
        confs = [word for setting in settings for word in ("--conf", setting)]
        # The test's own settings come last and take precedence.
        command = [str(python), *given[: len(script) + 2], *confs, *given[len(script) + 2 :]]
        return self.launch(command, environment or {})

    def start_until(
        self,
        point: str,
        nth: int,
        *arguments: str,
        number: signal.Signals,
        pipeline: Path = PIPELINE,
        environment: dict[str, str] | None = None,
    ) -> Run:
        """Start a ``weir run`` that signals itself at the Nth passage of the point.

        See ``killing_driver.py``.
        """
        self._mark.unlink(missing_ok=True)
        script = (str(KILLING_DRIVER), number.name, point, str(nth), str(self._mark))
        return self.start(*arguments, pipeline=pipeline, script=script, environment=environment)

    def mark(self) -> str:
        """The point at which the last driver with one signalled itself."""
        return self._mark.read_text()

    def conclude(self, problem: str) -> int:
        """What a command that kills jobs here says last, and its exit code."""
        if problem:
            print(f"FAILED: {problem}\neverything is in {self.directory}")
            return 1
        shutil.rmtree(self.directory, ignore_errors=True)
        print("0 missing, 0 doubled")
        return 0

    def die_at(self, point: str, nth: int, *arguments: str, **how: Any) -> None:
        """Run until SIGKILL at the Nth passage of the point; fail if it is never reached."""
        run = self.start_until(point, nth, *arguments, number=signal.SIGKILL, **how)
        assert run.wait() == -signal.SIGKILL, run.story()
        assert self.mark() == point

    def sleep_at(self, point: str, nth: int, *arguments: str) -> Run:
        """Run until the driver stops itself by SIGSTOP at the Nth passage; fail without one."""
        run = self.start_until(point, nth, *arguments, number=signal.SIGSTOP)
        driver = psutil.Process(run.process.pid)
        wait_until(
            lambda: driver.status() == psutil.STATUS_STOPPED or run.process.poll() is not None,
            point,
        )
        assert self.mark() == point, run.story()
        return run

    def launch(self, command: list[str], environment: dict[str, str]) -> Run:
        """Start a command; it is ended with the test."""
        run = Run(command, self.directory, len(self.runs), environment)
        self.runs.append(run)
        return run

    def finish(self, *arguments: str, **how: Any) -> Run:
        """Run ``weir run`` to a successful end; the JVMs of killed drivers print no stack."""
        run = self.start(*arguments, **how)
        assert run.wait() == 0, run.story()
        for earlier in self.runs:
            if earlier.process.poll() == -signal.SIGKILL:
                earlier.assert_no_stack_trace()
        return run

    def weir(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of the short commands."""
        return subprocess.run(
            [sys.executable, "-m", "weir", *arguments],
            cwd=self.directory,
            env=environment_of({}),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def write(self, name: str, text: str) -> Path:
        """Write a file, such as another pipeline."""
        path = self.directory / name
        path.write_text(text)
        return path

    def log_records(self) -> list[Path]:
        """The records of the only job's log, oldest first."""
        return sorted(self.directory.glob(".weir/checkpoints/*/log/*"))

    def clear(self) -> None:
        """End everything that the test left running."""
        for run in self.runs:
            run.end()


class Run:
    """A child process that writes its output to files, so that it never waits for a reader."""

    def __init__(
        self, command: list[str], directory: Path, number: int, environment: dict[str, str]
    ) -> None:
        self._output = directory / f"output-{number}"
        self._errors = directory / f"errors-{number}"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env=environment_of(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """What it has printed so far, on either stream."""
        return self.printed + self.errors

    @property
    def printed(self) -> str:
        """The standard output so far."""
        return self._output.read_text()

    @property
    def errors(self) -> str:
        """The error output so far."""
        return self._errors.read_text()

    @property
    def address(self) -> str:
        """The address of its REST server."""
        return self.wait_for(r"REST server: (\S+)")[1]

    def story(self) -> str:
        """All its output, for the message of a failed assertion."""
        return f"exit code {self.process.poll()}\n{self.output}"

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait for a matching line of output; fail if the process ends without one."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            ended = self.process.poll() is not None
            match = re.search(pattern, self.output, re.MULTILINE)
            if match is not None:
                return match
            assert not ended, f"it ended without {pattern!r}: {self.story()}"
            assert time.monotonic() < deadline, f"it never said {pattern!r}: {self.story()}"
            time.sleep(_POLL_S)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the exit code; fail if the process does not end in time."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {timeout_s} s: {self.story()}") from None

    def error(self) -> str:
        """The one line that explains exit code 1; fails if there is a stack trace or more."""
        assert self.wait() == 1, self.story()
        return error_line(self.printed, self.errors)

    def assert_no_stack_trace(self) -> None:
        """Check that neither Python nor the JVM has printed a stack trace."""
        assert "Traceback" not in self.output, self.story()
        assert "\tat " not in self.output, self.story()

    def processes(self) -> list[psutil.Process]:
        """All living processes of its session, including those whose parent has died."""
        found = []
        for process in psutil.process_iter(["status"]):
            try:
                same = os.getsid(process.pid) == self.process.pid
            except (ProcessLookupError, PermissionError):
                continue
            if same and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def wait_for_no_processes(self, timeout_s: float) -> None:
        """Wait until its session has no living process."""
        deadline = time.monotonic() + timeout_s
        while left := self.processes():
            assert time.monotonic() < deadline, (
                f"still there: {[process.cmdline() for process in left]}"
            )
            time.sleep(_POLL_S)

    def end(self) -> None:
        """Kill its whole session."""
        for process in self.processes():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait()


def environment_of(changes: dict[str, str]) -> dict[str, str]:
    """The environment of a command.

    It finds this Weir, installed or not, without proxies or colours.
    """
    paths = [str(SOURCES), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
        "JDK_JAVA_OPTIONS": QUICK_JVM,
        **changes,
    }


def error_line(output: str, errors: str) -> str:
    """The one ``weir: error:`` line; fails if there is a stack trace."""
    assert "Traceback" not in output + errors, errors
    assert "\tat " not in output + errors, errors
    lines = [line for line in errors.splitlines() if line.startswith("weir: error: ")]
    assert len(lines) == 1, output + errors
    return lines[0]


def parquet_rows(file: Path) -> Rows:
    """The rows of one Parquet file; fails if it is incomplete."""
    return _rows_of(pq.read_table(file))


def files_rows(directory: Path) -> Rows:
    """All rows visible to readers of a ``Files`` sink."""
    return rows_of_files(visible_files(directory))


def rows_of_files(files: list[Path]) -> Rows:
    """All rows of some Parquet files."""
    rows = Rows()
    for file in files:
        rows.update(parquet_rows(file))
    return rows


def visible_files(directory: Path) -> list[Path]:
    """The files visible to readers of a ``Files`` sink."""
    return sorted(
        file for file in directory.glob("*") if file.is_file() and file.name[0] not in "._"
    )


def delta_rows(path: Path) -> Rows:
    """All rows of a Delta table as delta-rs reads them; none without a table."""
    try:
        return _rows_of(DeltaTable(path).to_pyarrow_table())
    except TableNotFoundError:
        return Rows()


def assert_same(found: Rows, expected: Rows, what: str) -> None:
    """Fail with the missing and the additional rows."""
    missing, surplus = expected - found, found - expected
    assert not missing, (
        f"{what}: {missing.total()} rows are missing, such as {missing.most_common(3)}"
    )
    assert not surplus, (
        f"{what}: {surplus.total()} rows are too many, such as {surplus.most_common(3)}"
    )


def _rows_of(table: pa.Table) -> Rows:
    rows = Rows()
    for row in table.to_pylist():
        values = (one.astimezone(UTC) if isinstance(one, datetime) else one for one in row.values())
        rows[tuple(values)] += 1
    return rows
