"""A played job over disk calls that fail for real.

It runs as a process with ``disk_faults.c`` preloaded. For each call of one kind that the disk sees
within two checkpoints and a savepoint, one job is run in which that call fails, alone or with all
after it, until the disk is mended::

    before:  step, checkpoint
    fault:   step, checkpoint, savepoint, step, checkpoint
    mended:  step, checkpoint

Then the machine loses what failed fsyncs had left in doubt, and the next driver restores: both
tables must have exactly the rows up to its checkpoint, and every checkpoint and savepoint that
completed must be intact.
"""

from __future__ import annotations

import ctypes
import errno
import shutil
import sys
from pathlib import Path

from tests.kit.played_job import PlayedDriver
from tests.kit.written_rows import rows_of_delta, rows_of_files

from weir.core.types import CompletedCheckpoint

#: Phrases that failure messages use for a full or broken disk.
REASONS = (
    "no space left on the device",
    "input/output error",
    "No space left on device",
    "Input/output error",
)


class Faults:
    """The preloaded library."""

    def __init__(self, library: str, operation: str, error: str, *, times: int) -> None:
        self._library = ctypes.CDLL(library)
        self._operation = operation
        self._error = getattr(errno, error)
        self._times = times

    def arm(self, below: Path, nth: int) -> None:
        """Let the n-th call fail, and the ``times - 1`` calls after it."""
        self._library.disk_faults_arm(
            f"{below}/".encode(),
            self._operation.encode(),
            ctypes.c_long(nth),
            ctypes.c_long(self._times),
            self._error,
        )

    def disarm(self) -> int:
        """Disarm the fault; return the number of calls there were."""
        seen = int(self._library.disk_faults_seen())
        self._library.disk_faults_arm(b"", b"", ctypes.c_long(0), ctypes.c_long(0), 0)
        return seen

    def crash(self) -> None:
        """Crash the machine: it loses the writes of failed fsyncs."""
        self._library.disk_faults_crash()


def run(root: Path, faults: Faults, nth: int) -> tuple[int, list[str]]:
    """Run one job whose n-th call fails (0: none).

    Returns the number of calls, and why what failed has failed.
    """
    root.mkdir()
    (root / "disk").mkdir()
    completed: list[CompletedCheckpoint] = []
    failures: list[str] = []

    def note(outcome: CompletedCheckpoint | str) -> bool:
        if isinstance(outcome, str):
            failures.append(outcome)
            return False
        completed.append(outcome)
        return True

    driver = PlayedDriver(root)
    with driver:
        driver.step()
        assert note(driver.complete(driver.job.trigger_checkpoint())), failures
        faults.arm(root / "disk", nth)
        driver.step(0.3)
        note(driver.complete(driver.job.trigger_checkpoint()))
        note(driver.complete(driver.job.trigger_savepoint(None)))
        driver.step(0.3)
        note(driver.complete(driver.job.trigger_checkpoint()))
        seen = faults.disarm()
        goes_on = not driver.has_ended and completes_again(driver, note)
    if not goes_on:
        # It reported that it had to end, so the command is run again.
        assert any("this driver stops" in text for text in driver.notes), (failures, driver.notes)
        driver = PlayedDriver(root)
        with driver:
            assert completes_again(driver, note), failures
    faults.crash()
    check(root, completed)
    exceptions = driver.job.view().exceptions
    messages = [*failures, *driver.notes, *(failure.message for failure in exceptions)]
    assert not failures or any(reason in text for reason in REASONS for text in messages), messages
    return seen, failures


def completes_again(driver: PlayedDriver, note: object) -> bool:
    """Check that another checkpoint completes soon after the repair, without any help."""
    for _ in range(5):
        if not driver.step():
            return False
        if note(driver.complete(driver.job.trigger_checkpoint())):  # type: ignore[operator]
            return True
    return False


def check(root: Path, completed: list[CompletedCheckpoint]) -> None:
    """Check that the next driver restores the newest checkpoint, with each row once per table."""
    newest = [known for known in completed if not known.kind.is_savepoint][-1]
    driver = PlayedDriver(root)
    restored = driver.durable.begin_attempt().restored
    assert restored is not None
    assert not driver.notes, driver.notes
    assert restored.checkpoint_id == newest.checkpoint_id
    for savepoint in (known for known in completed if known.kind.is_savepoint):
        driver.storage.verify(driver.storage.read(savepoint.external_path))
    positions = range(restored.tasks[0].position + 1)
    expected = sorted([*positions, *(position + 100 for position in positions)])
    assert rows_of_delta(root / "disk" / "delta") == expected
    assert rows_of_files(root / "disk" / "files") == expected
    left = [str(path) for path in (root / "disk").rglob(".*.tmp")]
    assert left == [], left


def main(library: str, directory: str, operation: str, error: str, *numbers: str) -> None:
    """Run one job per call of an operation, or per every so many-th, failing ``times`` times."""
    times, stride = map(int, numbers)
    root, faults = Path(directory), Faults(library, operation, error, times=times)
    calls, _ = run(root / "0", faults, 0)
    failed = 0
    for nth in range(1, calls + 1, stride):
        try:
            _, failures = run(root / str(nth), faults, nth)
        except BaseException:
            print(f"{operation} {nth} of {calls} ({error}, {times} times):", file=sys.stderr)
            raise
        failed += bool(failures)
        shutil.rmtree(root / str(nth))
    print(calls, failed)


if __name__ == "__main__":
    main(*sys.argv[1:])
