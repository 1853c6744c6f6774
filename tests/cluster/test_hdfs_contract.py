"""What every file system must do (``tests/storage/test_contract.py``), on a real HDFS.

By hdfs-native, and by Spark's client with paths that do not name the name node.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.cluster.hdfs import HdfsCluster
from tests.storage.test_contract import *  # noqa: F403 - its tests are run here
from tests.storage.test_contract import Files

from weir.spark.hadoop import HadoopFileSystem
from weir.storage.filesystem import CreateResult
from weir.storage.hdfs import HdfsFileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.cluster

_DRIVERS = 8


@pytest.fixture(scope="module")
def spark(_hdfs: HdfsCluster) -> Iterator[SparkSession]:
    """A session that knows the default name node."""
    from weir.spark.session.start import create_session, end_with_jvm

    session = create_session(
        name="tests",
        master="local[1]",
        conf={"spark.hadoop.fs.defaultFS": _hdfs.uri},
        parallelism=1,
        fast_working_directory=True,
        log_file=None,
    )
    yield session
    end_with_jvm(session)


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


def test_of_drivers_that_create_one_name_at_once_one_wins(files: Files) -> None:
    """And the file has all of the winner's content; nothing else is left (PROTOCOL P17)."""
    with ThreadPoolExecutor(_DRIVERS) as drivers:
        for number in range(10):
            path = f"{files.base}/{number}"
            tries = [
                drivers.submit(files.fs.create, path, f"{driver}".encode() * 1000)
                for driver in range(_DRIVERS)
            ]
            won = [one for one, each in enumerate(tries) if each.result() is CreateResult.CREATED]
            assert [f"{driver}".encode() * 1000 for driver in won] == [files.fs.read(path)]
    assert files.names() == [str(number) for number in range(10)]
