"""A REST server for a fake job, on a free port, and a plain HTTP client for it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.kit.gateway import VIEW, FakeCluster, FakeGateway

from weir.rest.handling import looks
from weir.rest.server.server import RestServer


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at the JVM takes as long as it takes; a test of one that hangs sets its own limit."""
    for limit in ("_PATIENCE_S", "_THREADS_PATIENCE_S"):
        monkeypatch.setattr(looks, limit, None)


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


@pytest.fixture
def server(gateway: FakeGateway) -> Iterator[RestServer]:
    running = RestServer(port=0)
    running.start(gateway)
    yield running
    running.stop()


@pytest.fixture
def address(server: RestServer) -> str:
    return server.bind()


@pytest.fixture
def http(address: str) -> Iterator[httpx.Client]:
    # Loading certificates would take longer than most tests.
    with httpx.Client(base_url=address, trust_env=False, verify=False) as client:
        yield client


@pytest.fixture(scope="session")
def shared() -> Iterator[tuple[FakeGateway, httpx.Client]]:
    """One server and client for all tests that only read: each start and stop takes a moment."""
    gateway, running = FakeGateway(), RestServer(port=0)
    address = running.start(gateway, cluster=FakeCluster())
    with httpx.Client(base_url=address, trust_env=False, verify=False) as client:
        yield gateway, client
    running.stop()


@pytest.fixture
def looked_at(shared: tuple[FakeGateway, httpx.Client]) -> FakeGateway:
    """The job of ``reader``, as it is at first."""
    gateway, _ = shared
    gateway.current = VIEW
    return gateway


@pytest.fixture
def reader(looked_at: FakeGateway, shared: tuple[FakeGateway, httpx.Client]) -> httpx.Client:
    """A client that only reads."""
    return shared[1]
