"""A standalone master that has forgotten the application of a session."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from tests.kit.place import environment_of
from tests.kit.ports import free_ports
from tests.kit.server_process import ServerProcess

pytestmark = pytest.mark.spark

#: Says what becomes of a session on the master, which is started again for each line that it reads.
SESSION = """
import sys
from weir.config import Configuration
from weir.spark.session import cluster
from weir.spark.session.start import LazySession

cluster._LOOK_S = 0.2
if sys.argv[2] == "ghost":
    cluster.SparkCluster.executors = lambda self: ("one that is gone",)
lazy = LazySession("orders", sys.argv[1], Configuration({}), note=lambda line: print(line))
session = lazy.get()
watch = cluster.MasterWatch(session, print)
print("known" if not watch._is_forgotten() else "forgotten", flush=True)
sys.stdin.readline()
lazy.watch_master()
lazy._watch._thread.join()
print("stopped" if session.sparkContext._jsc.sc().isStopped() else "goes on", flush=True)
lazy.close()
"""


class Master(ServerProcess):
    """A master without workers."""

    def __init__(self, directory: Path) -> None:
        super().__init__("The master", directory, patience_s=60, stop_s=20)
        self.port, self._page = free_ports(2)
        self._starts = 0

    def start(self) -> None:
        """Start it, knowing nothing."""
        home = Path(pyspark.__file__).parent
        command = [
            "bash",
            str(home / "bin" / "spark-class"),
            "org.apache.spark.deploy.master.Master",
        ]
        ports = ("--port", str(self.port), "--webui-port", str(self._page))
        self._starts += 1
        self.launch(
            [*command, "--host", "127.0.0.1", *ports],
            lambda: self.log.count("New state: ALIVE") == self._starts,
        )


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Master]:
    """A master of the test's own."""
    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    made = Master(tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.mark.parametrize("executors", [pytest.param("none", marks=pytest.mark.slow), "ghost"])
def test_a_session_that_its_master_has_forgotten_is_stopped(
    master: Master, executors: str, tmp_path: Path
) -> None:
    """One that its master knows is not, although it has no executor. Nor does it help to have one:
    Spark may not know that it is gone.
    """
    where = f"spark://127.0.0.1:{master.port}"
    with subprocess.Popen(
        [sys.executable, "-c", SESSION, where, executors],
        env=environment_of({"SPARK_LOCAL_IP": "127.0.0.1"}),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == "known\n", session.communicate()
        master.kill()
        master.start()
        printed, errors = session.communicate("go on\n")
    assert f"The master {where} has removed this application" in printed, errors
    assert printed.endswith("stopped\n"), errors
