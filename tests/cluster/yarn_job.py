"""``YarnJob``: one job on YARN whose files are all on HDFS, what is killed of it, and its rows."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.far_place import FarPlace
from tests.cluster.yarn import YarnCluster
from tests.kit.place import (
    ROWS_PER_FILE,
    Place,
    Rows,
    Run,
    assert_same,
    files_rows,
)
from tests.kit.waiting import wait_until

PIPELINE = Path(__file__).with_name("yarn_pipeline") / "pipeline.py"
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
PATIENCE_S = 240.0


class YarnJob:
    """The pipeline of ``yarn_pipeline``, run again and again in one directory of HDFS."""

    def __init__(self, cluster: YarnCluster, place: Place, python: Path) -> None:
        self.cluster = cluster
        self.place = place
        self.far = FarPlace(cluster, place)
        self._python = python
        self._landed = 0

    def land(self, files: int) -> None:
        """Add files of numbers."""
        self.far.land(files)
        self._landed += files

    def start(self, kind: str, *options: str, conf: dict[str, str] | None = None) -> Run:
        """``weir run`` with options; ``kind``: ``bounded`` or ``unbounded``."""
        settings = {**_SETTINGS, **(conf or {})}
        confs = [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
        return self.place.start(
            *("--master", "yarn", *options, *confs, *self.far.settings()),
            *("--", kind, f"{self.far.root}/in", f"{self.far.root}/out"),
            pipeline=PIPELINE,
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

    def finish(self, run: Run) -> str:
        """Wait for a successful end; return what its containers have printed."""
        code = run.wait(PATIENCE_S)
        found = re.search(r"application_\w+", run.output)
        log = self.cluster.log_of(found[0]) if found else ""
        assert code == 0, f"{run.story()}\n{log}"
        return log

    def assert_exact(self) -> None:
        """Compare each sink of a finished job with a computation over the input."""
        self.far.fetch("out")
        self.place.assert_exact()
        count = self._landed * ROWS_PER_FILE // 10
        expected = Rows((digit, rank + 1) for digit in range(10) for rank in range(count))
        assert_same(files_rows(self.place.directory / "out" / "ranks"), expected, "the ranks")
