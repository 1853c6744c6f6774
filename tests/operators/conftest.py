"""Keyed state in memory, and in files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.operators.layers import spill_all

from weir.operators.state.memory import StateMemory


@pytest.fixture(params=["in memory", "in files"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateMemory]:
    """Memory without a bound, or so little that every array lies in a file."""
    if request.param == "in memory":
        yield StateMemory()
        return
    with pytest.MonkeyPatch.context() as patch:
        spill_all(patch)
        memory = StateMemory(0, str(tmp_path))
        yield memory
        assert memory.in_memory == 0
