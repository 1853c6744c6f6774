"""Name nodes that are away: one of a name service, and the only one for a while."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.cluster.hdfs import HdfsCluster, running_hdfs
from tests.kit.place import Place
from tests.kit.ports import free_ports

from weir.errors import StorageError
from weir.storage.file_systems import FileSystems
from weir.storage.filesystem import CreateResult
from weir.storage.hdfs import HdfsFileSystem
from weir.storage.job_names import JobNames
from weir.storage.paths import normalize

pytestmark = pytest.mark.cluster

_SITE = """<configuration>
  <property><name>fs.defaultFS</name><value>hdfs://far</value></property>
  <property><name>dfs.nameservices</name><value>far</value></property>
  <property><name>dfs.ha.namenodes.far</name><value>one,two</value></property>
  <property><name>dfs.namenode.rpc-address.far.one</name><value>127.0.0.1:{gone}</value></property>
  <property><name>dfs.namenode.rpc-address.far.two</name><value>{there}</value></property>
</configuration>
"""


@pytest.fixture
def name_service(_hdfs: HdfsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name service of two, the first of which is away, as the default file system."""
    [gone] = free_ports(1)
    text = _SITE.format(gone=gone, there=_hdfs.uri.removeprefix("hdfs://"))
    for name in ("core-site.xml", "hdfs-site.xml"):
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))


@pytest.mark.usefixtures("name_service")
def test_a_name_service_is_served_by_the_node_that_answers(place: Place) -> None:
    """Its name is what paths keep, and commands find what lies there."""
    path = normalize("hdfs:///service/checkpoints")
    assert path == "hdfs://far/service/checkpoints"
    fs = FileSystems()(path)
    assert isinstance(fs, HdfsFileSystem)
    fs.make_directory(path)
    assert fs.create(f"{path}/1", b"one") is CreateResult.CREATED
    assert fs.create(f"{path}/1", b"one") is CreateResult.ALREADY_EXISTS
    assert JobNames(fs, path).lookup("numbers") is None
    listed = place.weir("list", "hdfs:///service/checkpoints")
    assert listed.returncode == 0, listed.stderr


def test_a_name_node_that_comes_back_is_waited_for() -> None:
    """With the data nodes: what was asked meanwhile is done then."""
    with running_hdfs() as cluster:
        path = f"{cluster.uri}/log"
        fs = HdfsFileSystem(path)
        fs.make_directory(path)
        assert fs.create(f"{path}/1", b"one") is CreateResult.CREATED
        cluster.kill()
        done: list[CreateResult] = []
        asking = threading.Thread(target=lambda: done.append(fs.create(f"{path}/2", b"two")))
        asking.start()
        cluster.start()
        asking.join()
        assert done == [CreateResult.CREATED]
        assert [fs.read(f"{path}/{number}") for number in (1, 2)] == [b"one", b"two"]


def test_a_name_node_that_is_not_there_is_said_soon() -> None:
    """With the address; a wrong one is not waited for as long as one that was there."""
    [port] = free_ports(1)
    with pytest.raises(
        StorageError, match=rf"(reach|look at) hdfs://127.0.0.1:{port}/x: .*refused"
    ):
        HdfsFileSystem(f"hdfs://127.0.0.1:{port}/x")
