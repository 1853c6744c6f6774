"""The scenarios in this folder are what the core does; ``REWRITE_SCENARIOS=1`` rewrites them."""

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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_scenario_begins_with_what_it_shows(path: Path) -> None:
    """A reader must know what to look for before the first command."""
    title, commands = path.read_text().split("\n\n> ", 1)
    assert title.startswith("# ")
    assert "> " in commands
