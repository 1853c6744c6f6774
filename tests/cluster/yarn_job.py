"""``YarnJob``: one job on YARN whose files are all on HDFS, what is killed of it, and its rows."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pyarrow.parquet as pq
from tests.cluster.far_place import ON_HADOOP, FarPlace
from tests.cluster.servers import Servers
from tests.cluster.yarn import YarnCluster, kill
from tests.kit.place import ROWS_PER_FILE, Place, Run, assert_same, files_rows
from tests.kit.waiting import wait_until

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
_SETTINGS = {
    "spark.driver.memory": "640m",
    "spark.driver.memoryOverhead": "640m",
    "spark.driver.defaultJavaOptions": _QUICK,
    "spark.executor.instances": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "512m",
    "spark.executor.defaultJavaOptions": _QUICK,
    "spark.yarn.am.memory": "256m",
    "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.yarn.submit.waitAppCompletion": "true",
}
PATIENCE_S = 480.0
_TOKEN = re.compile(r"wants the token in (\S+);")
#: What the JVMs of containers run.
MASTER = "org.apache.spark.deploy.yarn.ApplicationMaster"
EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"


class YarnJob:
    """The pipeline ``on_hadoop.py``, run again and again in one directory of HDFS."""

    def __init__(
        self, cluster: YarnCluster, place: Place, python: Path, servers: Servers | None = None
    ) -> None:
        """With ``servers``, it has all sinks."""
        self.cluster = cluster
        self._servers = servers
        self.place = place
        self.far = FarPlace(cluster, place)
        self._python = python
        #: Files of numbers.
        self.landed = 0
        self._rows: dict[str, int] = {}

    def land(self, files: int) -> None:
        """Add files of numbers."""
        self.far.land(files)
        self.landed += files

    def start(self, kind: str, *options: str, conf: dict[str, str] | None = None) -> Run:
        """``weir run`` with options; ``kind``: ``bounded`` or ``unbounded``."""
        servers = self._servers
        settings = {**_SETTINGS, **(servers.settings() if servers else {}), **(conf or {})}
        confs = [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
        return self.place.start(
            *("--master", "yarn", *options, *confs, *self.far.settings()),
            *self.far.arguments(kind),
            *(servers.arguments() if servers else ()),
            pipeline=ON_HADOOP,
            python=self._python,
            environment={"SPARK_LOCAL_IP": "127.0.0.1"},
        )

    def application(self, run: Run) -> str:
        """The id of the application that the run has submitted in cluster mode."""
        return run.wait_for(r"Application ID is assigned: (application_\w+)")[1]

    def wait_for(self, run: Run, pattern: str, times: int = 1) -> None:
        """Wait until the application's containers have printed what matches."""
        application = self.application(run)

        def is_there() -> bool:
            log = self.cluster.log_of(application)
            assert run.process.poll() is None, f"it ended without {pattern!r}: {run.story()}\n{log}"
            return len(re.findall(pattern, log, re.MULTILINE)) >= times

        wait_until(is_there, f"{application} prints {pattern!r}", within_s=PATIENCE_S)

    def kill_executor(self) -> None:
        """Kill one of the executors' JVMs."""
        found = [one for one in self.cluster.containers(EXECUTOR) if one.info["name"] == "java"]
        assert found, "no executor runs"
        kill(found[0])

    def kill_master(self) -> None:
        """Kill the JVM of the application master, in which a driver's process is not."""
        [master] = [one for one in self.cluster.containers(MASTER) if one.info["name"] == "java"]
        kill(master)

    def kill_driver(self) -> None:
        """Kill the Python process of a driver in the application master."""
        [driver] = [
            one
            for one in self.cluster.containers("application_master.py")
            if one.info["name"].startswith("python")
        ]
        kill(driver)

    def address(self) -> str:
        """Where the driver answers, as the lease says."""
        listed = self.place.weir("list", f"{self.far.root}/checkpoints")
        found = re.search(r"numbers .*RUNNING.* (http://\S+)", listed.stdout)
        assert found, f"{listed.stdout}{listed.stderr}"
        return found[1]

    def ask(self, run: Run, *words: str) -> str:
        """One of the commands for a running job, with its token; what it printed."""
        token = _TOKEN.search(run.output)
        given = ("--token-file", token[1]) if token else ()
        done = self.place.weir(*words, "--address", self.address(), *given)
        assert done.returncode == 0, f"{done.stderr}\n{run.story()}"
        return done.stdout

    def threads(self, run: Run) -> str:
        """What each Python thread of a driver in cluster mode is doing, or why it does not say."""
        try:
            token = _TOKEN.search(run.output)
            assert token, "there is no token"
            answer = httpx.get(
                f"{self.address()}/jobmanager/thread-dump",
                headers={"Authorization": f"Bearer {Path(token[1]).read_text().strip()}"},
            )
            threads = answer.raise_for_status().json()["threadInfos"]
        except (AssertionError, httpx.HTTPError) as error:
            return str(error)
        return "\n".join(thread["stringifiedThreadInfo"] for thread in threads)

    def rows_read(self) -> int:
        """How many rows the files of one sink have, which grow by each checkpoint."""
        place = f"{self.far.full}/out/raw_files"
        for entry in self.far.fs.list(place):
            if (
                not entry.is_directory
                and entry.name[0] not in "._"
                and entry.name not in self._rows
            ):
                content = io.BytesIO(self.far.fs.read(f"{place}/{entry.name}"))
                self._rows[entry.name] = pq.ParquetFile(content).metadata.num_rows
        return sum(self._rows.values())

    def wait_for_rows(self, look: Callable[[], None]) -> None:
        """Wait until all numbers that have landed are read; ``look`` is called meanwhile."""
        rows = self.landed * ROWS_PER_FILE

        def is_read() -> bool:
            look()
            return self.rows_read() >= rows

        wait_until(is_read, f"{rows} rows are read", within_s=PATIENCE_S)

    def drain(self, run: Run) -> str:
        """Stop an unbounded job that has read all, with every window fired."""

        def runs() -> None:
            assert run.process.poll() is None, run.story()

        self.wait_for_rows(runs)
        self.ask(run, "stop", "numbers", "--drain")
        return self.finish(run)

    def log(self, run: Run) -> str:
        """What the containers of the run's application have printed, if there is one."""
        found = re.search(r"application_\w+", run.output)
        return self.cluster.log_of(found[0]) if found else ""

    def finish(self, run: Run) -> str:
        """Wait for a successful end; return what its containers have printed."""
        code = run.wait(PATIENCE_S)
        log = self.log(run)
        assert code == 0, f"{run.story()}\n{log}"
        return log

    def assert_exact(self) -> int:
        """Compare each sink of a finished job with a computation over the input.

        Return the rows compared.
        """
        self.far.fetch("out")
        self.place.assert_exact()
        ranks, minutes = self.place.ranks(), self.place.minutes()
        out = self.place.directory / "out"
        assert_same(files_rows(out / "ranks"), ranks, "the ranks")
        on_servers = self._servers.assert_exact(self.place, out) if self._servers else 0
        return 3 * ranks.total() + minutes.total() + on_servers
