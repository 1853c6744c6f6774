"""Fixtures for runs of the simulator."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from weir.sim.engine import job as job_module
from weir.sim.stores import placing


@pytest.fixture
def quiet() -> Iterator[None]:
    """Silence what the product logs under faults, which is a lot."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def no_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator's jobs have no stores, unless a test asks for one."""
    monkeypatch.setattr(placing, "_SHARE", 0.0)


@pytest.fixture
def no_coordinators() -> Iterator[None]:
    """The simulator's jobs have no coordinators.

    A run is then shorter, and broken variants of everything else are still caught.
    """
    with patch.object(job_module, "_coordinated", lambda vertices, random: list(vertices)):
        yield
