"""One life of a job's driver: the process of ``weir run``, watched line by line, and killed if so decided.

A ``Driver`` starts the command, passes its output on and keeps what the lines say: which checkpoints completed and how
long they took, and in which phase the driver is. That is all that the demo knows of the job: the same lines that a
person reads. ``kill`` is SIGKILL, so nothing in the driver can prepare for it.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

_ADDRESS = re.compile(r"^REST server: (\S+)")
_SUBMITTED = re.compile(r"^Job has been submitted")
_RECOVERED = re.compile(r"^recovered from (.+)$")
_TRIGGERED = re.compile(r"^checkpoint (\d+) triggered")
_COMPLETED = re.compile(r"^checkpoint (\d+) completed in (\d+) ms")

#: How long the JVM of a killed driver may take to notice and go.
_ORPHANS_GONE_S = 15.0


class Phase:
    """What the driver is doing, as far as its newest lines tell."""

    def __init__(self) -> None:
        self.submitted = False
        #: End-to-end milliseconds of each checkpoint that completed in this life, by its id.
        self.completed_ms: dict[int, int] = {}
        #: Where its REST server answers, once it has said so.
        self.address: str | None = None
        self._recovered_from: str | None = None
        self._newest = "starting"

    def read(self, line: str) -> None:
        """Take one line of output into account; lines that say nothing of the phase change nothing."""
        if _SUBMITTED.match(line):
            self.submitted = True
            self._newest = "submitted"
        elif match := _ADDRESS.match(line):
            self.address = match.group(1)
        elif match := _RECOVERED.match(line):
            self._recovered_from = match.group(1)
            self._newest = "recovered"
        elif match := _TRIGGERED.match(line):
            self._newest = f"while checkpoint {match.group(1)} was being taken"
        elif match := _COMPLETED.match(line):
            self.completed_ms[int(match.group(1))] = int(match.group(2))
            self._newest = f"after checkpoint {match.group(1)} had completed"

    def __str__(self) -> str:
        """``while checkpoint 7 was being taken`` and its like."""
        match self._newest:
            case "starting":
                return "while it was starting"
            case "submitted":
                return "before its first checkpoint"
            case "recovered":
                return f"after it had recovered from {self._recovered_from}, before its next checkpoint"
        return self._newest


class Driver:
    """The process of one life. ``show`` gets each line of its output; ``errors`` is appended its error stream."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        environment: dict[str, str],
        show: Callable[[str], None],
    ) -> None:
        self.phase = Phase()
        #: Seconds from the start of the command to its first completed checkpoint; None before that. After a kill it is
        #: how long recovery took.
        self.recovery_s: float | None = None
        self._started_s = time.monotonic()
        self._show = show
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with (directory / "driver.log").open("ab") as errors:
            self._process = subprocess.Popen(
                list(command),
                cwd=directory,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        self._reader = threading.Thread(target=self._read, name="weir-demo-reader", daemon=True)
        self._reader.start()

    def watch_until(self, wanted: Callable[[Phase], bool], *, deadline_s: float) -> bool:
        """Pass output on until the phase is as wanted, the process has ended, or ``time.monotonic()`` passes the
        deadline. True if the phase is as wanted."""
        while not wanted(self.phase):
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                return False
            try:
                line = self._lines.get(timeout=remaining_s)
            except queue.Empty:
                return False
            if line is None:
                self._process.wait()
                return wanted(self.phase)
            self._tell(line)
        return True

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def kill(self, *, orphans_gone_s: float = _ORPHANS_GONE_S) -> bool:
        """SIGKILL, then see to it that all that it started is gone too: what does not go by itself within the
        time given is killed as well. False if the driver had ended by itself before."""
        if self._process.poll() is not None:
            return False
        try:
            orphans = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            orphans = []
        self._process.kill()
        killed = self._process.wait() < 0
        _, alive = psutil.wait_procs(orphans, timeout=orphans_gone_s)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=orphans_gone_s)
        self._reader.join(timeout=_ORPHANS_GONE_S)
        while not self._lines.empty():
            line = self._lines.get()
            if line is not None:
                self._tell(line)
        return killed

    def _tell(self, line: str) -> None:
        self.phase.read(line)
        if self.recovery_s is None and self.phase.completed_ms:
            self.recovery_s = time.monotonic() - self._started_s
        self._show(line)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)
