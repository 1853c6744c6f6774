"""A standalone cluster of Spark on hosts that share nothing but an S3 server, itself on a host.

A master, two workers and two hosts for drivers, each under a user of its own with private files:
what is not in S3, the others do not see.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

import pyspark
from tests.cluster.hosts.network import Host, Network, network
from tests.cluster.s3.far_place import PIPELINE, FarPlace
from tests.cluster.s3.needed import S3A, SERVER
from tests.cluster.s3.server import S3Server, check_there
from tests.kit.place import Run
from tests.kit.server_process import ServerProcess

S3, MASTER, WORKERS, DRIVERS = "s3", "master", ("worker-1", "worker-2"), ("driver-1", "driver-2")
#: Seconds after which the master gives a worker up; the default is 60.
WORKER_TIMEOUT_S = 40
#: Seconds after which a driver gives an executor up, and a lease has expired.
NETWORK_TIMEOUT_S = 20
LEASE_TIMEOUT_S = 6

_MASTER_PORT, _PAGE_PORT = 7077, 8080
_PATIENCE_S = 120.0
_STOP_S = 20.0
_CORES_OF_WORKER = 2
_SETTINGS = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.network.timeout": f"{NETWORK_TIMEOUT_S}s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "3s",
    "weir.lease.timeout": f"{LEASE_TIMEOUT_S}s",
    "weir.lease.interval": "1s",
}


class Daemon(ServerProcess):
    """Spark's master, or one of its workers, on a host."""

    def __init__(self, host: Host, directory: Path) -> None:
        super().__init__(f"Spark on {host.name}", directory, patience_s=_PATIENCE_S, stop_s=_STOP_S)
        self._host = host

    def start(self, kind: str, *arguments: str, serves: int, environment: dict[str, str]) -> None:
        """Start it; wait until it listens at a port."""
        spark = Path(pyspark.__file__).parent
        given = {
            **_own_files(self._host),
            **environment,
            "SPARK_HOME": str(spark),
            "SPARK_DAEMON_MEMORY": "384m",
            "SPARK_DAEMON_JAVA_OPTS": f"-Dspark.worker.timeout={WORKER_TIMEOUT_S}",
        }
        command = self._host(
            "env",
            *(f"{name}={value}" for name, value in given.items()),
            *("bash", spark / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}"),
            *("--host", self._host.address, "--webui-port", str(_PAGE_PORT), *arguments),
        )
        self.launch(command, lambda: self._host.answers(self._host.address, serves))


class Standalone:
    """The cluster, its S3 server, and the commands that run on the hosts of drivers."""

    def __init__(self, net: Network, s3: S3Server, master: Daemon) -> None:
        self.net = net
        self.s3 = s3
        self.master = master

    def logged(self, pattern: str) -> int:
        """How often the master has logged a line like this."""
        return len(re.findall(pattern, self.master.log))

    def start(
        self,
        far: FarPlace,
        driver: str,
        *arguments: str,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> Run:
        """Start ``weir run`` on the host of a driver, with more of an environment."""
        host = self.net.hosts[driver]
        pipelines = host.own / "pipelines"
        shutil.copytree(PIPELINE.parent, pipelines, dirs_exist_ok=True)
        for path in (pipelines, *pipelines.rglob("*")):
            path.chmod(0o755)
        settings = {
            **_SETTINGS,
            "spark.driver.host": host.address,
            "spark.driver.bindAddress": host.address,
            "execution.checkpointing.interval": "1s",
            "parallelism.default": "2",
            "weir.progress-interval": "0",
        }
        command = host(
            *("env", *(f"{name}={value}" for name, value in _own_files(host).items())),
            *(
                sys.executable,
                "-m",
                "weir",
                "run",
                f"/tmp/pipelines/{PIPELINE.name}",
                "--rest-port",
                "0",
            ),
            *("--master", f"spark://{self.net.hosts[MASTER].address}:{_MASTER_PORT}"),
            *(word for pair in settings.items() for word in ("--conf", "=".join(pair))),
            *far.settings(),
            *arguments,
        )
        return far.place.launch(command, {**far.environment, **environment})


def _own_files(host: Host) -> dict[str, str]:
    """Variables by which a command's own files are where its user may write."""
    return {
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "XDG_STATE_HOME": "/tmp/state",
        "XDG_CACHE_HOME": "/tmp/cache",
        "SPARK_LOCAL_IP": host.address,
    }


@contextmanager
def running_standalone(directory: Path) -> Iterator[Standalone]:
    """A running cluster, with logs below the directory. Skips the test without rights or jars."""
    check_there()
    names = (S3, MASTER, *WORKERS, *DRIVERS)
    with network(names, (S3A.directory, SERVER.parent)) as net, ExitStack() as stack:
        hosts = net.hosts
        s3 = S3Server(_logs(directory, S3), on=hosts[S3])
        stack.callback(s3.stop)
        s3.start()
        master = _daemon(stack, hosts[MASTER], directory)
        arguments = ("--port", str(_MASTER_PORT))
        master.start("master.Master", *arguments, serves=_MASTER_PORT, environment={})
        for name in WORKERS:
            worker = _daemon(stack, hosts[name], directory)
            worker.start(
                "worker.Worker",
                *("--cores", str(_CORES_OF_WORKER), "--memory", "2g", "--work-dir", "/tmp/work"),
                f"spark://{hosts[MASTER].address}:{_MASTER_PORT}",
                serves=_PAGE_PORT,
                environment=s3.environment,
            )
        yield Standalone(net, s3, master)


def _daemon(stack: ExitStack, host: Host, directory: Path) -> Daemon:
    daemon = Daemon(host, _logs(directory, host.name))
    stack.callback(daemon.stop)
    return daemon


def _logs(directory: Path, name: str) -> Path:
    made = directory / name
    made.mkdir()
    return made
