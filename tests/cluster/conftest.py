"""One HDFS, and one YARN with its own, for all tests of this folder.

A test has one of them, whose file system is Hadoop's default there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.hdfs import HdfsCluster, running_hdfs
from tests.cluster.lean_environment import make_environment
from tests.cluster.yarn import YarnCluster, running_yarn
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


@pytest.fixture(scope="session")
def _yarn() -> Iterator[YarnCluster]:
    with running_yarn() as cluster:
        yield cluster


@pytest.fixture
def yarn(_yarn: YarnCluster, monkeypatch: pytest.MonkeyPatch) -> YarnCluster:
    """The cluster, which this process and those that it starts find."""
    for name, value in _yarn.environment.items():
        monkeypatch.setenv(name, value)
    return _yarn


@pytest.fixture(scope="session")
def lean_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has no more than Weir needs."""
    return make_environment(tmp_path_factory.mktemp("lean") / "environment")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A directory in which commands run; whatever they started is ended with the test."""
    made = Place(tmp_path)
    yield made
    made.clear()
