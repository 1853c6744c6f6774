"""What every file system must do (``tests/storage/test_contract.py``), on a real HDFS.

By hdfs-native, and by Spark's client with paths that do not name the name node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.cluster.contract import *  # noqa: F403 - its tests are run here
from tests.cluster.contract import Files, own_session
from tests.cluster.hdfs import HdfsCluster

from weir.spark.hadoop import HadoopFileSystem
from weir.storage.hdfs import HdfsFileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def spark(_hdfs: HdfsCluster) -> Iterator[SparkSession]:
    """A session that knows the default name node."""
    with own_session({"spark.hadoop.fs.defaultFS": _hdfs.uri}) as session:
        yield session


@pytest.fixture(params=["hdfs-native", "Spark's client"])
def files(hdfs: HdfsCluster, request: pytest.FixtureRequest) -> Files:
    """An existing, empty directory of each test."""
    below = f"contract/{abs(hash(request.node.name))}/some/where"
    if request.param == "hdfs-native":
        found = Files(HdfsFileSystem(hdfs.uri), f"{hdfs.uri}/{below}")
    else:
        session = request.getfixturevalue("spark")
        found = Files(HadoopFileSystem(session, "hdfs:///x"), f"hdfs:///{below}")
    found.fs.make_directory(found.base)
    return found
