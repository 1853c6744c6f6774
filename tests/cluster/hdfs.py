"""An HDFS of the tests' own: one name node, two data nodes, one process, free ports of loopback.

It is the real one, in the process that Hadoop's own tests use (``jars.py``); it starts in some
twenty seconds and takes 500 MB. Whoever starts a process with ``environment`` has it as Hadoop's
default file system.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.cluster.jars import HADOOP, WHY_NOT
from tests.kit.ports import free_ports
from tests.kit.waiting import wait_until

from weir.errors import StorageError

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


class HdfsCluster:
    """One cluster, with its data in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        [self._port] = free_ports(1)
        #: The directory that ``HADOOP_CONF_DIR`` names.
        self.configuration = directory / "conf"
        self.configuration.mkdir()
        for name in ("core-site.xml", "hdfs-site.xml"):
            (self.configuration / name).write_text(_SITE.format(port=self._port))
        (directory / "log4j.properties").write_text(_LOG)
        self._details = directory / "details.json"
        self._process: subprocess.Popen[bytes] | None = None

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
        with (self._directory / "log").open("ab") as log:
            self._process = process = subprocess.Popen(
                self._java(format_first=is_new), stdout=log, stderr=log, start_new_session=True
            )

        def serves() -> bool:
            if process.poll() is not None:
                raise StorageError(f"HDFS does not start: {self.log}")
            return self._details.exists()

        wait_until(serves, "HDFS serves", within_s=_PATIENCE_S)

    def kill(self) -> None:
        """Kill the process, as a crash of all nodes at once would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Stop it (SIGTERM); kill it if it does not end."""
        if self._process is None:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
            self._process = None
        self.kill()

    @property
    def log(self) -> str:
        """What it has logged."""
        return (self._directory / "log").read_text(errors="replace")

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
