"""A record that counts as failed, and lands after all: an object store may carry it out late.

P11, P17. The file system keeps the request that the driver gave up, and carries it out later.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from tests.kit.durable_job import Driver

from weir.core.messages.job import CheckpointRecorded, DiscardCheckpoint, RecordCheckpoint
from weir.core.types import Recorded
from weir.errors import StorageError
from weir.storage.filesystem import CreateResult
from weir.storage.local import LocalFileSystem

JOB = "1" * 32


class LosingFiles(LocalFileSystem):
    """Keeps the creates below ``losing`` to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.losing: str | None = None
        self.late = True
        self._given_up: list[tuple[str, bytes]] = []

    @property
    def acts_late(self) -> bool:
        return self.late

    def create(self, path: str, data: bytes) -> CreateResult:
        if self.losing is not None and path.startswith(self.losing):
            self._given_up.append((path, data))
            raise StorageError(f"Cannot create {path}: timed out.")
        return super().create(path, data)

    def land(self) -> None:
        """Carry out the first request that was given up."""
        self.losing = None
        assert super().create(*self._given_up[0]) is CreateResult.CREATED


def lose_a_record(driver: Driver, files: LosingFiles) -> int:
    """Let the record of the next checkpoint fail, and discard the checkpoint; return its id."""
    outcomes: list[CheckpointRecorded] = []
    record = driver.job.record_checkpoint

    def record_nothing(effect: RecordCheckpoint) -> CheckpointRecorded:
        files.losing = driver.storage.log_directory
        outcomes.append(record(effect))
        files.losing = None
        return outcomes[-1]

    following = (driver.retained or [0])[-1] + 1
    with (
        patch("tenacity.nap.time.sleep"),
        patch.object(driver.job, "record_checkpoint", record_nothing),
        pytest.raises(AssertionError),
    ):
        driver.complete((f"{following}/state",))
    assert outcomes[0].outcome is Recorded.FAILED
    lost = driver.retained.pop()
    driver.job.discard(DiscardCheckpoint(checkpoint_id=lost, target=None, files=(), subsumed=False))
    return lost


@pytest.fixture
def files() -> LosingFiles:
    return LosingFiles()


@pytest.fixture
def driver(tmp_path: Path, files: LosingFiles) -> Driver:
    """A driver that has completed a checkpoint."""
    driver = Driver(tmp_path, JOB, files=files)
    driver.job.begin_attempt()
    driver.complete(("1/state",))
    return driver


def test_the_next_driver_resumes_from_a_checkpoint_whose_record_landed_late(
    tmp_path: Path, driver: Driver, files: LosingFiles
) -> None:
    """Its record supersedes the record before, so its files must still be there."""
    assert lose_a_record(driver, files) == 2
    files.land()
    restored = Driver(tmp_path, JOB).job.begin_attempt().restored
    assert restored is not None
    assert restored.checkpoint_id == 2


def test_the_next_attempt_of_the_same_driver_resumes_from_it_too(
    driver: Driver, files: LosingFiles
) -> None:
    """Later checkpoints refer to its files, so that an order to delete it comes to nothing."""
    assert lose_a_record(driver, files) == 2
    files.land()
    restored = driver.job.begin_attempt().restored
    assert restored is not None
    assert restored.checkpoint_id == 2
    driver.retained = [2]
    driver.complete(("2/state", "3/state"))
    driver.job.discard(DiscardCheckpoint(checkpoint_id=2, target=None, files=(), subsumed=False))
    assert driver.has("2/state")
    driver.subsume(2)
    assert driver.has("2/state")
    driver.subsume(2, "2/state")
    assert not driver.has("2/state")


def test_a_checkpoint_whose_record_never_lands_is_deleted_by_the_next_attempt(
    driver: Driver, files: LosingFiles
) -> None:
    """It knows that the record is not there, and that it cannot land any more."""
    assert lose_a_record(driver, files) == 2
    driver.complete(("3/state",))
    assert driver.has("2/state")
    restored = driver.job.begin_attempt().restored
    assert restored is not None
    assert (restored.checkpoint_id, driver.has("2/state")) == (3, False)
    assert not Path(driver.storage.checkpoint_directory(2)).exists()


def test_where_nothing_lands_late_a_checkpoint_whose_record_failed_is_deleted_at_once(
    driver: Driver, files: LosingFiles
) -> None:
    """On a disk that is full the next record needs its space."""
    files.late = False
    assert lose_a_record(driver, files) == 2
    assert not driver.has("2/state")
