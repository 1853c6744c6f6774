"""The scenarios in this folder are what the core does; ``REWRITE_SCENARIOS=1`` writes them anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.scenarios.transcript import played

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_transcript_is_what_happens(path: Path) -> None:
    """Each command leads to the effects, messages and states below it."""
    text = path.read_text()
    now = played(text)
    if os.environ.get("REWRITE_SCENARIOS") == "1":
        path.write_text(now)
    assert text == now or os.environ.get("REWRITE_SCENARIOS") == "1"


def test_there_are_twenty_scenarios() -> None:
    """Each begins with its title and says what it shows."""
    assert len(FILES) >= 20
    for path in FILES:
        assert path.read_text().startswith("# "), path.name
