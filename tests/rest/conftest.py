"""A REST server for a fake job, on a free port, and a plain HTTP client for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from weir.rest.server import RestServer

sys.path.insert(0, str(Path(__file__).parent))

from fake_job import FakeGateway


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
    with httpx.Client(base_url=address, trust_env=False) as client:
        yield client
