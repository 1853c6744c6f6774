"""The server itself: its port, its address, its begin and its end."""

from __future__ import annotations

import socket
import threading

import httpx
import pytest
from fake_job import JOB_ID, FakeGateway, completed

from weir.errors import RestError
from weir.rest.server import RestServer


def test_port_zero_picks_a_free_port_of_the_loopback_interface(address: str) -> None:
    """The address names the port that was picked, and not all interfaces are bound."""
    host, port = address.removeprefix("http://").split(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


def test_a_taken_port_is_told_in_one_sentence() -> None:
    """The sentence names the port, the interface and the way out; it comes before anything is served."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(RestError) as caught:
            RestServer(FakeGateway(), port=port).start()
    assert str(caught.value) == (
        f"Port {port} on 127.0.0.1 is taken: give another one with --rest-port N, or 0 for any free one."
    )


@pytest.mark.parametrize(("bind_address", "port"), [("192.0.2.1", 0), ("127.0.0.1", 70_000)])
def test_an_address_that_cannot_be_bound_is_told_in_one_sentence(bind_address: str, port: int) -> None:
    """An interface of another machine or a port that does not exist is no stack trace."""
    with pytest.raises(RestError, match="--rest-port"):
        RestServer(FakeGateway(), bind_address=bind_address, port=port).bind()


def test_a_server_can_take_its_port_before_there_is_a_job() -> None:
    """The address is known first, the gateway comes later, and start keeps the address."""
    server = RestServer(port=0)
    address = server.bind()
    server.serve(FakeGateway())
    assert server.start() == address
    assert httpx.get(f"{address}/jobs", trust_env=False).status_code == 200
    server.stop()


def test_after_stop_nothing_answers_and_the_port_is_free() -> None:
    """stop closes the port, ends the thread and may be called again."""
    server = RestServer(FakeGateway(), port=0)
    address = server.start()
    assert httpx.get(f"{address}/jobs", trust_env=False).status_code == 200
    server.stop()
    server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/jobs", trust_env=False)
    port = int(address.rpartition(":")[2])
    again = RestServer(FakeGateway(), port=port)
    assert again.start() == address
    again.stop()


def test_a_server_that_never_started_can_be_stopped() -> None:
    """A job that could not begin leaves no port behind."""
    server = RestServer(port=0)
    port = int(server.bind().rpartition(":")[2])
    server.stop()
    socket.create_server(("127.0.0.1", port)).close()


def test_stop_waits_until_the_client_has_read_the_savepoint() -> None:
    """After a stop with savepoint the driver exits, but its client still learns the path."""
    gateway = FakeGateway()
    server = RestServer(gateway, port=0)
    with httpx.Client(base_url=f"{server.start()}/v1/jobs/{JOB_ID}", trust_env=False) as http:
        request = http.post("/stop", json={}).json()["request-id"]
        gateway.futures[0].set_result(completed(8, "/d/savepoint-1"))
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        answer = http.get(f"/savepoints/{request}")
        assert answer.json()["operation"] == {"location": "/d/savepoint-1"}
    stopping.join(timeout=10)
    assert not stopping.is_alive()
