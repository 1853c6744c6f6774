"""One small Spark session, bound to loopback, for tests of several folders; made on demand.

There is one JVM for each pytest process, and some settings hold for its whole life. So the session
is made by Weir's own code, as ``weir run`` makes it, with a maintenance thread of the state store
that is quick enough for tests.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import hypothesis
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.kit.object_store import ObjectStore

# No test run leaves a process behind that makes a class archive.
os.environ["WEIR_NO_WARMUP"] = "1"

# What a shell runs in the background ignores Ctrl-C, and what nohup runs ignores SIGHUP: so would
# the programs that tests interrupt.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# Tests know no Hadoop of this machine.
for _variable in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
    os.environ.pop(_variable, None)

# Servers of tests are found by no command of their user, and by none of another test process.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="weir-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# How long an answer takes depends on what else the machine does: pytest's own limit is enough.
_patience = httpx._config.DEFAULT_TIMEOUT_CONFIG
_patience.connect = _patience.read = _patience.write = _patience.pool = None

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Weir's session on two local threads."""
    from weir.spark.session.class_archive import JvmProfile, java_options
    from weir.spark.session.start import create_session

    session = create_session(
        name="tests",
        master="local[2]",
        conf={
            "spark.sql.session.timeZone": "UTC",
            # Snapshots of the state are uploaded by this thread, and tests wait for them.
            "spark.sql.streaming.stateStore.maintenanceInterval": "500ms",
        },
        parallelism=2,
        fast_working_directory=True,
        log_file=None,
        # Thousands of queries fill the 48 MB that code has with the quick compiler, and then it
        # compiles the same methods again and again.
        java_options=f"{java_options(profile=JvmProfile.BRIEF)} -XX:ReservedCodeCacheSize=256m",
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def _object_store() -> Iterator[ObjectStore]:
    from tests.kit.object_store import running_object_store

    with running_object_store() as store:
        yield store


@pytest.fixture
def object_store(
    _object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ObjectStore]:
    """An object store without faults, which this process finds by its environment."""
    for name, value in _object_store.environment.items():
        monkeypatch.setenv(name, value)
    yield _object_store
    _object_store.heal()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what the installed release of Spark lacks (``needs_spark``)."""
    for mark in item.iter_markers("needs_spark"):
        from weir.spark.releases import installed, installed_version, release_of

        needed, why = mark.args
        if installed() < (release_of(needed) or installed()):
            pytest.skip(f"Spark {installed_version()} lacks {why}, which Spark {needed} has")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that were left out so, by name."""
    left_out = [
        (report.longrepr[2].removeprefix("Skipped: "), report.nodeid)
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and " lacks " in report.longrepr[2]
    ]
    if left_out:
        terminalreporter.section("left out, since the release of Spark lacks something")
        for why, name in sorted(left_out):
            terminalreporter.line(f"{name}: {why}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what takes long first, so that all processes finish together.

    First the files whose tests use Spark in their own process, then those that kill processes, then
    the many short ones.
    """
    with_spark = {one.path for one in items if "spark" in getattr(one, "fixturenames", ())}
    with_kills = {one.path for one in items if one.get_closest_marker("kill")}
    items.sort(key=lambda one: (one.path not in with_spark, one.path not in with_kills))
