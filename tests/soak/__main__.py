"""``python -m tests.soak``: kills one job for hours, in every way, then counts its rows.

Input lands all the time. Each death is of another kind than the previous one, at a random moment;
then the same command is run again, unless the job has to survive by itself. The job must complete a
checkpoint after each death. After each round of deaths the tables are compared with the input: no
row may be there twice. At the end the job is drained, and every sink must hold each row once.

The soak mounts a small file system of its own, which needs root; without root no disk is filled,
and it prints that.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import secrets
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.test_two_drivers import put_to_sleep, wake
from tests.kit.disk import mounted
from tests.kit.place import SOURCES, Place, Rows, Run, delta_rows, files_rows
from tests.soak.deaths import (
    OUTAGE_S,
    Death,
    Disk,
    kill_driver,
    kill_executor,
    kill_jvm,
    kill_python_workers,
)
from tests.soak.pipeline import KEYS

PIPELINE = Path(__file__).with_name("pipeline.py")
#: How long the job may take to complete a checkpoint after a death.
RECOVERS_S = 180.0
#: After this time a sleeping driver counts as dead.
LEASE_S = 4.0
_LAND_EVERY_S = 1.0
#: The share of driver deaths that come before its first checkpoint.
_EARLY = 0.25
_SETTINGS = (
    "execution.checkpointing.interval=1s",
    "execution.checkpointing.dir=disk/checkpoints",
    "execution.checkpointing.savepoint-dir=disk/savepoints",
    f"weir.lease.timeout={LEASE_S:.0f}s",
    "weir.lease.interval=1s",
)
_STAGED = re.compile(r"/weir-[^/]+/|/_weir/staged/")
_COMPLETED = re.compile(r"^checkpoint \d+ completed", re.MULTILINE)


class SoakError(Exception):
    """The job misbehaved; the message says how."""


class Soak:
    """One job, its input, and the count of its deaths and recoveries."""

    def __init__(self, place: Place, generator: random.Random, *, fills_disks: bool) -> None:
        self._place = place
        self._random = generator
        self._disk = Disk(place.directory / "disk")
        self._kinds = [kind for kind in Death if fills_disks or kind is not Death.FULL_DISK]
        self._newest_kind: Death | None = None
        self._run: Run | None = None
        self._has_executors = False
        self._began_s = time.monotonic()
        self._landing = threading.Lock()
        self._over = threading.Event()
        self.drivers = 0
        self.deaths: Counter[Death] = Counter()
        #: Seconds from each death until the next checkpoint completed, by kind.
        self.recovery_s: defaultdict[Death, list[float]] = defaultdict(list)
        #: How often a driver gave up with an error message, while a disk was full or a directory
        #: gone.
        self.gave_up: Counter[Death] = Counter()

    def live(self, seconds: float) -> None:
        """Run and kill the job for this many seconds."""
        until_s = time.monotonic() + seconds
        with ThreadPoolExecutor(1) as pool:
            landing = pool.submit(self._land)
            try:
                while time.monotonic() < until_s:
                    for kind in self._round():
                        if landing.done():
                            # It has failed: without new rows, deaths would prove nothing.
                            landing.result()
                        if time.monotonic() < until_s:
                            self._die(kind)
                    self._compare(final=False)
            finally:
                self._over.set()
        landing.result()

    def end(self) -> None:
        """Drain the job once it has read everything, and compare the tables.

        Raises ``SoakError`` unless every sink holds each row once.
        """
        run = self._running(executors=self._has_executors)
        expected = self._expected()
        deadline = time.monotonic() + RECOVERS_S
        while delta_rows(self._out / "raw").total() < expected.total():
            if time.monotonic() > deadline:
                break
            time.sleep(1)
        stopped = self._place.weir("stop", "soak", "--drain", "--address", run.address)
        if stopped.returncode or run.wait():
            raise SoakError(
                f"the job could not be drained: {stopped.stdout}{stopped.stderr}\n{run.story()}"
            )
        run.wait_for_no_processes(60)
        self._compare(final=True)

    # -- lives

    def _round(self) -> list[Death]:
        """Every kind once, in random order; no kind comes twice in a row, even across rounds."""
        kinds = list(self._kinds)
        self._random.shuffle(kinds)
        if kinds[0] is self._newest_kind:
            kinds.reverse()
        self._newest_kind = kinds[-1]
        return kinds

    def _die(self, kind: Death) -> None:
        early = kind.ends_the_driver and kind is not Death.SLEEP and self._random.random() < _EARLY
        if early and self._run is not None:
            self._strike(Death.DRIVER)
        run = self._running(executors=kind is Death.EXECUTOR, wait=not early)
        if early:
            time.sleep(self._random.uniform(0.0, 10.0))
        else:
            time.sleep(self._random.uniform(0.0, 3.0))
        if run.process.poll() is not None:
            raise SoakError(f"the driver ended by itself before {kind.value}: {run.story()}")
        self._strike(kind)

    def _strike(self, kind: Death) -> None:
        """Cause a death, and wait until the job has recovered."""
        run = self._run
        assert run is not None
        began_s = time.monotonic()
        match kind:
            case Death.DRIVER:
                kill_driver(run)
            case Death.JVM:
                if not kill_jvm(run):
                    return
            case Death.SLEEP:
                self._sleep(run)
            case Death.EXECUTOR:
                if not kill_executor(run, self._random):
                    raise SoakError(f"there is no executor: {run.story()}")
            case Death.PYTHON_WORKERS:
                if not kill_python_workers(run):
                    raise SoakError(f"there is no Python worker: {run.story()}")
            case Death.FULL_DISK:
                self._disk.fill()
                time.sleep(OUTAGE_S)
                self._disk.free()
            case Death.CHECKPOINTS_GONE:
                self._outage("checkpoints")
            case Death.TABLES_GONE:
                self._outage("out")
        self.deaths[kind] += 1
        if kind is Death.DRIVER or (kind is Death.JVM and not self._outlives_its_jvm(run)):
            run.wait_for_no_processes(RECOVERS_S)
            self._run = None
        recovers = "the next life follows"
        if self._run is not None:
            taken_s = self._recover(kind, run, began_s)
            recovers = f"the next checkpoint completed after {taken_s:.1f} s"
        self._tell(f"death {self.deaths.total()}: {kind.value}; {recovers}")

    def _outage(self, directory: str) -> None:
        """Take a directory away for a while; only staged files may be written in its place."""
        away = self._disk.take_away(directory)
        time.sleep(OUTAGE_S)
        left = self._disk.put_back(directory, away)
        # Running Spark tasks create the directories that they need; none of it may be committed.
        if files := [path for path in left if not _STAGED.search(str(path))]:
            raise SoakError(f"files were written where {directory} had been: {files}")

    def _outlives_its_jvm(self, run: Run) -> bool:
        """Whether the driver continues with a new JVM, which it may do while it starts.

        Otherwise it must end, with an exit code other than 0.
        """
        wanted = self._completed(run) + 2
        deadline = time.monotonic() + RECOVERS_S
        while run.process.poll() is None:
            if self._completed(run) >= wanted:
                return True
            if time.monotonic() > deadline:
                raise SoakError(
                    f"the driver neither went on nor ended without its JVM: {run.story()}"
                )
            time.sleep(0.1)
        if run.process.poll() == 0:
            raise SoakError(f"the driver ended well without its JVM: {run.story()}")
        return False

    def _sleep(self, older: Run) -> None:
        """Stop the driver's processes, let another driver take over, and wake the older one.

        The older driver must then end by itself.
        """
        sleeping = put_to_sleep(older)
        time.sleep(LEASE_S + 1)
        self._run = None
        newer = self._running(executors=False)
        for process in sleeping:
            wake(process)
        if older.wait(RECOVERS_S) != 1:
            raise SoakError(f"a driver that slept ended well, or without a word: {older.story()}")
        older.wait_for_no_processes(RECOVERS_S)
        if newer.process.poll() is not None:
            raise SoakError(f"the driver that took over has ended: {newer.story()}")

    def _recover(self, kind: Death, before: Run, began_s: float) -> float:
        """Wait for a checkpoint that began after the death; return the seconds since then.

        A driver that gave up with an error message is started again.
        """
        run = self._run
        assert run is not None
        # The same driver may complete one that was already in progress.
        wanted = self._completed(run) + 2 if run is before else 1
        deadline = time.monotonic() + RECOVERS_S
        while self._completed(run) < wanted:
            if run.process.poll() is not None:
                if not kind.is_outage or run.process.poll() != 1:
                    raise SoakError(f"the driver did not get over {kind.value}: {run.story()}")
                self.gave_up[kind] += 1
                run.wait_for_no_processes(RECOVERS_S)
                self._run = None
                run = self._running(executors=False)
                break
            if time.monotonic() > deadline:
                raise SoakError(
                    f"no checkpoint completed within {RECOVERS_S} s after {kind.value}:"
                    f" {run.story()}"
                )
            time.sleep(0.1)
        taken_s = time.monotonic() - began_s
        self.recovery_s[kind].append(taken_s)
        return taken_s

    def _running(self, *, executors: bool, wait: bool = True) -> Run:
        """The running driver, started if there is none.

        ``executors``: it must have executors of its own. ``wait``: until it has completed a
        checkpoint.
        """
        if self._run is not None and executors and not self._has_executors:
            self._strike(Death.DRIVER)
        if self._run is None:
            self._run = self._start(executors)
        run = self._run
        began_s = time.monotonic()
        while wait and not self._completed(run):
            if run.process.poll() is not None:
                raise SoakError(f"the driver did not start: {run.story()}")
            if time.monotonic() - began_s > RECOVERS_S:
                raise SoakError(
                    f"no checkpoint completed within {RECOVERS_S} s after the start: {run.story()}"
                )
            time.sleep(0.1)
        return run

    def _start(self, executors: bool) -> Run:
        self.drivers += 1
        self._has_executors = executors
        master = "local-cluster[2,1,1024]" if executors else "local[2]"
        confs = [word for setting in _SETTINGS for word in ("--conf", setting)]
        environment = {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            # The pipeline shares steps with the end-to-end tests' pipeline.
            "PYTHONPATH": os.pathsep.join((str(SOURCES), str(SOURCES.parent))),
        }
        return self._place.start(
            "--master", master, *confs, pipeline=PIPELINE, environment=environment
        )

    def _completed(self, run: Run) -> int:
        return len(_COMPLETED.findall(run.output))

    # -- rows

    @property
    def _out(self) -> Path:
        return self._place.directory / "disk" / "out"

    def _land(self) -> None:
        while not self._over.wait(_LAND_EVERY_S):
            with self._landing:
                self._place.land(1)

    def _expected(self) -> Rows:
        with self._landing:
            return self._place.rows()

    def _compare(self, *, final: bool) -> None:
        """Compare each sink with the input.

        Raises ``SoakError`` for a row that is there twice or has not landed, and at the end for a
        missing row.
        """
        # Read before the input: rows committed by then have landed when the input is read.
        raw = delta_rows(self._out / "raw")
        files = files_rows(self._out / "raw_files") if final else Rows()
        numbered = delta_rows(self._out / "numbered")
        expected = self._expected()
        found = {"raw": raw, "raw_files": files, "numbered": Rows(_ids(numbered))}
        wanted = {"raw": expected, "raw_files": expected, "numbered": Rows(_ids(expected))}
        if final:
            found["minutes"], wanted["minutes"] = (
                files_rows(self._out / "minutes"),
                self._place.minutes(),
            )
        missing = {name: (wanted[name] - found[name]).total() if final else 0 for name in found}
        doubled = {name: (found[name] - wanted[name]).total() for name in found}
        wrong = _wrongly_numbered(numbered)
        rows = ", ".join(f"{name} {found[name].total():,}" for name in found if found[name])
        self._tell(
            f"rows: {rows}; {sum(missing.values())} missing, {sum(doubled.values())} doubled,"
            f" {len(wrong)} keys with wrong numbers"
        )
        if sum(missing.values()) or sum(doubled.values()) or wrong:
            raise SoakError(
                f"missing: {missing}, doubled: {doubled}, keys with wrong numbers: {wrong}"
            )

    def _tell(self, line: str) -> None:
        print(f"{time.monotonic() - self._began_s:7.0f} s  {line}", flush=True)


def _ids(rows: Rows) -> Iterator[tuple[int]]:
    return ((row[0],) for row in rows.elements())


def _wrongly_numbered(numbered: Rows) -> list[int]:
    """The keys whose rows are not numbered 1, 2, 3 ... with each number once."""
    by_key: defaultdict[int, list[int]] = defaultdict(list)
    for number, n in numbered.elements():
        by_key[number % KEYS].append(n)
    return [
        key
        for key, numbers in by_key.items()
        if sorted(numbers) != list(range(1, len(numbers) + 1))
    ]


def main() -> int:
    """Run the command. Returns 0 only if no row was missing or doubled."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=120.0, help="how long (default: 120)")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the random moments (default: drawn, and printed)"
    )
    arguments = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if arguments.seed is None else arguments.seed
    directory = Path(tempfile.mkdtemp(prefix="weir-soak-"))
    print(
        f"soak: {arguments.minutes:g} minutes, seed {seed}, in {directory}, {os.cpu_count()} cores",
        flush=True,
    )
    place = Place(directory)
    place.land(1)
    began_s = time.monotonic()
    problem: str | None = None
    with mounted(directory / "disk", "2g") as refusal:
        if refusal:
            print(
                "soak: no file system can be mounted here (needs root): no disk is filled",
                flush=True,
            )
        soak = Soak(place, random.Random(seed), fills_disks=not refusal)
        try:
            soak.live(arguments.minutes * 60)
            soak.end()
        except Exception as error:
            problem = str(error) if isinstance(error, SoakError | AssertionError) else repr(error)
        except KeyboardInterrupt:
            problem = "interrupted"
        finally:
            place.clear()
        if not refusal and problem is not None:
            shutil.copytree(directory / "disk", directory / "disk-kept", symlinks=True)
    for kind in Death:
        times = sorted(soak.recovery_s[kind])
        took = (
            f", next checkpoint after {statistics.median(times):.1f} s (longest {times[-1]:.1f} s)"
            if times
            else ""
        )
        gave_up = (
            f", {soak.gave_up[kind]} times the driver gave up with a sentence"
            if soak.gave_up[kind]
            else ""
        )
        print(f"soak: {soak.deaths[kind]:4} x {kind.value}{took}{gave_up}")
    hours = (time.monotonic() - began_s) / 3600
    if problem is None:
        shutil.rmtree(directory, ignore_errors=True)
        print(
            f"soak: {soak.deaths.total()} deaths, {soak.drivers} drivers in {hours:.2f} h: 0"
            " missing, 0 doubled"
        )
        return 0
    print(
        f"soak: FAILED after {soak.deaths.total()} deaths in {hours:.2f} h: {problem}\nsoak:"
        f" everything is in {directory}"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
