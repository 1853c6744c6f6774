"""The server itself: its port, its address, its start and its stop."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import httpx
import pytest
from tests.kit.clock import ManualClock
from tests.kit.gateway import JOB_ID, VIEW, FakeGateway, completed, served
from tests.kit.running_job import RunningWorld
from tests.kit.waiting import wait_until

from weir.errors import RestError
from weir.gateway import live_view
from weir.monitoring.views import JobView
from weir.rest.server.server import RestServer


def test_port_zero_picks_a_free_port_of_the_loopback_interface(address: str) -> None:
    """The address has the port that was picked, and other interfaces are not bound."""
    host, port = address.removeprefix("http://").split(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


def test_a_taken_port_is_one_sentence() -> None:
    """The message names the port, the interface and the way out, before anything is served."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(RestError) as caught:
            RestServer(port=port).start(FakeGateway())
    assert (
        str(caught.value)
        == f"Port {port} on 127.0.0.1 is taken: give another with --rest-port N, or 0 for any"
        " free port."
    )


@pytest.mark.parametrize(("bind_address", "port"), [("192.0.2.1", 0), ("127.0.0.1", 70_000)])
def test_an_address_that_cannot_be_bound_is_one_sentence(bind_address: str, port: int) -> None:
    """Another machine's interface and an invalid port do not cause a stack trace."""
    with pytest.raises(RestError, match="--rest-port"):
        RestServer(bind_address=bind_address, port=port).bind()


def test_a_server_can_take_its_port_before_there_is_a_job() -> None:
    """The address is known first, the gateway is passed later, and ``start`` keeps the address."""
    server = RestServer(port=0)
    address = server.bind()
    assert server.start(FakeGateway()) == address
    assert httpx.get(f"{address}/jobs", trust_env=False).status_code == 200
    server.stop()


def test_after_stop_nothing_answers_and_the_port_is_free() -> None:
    """``stop`` closes the port, ends the thread and may be called again."""
    server = RestServer(port=0)
    address = server.start(FakeGateway())
    assert httpx.get(f"{address}/jobs", trust_env=False).status_code == 200
    server.stop()
    server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/jobs", trust_env=False)
    port = int(address.rpartition(":")[2])
    again = RestServer(port=port)
    assert again.start(FakeGateway()) == address
    again.stop()


def test_a_server_that_never_started_can_be_stopped() -> None:
    """A job that could not start leaves no port open."""
    server = RestServer(port=0)
    port = int(server.bind().rpartition(":")[2])
    server.stop()
    socket.create_server(("127.0.0.1", port)).close()


def test_stop_waits_until_the_client_has_read_the_savepoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a stop with savepoint the driver exits, but its client still learns the path."""
    monkeypatch.setattr("weir.rest.handling.operations.COLLECT_WITHIN_MS", 300_000)
    gateway = FakeGateway()
    server = RestServer(port=0)
    with httpx.Client(
        base_url=f"{server.start(gateway)}/v1/jobs/{JOB_ID}", trust_env=False
    ) as http:
        request = http.post("/stop", json={}).json()["request-id"]
        gateway.futures[0].set_result(completed(8, "/d/savepoint-1"))
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        answer = http.get(f"/savepoints/{request}")
        assert answer.json()["operation"] == {"location": "/d/savepoint-1"}
    stopping.join()


def test_an_answer_does_not_wait_for_the_clients_acknowledgement(
    server: RestServer, http: httpx.Client
) -> None:
    """Headers and body are two packets, and a kernel may delay acknowledging the first by 40 ms."""
    http.get("/config")
    assert server._server is not None
    (connection,) = server._server.server_state.connections
    accepted = connection.transport.get_extra_info("socket")
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_twenty_clients_cost_the_jobs_main_thread_no_more_than_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It publishes a view at most every 100 ms for all clients; what a client changes is published
    at once."""
    # However busy the machine is, nobody is answered with the view before.
    monkeypatch.setattr(live_view, "_PATIENCE_S", 20.0)
    clock = ManualClock()
    with RunningWorld(clock=clock) as world, ThreadPoolExecutor(20) as clients:
        world.wait_running()
        server = RestServer(port=0, clock=clock)
        with (
            httpx.Client(base_url=server.start(world.job), trust_env=False, timeout=30) as http,
            patch.object(world.job.driver, "call", wraps=world.job.driver.call) as published,
        ):
            (job,) = http.get("/jobs").json()["jobs"]
            paths = ["/jobs", "/overview", f"/jobs/{job['id']}", "/weir/state", "/metrics"]
            for moment in range(1, 4):
                clock.ms += 100
                answers = clients.map(http.get, paths * 20)
                assert {one.status_code for one in answers} == {200}
                assert published.call_count == 1 + moment
            assert http.patch(f"/jobs/{job['id']}").status_code == 202
            world.join()
            assert http.get(f"/jobs/{job['id']}/status").json()["status"] == "CANCELED"
        server.stop()


def test_while_the_job_hangs_it_is_shown_and_a_cancellation_is_accepted() -> None:
    """Every request is answered while the main thread waits, for example for a file system that
    does not respond."""
    gate = threading.Event()
    with RunningWorld() as world:
        world.wait_running()
        with served(world.job) as http:
            world.job.driver.call(lambda: gate.wait() and None)
            (job,) = http.get("/jobs/overview").json()["jobs"]
            assert job["state"] == "RUNNING"
            assert http.patch(f"/jobs/{job['jid']}?mode=cancel").status_code == 202
            assert http.post(f"/jobs/{job['jid']}/savepoints", json={}).status_code == 202
            gate.set()
            while http.get(f"/jobs/{job['jid']}/status").json()["status"] != "CANCELED":
                pass


def test_a_look_that_hangs_holds_up_no_other_answer(
    gateway: FakeGateway, server: RestServer, http: httpx.Client
) -> None:
    """One thread waits for the view, however many requests need it; requests that need no view are
    answered immediately, and the others share that view."""
    gate = threading.Event()
    looks: list[None] = []

    def hang() -> JobView:
        looks.append(None)
        gate.wait()
        return VIEW

    gateway.view = hang  # type: ignore[method-assign]
    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(http.get, f"/jobs/{JOB_ID}") for _ in range(20)]
        wait_until(lambda: looks, "somebody looks")
        assert server._server is not None
        under_way = server._server.server_state.tasks
        wait_until(lambda: len(under_way) == 20, "all have asked")
        assert http.get("/config").status_code == 200
        assert http.post("/savepoint-disposal", content=b"{").status_code == 415
        assert not any(one.done() for one in asked)
        gate.set()
        assert [one.result().status_code for one in asked] == [200] * 20
    assert len(looks) == 1
