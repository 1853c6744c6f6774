"""``HadoopCluster``: what the tests' clusters of Hadoop have in common."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from tests.cluster.jars import HADOOP, WHY_NOT
from tests.kit.ports import free_ports
from tests.kit.server_process import ServerProcess

_STOP_S = 30.0
_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_LOG = """log4j.rootLogger=WARN, A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%d %p %c{1}: %m%n
"""


class HadoopCluster(ServerProcess):
    """A cluster in one JVM, with its data in a directory of its own. All listens on loopback."""

    def __init__(self, what: str, directory: Path, *, patience_s: float) -> None:
        super().__init__(what, directory, patience_s=patience_s, stop_s=_STOP_S)
        [self._port] = free_ports(1)
        #: The directory that ``HADOOP_CONF_DIR`` names.
        self.configuration = directory / "conf"
        (directory / "log4j.properties").write_text(_LOG)

    @property
    def uri(self) -> str:
        """The file system, such as ``hdfs://127.0.0.1:40711``."""
        return f"hdfs://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a process finds it."""
        return {"HADOOP_CONF_DIR": str(self.configuration)}

    def start(self) -> None:
        """Start it; wait until it serves."""
        raise NotImplementedError

    def _java_options(self, heap: str) -> tuple[str, ...]:
        return (
            *(f"-Xmx{heap}", *_JAVA),
            f"-Dlog4j.configuration={(self._directory / 'log4j.properties').as_uri()}",
            f"-Dhadoop.log.dir={self._directory}",
            f"-Dtest.build.data={self._directory / 'data'}",
        )


_Cluster = TypeVar("_Cluster", bound=HadoopCluster)


@contextmanager
def running(make: Callable[[Path], _Cluster]) -> Iterator[_Cluster]:
    """A running cluster; its processes and files are gone afterwards.

    Skips the test without jars.
    """
    if not HADOOP.are_there:
        pytest.skip(WHY_NOT)
    directory = Path(tempfile.mkdtemp(prefix="weir-hadoop-"))
    try:
        cluster = make(directory)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
