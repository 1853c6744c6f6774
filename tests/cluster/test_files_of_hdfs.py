"""What ``FileSource`` makes of a directory on a real HDFS."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.cluster.hdfs import HdfsCluster
from tests.kit.source_job import FakeJob

from weir.sources import FileSource
from weir.sources.file_listing import list_files
from weir.storage.file_systems import FileSystems
from weir.storage.hdfs import HdfsFileSystem

pytestmark = pytest.mark.cluster

SCHEMA = pa.schema([("id", pa.int64())])


def test_each_file_on_hdfs_is_read_once_oldest_first(hdfs: HdfsCluster) -> None:
    """Across a restore, too; one that is there under a hidden name is not read."""
    landing = f"{hdfs.uri}/landing"
    fs = HdfsFileSystem(landing)
    with pytest.raises(FileNotFoundError):
        list_files(landing, FileSystems())
    fs.make_directory(landing)
    for name, number in (("b", 1), ("a", 2), ("_c", 3)):
        fs.write(f"{landing}/{name}.json", f'{{"id": {number}}}'.encode())
    found, _ = list_files(landing, FileSystems())
    assert [file.name for file in found] == ["b.json", "a.json"]
    source = FileSource("hdfs:///landing", format="json", schema="id long", bounded=True)
    running = FakeJob(source, 1, schema=SCHEMA)
    running.step()
    taken = running.checkpoint()
    running.restore(taken)
    running.finish()
    assert [row["id"] for row in running.rows] == [1, 2]
