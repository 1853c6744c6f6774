"""The same pipeline with executors in separate processes.

One executor is lost; or master and worker are real.
"""

from __future__ import annotations

import socket
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest
from tests.kit.place import Place, files_rows

pytestmark = [pytest.mark.spark, pytest.mark.kill]

#: Spark's own processes bind to loopback, and Python functions run with this interpreter.
ENVIRONMENT = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


HELPERS = """
import weir.operators


class Pass(weir.operators.Operator):
    def process_batch(self, batch):
        return [batch]


def double(number):
    return 2 * number
"""

PIPELINE = """
import helpers
from pyspark.sql.functions import udf

import weir


def numbers(spark):
    return spark.readStream.schema("id long, ts timestamp").parquet("in")


job = weir.Job("helped")
stream = job.source("numbers", numbers, bounded=True)
stream = stream.transform(
    "doubled",
    lambda frame: frame.select((udf(helpers.double, "long")("id") / 2).cast("long").alias("id")),
)
stream.process("pass", helpers.Pass(), parallelism=2).sink("out", weir.sinks.Files("out"))
"""


@pytest.mark.slow
def test_a_lost_executor_changes_no_result(place: Place) -> None:
    """SIGKILL of one of two executors during the run: the job finishes and every sink is exact."""
    place.land(16)
    run = place.start("--master", "local-cluster[2,1,1024]", environment=ENVIRONMENT)
    run.wait_for(r"checkpoint 2 completed")
    executors = [
        process
        for process in run.processes()
        if "CoarseGrainedExecutorBackend" in _command(process)
    ]
    assert len(executors) == 2, run.story()
    executors[0].kill()
    assert "has finished" not in run.output
    assert run.wait() == 0, run.story()
    place.assert_exact()


@pytest.fixture
def master(place: Place) -> Iterator[str]:
    """The URL of a standalone master with one worker."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    loopback = ["--host", "127.0.0.1", "--webui-port", "0"]
    deploy = "org.apache.spark.deploy"
    running = place.launch(
        [spark_class, f"{deploy}.master.Master", *loopback, "--port", str(port)], ENVIRONMENT
    )
    running.wait_for(r"I have been elected leader")
    resources = ["--cores", "2", "--memory", "1g", "--work-dir", str(place.directory / "worker")]
    place.launch([spark_class, f"{deploy}.worker.Worker", *loopback, *resources, url], ENVIRONMENT)
    running.wait_for(r"Registering worker")
    yield url
    assert running.process.poll() is None, running.story()


@pytest.mark.slow
def test_a_job_runs_on_a_standalone_cluster(place: Place, master: str) -> None:
    """With only --master: every sink is exact."""
    place.land(6)
    run = place.start("--master", master, environment=ENVIRONMENT)
    assert run.wait() == 0, run.story()
    place.assert_exact()


@pytest.mark.slow
def test_a_helper_module_beside_the_pipeline_reaches_the_workers_of_a_cluster(
    place: Place, master: str
) -> None:
    """An operator's class and a function of a transform come from it."""
    place.land(2)
    place.write("helpers.py", HELPERS)
    pipeline = place.write("pipeline.py", PIPELINE)
    run = place.start("--master", master, pipeline=pipeline, environment=ENVIRONMENT)
    assert run.wait() == 0, run.story()
    assert files_rows(place.directory / "out") == Counter((row[0],) for row in place.rows())


@pytest.mark.slow
def test_the_demo_runs_on_a_standalone_cluster(place: Place, master: str) -> None:
    """``weir demo`` with only --master: it compares every table itself and finds each row once."""
    command = [sys.executable, "-m", "weir", "demo", "--kill", "0", "--master", master]
    demo = place.launch(command, ENVIRONMENT)
    assert demo.wait() == 0, demo.story()
    assert "Every row is in its table exactly once." in demo.output


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
