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
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import psutil
from tests.cluster.hadoop_cluster import HadoopCluster, running
from tests.cluster.jars import HADOOP
from tests.kit.waiting import wait_until

_MAIN = Path(__file__).with_name("SmallCluster.java")
_PATIENCE_S = 240.0
_NODES = 2
#: ``nobody``.
_USER = 65534
_PATH = "/usr/local/bin:/usr/bin:/bin"


class YarnCluster(HadoopCluster):
    """One cluster."""

    def __init__(self, directory: Path) -> None:
        super().__init__("YARN", directory, patience_s=_PATIENCE_S)
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
            *self._java_options("1g"),
            f"-Djava.io.tmpdir={self._directory}",
            *("-cp", f"{self._directory}/jars/*", str(self._program())),
            *(str(self._directory), str(self._port), str(_NODES)),
        ]
        self.launch(command, (self._directory / "ready").exists)

    def stop(self) -> None:
        """End it at once, with all that it runs: nothing of it is needed any more."""
        self.kill()
        for process in self.containers(""):
            kill(process)

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


def running_yarn() -> AbstractContextManager[YarnCluster]:
    """A running cluster, as of ``running``."""
    return running(YarnCluster)
