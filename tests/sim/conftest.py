"""Broken variants of everything but operator events run in jobs without coordinators.

Those have variants of their own. Without them a run is shorter, and the rare catches of the others
stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from weir.sim import job as job_module


@pytest.fixture
def no_coordinators() -> Iterator[None]:
    """Jobs of the simulator have no coordinators."""
    with patch.object(job_module, "_coordinated", lambda vertices, random: list(vertices)):
        yield
