"""Jobs as their checkpoint directory shows them, and the server that shows them."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.kit.clock import ManualClock
from tests.kit.gateway import served
from tests.kit.stored_jobs import DRIVER, FS, damage_log, leave_job, pipeline, take_lease

from weir.rest.past.history import StoredJobs
from weir.rest.server import server as server_module
from weir.rest.server.server import RestServer
from weir.runtime.concurrency import SystemClock
from weir.storage.job_log import RecordStatus
from weir.storage.local import LocalFileSystem

KILLED, FAILED, FINISHED, ALIVE = (letter * 32 for letter in "abcd")


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
        base_url=f"{server.start_history(jobs)}/v1", trust_env=False, verify=False
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
    assert (found[FAILED]["start-time"], found[FAILED]["end-time"]) == (4_000, 9_000)
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
    damage_log(base, KILLED)
    (base / FINISHED / "chk-3" / "_metadata").write_text("{}")
    views = {
        view.job_id: view for view in StoredJobs(str(base), lambda _: FS, SystemClock()).views()
    }
    assert len(views) == 4
    assert views[KILLED].name == "(damaged)" and views[KILLED].failure
    assert (views[FINISHED].checkpoints.history, views[FINISHED].vertices) == ((), ())
    (damage,) = views[FINISHED].damage
    assert f"{FINISHED}/chk-3 is damaged" in damage
    assert views[FAILED].damage == ()


def test_records_of_another_job_are_damage(base: Path) -> None:
    """A copied directory must not stand for the job that it was copied from."""
    (base / KILLED).rename(base / ("e" * 32))
    views = StoredJobs(str(base), lambda _: FS, SystemClock()).views()
    assert views[0].job_id == "e" * 32
    assert f"are of job {KILLED}" in views[0].damage[0]
    assert sorted(view.job_id for view in views[1:]) == [FAILED, FINISHED, ALIVE]


def test_checkpoints_without_records_are_damage(base: Path) -> None:
    """The job is shown, not forgotten."""
    shutil.rmtree(base / FINISHED / "log")
    views = {
        view.job_id: view for view in StoredJobs(str(base), lambda _: FS, SystemClock()).views()
    }
    assert len(views) == 4
    assert f"{FINISHED}/chk-3 is there" in views[FINISHED].damage[0]


def test_a_damaged_lease_hides_nothing_else(base: Path) -> None:
    """The job's records say how it stands."""
    (base / FAILED / "lease").write_text("{")
    views = {
        view.job_id: view for view in StoredJobs(str(base), lambda _: FS, SystemClock()).views()
    }
    assert (views[FAILED].status.value, views[FAILED].driver) == ("FAILED", None)
    assert "The lease" in views[FAILED].damage[0]


@pytest.mark.parametrize(
    ("host", "rest_address", "linked"),
    [
        (None, DRIVER, True),
        (None, "http://localhost:8081", True),
        (None, "https://[::1]:8081", True),
        ("elsewhere", "https://10.1.2.3:8081", True),
        ("elsewhere", "https://spark-3.example.org:8081", True),
        ("elsewhere", DRIVER, False),
        ("elsewhere", "http://[::1]:8081", False),
        ("elsewhere", "http://localhost:8081", False),
        (None, "http://:8081", False),
        (None, "http://127.0.0.1:99999", False),
        (None, "http://[::1", False),
        (None, "http://spark-3", False),
    ],
)
def test_a_drivers_address_is_given_if_it_leads_there(
    base: Path, host: str | None, rest_address: str, *, linked: bool
) -> None:
    """Another machine's loopback address would lead to a server of this one."""
    take_lease(base, KILLED, host=host, rest_address=rest_address)
    views = {
        view.job_id: view for view in StoredJobs(str(base), lambda _: FS, SystemClock()).views()
    }
    driver = views[KILLED].driver
    assert driver is not None
    assert driver.host == (host or socket.gethostname())
    assert driver.address == (rest_address if linked else None)


def test_a_checkpoint_that_could_not_be_read_is_read_later(base: Path) -> None:
    """Its volume may have been away."""
    metadata, clock = base / FINISHED / "chk-3" / "_metadata", ManualClock()
    jobs = StoredJobs(str(base), lambda _: FS, clock)
    away = metadata.rename(metadata.with_name("away"))

    def known() -> dict[str, int]:
        clock.ms += 60_000
        return {view.job_id: len(view.checkpoints.history) for view in jobs.views()}

    assert known()[FINISHED] == 0
    away.rename(metadata)
    assert known()[FINISHED] == 1


def test_the_dashboard_gets_what_it_asks_for_before_it_shows_a_checkpoint(
    http: httpx.Client,
) -> None:
    """Without the configuration it shows nothing of one, and without a log's address an error."""
    config = http.get(f"/jobs/{FAILED}/checkpoints/config").json()
    assert (config["mode"], config["interval"], config["externalization"]) == (
        "exactly_once",
        None,
        None,
    )
    for process in ("jobmanager", "taskmanagers/driver"):
        assert http.get(f"/jobs/{FAILED}/{process}/log-url").json() == {"url": ""}
    for path in ("checkpoints/config", "jobmanager/log-url"):
        assert http.get(f"/jobs/{'9' * 32}/{path}").status_code == 404


def test_a_configuration_that_no_record_has_is_not_made_up(http: httpx.Client) -> None:
    """Defaults would look like what the job ran with."""
    for path in ("config", "jobmanager/config"):
        answer = http.get(f"/jobs/{KILLED}/{path}")
        assert (answer.status_code, "not known" in answer.text) == (404, True)


def test_the_page_lists_the_jobs_and_who_runs_them(http: httpx.Client, base: Path) -> None:
    """Damaged ones first: somebody has to look at them."""
    damage_log(base, FINISHED)
    answer = http.get("/weir/jobs").json()
    assert answer["history"] is True
    found = {job["id"]: job for job in answer["jobs"]}
    assert (found[FAILED]["started"], found[FAILED]["ended"]) == (4_000, 9_000)
    assert (found[FAILED]["checkpoint"], found[FAILED]["checkpointed"]) == (3, 5_400)
    assert (found[FAILED]["status"], found[FAILED]["problem"]) == ("FAILED", "KeyError: 'amount'")
    assert found[ALIVE]["driver"]["address"] == DRIVER
    assert found[KILLED]["driver"] is None
    damaged = answer["jobs"][0]
    assert (damaged["id"], damaged["status"], damaged["started"]) == (FINISHED, "DAMAGED", None)
    assert "is damaged" in damaged["problem"]


def test_a_list_of_jobs_reads_no_metadata(base: Path) -> None:
    """It may have megabytes; the records say the same of each job."""
    damage_log(base, KILLED)
    jobs = StoredJobs(str(base), lambda _: FS, SystemClock())
    briefs = jobs.briefs()
    assert briefs == tuple(view.brief for view in jobs.views())
    for metadata in base.glob("*/chk-3/_metadata"):
        metadata.unlink()
    assert jobs.briefs() == briefs
    assert [one.checkpoint_id for one in briefs] == [None, 3, 3, 3]


def test_the_page_shows_what_a_checkpoint_has_and_nothing_that_is_made_up(tmp_path: Path) -> None:
    """What only a driver knows is missing, not zero."""
    leave_job(tmp_path, FAILED, RecordStatus.FAILED, "KeyError: 'amount'", tasks=pipeline())
    server = RestServer(port=0)
    jobs = StoredJobs(str(tmp_path), lambda _: FS, SystemClock())
    with httpx.Client(
        base_url=server.start_history(jobs), params={"job": FAILED}, trust_env=False
    ) as client:
        state = client.get("/weir/state").json()
        vertex = client.get("/weir/vertices/per_minute").json()
        checkpoint = client.get("/weir/checkpoints/3").json()
        coordinators = client.get("/weir/coordinators").json()
        failures = client.get("/weir/failures").json()["failures"]
        refused = client.get("/weir/rates")
        unknown = client.get("/weir/state", params={"job": "e" * 32})
    server.stop()
    assert (state["live"], state["status"], state["attempt"]) == (None, "FAILED", 1)
    assert (state["started"], state["since"], state["ended"]) == (4_000, 9_000, 9_000)
    assert [(one["name"], one["status"], one["live"]) for one in state["vertices"]] == [
        ("clean", "", None),
        ("per_minute", "", None),
        ("score", "", None),
    ]
    assert state["vertices"][0]["outputs"] == [
        {"consumer": "score", "segments": 2, "bytes": 41_000}
    ]
    assert vertex["state"][0]["partitions"] == [3_000, 3_000, 90_000, 3_000]
    assert [one["live"] for one in checkpoint["tasks"]] == [None] * 3
    assert (checkpoint["checkpointedBytes"], checkpoint["stateBytes"]) == (None, 99_900)
    assert coordinators["coordinators"][0]["state"] == {"rules": {"often": 5}}
    assert (failures[0]["time"], failures[0]["message"]) == (9_000, "KeyError: 'amount'")
    assert (refused.status_code, unknown.status_code) == (409, 404)


@pytest.mark.slow
def test_a_thousand_jobs_are_listed_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the processor's time, which other load does not change, and with no metadata known yet."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        for number in range(1_000):
            leave_job(tmp_path, f"{number:032x}", RecordStatus.FINISHED, tasks=pipeline())
    jobs = StoredJobs(str(tmp_path), lambda _: FS, SystemClock())
    with served(jobs) as client:
        began = time.process_time()
        assert len(client.get("/weir/jobs").json()["jobs"]) == 1_000
        took_s = time.process_time() - began
    assert took_s < 1


def test_a_directory_that_hangs_does_not_keep_the_server_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C ends ``weir history`` though somebody waits for an answer."""
    monkeypatch.setattr(server_module, "_SHUTDOWN_S", 1)
    over, looked = threading.Event(), threading.Event()

    def hang(_: str) -> LocalFileSystem:
        looked.set()
        over.wait()
        return FS

    server = RestServer(port=0)
    url = httpx.URL(server.start_history(StoredJobs("/jobs", hang, SystemClock())))
    try:
        with socket.create_connection((url.host, url.port or 0)) as waiting:
            waiting.sendall(b"GET /jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
            looked.wait()
            server.stop()
    finally:
        over.set()
