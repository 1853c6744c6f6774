"""The session of a process, in a separate process: what a job finds, and what it leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.kit.place import environment_of

pytestmark = pytest.mark.spark


def check_runs(script: str, directory: Path, **variables: str) -> None:
    """Run a script in a new process, with these environment variables."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment_of(variables),
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


IN_A_NOTEBOOK = """
from pyspark.sql import SparkSession
mine = (
    SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 7).getOrCreate()
)
from weir.config import Configuration
from weir.spark.session.start import LazySession
lazy = LazySession("orders", None, Configuration({}))
lazy.prepare()
found = lazy.get()
assert found.sparkContext is mine.sparkContext
assert found.conf.get("spark.sql.shuffle.partitions") == "7"
mine.conf.unset("spark.sql.shuffle.partitions")
assert LazySession("orders", None, Configuration({})).get().conf.get(
    "spark.sql.shuffle.partitions") == "2", "one for each core"
lazy.close()
assert mine.range(3).count() == 3
"""


def test_a_session_of_the_user_keeps_its_number_of_partitions(tmp_path: Path) -> None:
    """The job uses it and leaves it running. By default there is one partition for each core."""
    check_runs(IN_A_NOTEBOOK, tmp_path)


WITH_OTHER_SETTINGS = """
from pyspark.sql import SparkSession
STORE = "spark.sql.streaming.stateStore."
RETAINED = "spark.sql.streaming.minBatchesToRetain"
mine = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.app.name", "mine").config(RETAINED, 20)
    .config("spark.sql.streaming.offsetLog.formatVersion", "1").getOrCreate()
)
from weir.config import Configuration
from weir.errors import ConfigurationError
from weir.spark.session.settings import REQUIRED
from weir.spark.session.start import LazySession

def told(**conf):
    notes = []
    named = {key.replace("_", "."): value for key, value in conf.items()}
    LazySession("orders", None, Configuration(named), note=notes.append).get()
    return notes

[note] = told()
assert f"{STORE}providerClass=" in note and "offsetLog" not in note, note
assert all(mine.conf.get(key) == value for key, value in REQUIRED.items())
assert mine.conf.get(RETAINED) == "20"
assert mine.conf.get("spark.sql.streaming.pollingDelay") == "50ms"
assert mine.sparkContext.appName == "mine"
assert "FileSystemBased" not in mine.conf.get("spark.sql.streaming.checkpointFileManagerClass", "")
assert told() == []
[note] = told(spark_driver_memory="3g", spark_sql_ansi_enabled="false", spark_master="local[2]")
assert "keeps its own spark.driver.memory, since that cannot change while it runs" in note, note
assert mine.conf.get("spark.sql.ansi.enabled") == "false"
for key, value in ((RETAINED, "5"), (STORE + "checkpointFormatVersion", "1")):
    before = mine.conf.get(key)
    mine.conf.set(key, value)
    try:
        told()
    except ConfigurationError as error:
        assert str(error).startswith(f"The Spark session of this process has {key}={value}, but")
    else:
        raise AssertionError(f"{key} was not refused")
    mine.conf.set(key, before)
"""


def test_a_session_of_the_user_gets_what_it_lacks_and_is_refused_by_what_it_has(
    tmp_path: Path,
) -> None:
    """What the user has set stays, and what cannot change is said."""
    check_runs(WITH_OTHER_SETTINGS, tmp_path)


AFTER_A_READER = """
from weir.config import Configuration
from weir.spark.session.class_archive import JvmProfile, java_options
from weir.spark.session.start import LazySession, create_session, end_with_jvm

def options(session):
    beans = session._jvm.java.lang.management.ManagementFactory
    return list(beans.getRuntimeMXBean().getInputArguments())

reader = create_session(
    name="reader", master="local[1]", conf={}, parallelism=1, fast_working_directory=True,
    log_file=None, java_options=java_options(profile=JvmProfile.BRIEF),
)
process = reader.sparkContext._gateway.proc
assert "-XX:TieredStopAtLevel=1" in options(reader)
assert reader.range(3).count() == 3
end_with_jvm(reader)
process.wait(60)
lazy = LazySession("orders", "local[2]", Configuration({"spark.driver.memory": "700m"}))
lazy.prepare()
session = lazy.get()
assert "-XX:TieredStopAtLevel=1" not in options(session), options(session)
assert "-Xmx700m" in options(session), options(session)
assert any("-Dweir.log=" in one for one in options(session)), options(session)
assert session.range(5).selectExpr("sum(id)").collect()[0][0] == 10
from pyspark.sql import functions as F
assert session.range(2).select(F.udf(lambda n: n + 1, "long")("id")).collect()[1][0] == 2
lazy.close()
"""


@pytest.mark.slow
def test_a_job_after_a_reader_of_savepoints_gets_a_jvm_of_its_own(tmp_path: Path) -> None:
    """The reader's has no optimizing compiler, the default memory, and a log that is deleted."""
    # The options of the tests' own JVMs are those of a reader.
    check_runs(AFTER_A_READER, tmp_path, JDK_JAVA_OPTIONS="")


LEAVES_THE_ENVIRONMENT = """
import os, sys
NAMES = ("PYSPARK_PYTHON", "SPARK_LOCAL_IP")
before = [os.environ.get(name) for name in NAMES]
from weir.config import Configuration
from weir.spark.session.start import LazySession
lazy = LazySession("orders", "local[1]", Configuration({}))
session = lazy.get()
assert [os.environ.get(name) for name in NAMES] == before
python = before[0] or sys.executable
assert session.sparkContext.pythonExec == python
variables = session.sparkContext._jvm.System.getenv
assert [variables(name) for name in NAMES] == [python, before[1] or "127.0.0.1"]
lazy.close()
"""


@pytest.mark.parametrize("given", [{}, {"PYSPARK_PYTHON": "/opt/python3"}])
def test_what_a_session_needs_is_not_inherited_by_later_jobs(
    given: dict[str, str], tmp_path: Path
) -> None:
    """Which may run on another cluster: this address and interpreter are for this machine alone."""
    check_runs(LEAVES_THE_ENVIRONMENT, tmp_path, **given)
