"""What a driver leaves of its job for those who look later, and what is made of it then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kit.gateway import COMPLETED, FAILED, VIEW, served
from tests.kit.stored_jobs import FS, leave_job, pipeline
from tests.kit.waiting import wait_until

from weir.core.status import JobStatus
from weir.core.types import TaskStatus
from weir.errors import StorageError
from weir.launch.archivist import Archivist
from weir.monitoring.views import ExceptionView, JobView
from weir.rest.past.archive import JobArchive
from weir.rest.past.history import StoredJobs
from weir.runtime.concurrency import SystemClock
from weir.storage.job_log import RecordStatus

JOB = "a" * 32
#: What the driver of a job that failed knew of it; checkpoints 3 and later are on disk.
FAILURE = ExceptionView(
    timestamp_ms=8_900, message="KeyError: 'amount'", trace="Traceback", vertex="clean", attempt=1
)
LAST = replace(
    VIEW,
    job_id=JOB,
    status=JobStatus.FAILED,
    attempt=1,
    restarts=1,
    failure="KeyError: 'amount'",
    timestamps_ms={"CREATED": 4_000, "RUNNING": 4_500, "FAILING": 8_900, "FAILED": 8_990},
    exceptions=(
        ExceptionView(timestamp_ms=4_400, message="a first one", attempt=0),
        FAILURE,
    ),
)


def archive(base: Path, job_id: str = JOB) -> JobArchive:
    (base / job_id).mkdir(exist_ok=True)
    return JobArchive(FS, str(base), job_id)


def stored(base: Path) -> JobView:
    view = StoredJobs(str(base), lambda _: FS, SystemClock()).view(JOB)
    assert view is not None
    return view


def test_what_was_written_is_read_without_what_ended_with_the_driver(tmp_path: Path) -> None:
    """Rates, checkpoints in progress, and what queued requests waited for."""
    archive(tmp_path).write(LAST)
    found = archive(tmp_path).read()
    assert found is not None
    assert [one.records_in for one in found.vertices] == [1_000, 500]
    assert {one.records_in_per_second for one in found.vertices} == {0.0}
    assert found.checkpoints.history == (FAILED, COMPLETED)
    assert (found.checkpoints.counts.total, found.checkpoints.counts.in_progress) == (2, 0)
    assert (found.configuration, found.exceptions) == (VIEW.configuration, LAST.exceptions)


def test_an_older_attempt_does_not_replace_the_archive_of_a_newer_one(tmp_path: Path) -> None:
    """A driver that was fenced may still be ending."""
    archive(tmp_path).write(replace(LAST, attempt=3))
    archive(tmp_path).write(replace(LAST, attempt=2, name="older"))
    found = archive(tmp_path).read()
    assert found is not None and (found.attempt, found.name) == (3, VIEW.name)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot be read"),
        ('{"version": 2}', "cannot be read"),
        (lambda text: text.replace(JOB, "b" * 32), "it is of job bbbb"),
        (lambda text: text.replace('"vertex":"clean"', '"vertex":"../clean"'), "vertex"),
        (lambda text: text.replace('"records_in":500', '"records_in":-1'), "records_in"),
        (lambda text: text.replace("4500", "99999999999999999"), ">= 0|<="),
        (lambda text: text.replace('"5 s"', '"soon"'), "execution.checkpointing.interval"),
    ],
)
def test_a_damaged_archive_is_named_and_hides_nothing_else(
    tmp_path: Path, text: str | Callable[[str], str], why: str
) -> None:
    """Nor does it keep the next driver from leaving its own."""
    leave_job(tmp_path, JOB, RecordStatus.FAILED, LAST.failure)
    archive(tmp_path).write(LAST)
    path = tmp_path / JOB / "archive"
    path.write_text(text if isinstance(text, str) else text(path.read_text()))
    with pytest.raises(StorageError, match=why):
        archive(tmp_path).read()
    view = stored(tmp_path)
    assert (view.status, view.failure) == (JobStatus.FAILED, "KeyError: 'amount'")
    assert [one.checkpoint_id for one in view.checkpoints.history] == [3]
    (damage,) = view.damage
    assert "delete the file" in damage
    archive(tmp_path).write(LAST)
    assert stored(tmp_path).damage == ()


def test_a_job_that_failed_before_its_first_checkpoint_shows_its_vertices(tmp_path: Path) -> None:
    """The job log alone knows of none; its figures are the driver's last ones."""
    leave_job(tmp_path, JOB, RecordStatus.FAILED, LAST.failure, completed=False)
    assert stored(tmp_path).vertices == ()
    archive(tmp_path).write(LAST)
    view = stored(tmp_path)
    assert [(one.vertex, one.records_in) for one in view.vertices] == [
        ("clean", 1_000),
        ("revenue", 500),
    ]
    assert (view.restarts, view.exceptions[-1]) == (1, FAILURE)
    assert view.timestamps_ms == {**LAST.timestamps_ms, "FAILED": 9_000}


def test_the_records_go_beyond_the_archive_of_a_driver_that_was_killed(tmp_path: Path) -> None:
    """A checkpoint that completed since is the newest one; how the job stands is in the log."""
    leave_job(tmp_path, JOB, tasks=pipeline(), number=12)
    archive(tmp_path).write(replace(LAST, status=JobStatus.RUNNING, failure=None, exceptions=()))
    view = stored(tmp_path)
    assert view.status is JobStatus.SUSPENDED
    assert [one.checkpoint_id for one in view.checkpoints.history] == [12, 8, 7]
    newest = view.checkpoints.latest_completed
    assert newest is not None and newest.checkpoint_id == 12
    assert (view.checkpoints.counts.completed, view.checkpoints.counts.total) == (2, 3)
    assert view.checkpoints.durations_ms == (100, 123, 400)
    clean, revenue = view.vertices
    assert (clean.position, clean.records_in, clean.outputs[0].segments) == (40, 1_000, 2)
    assert (revenue.outputs, revenue.status) == ((), TaskStatus.WAITING_FOR_FINAL_CHECKPOINT)


def test_a_failure_that_the_archive_does_not_have_comes_from_the_log(tmp_path: Path) -> None:
    """The driver was killed between its last record and its archive."""
    leave_job(tmp_path, JOB, RecordStatus.FAILED, "the disk is full")
    archive(tmp_path).write(replace(LAST, status=JobStatus.RESTARTING, failure=None))
    assert [one.message for one in stored(tmp_path).exceptions] == [
        "a first one",
        "KeyError: 'amount'",
        "the disk is full",
    ]


def test_a_history_server_answers_from_the_archive(tmp_path: Path) -> None:
    """Configuration, restarts, failures by task with their traces, and rows by vertex."""
    leave_job(tmp_path, JOB, RecordStatus.FAILED, LAST.failure)
    archive(tmp_path).write(LAST)
    jobs = StoredJobs(str(tmp_path), lambda _: FS, SystemClock())
    with served(jobs) as http:
        config = http.get(f"/jobs/{JOB}/config").json()
        entries = http.get(f"/jobs/{JOB}/jobmanager/config").json()
        checkpointing = http.get(f"/jobs/{JOB}/checkpoints/config").json()
        vertices = http.get(f"/jobs/{JOB}").json()["vertices"]
        (newest, _) = http.get(f"/jobs/{JOB}/exceptions").json()["exceptionHistory"]["entries"]
        asked = "get=numRestarts,numberOfFailedCheckpoints"
        metrics = http.get(f"/jobs/{JOB}/metrics?{asked}").json()
        state = http.get("/weir/state", params={"job": JOB}).json()
        failures = http.get("/weir/failures", params={"job": JOB}).json()["failures"]
    assert config["execution-config"]["user-config"] == VIEW.configuration
    assert {"key": "execution.checkpointing.interval", "value": "5 s"} in entries
    assert (checkpointing["interval"], checkpointing["timeout"]) == (5_000, 120_000)
    assert [one["metrics"]["read-records"] for one in vertices] == [1_000, 500]
    assert (newest["timestamp"], "Traceback" in newest["stacktrace"]) == (8_900, True)
    assert {one["id"]: one["value"] for one in metrics} == {
        "numRestarts": "1",
        "numberOfFailedCheckpoints": "1",
    }
    assert (state["configured"], state["live"], state["completed"]["id"]) == (True, None, 7)
    assert [(one["vertex"], one["outcome"]) for one in failures] == [
        ("clean", "The job failed for good."),
        (None, "The job was restarted."),
    ]


def test_an_archive_that_cannot_change_any_more_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory may have a thousand ended jobs, and a page that asks every second."""
    leave_job(tmp_path, JOB, RecordStatus.FAILED, LAST.failure)
    archive(tmp_path).write(LAST)
    jobs = StoredJobs(str(tmp_path), lambda _: FS, SystemClock())
    first = jobs.view(JOB)
    with monkeypatch.context() as patch:
        patch.setattr(JobArchive, "read", lambda _: pytest.fail("it was read again"))
        assert jobs.view(JOB) == first


def test_the_archive_follows_each_change_and_the_end(tmp_path: Path) -> None:
    """By a thread of its own, so that nothing waits for the file system."""
    shown = replace(LAST, status=JobStatus.RUNNING)

    def known() -> JobStatus | None:
        found = archive(tmp_path).read()
        return None if found is None else found.status

    with Archivist(archive(tmp_path), lambda: shown) as archivist:
        archivist.changed()
        wait_until(lambda: known() is JobStatus.RUNNING, "it is written")
        shown = replace(LAST, status=JobStatus.RESTARTING)
        archivist.changed()
        wait_until(lambda: known() is JobStatus.RESTARTING, "it is written again")
        shown = LAST
    assert known() is JobStatus.FAILED


def test_a_job_without_an_attempt_leaves_no_archive(tmp_path: Path) -> None:
    """Another driver may hold it."""
    with Archivist(archive(tmp_path), lambda: replace(LAST, attempt=0)) as archivist:
        archivist.changed()
    assert archive(tmp_path).read() is None


def test_an_archive_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that hangs, for longer than the end waits."""

    def full(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr("weir.rest.past.archive.JobArchive.write", full)
    with caplog.at_level(logging.WARNING), Archivist(archive(tmp_path), lambda: LAST):
        pass
    assert "the disk is full" in caplog.text

    over = threading.Event()
    monkeypatch.setattr("weir.launch.archivist._LAST_PATIENCE_S", 0.1)
    monkeypatch.setattr("weir.rest.past.archive.JobArchive.write", lambda *_: over.wait())
    with Archivist(archive(tmp_path), lambda: LAST):
        pass
    over.set()
