"""A full or read-only checkpoint directory or target: retained and committed data stay whole.

The directory is an in-memory file system, so small that a test can fill it to the last page.
Mounting it needs root; where that is not possible, the tests are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit.disk import SmallDisk, small_disk
from tests.kit.live_job import (
    LiveJob,
    assert_copied,
    assert_counted,
    both_jobs,
    checkpoint_files,
    numbers_job,
    raw_rows,
    retained,
    retained_files,
    settings,
    wait_until_copied,
)
from tests.kit.place import Place
from tests.kit.rig import hashes
from tests.kit.waiting import wait_until

from weir.core.status import JobStatus
from weir.errors import JobError, StorageError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

#: The time after which a driver that ended without giving its lease back counts as dead.
QUICK_LEASE = {"weir.lease.interval": "100ms", "weir.lease.timeout": "200ms"}


@pytest.fixture
def disk(place: Place) -> Iterator[SmallDisk]:
    """The small disk, mounted as the place's checkpoint directory."""
    with small_disk(place.directory / "checkpoints", "2m") as disk:
        yield disk


@pytest.fixture
def target_disk(place: Place) -> Iterator[SmallDisk]:
    """The small disk, mounted at the place's tables."""
    with small_disk(place.directory / "out", "2m") as disk:
        yield disk


def wait_until_tidy(job_directory: Path) -> None:
    """Wait until the files of the failed checkpoint are deleted."""
    wait_until(
        lambda: checkpoint_files(job_directory) == retained_files(job_directory),
        "what nobody needs is deleted",
    )


@pytest.mark.slow
def test_wherever_the_space_runs_out_the_job_continues_and_the_retained_checkpoint_is_whole(
    place: Place, disk: SmallDisk
) -> None:
    """Failures are tolerated: with one page more each time the state, the metadata, then the record
    does not fit."""
    place.land(3)
    # No lease is renewed in between, which would briefly take a page.
    lease = {"weir.lease.interval": "1 h", "weir.lease.timeout": "2 h"}
    conf = settings(place, lease, tolerable_failed_checkpoints="1000")
    with LiveJob(both_jobs(place, bounded=False), conf) as live:
        live.wait_for_steps(3)
        first = live.checkpoint()
        wait_until_copied(place)
        directory = disk.directory / live.job_id
        before = hashes(Path(first.external_path))
        copied = raw_rows(place)
        place.land(2)
        live.wait_for_steps(5)
        failures = []
        for pages_left in range(100):
            wait_until_tidy(directory)
            disk.fill(pages_left=pages_left)
            try:
                newest = live.checkpoint()
                break
            except JobError as error:
                failures.append(str(error))
            assert retained(directory) == [Path(first.external_path)]
            assert hashes(Path(first.external_path)) == before
            assert raw_rows(place) == copied
        for place_of_failure, reason in (
            ("/shared/", "Asynchronous task checkpoint failed."),
            ("/_metadata", "Failure to finalize checkpoint."),
            ("/log/", "Failure to finalize checkpoint."),
        ):
            assert any(place_of_failure in one and reason in one for one in failures), failures
        assert all("no space left on the device" in failure for failure in failures)
        view = live.gateway.view()
        assert (view.status, view.attempt) == (JobStatus.RUNNING, 1)
        assert view.checkpoints.counts.failed == len(failures)
        assert retained(directory) == [Path(newest.external_path)]
        wait_until_copied(place)
    disk.free()
    with LiveJob(both_jobs(place, bounded=True), conf, takeover=True) as live:
        assert live.result().status is JobStatus.FINISHED
    assert live.restored_ids == [newest.checkpoint_id]
    assert_copied(place)
    assert_counted(place)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("full", "no space left on the device"),
        ("read-only", "the file system is read-only"),
    ],
)
def test_a_job_that_tolerates_no_failure_fails_and_resumes_once_the_disk_is_mended(
    place: Place, disk: SmallDisk, trouble: str, reason: str
) -> None:
    """It fails with the reason, is refused while the fault lasts, then resumes exactly from the
    checkpoint."""
    place.land(3)
    conf = settings(place, QUICK_LEASE, interval="200ms")
    with LiveJob(both_jobs(place, bounded=False), conf) as live:
        wait_until_copied(place)
        disk.spoil(trouble)
        directory = disk.directory / live.job_id
        result = live.result()
    assert result.status is JobStatus.FAILED
    assert "Exceeded checkpoint tolerable failure threshold." in str(result.failure)
    assert reason in str(result.failure)
    (newest,) = retained(directory)
    assert retained_files(directory) <= checkpoint_files(directory)
    # What the failed checkpoint had written is deleted by now, which has freed pages.
    disk.spoil(trouble)
    place.land(2)
    with (
        pytest.raises(StorageError) as refused,
        LiveJob(both_jobs(place, bounded=True), conf) as live,
    ):
        live.result()
    assert f"Cannot use the checkpoint directory {disk.directory} " in str(refused.value)
    assert reason in str(refused.value)

    disk.mend(trouble)
    with LiveJob(both_jobs(place, bounded=True), conf) as live:
        assert live.result().status is JobStatus.FINISHED
    assert [f"chk-{restored}" for restored in live.restored_ids] == [newest.name]
    assert_copied(place)
    assert_counted(place)


@pytest.mark.parametrize("trouble", [pytest.param("full", marks=pytest.mark.slow), "read-only"])
def test_a_job_that_tolerates_failures_continues_until_the_disk_is_mended(
    place: Place, disk: SmallDisk, trouble: str
) -> None:
    """Checkpoints keep failing, records flow and nothing is committed; afterwards everything is,
    once."""
    place.land(3)
    # One of the job's own could end just before the disk is spoiled: what it replaces could then
    # not be deleted before the next attempt.
    conf = settings(place, QUICK_LEASE, tolerable_failed_checkpoints="1000")
    with LiveJob(numbers_job(place, bounded=False), conf) as live:
        live.wait_for_steps(3)
        first = live.checkpoint()
        wait_until_copied(place)
        directory = disk.directory / live.job_id
        wait_until_tidy(directory)
        disk.spoil(trouble)
        copied = raw_rows(place)
        place.land(2)
        live.wait_for_steps(5)
        for _ in range(3):
            with pytest.raises(JobError):
                live.checkpoint()
        assert retained(directory) == [Path(first.external_path)]
        assert retained_files(directory) <= checkpoint_files(directory)
        assert raw_rows(place) == copied
        disk.mend(trouble)
        newest = live.checkpoint()
        wait_until_copied(place)
        view = live.gateway.view()
        assert (view.status, view.attempt) == (JobStatus.RUNNING, 1)
        assert view.checkpoints.counts.failed == 3
        wait_until_tidy(directory)
        assert retained(directory) == [Path(newest.external_path)]
        live.cancel()
    assert_copied(place)


@pytest.mark.slow
def test_a_job_whose_target_is_full_is_restarted_until_there_is_space_again(
    place: Place, target_disk: SmallDisk
) -> None:
    """Its batches cannot be staged and readers see the committed rows; afterwards every row,
    once."""
    place.land(3)
    restarts = {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1000",
        "restart-strategy.fixed-delay.delay": "100 ms",
    }
    conf = settings(
        place, {**QUICK_LEASE, **restarts}, interval="200ms", tolerable_failed_checkpoints="1000"
    )
    with LiveJob(numbers_job(place, bounded=False), conf) as live:
        wait_until_copied(place)
        target_disk.fill()
        copied = raw_rows(place)
        place.land(2)
        live.wait_for(lambda view: view.attempt >= 3, "two restarts")
        assert raw_rows(place) == copied
        target_disk.free()
        wait_until_copied(place)
        live.cancel()
    assert_copied(place)
