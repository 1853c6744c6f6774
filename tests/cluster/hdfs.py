"""An HDFS of the tests' own: one name node, two data nodes, one process, free ports of loopback.

It is the real one, in the process that Hadoop's own tests use (``jars.py``); it starts in some
twenty seconds and takes 500 MB. Whoever starts a process with ``environment`` has it as Hadoop's
default file system.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cluster.jars import HADOOP, WHY_NOT
from tests.kit.ports import free_ports
from tests.kit.server_process import ServerProcess

_PATIENCE_S = 180.0
_STOP_S = 30.0
_MAIN = "org.apache.hadoop.test.MiniDFSClusterManager"
_DATA_NODES = 2
_JAVA = (
    "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
)  # fmt: skip
_LOG = """log4j.rootLogger=WARN, A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%d %p %c{1}: %m%n
"""
_SITE = """<configuration>
  <property><name>fs.defaultFS</name><value>hdfs://127.0.0.1:{port}</value></property>
  <property><name>dfs.replication</name><value>2</value></property>
</configuration>
"""


class HdfsCluster(ServerProcess):
    """One cluster, with its data in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__("HDFS", directory, patience_s=_PATIENCE_S, stop_s=_STOP_S)
        [self._port] = free_ports(1)
        #: The directory that ``HADOOP_CONF_DIR`` names.
        self.configuration = directory / "conf"
        self.configuration.mkdir()
        for name in ("core-site.xml", "hdfs-site.xml"):
            (self.configuration / name).write_text(_SITE.format(port=self._port))
        (directory / "log4j.properties").write_text(_LOG)
        self._details = directory / "details.json"

    @property
    def uri(self) -> str:
        """The file system, such as ``hdfs://127.0.0.1:40711``."""
        return f"hdfs://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a process finds it."""
        return {"HADOOP_CONF_DIR": str(self.configuration)}

    def start(self) -> None:
        """Start it on the data that it has; wait until it serves."""
        is_new = not self._details.exists()
        self._details.unlink(missing_ok=True)
        self.launch(self._java(format_first=is_new), self._details.exists)

    def _java(self, *, format_first: bool) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        data = self._directory / "data"
        properties = {
            "hdfs.minidfs.basedir": data,
            "dfs.replication": _DATA_NODES,
            "dfs.namenode.safemode.extension": 0,
        }
        return [
            f"{home}/bin/java" if home else "java",
            *_JAVA,
            f"-Dlog4j.configuration={(self._directory / 'log4j.properties').as_uri()}",
            f"-Dhadoop.log.dir={self._directory}",
            f"-Dtest.build.data={data}",
            "-cp",
            f"{HADOOP.directory}/*",
            _MAIN,
            *("-datanodes", str(_DATA_NODES), "-nnport", str(self._port)),
            *("-writeDetails", str(self._details)),
            *(("-format",) if format_first else ()),
            *(word for key, value in properties.items() for word in ("-D", f"{key}={value}")),
        ]


@contextmanager
def running_hdfs() -> Iterator[HdfsCluster]:
    """A running cluster; its process and files are gone afterwards. Skips the test without jars."""
    if not HADOOP.are_there:
        pytest.skip(WHY_NOT)
    directory = Path(tempfile.mkdtemp(prefix="weir-hdfs-"))
    try:
        cluster = HdfsCluster(directory)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
