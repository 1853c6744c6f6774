"""A REST server for a fake job, on a free port, and a plain HTTP client for it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.kit.gateway import FakeCluster, FakeGateway, served

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


@pytest.fixture
def reader(gateway: FakeGateway) -> Iterator[httpx.Client]:
    """A client of a server that also shows Spark's cluster."""
    with served(gateway, cluster=FakeCluster()) as client:
        yield client
