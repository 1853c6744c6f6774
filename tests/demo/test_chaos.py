"""The demo's killer: N kills at random moments of a running driver, described by its newest lines.

A small script stands in for the driver: it prints the lines of ``weir run``, takes a while, and
records its progress in a file, so that a restarted one goes on from there.
"""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path

import psutil
import pytest
from tests.kit.waiting import wait_until

from weir.demo.driver import Chaos, Driver, Outcome, Phase

#: Takes ``steps`` steps of a tenth of a second, each with a checkpoint.
SCRIPT = """
import os, pathlib, sys, time
sys.stdout = sys.stderr
steps, store = int(sys.argv[1]), pathlib.Path("done")
waits = sys.argv[3] == "waits"
done = int(store.read_text()) if store.exists() else 0
print("Job has been submitted with JobID 00", flush=True)
if done:
    print(f"recovered from checkpoint {done}", flush=True)
while done < steps:
    print(f"checkpoint {done + 1} triggered", flush=True)
    time.sleep(0.1)
    while waits and done + 1 == steps and not pathlib.Path("killed").exists():
        time.sleep(0.01)
    done += 1
    pathlib.Path("next").write_text(str(done))
    os.replace("next", store)  # a kill must not leave an empty file
    print(f"checkpoint {done} completed in {100 + done} ms, 4.5 kB", flush=True)
sys.exit(int(sys.argv[2]))
"""


class Scene:
    """Runs the script under chaos in a directory and keeps the output."""

    def __init__(
        self, directory: Path, *, steps: int, exit_code: int = 0, waits: str = "no"
    ) -> None:
        """``waits``: its last step comes after the last kill, however late that is."""
        self.directory = directory
        self.steps = steps
        self.command = [sys.executable, "-c", SCRIPT, str(steps), str(exit_code), waits]
        self.lines: list[str] = []
        self.told: list[str] = []
        self.drivers: list[Driver] = []

    def start(self) -> Driver:
        """Start the script once more."""
        driver = Driver(
            self.command, directory=self.directory, environment={}, show=self.lines.append
        )
        self.drivers.append(driver)
        return driver

    def done(self) -> float:
        """The fraction of the steps that are done."""
        store = self.directory / "done"
        return int(store.read_text()) / self.steps if store.exists() else 0.0

    def run(self, kills: int, seed: int = 1) -> Outcome:
        """Run chaos with this many kills."""

        def report(line: str) -> None:
            self.told.append(line)
            if len(self.told) == kills:
                (self.directory / "killed").touch()

        chaos = Chaos(
            start=self.start, done=self.done, report=report, generator=random.Random(seed)
        )
        return chaos.run(kills)


@pytest.mark.parametrize(
    ("lines", "phase"),
    [
        ([], "while it was starting"),
        (["Job has been submitted with JobID 00"], "before its first checkpoint"),
        (
            ["Job has been submitted with JobID 00", "recovered from checkpoint 4"],
            "after it had recovered from checkpoint 4, before its next checkpoint",
        ),
        (["checkpoint 7 triggered"], "while checkpoint 7 was being taken"),
        (
            ["checkpoint 7 triggered", "checkpoint 7 completed in 12 ms, 1 kB"],
            "after checkpoint 7 had completed",
        ),
        (["checkpoint 7 triggered", "RUNNING: 9 rows in"], "while checkpoint 7 was being taken"),
    ],
)
def test_the_phase_of_a_kill_is_read_from_the_newest_line_that_names_one(
    lines: list[str], phase: str
) -> None:
    """Lines about checkpoints and recovery count, others do not."""
    read = Phase()
    for line in lines:
        read.read(line)
    assert str(read) == phase


def test_completed_checkpoints_are_counted_with_their_durations() -> None:
    """The summary's figures come from the lines alone; savepoints and failures do not count."""
    read = Phase()
    for line in (
        "checkpoint 1 completed in 12 ms, 1 kB",
        "checkpoint 2 failed: x",
        "savepoint 3 completed in 9 ms",
    ):
        read.read(line)
    assert read.completed_ms == {1: 12}


@pytest.mark.kill
def test_every_kill_takes_place_and_then_the_job_finishes(tmp_path: Path) -> None:
    """Three kills make four runs, each kill is printed with its phase, and the last run ends the
    job."""
    scene = Scene(tmp_path, steps=60, waits="waits")
    outcome = scene.run(3)
    assert (outcome.kills, outcome.lives, outcome.problem) == (3, 4, None)
    assert [line.split(":")[0] for line in scene.told] == [
        f"kill {number} of 3" for number in (1, 2, 3)
    ]
    assert all("checkpoint" in line for line in scene.told)
    assert scene.done() == 1.0
    assert max(outcome.completed_ms) == 60


@pytest.mark.kill
def test_kills_come_sooner_if_the_job_is_nearly_done(tmp_path: Path) -> None:
    """All kills happen even if the job has few checkpoints left."""
    scene = Scene(tmp_path, steps=60, waits="waits")
    outcome = scene.run(8)
    assert (outcome.kills, outcome.problem) == (8, None)


@pytest.mark.kill
def test_a_job_that_finishes_before_its_kill_is_a_problem(tmp_path: Path) -> None:
    """The demo never claims a kill that did not happen."""
    outcome = Scene(tmp_path, steps=1).run(1, seed=3)
    assert outcome.kills == 0
    assert outcome.problem is not None
    assert "before kill 1 of 1" in outcome.problem


@pytest.mark.kill
def test_a_job_that_fails_is_a_problem(tmp_path: Path) -> None:
    """A nonzero exit code ends the demo and is printed."""
    outcome = Scene(tmp_path, steps=1, exit_code=3).run(0)
    assert outcome.problem == "The job ended with exit code 3."


def has_ended(process: psutil.Process) -> bool:
    """Also if nobody has asked for its exit code yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.kill
def test_a_kill_ends_what_the_driver_started_too(tmp_path: Path) -> None:
    """No process of a killed driver is left, not even one that does not watch its parent."""
    child = "import time; time.sleep(600)"
    script = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.DEVNULL)\n"
        "print('Job has been submitted', file=sys.stderr, flush=True)\n"
        "time.sleep(600)\n"
    )
    driver = Driver(
        [sys.executable, "-c", script], directory=tmp_path, environment={}, show=lambda _: None
    )
    assert driver.watch_until(lambda phase: phase.submitted, deadline_s=threading.TIMEOUT_MAX)
    process = psutil.Process(driver._process.pid)
    started = [process, *process.children()]
    assert len(started) == 2
    assert driver.kill(orphans_gone_s=0.2)
    wait_until(lambda: all(map(has_ended, started)), "none of them is left")
    assert not driver.kill()
