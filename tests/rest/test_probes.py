"""The two probes, by which a kubelet decides whether to kill a driver, and whether it is ready."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from tests.kit.gateway import FakeGateway, served
from tests.kit.stored_jobs import FS, leave_jobs

from weir.core.status import JobStatus
from weir.core.types import TaskStatus
from weir.rest.past.history import StoredJobs
from weir.rest.server.server import RestSecurity, RestServer
from weir.runtime.concurrency import SystemClock


def test_a_job_that_runs_is_alive_and_ready(http: httpx.Client) -> None:
    """Both answer with a word."""
    assert (http.get("/healthz").status_code, http.get("/healthz").text) == (200, "alive\n")
    assert (http.get("/readyz").status_code, http.get("/readyz").text) == (200, "ready\n")


@pytest.mark.parametrize("status", [one for one in JobStatus if one is not JobStatus.RUNNING])
def test_a_job_in_any_other_status_is_alive_and_not_ready(
    http: httpx.Client, gateway: FakeGateway, status: JobStatus
) -> None:
    """Above all while it restarts: the driver sees to that itself, and must not be killed."""
    gateway.set_status(status)
    assert http.get("/healthz").status_code == 200
    answer = http.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"errors": [f"The job is {status.value}."]})


def test_a_job_whose_queries_start_is_not_ready(http: httpx.Client, gateway: FakeGateway) -> None:
    """A rollout waits until every query reads."""
    first, *rest = gateway.current.vertices
    starting = replace(first, status=TaskStatus.INITIALIZING)
    gateway.current = replace(gateway.current, vertices=(starting, *rest))
    told = http.get("/readyz").json()["errors"][0]
    assert told == f"1 of {len(rest) + 1} queries are starting."


def test_a_job_whose_main_thread_hangs_is_dead_after_a_minute(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """It can only be killed; what a start takes longer than usual is no hang."""
    gateway.silent = 59_999
    assert http.get("/healthz").status_code == 200
    gateway.silent = 60_000
    answer = http.get("/healthz")
    assert answer.status_code == 503
    assert answer.json() == {"errors": ["The job's main thread has hung for 60 s."]}


def test_probes_need_no_token_and_take_any_address_of_the_machine() -> None:
    """A kubelet has no token, and calls the pod by its address. All else is guarded as ever."""
    server = RestServer(bind_address="0.0.0.0", security=RestSecurity(token="t" * 16))
    address = server.start(FakeGateway())
    try:
        with httpx.Client(base_url=address, headers={"host": "10.244.0.7:8081"}) as kubelet:
            assert kubelet.get("/healthz").status_code == 200
            assert kubelet.get("/readyz").status_code == 200
            assert kubelet.post("/healthz").status_code == 401
            assert kubelet.get("/jobs").status_code == 401
    finally:
        server.stop()


def test_a_history_server_is_alive_and_ready_whatever_became_of_its_jobs(tmp_path: Path) -> None:
    """It runs none of them."""
    jobs = StoredJobs(str(leave_jobs(tmp_path)), lambda _: FS, SystemClock())
    with served(jobs) as client:
        assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
