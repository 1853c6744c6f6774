"""Fixtures of the world that every attack starts in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from tests.attacks.world import Victim


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Victim]:
    """A world that does not have to survive a crash."""
    with mock.patch("os.fsync"):
        yield Victim(tmp_path)
