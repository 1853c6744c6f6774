"""The kinds of death that the soak causes, on real processes and a real disk."""

from __future__ import annotations

import contextlib
import os
import random
import time
from enum import Enum
from pathlib import Path

import psutil
from tests.kit.place import Run

from weir.spark.session import worker_daemon

#: How long a disk stays full, or a directory is gone.
OUTAGE_S = 10.0
_WORKERS_COME_S = 60.0
_WORKERS_DIE_S = 1.0


class Death(Enum):
    """A kind of death: what is killed, filled or taken away."""

    DRIVER = "SIGKILL of the driver"
    JVM = "SIGKILL of the JVM"
    EXECUTOR = "SIGKILL of an executor"
    PYTHON_WORKERS = "SIGKILL of all Python workers for 1 s"
    SLEEP = "SIGSTOP for longer than the lease"
    FULL_DISK = "full disk for 10 s"
    CHECKPOINTS_GONE = "checkpoint directory gone for 10 s"
    TABLES_GONE = "tables gone for 10 s"

    @property
    def is_outage(self) -> bool:
        """Whether the driver may also give up with an error message; it is then started again."""
        return self in (Death.FULL_DISK, Death.CHECKPOINTS_GONE, Death.TABLES_GONE)

    @property
    def ends_the_driver(self) -> bool:
        """Whether the driver cannot survive."""
        return self in (Death.DRIVER, Death.JVM, Death.SLEEP)


def kill_driver(run: Run) -> None:
    """SIGKILL the Python process; Spark has to notice by itself."""
    run.process.kill()
    run.process.wait()


def kill_jvm(run: Run) -> bool:
    """SIGKILL the JVM in which Spark's driver runs; False if there is none yet."""
    return _kill(run, "org.apache.spark.deploy.SparkSubmit")


def kill_executor(run: Run, generator: random.Random) -> bool:
    """SIGKILL one of the executors, on a master that has executors; False if there is none."""
    return _kill(run, "CoarseGrainedExecutorBackend", generator)


def kill_python_workers(run: Run) -> bool:
    """SIGKILL all of Spark's Python workers for a second, so that some of them are at work.

    The second starts with the first worker. False if no worker appeared in time.
    """
    came_by = time.monotonic() + _WORKERS_COME_S
    until: float | None = None
    while time.monotonic() < (came_by if until is None else until):
        for worker in filter(_is_python_worker, run.processes()):
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
                until = until or time.monotonic() + _WORKERS_DIE_S
        time.sleep(0.05)
    return until is not None


class Disk:
    """The file system below the job's checkpoints and tables.

    It is small enough to be filled if it was mounted for the soak.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ballast = directory / "ballast"

    def fill(self) -> None:
        """Fill the file system to the last byte."""
        # Others write meanwhile, so allocate until nothing is left.
        with self._ballast.open("ab") as file:
            while True:
                state = os.statvfs(self._directory)
                size = file.tell()
                try:
                    os.posix_fallocate(
                        file.fileno(), size, max(state.f_bavail * state.f_frsize, 4096)
                    )
                except OSError:
                    break
                file.seek(0, os.SEEK_END)

    def free(self) -> None:
        """Free the space."""
        self._ballast.unlink()

    def take_away(self, directory: str) -> Path:
        """Move a directory away, as if its volume were not mounted; return its new path."""
        away = self._directory / "away"
        (self._directory / directory).rename(away)
        return away

    def put_back(self, directory: str, away: Path) -> list[Path]:
        """Move the directory back; return the files that were written meanwhile in its place."""
        place = self._directory / directory
        left = [path for path in sorted(place.rglob("*")) if path.is_file()]
        if place.exists():
            place.rename(self._directory / f"written-meanwhile-{time.time_ns()}")
        away.rename(place)
        return left


def _kill(run: Run, part_of_command: str, generator: random.Random | None = None) -> bool:
    found = [one for one in run.processes() if part_of_command in _command(one)]
    if not found:
        return False
    victim = found[0] if generator is None else generator.choice(found)
    with contextlib.suppress(psutil.NoSuchProcess):
        victim.kill()
        return True
    return False


def _is_python_worker(process: psutil.Process) -> bool:
    """Whether it was forked by a daemon, Spark's or Weir's, which has the same command line."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = process.parent()
        return _is_daemon(process) and parent is not None and _is_daemon(parent)
    return False


def _is_daemon(process: psutil.Process) -> bool:
    command = _command(process)
    return "pyspark.daemon" in command or worker_daemon.MODULE in command


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""
