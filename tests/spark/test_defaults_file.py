"""``spark-defaults.conf`` completes the settings, as it does for every application of Spark."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kit.place import environment_of

from weir.config import Configuration
from weir.errors import UnsupportedEnvironmentError
from weir.spark.session import start
from weir.spark.session.defaults_file import read_defaults_file
from weir.spark.session.environment import check_environment
from weir.spark.session.settings import REQUIRED
from weir.spark.session.start import LazySession, with_defaults_file


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the file."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path / "spark-defaults.conf"


def test_the_file_is_read_as_spark_reads_it(file: Path) -> None:
    """Java's properties: three separators, comments, continued lines, escapes; keys of Spark."""
    file.write_text(
        "# spark.a 1\n"
        "! spark.b=2\n\n"
        "spark.c   one two  \n"
        "spark.d=three\n"
        "  spark.e : four\n"
        "spark.f five, \\\n      six\n"
        "spark.g\\:h C:\\\\x\\ty\n"
        "spark.i\n"
        "# a comment is not continued \\\n"
        "spark.j \\u0041\x0bb\r\n"
        "spark.d = the last one\n"
        "hadoop.j 7\n"
    )
    assert read_defaults_file() == {
        "spark.c": "one two",
        "spark.d": "the last one",
        "spark.e": "four",
        "spark.f": "five, six",
        "spark.g:h": "C:\\x\ty",
        "spark.i": "",
        "spark.j": "A\x0bb",
    }


def test_without_a_file_there_are_no_settings(file: Path) -> None:
    """It is optional, and so is the directory."""
    assert read_defaults_file() == {}
    file.mkdir()
    assert read_defaults_file() == {}


def test_the_file_is_in_sparks_own_directory_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is SPARK_HOME/conf."""
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.a 1")
    assert read_defaults_file() == {"spark.a": "1"}


def test_of_the_file_only_what_weir_would_replace_is_passed(file: Path) -> None:
    """The rest is Spark's to read, below its other sources. A setting on which checkpoints depend
    stays as Weir needs it, and does not stop a job."""
    required = next(iter(REQUIRED))
    file.write_text(
        f"spark.executor.memory 2g\nspark.ui.enabled true\nspark.driver.memory 3g\n{required} x\n"
        "spark.sql.streaming.minBatchesToRetain 2\nspark.master yarn\n"
    )
    assert with_defaults_file({"spark.master": "local", "spark.b": "2"}) == {
        "spark.ui.enabled": "true",
        "spark.driver.memory": "3g",
        "spark.master": "local",
        "spark.b": "2",
    }


def test_the_master_in_the_file_is_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As spark-submit does, unless the job names a file."""
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    file.write_text("spark.master yarn")
    assert not LazySession("orders", None, Configuration({})).is_local
    assert LazySession("orders", "local[2]", Configuration({})).is_local
    assert LazySession("orders", None, Configuration({"spark.master": "local"})).is_local


def test_the_settings_of_spark_submit_take_the_files_place(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the file itself, and its JVM runs: that one's log is as it was configured."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    submitted = {"spark.master": "local[3]", "spark.driver.memory": "2g", "spark.mine": "1"}
    monkeypatch.setattr(start, "read_submitted", lambda: submitted)
    file.write_text("spark.master yarn")
    lazy = LazySession("orders", None, Configuration({"spark.driver.memory": "3g"}))
    assert lazy.conf == {"spark.master": "local[3]", "spark.driver.memory": "3g"}
    plan = lazy._plan()
    assert plan.settings["spark.master"] == "local[3]"
    assert "weir.log" not in plan.settings.get("spark.driver.extraJavaOptions", "")


def test_sparks_log_is_a_local_file_wherever_queries_work() -> None:
    """Otherwise the first JVM, which a look at the checkpoint directory starts, would log to the
    console."""
    there = "hdfs://namenode:8020/weir/work"
    lazy = LazySession("orders", "spark://there:7077", Configuration({"weir.working-dir": there}))
    options = lazy._plan().settings["spark.driver.extraJavaOptions"]
    [log] = re.findall(r'"-Dweir\.log=(.*?)"', options)
    assert Path(log).parent.is_dir() and there not in log
    Path(log).parent.rmdir()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPARK_REMOTE", "sc://localhost"),
        ("SPARK_CONNECT_MODE_ENABLED", "1"),
        ("SPARK_LOCAL_REMOTE", "1"),
        ("SPARK_API_MODE", "Connect"),
    ],
)
def test_spark_connect_is_refused_by_name(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sessions are in another process, which has no planning calls."""
    monkeypatch.setenv(name, value)
    with pytest.raises(UnsupportedEnvironmentError, match=f"^{name} is set, .*: unset {name}, "):
        check_environment()


SCRIPT = """
import sys
from weir.config import Configuration
from weir.spark.session.start import LazySession
lazy = LazySession("defaults", None, Configuration({}))
lazy.prepare()
session = lazy.get()
assert not [one for one in sys.meta_path if type(one).__name__ == "_OnMlImport"], (
    "the session was made without the user's extension"
)
beans = session._jvm.java.lang.management.ManagementFactory
options = list(beans.getRuntimeMXBean().getInputArguments())
assert "-Dmine=1" in options and "-XX:+UseG1GC" in options, options
assert "-XX:+UseParallelGC" not in options, options
print(session.sparkContext.master, session.conf.get("spark.sql.shuffle.partitions"))
"""


@pytest.mark.spark
def test_the_options_of_java_and_extensions_of_other_places_are_kept(file: Path) -> None:
    """Java would not start with two collectors, and an option given twice would be lost."""
    file.write_text(
        "spark.master local[3]\n"
        "spark.sql.shuffle.partitions 5\n"
        "spark.driver.defaultJavaOptions -XX:+UseG1GC\n"
        "spark.driver.extraJavaOptions -Dmine=1\n"
    )
    extension = "org.apache.spark.sql.execution.datasources.v2.state.NoExtension"
    given = {
        "SPARK_CONF_DIR": str(file.parent),
        "PYSPARK_SUBMIT_ARGS": f"--conf spark.sql.extensions={extension} pyspark-shell",
        # The options of the tests' own JVMs name a collector.
        "JDK_JAVA_OPTIONS": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment_of(given),
        cwd=file.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["local[3]", "5"]


SUBMITTED = """
from weir.config import Configuration
from weir.spark.session.start import LazySession, log_of
lazy = LazySession("orders", None, Configuration({"spark.sql.shuffle.partitions": "5"}))
assert lazy.is_local and lazy.conf["spark.master"] == "local[3]"
lazy.prepare()
session = lazy.get()
conf = session.sparkContext.getConf()
assert session.sparkContext.master == "local[3]", session.sparkContext.master
assert session.conf.get("spark.sql.shuffle.partitions") == "5", "the job's own"
assert conf.get("spark.mine") == "1", "what only spark-submit was given"
assert conf.get("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled") == "true"
assert log_of(session) is None
assert session.range(3).count() == 3
lazy.close()
print("ran on", "local[3]")
"""


@pytest.mark.spark
def test_a_script_below_spark_submit_runs_on_the_master_of_its_command(tmp_path: Path) -> None:
    """In the JVM that is there: an application master that waits for it would give up."""
    script = tmp_path / "script.py"
    script.write_text(SUBMITTED)
    options = "--master local[3] --conf spark.mine=1 --conf spark.sql.shuffle.partitions=7"
    done = subprocess.run(
        [Path(sys.executable).with_name("spark-submit"), *options.split(), str(script)],
        env=environment_of({"PYSPARK_PYTHON": sys.executable}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ran on local[3]"
