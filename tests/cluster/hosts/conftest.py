"""One cluster of several hosts for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.hosts.standalone import Standalone, running_standalone
from tests.cluster.s3.far_place import FarPlace
from tests.kit.place import Place


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """The cluster; each test heals what it has cut."""
    with running_standalone(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def far(cluster: Standalone, place: Place) -> FarPlace:
    """Below a directory that is named after the test, in the cluster's S3."""
    return FarPlace(cluster.s3, place)
