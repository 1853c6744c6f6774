"""What every file system must do (``tests/storage/test_contract.py``), on an S3 server.

By obstore, and by Spark's client.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.cluster.contract import *  # noqa: F403 - its tests are run here
from tests.cluster.contract import Files, own_session
from tests.cluster.s3.server import BUCKET, S3Server

from weir.spark.hadoop import HadoopFileSystem
from weir.storage.object_store import ObjectStoreFileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def spark(_s3: S3Server) -> Iterator[SparkSession]:
    """A session that knows the server, in a JVM of its own."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in _s3.environment.items():
            patched.setenv(name, value)
        with own_session(_s3.settings) as session:
            yield session


@pytest.fixture(params=["obstore", "Spark's client"])
def files(s3: S3Server, request: pytest.FixtureRequest) -> Files:
    """An existing, empty directory of each test."""
    below = f"{BUCKET}/contract/{abs(hash(request.node.name))}/some/where"
    if request.param == "obstore":
        found = Files(ObjectStoreFileSystem(f"s3://{BUCKET}/x"), f"s3://{below}")
    else:
        session = request.getfixturevalue("spark")
        found = Files(HadoopFileSystem(session, f"s3a://{BUCKET}/x"), f"s3a://{below}")
    found.fs.make_directory(found.base)
    return found


def test_a_rename_deletes_nothing_but_its_source(s3: S3Server, spark: SparkSession) -> None:
    """A driver that goes on late with a rename must not delete what another has just committed;
    Hadoop's own way to replace a file deletes it first (PROTOCOL P18)."""
    fs = HadoopFileSystem(spark, f"s3a://{BUCKET}/x")
    below = f"s3a://{BUCKET}/renamed"
    for name in ("staged", "final"):
        fs.write(f"{below}/{name}", name.encode())
    statistics = fs._fs.getStorageStatistics()
    before = statistics.getLong("object_delete_objects")
    fs.rename(f"{below}/staged", f"{below}/final")
    assert fs.read(f"{below}/final") == b"staged"
    assert statistics.getLong("object_delete_objects") - before == 1
