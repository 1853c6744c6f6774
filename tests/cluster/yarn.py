"""A YARN of the tests' own: a resource manager, two node managers, and HDFS, in one process.

``SmallCluster.java`` is its program. All listens on loopback. To share nothing with who starts
jobs:

1. Its nodes' Python is Debian's, which has no package of the project.
2. As root, it is another user's process, and so is whatever it runs: neither the project's
   directories of tests nor the user's home are open to it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from tests.cluster.jars import HADOOP, WHY_NOT
from tests.kit.ports import free_ports
from tests.kit.server_process import ServerProcess
from tests.kit.waiting import wait_until

_MAIN = Path(__file__).with_name("SmallCluster.java")
_PATIENCE_S = 240.0
_STOP_S = 30.0
_NODES = 2
_JAVA = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_LOG = """log4j.rootLogger=WARN, A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%d %p %c{1}: %m%n
"""
#: ``nobody``.
_USER = 65534
_PATH = "/usr/local/bin:/usr/bin:/bin"


class YarnCluster(ServerProcess):
    """One cluster, with its data in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__("YARN", directory, patience_s=_PATIENCE_S, stop_s=_STOP_S)
        [self._port] = free_ports(1)
        #: The directory that ``HADOOP_CONF_DIR`` names.
        self.configuration = directory / "conf"
        (directory / "log4j.properties").write_text(_LOG)
        jars = directory / "jars"
        shutil.copytree(HADOOP.directory, jars)
        os.mkfifo(directory / "commands")
        self._commands = 0
        #: The numbers of the running nodes.
        self.nodes = list(range(_NODES))
        self._made = _NODES
        self._as_user: tuple[str, ...] = ()
        if os.geteuid() == 0:
            directory.chmod(0o755)
            for path in (directory, *directory.rglob("*")):
                os.chown(path, _USER, _USER)
            self._as_user = ("setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups")

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
        java = shutil.which("java")
        assert java is not None
        home = os.environ.get("JAVA_HOME") or str(Path(java).resolve().parents[1])
        variables = {
            "PATH": _PATH,
            "HOME": str(self._directory),
            "JAVA_HOME": home,
            "LANG": "C.UTF-8",
        }
        command = [
            *self._node_command(variables),
            f"{home}/bin/java",
            *_JAVA,
            f"-Dlog4j.configuration={(self._directory / 'log4j.properties').as_uri()}",
            f"-Dhadoop.log.dir={self._directory}",
            f"-Dtest.build.data={self._directory / 'data'}",
            f"-Djava.io.tmpdir={self._directory}",
            *("-cp", f"{self._directory}/jars/*", str(self._program())),
            *(str(self._directory), str(self._port), str(_NODES)),
        ]
        self.launch(command, (self._directory / "ready").exists)

    def run_as_node(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command as nodes run theirs, with their PATH."""
        return subprocess.run(
            [*self._node_command({"PATH": _PATH}), *command],
            cwd=self._directory,
            capture_output=True,
            text=True,
            check=False,
        )

    def _node_command(self, variables: dict[str, str]) -> tuple[str, ...]:
        """What comes before a command of a node's: its user, and its environment."""
        pairs = (f"{name}={value}" for name, value in variables.items())
        return (*self._as_user, "env", "-i", *pairs)

    def _program(self) -> Path:
        """A copy that the other user may read."""
        return Path(shutil.copy(_MAIN, self._directory))

    def command(self, *words: str | int) -> None:
        """Have the cluster obey one of its commands; wait until it has."""
        self._commands += 1
        answer = self._directory / f"answer-{self._commands}"
        with (self._directory / "commands").open("w") as pipe:
            print(self._commands, *words, file=pipe)
        wait_until(answer.exists, f"{words} is obeyed", within_s=_PATIENCE_S)
        # It is written in two steps.
        wait_until(lambda: answer.read_text() != "", f"{words} is answered")
        assert answer.read_text() == "done", f"{words}: {answer.read_text()}"

    def containers(self, program: str) -> list[psutil.Process]:
        """The processes of containers in whose command line this occurs."""
        return [
            process
            for process in psutil.process_iter(["cmdline", "cwd", "name"])
            if (process.info["cwd"] or "").startswith(f"{self._directory}/node-")
            and any(program in word for word in process.info["cmdline"] or ())
        ]

    def lose_node(self, number: int) -> None:
        """Kill what a node runs, and stop it."""
        for process in self.containers(""):
            if process.info["cwd"].startswith(f"{self._directory}/node-{number}/"):
                kill(process)
        self.command("stop-node", number)
        self.nodes.remove(number)

    def add_node(self) -> None:
        """Start a new node."""
        self.command("start-node")
        self.nodes.append(self._made)
        self._made += 1

    def log_of(self, application: str) -> str:
        """What the containers of an application have printed, in the order of their names."""
        files = sorted(
            self._directory.glob(f"node-*/log/{application}/*/std*"),
            key=lambda file: file.parts[-2:],
        )
        return "".join(f"--- {file}\n{file.read_text(errors='replace')}" for file in files)


def kill(process: psutil.Process) -> None:
    """Kill a process, which may have ended."""
    with suppress(psutil.NoSuchProcess):
        process.kill()


@contextmanager
def running_yarn() -> Iterator[YarnCluster]:
    """A running cluster; its processes and files are gone afterwards.

    Skips the test without jars.
    """
    if not HADOOP.are_there:
        pytest.skip(WHY_NOT)
    directory = Path(tempfile.mkdtemp(prefix="weir-yarn-"))
    try:
        cluster = YarnCluster(directory)
        try:
            cluster.start()
            yield cluster
        finally:
            # Nothing of it is needed any more.
            cluster.kill()
            for process in cluster.containers(""):
                kill(process)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
