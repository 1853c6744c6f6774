"""Jobs as their checkpoint directory shows them, and the server that shows them."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from weir.core.types import CompletedCheckpoint, OperatorState, SnapshotKind, TaskState
from weir.rest import server as server_module
from weir.rest.history import StoredJobs
from weir.rest.server import RestServer
from weir.runtime.concurrency import SystemClock
from weir.runtime.views import JobView
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.job_log import CheckpointReference, JobLog, RecordKind, RecordStatus
from weir.storage.lease import Lease, LeaseRecord
from weir.storage.local import LocalFileSystem


class ManualClock:
    """A clock that the test sets."""

    now = 0

    def now_ms(self) -> int:
        return self.now

    def wall_ms(self) -> int:
        return self.now


KILLED, FAILED, FINISHED, ALIVE = (letter * 32 for letter in "abcd")
FS = LocalFileSystem()


def leave_job(
    base: Path, job_id: str, status: RecordStatus = RecordStatus.RUNNING, failure: str | None = None
) -> None:
    """What a job with one completed checkpoint leaves in its directory."""
    storage = CheckpointStorage(fs=lambda _: FS, base_directory=str(base), job_id=job_id)
    storage.make_job_directory()
    task = TaskState(
        vertex="clean",
        position=4,
        operators=(OperatorState(operator_id="clean", name="transform clean"),),
        entries={"offsets": "0123456789"},
    )
    checkpoint = CompletedCheckpoint(
        job_id=job_id,
        checkpoint_id=3,
        kind=SnapshotKind.CHECKPOINT,
        timestamp_ms=5_000,
        completion_timestamp_ms=5_400,
        attempt=1,
        tasks=(task,),
        external_path=storage.checkpoint_directory(3),
    )
    known = CheckpointReference(
        checkpoint_id=3,
        path=checkpoint.external_path,
        checksum=storage.write_metadata(checkpoint),
    )
    writer = JobLog(FS, storage.log_directory).begin_attempt(
        after=None, job_id=job_id, job_name=f"job-{job_id[0]}", writer="w" * 16, timestamp_ms=4_000
    )
    writer.append(
        kind=RecordKind.CHECKPOINT_COMPLETED,
        timestamp_ms=5_400,
        status=RecordStatus.RUNNING,
        completed=3,
        checkpoints=(known,),
    )
    if status is not RecordStatus.RUNNING:
        writer.append(
            kind=RecordKind.ENDED,
            timestamp_ms=9_000,
            status=status,
            completed=3,
            checkpoints=(known,),
            failure=failure,
        )


def take_lease(base: Path, job_id: str) -> None:
    """As the driver of this process would."""
    Lease(FS, str(base), job_id).write(
        LeaseRecord(
            attempt=1,
            host=socket.gethostname(),
            pid=os.getpid(),
            pid_started=psutil.Process().create_time(),
            rest_address="http://127.0.0.1:8081",
            timestamp_ms=SystemClock().wall_ms(),
            timeout_ms=600_000,
        )
    )


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A killed, a failed, a finished and a running job."""
    leave_job(tmp_path, KILLED)
    leave_job(tmp_path, FAILED, RecordStatus.FAILED, "KeyError: 'amount'")
    leave_job(tmp_path, FINISHED, RecordStatus.FINISHED)
    leave_job(tmp_path, ALIVE)
    take_lease(tmp_path, ALIVE)
    (tmp_path / "names").mkdir()
    return tmp_path


@pytest.fixture
def http(base: Path) -> Iterator[httpx.Client]:
    server = RestServer(port=0)
    jobs = StoredJobs(str(base), lambda _: FS, SystemClock())
    with httpx.Client(
        base_url=f"{server.start_history(jobs.views)}/v1", trust_env=False, verify=False
    ) as client:
        yield client
    server.stop()


def test_jobs_are_shown_as_they_ended(http: httpx.Client) -> None:
    """One whose driver was killed can be resumed; a live lease means that it runs."""
    found = {job["jid"]: job for job in http.get("/jobs/overview").json()["jobs"]}
    assert {job_id: job["state"] for job_id, job in found.items()} == {
        KILLED: "SUSPENDED",
        FAILED: "FAILED",
        FINISHED: "FINISHED",
        ALIVE: "RUNNING",
    }
    assert (found[FAILED]["start-time"], found[FAILED]["end-time"]) == (5_000, 9_000)
    assert (found[ALIVE]["name"], found[ALIVE]["end-time"]) == ("job-d", -1)
    assert found[KILLED]["tasks"]["canceled"] == found[FINISHED]["tasks"]["finished"] == 1
    overview = http.get("/overview").json()
    assert (overview["jobs-running"], overview["jobs-failed"]) == (1, 1)
    assert http.get("/config").json()["features"]["web-history"] is True
    assert len(http.get("/applications/overview").json()["applications"]) == 4


def test_an_ended_jobs_checkpoints_failure_and_vertices_are_there(http: httpx.Client) -> None:
    """What its directory has: retained checkpoints with sizes and times, and why it failed."""
    checkpoints = http.get(f"/jobs/{FAILED}/checkpoints").json()
    (one,) = checkpoints["history"]
    assert (one["id"], one["state_size"], one["end_to_end_duration"]) == (3, 10, 400)
    assert one["external_path"].endswith(f"{FAILED}/chk-3")
    assert http.get(f"/jobs/{FAILED}/checkpoints/details/3").json()["num_subtasks"] == 1
    assert http.get(f"/jobs/{FAILED}/exceptions").json()["root-exception"] == "KeyError: 'amount'"
    (vertex,) = http.get(f"/jobs/{FAILED}").json()["vertices"]
    assert vertex["name"] == "clean"
    assert http.get(f"/jobs/{FAILED}/vertices/{vertex['id']}/subtasktimes").status_code == 200
    result = http.get(f"/jobs/{FAILED}/execution-result").json()
    assert result["job-execution-result"]["application-status"] == "FAILED"
    asked = "get=lastCheckpointFullSize"
    assert http.get(f"/jobs/{KILLED}/metrics?{asked}").json()[0]["value"] == "10"


def test_a_history_server_changes_nothing(http: httpx.Client, base: Path) -> None:
    """Whatever would act on a job is refused with a sentence, and no file is touched."""
    before = sorted(str(path) for path in base.rglob("*"))
    refused = [
        http.patch(f"/jobs/{KILLED}?mode=cancel"),
        http.post(f"/jobs/{KILLED}/stop", json={}),
        http.post(f"/jobs/{ALIVE}/savepoints", json={}),
        http.post(f"/jobs/{ALIVE}/checkpoints", json={}),
        http.post(f"/applications/{ALIVE}/cancel", json={}),
        http.post("/savepoint-disposal", json={"savepoint-path": str(base / KILLED / "chk-3")}),
        http.get("/metrics"),
        http.get("/jobmanager/log"),
    ]
    assert [one.status_code for one in refused] == [409] * len(refused)
    assert all("history server" in one.json()["errors"][0] for one in refused)
    assert http.get("/taskmanagers").json() == {"taskmanagers": []}
    assert http.get(f"/jobs/{'e' * 32}").status_code == 404
    assert sorted(str(path) for path in base.rglob("*")) == before


def test_damaged_records_hide_no_other_job(base: Path) -> None:
    """The job is shown with what is wrong; a checkpoint that cannot be read is left out."""
    (record,) = [path for path in (base / KILLED / "log").iterdir() if path.name.endswith("2")]
    record.write_text("{")
    (base / FINISHED / "chk-3" / "_metadata").write_text("{}")
    views = {
        view.job_id: view for view in StoredJobs(str(base), lambda _: FS, SystemClock()).views()
    }
    assert len(views) == 4
    assert views[KILLED].name == "(damaged)" and views[KILLED].failure
    assert (views[FINISHED].checkpoints.history, views[FINISHED].vertices) == ((), ())


def test_a_checkpoint_that_could_not_be_read_is_read_later(base: Path) -> None:
    """Its volume may have been away."""
    metadata, clock = base / FINISHED / "chk-3" / "_metadata", ManualClock()
    jobs = StoredJobs(str(base), lambda _: FS, clock)
    away = metadata.rename(metadata.with_name("away"))

    def known() -> dict[str, int]:
        clock.now += 60_000
        return {view.job_id: len(view.checkpoints.history) for view in jobs.views()}

    assert known()[FINISHED] == 0
    away.rename(metadata)
    assert known()[FINISHED] == 1


def test_a_configuration_that_no_record_has_is_not_made_up(http: httpx.Client) -> None:
    """Defaults would look like what the job ran with."""
    for path in ("config", "checkpoints/config", "jobmanager/config"):
        answer = http.get(f"/jobs/{KILLED}/{path}")
        assert (answer.status_code, "not known" in answer.text) == (404, True)


def test_a_directory_that_hangs_does_not_keep_the_server_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C ends ``weir history`` though somebody waits for an answer."""
    monkeypatch.setattr(server_module, "_SHUTDOWN_S", 1)
    over, looked = threading.Event(), threading.Event()

    def look() -> tuple[JobView, ...]:
        looked.set()
        over.wait(60)
        return ()

    server = RestServer(port=0)
    url = httpx.URL(server.start_history(look))
    try:
        with socket.create_connection((url.host, url.port or 0), timeout=5) as waiting:
            waiting.sendall(b"GET /jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert looked.wait(10)
            began = time.monotonic()
            server.stop()
            assert time.monotonic() - began < 10
    finally:
        over.set()
