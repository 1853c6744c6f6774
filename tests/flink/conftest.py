"""What tests with Flink's own programs share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A directory with numbers, in which commands run; they are ended with the test."""
    made = Place(tmp_path)
    made.land(3)
    yield made
    made.clear()
