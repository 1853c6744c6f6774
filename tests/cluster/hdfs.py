"""An HDFS of the tests' own: one name node, two data nodes, one process, free ports of loopback.

It is the real one, in the process that Hadoop's own tests use (``jars.py``); it starts in some
twenty seconds and takes 500 MB. Whoever starts a process with ``environment`` has it as Hadoop's
default file system.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from tests.cluster.hadoop_cluster import HadoopCluster, running
from tests.cluster.jars import HADOOP

_PATIENCE_S = 180.0
_MAIN = "org.apache.hadoop.test.MiniDFSClusterManager"
_DATA_NODES = 2
_SITE = """<configuration>
  <property><name>fs.defaultFS</name><value>hdfs://127.0.0.1:{port}</value></property>
  <property><name>dfs.replication</name><value>2</value></property>
</configuration>
"""


class HdfsCluster(HadoopCluster):
    """One cluster."""

    def __init__(self, directory: Path) -> None:
        super().__init__("HDFS", directory, patience_s=_PATIENCE_S)
        self.configuration.mkdir()
        for name in ("core-site.xml", "hdfs-site.xml"):
            (self.configuration / name).write_text(_SITE.format(port=self._port))
        self._details = directory / "details.json"

    def start(self) -> None:
        """Start it on the data that it has; wait until it serves."""
        is_new = not self._details.exists()
        self._details.unlink(missing_ok=True)
        self.launch(self._java(format_first=is_new), self._details.exists)

    def _java(self, *, format_first: bool) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        properties = {
            "hdfs.minidfs.basedir": self._directory / "data",
            "dfs.replication": _DATA_NODES,
            "dfs.namenode.safemode.extension": 0,
        }
        return [
            f"{home}/bin/java" if home else "java",
            *self._java_options("512m"),
            "-cp",
            f"{HADOOP.directory}/*",
            _MAIN,
            *("-datanodes", str(_DATA_NODES), "-nnport", str(self._port)),
            *("-writeDetails", str(self._details)),
            *(("-format",) if format_first else ()),
            *(word for key, value in properties.items() for word in ("-D", f"{key}={value}")),
        ]


def running_hdfs() -> AbstractContextManager[HdfsCluster]:
    """A running cluster, as of ``running``."""
    return running(HdfsCluster)
