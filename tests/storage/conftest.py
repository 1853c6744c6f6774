"""An object store for the tests of storage, made on demand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.object_store import ObjectStore, running_object_store


@pytest.fixture(scope="session")
def _server() -> Iterator[ObjectStore]:
    with running_object_store() as store:
        yield store


@pytest.fixture
def object_store(_server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """A store without faults, which this process finds by its environment."""
    for name, value in _server.environment.items():
        monkeypatch.setenv(name, value)
    yield _server
    _server.heal()
