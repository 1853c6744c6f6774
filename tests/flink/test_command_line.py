"""Flink's own command line against real jobs, their drivers' ends, and a history server.

``make test-flink`` fetches it. Its words are those that a user sees; an exit code of 1 comes with
the sentence that Weir answered.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import httpx
import pytest
from tests.flink.distribution import JARS, Client
from tests.kit.place import Place, Run
from tests.kit.waiting import wait_until

pytestmark = [
    pytest.mark.flink,
    pytest.mark.spark,
    pytest.mark.skipif(not JARS.exists(), reason="Flink is fetched by make test-flink"),
]

UNKNOWN = "0123456789abcdef0123456789abcdef"


def running(place: Place, *arguments: str) -> tuple[Run, Client, str]:
    """A job that has completed a checkpoint, the client for its driver, and its id."""
    run = place.start(*arguments, environment={"NUMBERS": "unbounded"})
    (job,) = httpx.get(f"{run.address}/jobs").json()["jobs"]
    path = f"{run.address}/jobs/{job['id']}/checkpoints"
    wait_until(lambda: httpx.get(path).json()["counts"]["completed"], "a checkpoint")
    return run, Client(place.directory, run.address), job["id"]


def test_a_job_is_listed_and_saved_and_stopped(place: Place) -> None:
    """Each command says what it says of a Flink cluster; the driver ends with the job."""
    run, flink, job = running(place)
    listed = flink("list")
    assert f"{job} : numbers (RUNNING)" in listed.output, listed.story
    assert "No scheduled jobs." in listed.output
    for kind in ((), ("-full",)):
        taken = flink("checkpoint", job, *kind)
        assert re.search(rf"Checkpoint\S* \d+ for job {job} completed", taken.output), taken.story
    saved = flink("savepoint", job, str(place.directory / "mine"))
    path = location(saved.output)
    assert path.parent == place.directory / "mine"
    disposed = flink("savepoint", "-dispose", str(path))
    assert f"Savepoint '{path}' disposed." in disposed.output, disposed.story
    assert not path.exists()

    stopped = flink("stop", "-p", str(place.directory / "last"), job)
    assert location(stopped.output).parent == place.directory / "last"
    assert (stopped.code, run.wait()) == (0, 0), stopped.story


def test_what_cannot_be_done_ends_with_code_1_and_says_why(place: Place) -> None:
    """The job runs on."""
    run, flink, job = running(place)
    for command in ("savepoint", "checkpoint", "stop", "cancel"):
        refused = flink(command, UNKNOWN)
        assert refused.code == 1, refused.story
        assert f"Job {UNKNOWN} is not known here: this driver runs job {job}." in refused.errors
    nowhere = "/proc/nowhere"
    for command, words in (("savepoint", [job, nowhere]), ("stop", ["-p", nowhere, job])):
        refused = flink(command, *words)
        assert refused.code == 1, refused.story
        assert f"Cannot create the directory {nowhere}" in refused.errors, refused.story
    refused = flink("savepoint", "-dispose", str(place.directory / "nothing"))
    assert (refused.code, "No checkpoint or savepoint found" in refused.errors) == (1, True)
    assert "(RUNNING)" in flink("list").output
    assert run.process.poll() is None


def test_a_detached_drain_ends_the_job(place: Place) -> None:
    """The client leaves when the drain has begun; every window has fired when the driver ends."""
    run, flink, job = running(place)
    drained = flink("stop", "--drain", "-detached", job)
    assert drained.code == 0, drained.story
    assert run.wait() == 0, run.story()
    assert "was drained and stopped" in run.output + run.errors
    place.assert_exact()


def test_a_cancelled_job_stays_to_be_seen_while_its_driver_lingers(place: Place) -> None:
    """To cancel it again succeeds, as in Flink; nothing else can be done with it."""
    run, flink, job = running(place, "--conf", "weir.rest.linger=10 min")
    cancelled = flink("cancel", job)
    assert (cancelled.code, f"Cancelled job {job}." in cancelled.output) == (0, True)
    status = f"{run.address}/jobs/{job}/status"
    wait_until(lambda: httpx.get(status).json()["status"] == "CANCELED", "it is cancelled")
    listed = flink("list", "-a")
    assert f"{job} : numbers (CANCELED)" in listed.output, listed.story
    assert flink("cancel", job).code == 0
    for command in ("savepoint", "checkpoint", "stop"):
        refused = flink(command, job)
        said = f"Job {job} has ended and takes no more requests." in refused.errors
        assert (refused.code, said) == (1, True), refused.story


def test_cancelling_with_a_savepoint_prints_its_path(place: Place) -> None:
    """An old option, which Flink's client still has."""
    run, flink, job = running(place)
    cancelled = flink("cancel", "-s", str(place.directory / "last"), job)
    found = re.search(r"Savepoint stored in (\S+)\.", cancelled.output)
    assert found, cancelled.story
    assert Path(found[1]).parent == place.directory / "last"
    run.wait()


def test_a_history_server_lists_ended_jobs_and_refuses_the_rest(place: Place) -> None:
    """It runs no job, and says so."""
    place.finish()
    directory = place.directory / ".weir" / "checkpoints"
    served = place.launch(
        [sys.executable, "-m", "weir", "history", str(directory), "--port", "0"], {}
    )
    address = served.wait_for(r"(http://[^\s/]+)")[1]
    flink = Client(place.directory, address)
    (job,) = httpx.get(f"{address}/jobs").json()["jobs"]
    listed = flink("list", "-a")
    assert f"{job['id']} : numbers (FINISHED)" in listed.output, listed.story
    refused = flink("savepoint", job["id"])
    assert (refused.code, "This history server runs no job" in refused.errors) == (1, True)


def location(output: str) -> Path:
    """The path of the savepoint that the client printed."""
    found = re.search(r"Savepoint completed\. Path: (\S+)", output)
    assert found, output
    return Path(found[1])
