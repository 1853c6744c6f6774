"""The lease of one run: acquired, renewed, released, and watched for a takeover (P20)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.kit.clock import ManualClock
from tests.kit.waiting import wait_until

from weir.core.types import Recorded
from weir.errors import JobFencedError, StorageError
from weir.launch.lease_keeper import LeaseKeeper
from weir.storage.lease import Lease, LeaseRecord, holder_is_alive
from weir.storage.local import LocalFileSystem

JOB = "0" * 32


class FailingLease(Lease):
    """Fails when a test asks for it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(LocalFileSystem(), str(directory), JOB)
        (directory / JOB).mkdir(exist_ok=True)
        self.errors: list[StorageError] = []

    def write(self, record: LeaseRecord) -> Recorded:
        if self.errors:
            raise self.errors.pop(0)
        return super().write(record)


class KeptLease:
    """A keeper with a short interval."""

    def __init__(self, directory: Path, *, timeout_ms: int = 15_000, interval_ms: int = 10) -> None:
        self.lease = FailingLease(directory)
        self.attempt = 0
        self.lost: list[str] = []
        self.lost_event = threading.Event()
        self.keeper = LeaseKeeper(
            lease=self.lease,
            first_attempt=3,
            attempt=lambda: self.attempt,
            rest_address="http://127.0.0.1:8081",
            timeout_ms=timeout_ms,
            interval_ms=interval_ms,
            clock=ManualClock(tick_ms=1),
            on_lost=self._lost,
        )

    def read(self) -> LeaseRecord:
        """The lease on disk."""
        record = self.lease.read()
        assert record is not None
        return record

    def _lost(self, message: str) -> None:
        self.lost.append(message)
        self.lost_event.set()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[KeptLease]:
    """A keeper that is stopped at the end of the test."""
    made = KeptLease(tmp_path)
    yield made
    made.keeper.stop()


def test_the_lease_is_taken_at_the_start_for_the_attempt_that_will_come(world: KeptLease) -> None:
    """Before the attempt begins, the lease already names this live process and its REST server."""
    world.keeper.start()
    record = world.read()
    assert (record.attempt, record.rest_address) == (3, "http://127.0.0.1:8081")
    assert holder_is_alive(record, record.timestamp_ms, record.host)


def test_the_lease_is_renewed_and_follows_the_attempt(world: KeptLease) -> None:
    """A restarted job holds the lease under its new attempt."""
    world.keeper.start()
    first = world.read()
    world.attempt = 5
    wait_until(lambda: world.read().attempt == 5, "the lease has the new attempt")
    assert world.read().timestamp_ms > first.timestamp_ms


def test_the_lease_is_given_back(world: KeptLease) -> None:
    """The next run of the command does not have to wait for the timeout."""
    world.keeper.start()
    world.keeper.stop()
    assert world.lease.read() is None


def test_the_lease_is_given_back_though_a_newer_attempt_of_the_run_has_not_renewed_it(
    tmp_path: Path,
) -> None:
    """A job that is restarted and soon ends: the same process, such as a notebook, may go on."""
    world = KeptLease(tmp_path, interval_ms=3_600_000)
    world.keeper.start()
    world.attempt = 4
    world.keeper.stop()
    assert world.lease.read() is None


def test_a_lease_of_a_newer_attempt_refuses_the_start(world: KeptLease, tmp_path: Path) -> None:
    """The lease on disk stays unchanged."""
    world.keeper.start()
    newer = replace(world.read(), attempt=9)
    world.keeper.stop()
    world.lease.write(newer)
    other = KeptLease(tmp_path)
    with pytest.raises(JobFencedError, match="taken over"):
        other.keeper.start()
    other.keeper.stop()
    assert world.read() == newer


def test_a_takeover_is_noticed_and_the_lease_of_the_other_stays(world: KeptLease) -> None:
    """The run is notified once, stops renewing, and does not release another run's lease."""
    world.keeper.start()
    newer = replace(world.read(), attempt=9)
    # A renewal in progress can overwrite the other's lease, which the other then renews, as here.
    while not world.lost_event.wait(0.05):
        assert world.lease.write(newer) is Recorded.WON
    world.keeper.stop()
    assert len(world.lost) == 1
    assert "another driver has taken over" in world.lost[0]
    assert world.read() == newer


def test_a_renewal_that_fails_is_tried_again(world: KeptLease) -> None:
    """The job log decides, so a disk that is gone for a moment does not end the run."""
    world.keeper.start()
    world.lease.errors = [StorageError("away")] * 2
    wait_until(lambda: not world.lease.errors, "the renewals have failed")
    failed = world.read()
    wait_until(lambda: world.read().timestamp_ms > failed.timestamp_ms, "it is renewed again")
    assert world.lost == []


def test_a_keeper_that_was_never_started_gives_nothing_back(world: KeptLease) -> None:
    """A job that could not start leaves the lease of a live driver alone."""
    record = LeaseRecord(
        attempt=3,
        host="h",
        pid=1,
        pid_started=0.0,
        rest_address="http://h:1",
        timestamp_ms=0,
        timeout_ms=1,
    )
    world.lease.write(record)
    world.keeper.stop()
    assert world.read() == record


def test_a_renewal_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """The lease then expires by itself."""
    world = KeptLease(tmp_path, timeout_ms=200)
    reached, gate = threading.Event(), threading.Event()

    def hang(record: LeaseRecord) -> Recorded:
        reached.set()
        gate.wait()
        return Recorded.WON

    world.keeper.start()
    with patch.object(world.lease, "write", hang):
        reached.wait()
        world.keeper.stop()
        gate.set()
    assert world.lease.read() is not None
