"""One HDFS for all tests of this folder, which is Hadoop's default file system in each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.hdfs import HdfsCluster, running_hdfs
from tests.kit.place import Place


@pytest.fixture(scope="session")
def _hdfs() -> Iterator[HdfsCluster]:
    with running_hdfs() as cluster:
        yield cluster


@pytest.fixture
def hdfs(_hdfs: HdfsCluster, monkeypatch: pytest.MonkeyPatch) -> HdfsCluster:
    """The cluster, which this process and those that it starts find. Nobody kills it."""
    for name, value in _hdfs.environment.items():
        monkeypatch.setenv(name, value)
    return _hdfs


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A directory in which commands run; whatever they started is ended with the test."""
    made = Place(tmp_path)
    yield made
    made.clear()
