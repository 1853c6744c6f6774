"""Broken variants of everything but operator events run in jobs without coordinators.

Coordinators have variants of their own. Without coordinators a run is shorter, and the other
variants are still caught at their known seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from weir.sim import job as job_module


@pytest.fixture
def no_coordinators() -> Iterator[None]:
    """The simulator's jobs have no coordinators."""
    with patch.object(job_module, "_coordinated", lambda vertices, random: list(vertices)):
        yield
