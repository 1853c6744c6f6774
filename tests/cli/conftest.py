"""A REST server for a fake job, on a free port, and a way to run the command line against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from click.testing import Result
from tests.kit.gateway import FakeGateway
from typer.testing import CliRunner

from weir.cli.app import app
from weir.rest import client
from weir.rest.server.server import RestServer

Weir = Callable[..., Result]


@pytest.fixture(autouse=True)
def no_other_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs a job on this machine may have the default port; nobody has this one."""
    monkeypatch.setattr(client, "DEFAULT_ADDRESS", "http://127.0.0.1:1")


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


@pytest.fixture
def address(gateway: FakeGateway) -> Iterator[str]:
    running = RestServer(port=0)
    yield running.start(gateway)
    running.stop()


@pytest.fixture
def weir() -> Weir:
    """Runs ``weir`` with these arguments in this process."""

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments), prog_name="weir")

    return run
