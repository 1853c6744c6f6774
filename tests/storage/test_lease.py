"""The lease: whether a driver seems alive, judged by its process and its last renewal."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from weir.core.types import Recorded
from weir.errors import StorageError
from weir.storage.lease import Lease, LeaseRecord, holder_is_alive
from weir.storage.local import LocalFileSystem

MINE = LeaseRecord(
    attempt=3,
    host="here",
    pid=os.getpid(),
    pid_started=psutil.Process().create_time(),
    rest_address="http://127.0.0.1:8081",
    timestamp_ms=100_000,
    timeout_ms=10_000,
)


@pytest.fixture
def lease(tmp_path: Path) -> Lease:
    (tmp_path / "job").mkdir()
    return Lease(LocalFileSystem(), str(tmp_path), "job")


def test_a_lease_is_read_as_it_was_written(lease: Lease, tmp_path: Path) -> None:
    """It is a separate file in the job's directory."""
    assert lease.read() is None
    assert lease.write(MINE) is Recorded.WON
    assert lease.read() == MINE
    assert (tmp_path / "job" / "lease").exists()


def test_a_newer_attempt_takes_the_lease_and_an_older_one_cannot(lease: Lease) -> None:
    """The older driver learns that it is fenced and changes nothing (PROTOCOL P17)."""
    newer = replace(MINE, attempt=4)
    lease.write(MINE)
    assert lease.write(newer) is Recorded.WON
    assert lease.write(MINE) is Recorded.FENCED
    assert lease.read() == newer


def test_only_the_holder_gives_the_lease_back(lease: Lease) -> None:
    """A fenced driver that exits does not remove its successor's lease."""
    lease.write(MINE)
    lease.remove(2)
    assert lease.read() == MINE
    lease.remove(3)
    assert lease.read() is None
    lease.remove(3)


def test_a_damaged_lease_says_what_to_do(lease: Lease, tmp_path: Path) -> None:
    """The error names the file, which may be deleted."""
    lease.write(MINE)
    (tmp_path / "job" / "lease").write_bytes(b"{}")
    with pytest.raises(StorageError, match=f"{tmp_path}/job/lease is damaged .* delete the file"):
        lease.read()


def test_a_living_process_with_a_fresh_lease_is_alive() -> None:
    """Seen from its own machine."""
    assert holder_is_alive(MINE, 109_999, "here")


def test_a_process_that_does_not_renew_is_not_alive() -> None:
    """A stopped process exists but does nothing."""
    assert not holder_is_alive(MINE, 110_000, "here")


def test_a_killed_process_is_dead_at_once() -> None:
    """Running the job again after kill -9 need not wait for the timeout."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = psutil.Process(process.pid).create_time()
        record = replace(MINE, pid=process.pid, pid_started=started)
        assert holder_is_alive(record, 100_001, "here")
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not holder_is_alive(record, 100_001, "here"), "a zombie renews nothing"
        process.wait()
        assert not holder_is_alive(record, 100_001, "here")


def test_another_process_of_the_same_number_is_not_the_holder() -> None:
    """Process ids are reused; the start time distinguishes them."""
    assert not holder_is_alive(replace(MINE, pid_started=MINE.pid_started - 3600), 100_001, "here")


def test_on_another_machine_only_the_renewal_counts() -> None:
    """Its processes are not visible from here."""
    elsewhere = replace(MINE, host="there", pid_started=0.0)
    assert holder_is_alive(elsewhere, 109_999, "here")
    assert not holder_is_alive(elsewhere, 110_000, "here")
