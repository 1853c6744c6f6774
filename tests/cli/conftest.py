"""A REST server for a fake job, on a free port, and a way to run the command line against it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from weir.cli.app import app
from weir.rest.server import RestServer

sys.path.insert(0, str(Path(__file__).parent.parent / "rest"))

from fake_job import FakeGateway

Weir = Callable[..., Result]


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
