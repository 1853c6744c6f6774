"""A new directory for each end-to-end test, which leaves no processes behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.feeds import Feeds
from tests.kit.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A directory in which commands run; whatever they started is ended with the test."""
    made = Place(tmp_path)
    yield made
    made.clear()


@pytest.fixture
def feeds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Feeds]:
    """A server that the pipelines of ``docs/SOURCES.md`` find."""
    served = Feeds()
    monkeypatch.setenv("READINGS", served.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield served
    served.close()
