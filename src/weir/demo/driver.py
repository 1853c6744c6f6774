"""Runs a job's driver, the process of ``weir run``, follows its output, and decides when it dies.

A ``Driver`` is one life of that process. It starts the command, passes its output on and records
what the lines report: which checkpoints completed, how long they took, and the phase of the driver.
The demo knows nothing else about the job: it reads the same lines as a person. ``kill`` is SIGKILL,
so the driver cannot prepare for it.

**When to kill** (``Chaos``): N kills at random moments, all while the job is running. Kill *i* of N
comes about when the fraction ``0.8 * i / N`` of the job is committed at the latest, so that every
later life has work left. Within that limit the moment is random. The demo draws a target fraction;
once a checkpoint has completed in this life and the target is committed, it waits for a random
delay of up to one checkpoint interval, so that every phase of a checkpoint can be hit. If the
limit is already committed when a life begins, the kill comes within a second after the job was
submitted: such a life makes hardly any progress.
"""

from __future__ import annotations

import os
import queue
import random
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_ADDRESS = re.compile(r"^REST server: (\S+)")
_SUBMITTED = re.compile(r"^Job has been submitted")
_RECOVERED = re.compile(r"^recovered from (.+)$")
_TRIGGERED = re.compile(r"^checkpoint (\d+) triggered")
_COMPLETED = re.compile(r"^checkpoint (\d+) completed in (\d+) ms")

#: How long the JVM of a killed driver may take to notice and exit.
_ORPHANS_GONE_S = 15.0


class Phase:
    """What the driver is doing, according to its newest lines."""

    def __init__(self) -> None:
        self.submitted = False
        #: End-to-end milliseconds of each checkpoint that completed in this life, by its id.
        self.completed_ms: dict[int, int] = {}
        #: The address of its REST server; None until the driver has printed it.
        self.address: str | None = None
        self._recovered_from: str | None = None
        self._newest = "starting"

    def read(self, line: str) -> None:
        """Update the phase from one line of output; unrelated lines change nothing."""
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
        """A phrase such as ``while checkpoint 7 was being taken``."""
        match self._newest:
            case "starting":
                return "while it was starting"
            case "submitted":
                return "before its first checkpoint"
            case "recovered":
                return (
                    f"after it had recovered from {self._recovered_from}, before its next"
                    " checkpoint"
                )
        return self._newest


class Driver:
    """The driver process of one life.

    ``show`` gets each line of its progress and log, which are appended to ``driver.log``, too.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        environment: dict[str, str],
        show: Callable[[str], None],
    ) -> None:
        self.phase = Phase()
        #: Seconds from the start of the command to its first completed checkpoint; None before
        #: that. After a kill this is the recovery time.
        self.recovery_s: float | None = None
        self._started_s = time.monotonic()
        self._show = show
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._log = directory / "driver.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                list(command),
                cwd=directory,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        self._reader = threading.Thread(target=self._read, name="weir-demo-reader", daemon=True)
        self._reader.start()

    def watch_until(self, wanted: Callable[[Phase], bool], *, deadline_s: float) -> bool:
        """Pass output on until the phase is as wanted; return whether it is.

        Also stops when the process has ended, or when ``time.monotonic()`` passes the deadline.
        """
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
            self._report(line)
        return True

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process; None while it runs."""
        return self._process.poll()

    def kill(self, *, orphans_gone_s: float = _ORPHANS_GONE_S) -> bool:
        """Send SIGKILL to the driver and make sure that its child processes are gone too.

        Children that do not exit within ``orphans_gone_s`` are killed. False if the driver had
        already ended.
        """
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
                self._report(line)
        return killed

    def _report(self, line: str) -> None:
        self.phase.read(line)
        if self.recovery_s is None and self.phase.completed_ms:
            self.recovery_s = time.monotonic() - self._started_s
        self._show(line)

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as errors, self._log.open("a", encoding="utf-8") as log:
            for line in errors:
                log.write(line)
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)


#: The fraction of the job by which all kills are due.
_KILLED_BY = 0.8
#: The longest random delay of a kill: the checkpoint interval of the demo.
_DELAY_LIMIT_S = 1.0
#: How often the progress is polled.
_POLL_S = 0.1
#: A life that lasts longer than this counts as hung.
_LIFE_LIMIT_S = 300.0


@dataclass(kw_only=True)
class Outcome:
    """The result of all lives."""

    kills: int = 0
    lives: int = 0
    #: End-to-end milliseconds of each completed checkpoint, by id.
    completed_ms: dict[int, int] = field(default_factory=dict)
    #: For each life, seconds from the command to its first completed checkpoint; None if it was
    #: killed before.
    recovery_s: list[float | None] = field(default_factory=list)
    wall_s: float = 0.0
    #: What went wrong, in a sentence; None if the job finished and every kill took place.
    problem: str | None = None


class Chaos:
    """Runs a job through its kills to its end.

    ``start`` starts the job's command again, ``done`` returns the committed fraction of the job (0
    to 1), ``report`` prints a line for the reader.
    """

    def __init__(
        self,
        *,
        start: Callable[[], Driver],
        done: Callable[[], float],
        report: Callable[[str], None],
        generator: random.Random,
    ) -> None:
        self._start = start
        self._done = done
        self._report = report
        self._random = generator

    def run(self, kills: int) -> Outcome:
        """Kill the job ``kills`` times, then wait until it finishes; leave no process running."""
        outcome = Outcome()
        began_s = time.monotonic()
        while outcome.problem is None:
            driver = self._start()
            outcome.lives += 1
            try:
                if outcome.kills < kills:
                    self._live_and_die(driver, outcome, kills)
                else:
                    self._live_to_the_end(driver, outcome)
                    break
            finally:
                driver.kill()
                outcome.recovery_s.append(driver.recovery_s)
                outcome.completed_ms |= driver.phase.completed_ms
        outcome.wall_s = time.monotonic() - began_s
        return outcome

    def _live_and_die(self, driver: Driver, outcome: Outcome, kills: int) -> None:
        limit_s = time.monotonic() + _LIFE_LIMIT_S
        number = f"kill {outcome.kills + 1} of {kills}"
        done, due = self._done(), _KILLED_BY * (outcome.kills + 1) / kills
        if done < due:
            ready = driver.watch_until(lambda phase: bool(phase.completed_ms), deadline_s=limit_s)
            target = self._random.uniform(done, due)
            while ready and self._done() < target and driver.exit_code is None:
                driver.watch_until(lambda _: False, deadline_s=time.monotonic() + _POLL_S)
                ready = time.monotonic() < limit_s
        else:
            ready = driver.watch_until(lambda phase: phase.submitted, deadline_s=limit_s)
        if ready:
            delay_s = self._random.uniform(0.0, _DELAY_LIMIT_S)
            driver.watch_until(lambda _: False, deadline_s=time.monotonic() + delay_s)
        if not ready or not driver.kill():
            outcome.problem = _early_end(driver, number)
            return
        outcome.kills += 1
        took = (
            f", {driver.recovery_s:.1f} s after the command"
            if driver.recovery_s is not None
            else " never"
        )
        self._report(
            f"{number}: SIGKILL {driver.phase}; first checkpoint of this run completed{took}"
        )

    def _live_to_the_end(self, driver: Driver, outcome: Outcome) -> None:
        driver.watch_until(lambda _: False, deadline_s=time.monotonic() + _LIFE_LIMIT_S)
        if driver.exit_code is None:
            outcome.problem = f"The job did not finish within {_LIFE_LIMIT_S:.0f} s."
        elif driver.exit_code != 0:
            outcome.problem = f"The job ended with exit code {driver.exit_code}."


def _early_end(driver: Driver, number: str) -> str:
    if driver.exit_code == 0:
        return f"The job had finished before {number}: ask for fewer kills."
    if driver.exit_code is None:
        return f"The job made no progress within {_LIFE_LIMIT_S:.0f} s before {number}."
    return f"The job ended with exit code {driver.exit_code} before {number}."
