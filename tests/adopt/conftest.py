"""A directory for each script that is run, which leaves no processes behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A directory in which commands run; whatever they started is ended with the test."""
    made = Place(tmp_path)
    yield made
    made.clear()
