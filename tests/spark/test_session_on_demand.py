"""The session that PySpark gets when it first needs one (weir/spark/session/on_demand.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from weir.errors import ConfigurationError, UnsupportedEnvironmentError
from weir.spark.session.on_demand import SessionOnDemand


class FakeLazy:
    """A session that is made by setting the context, as PySpark sets it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.made = 0
        self.closed = False
        self.conf = {"spark.b": "command"}
        self._error = error
        self.sparkContext = self
        self.master = "local[2]"
        self._jvm = self

    def get(self) -> Any:
        """Make it once."""
        if self._error is not None:
            raise self._error
        if not self.made:
            # PySpark itself sees that there is none.
            assert SparkContext._active_spark_context is None
            SparkContext._active_spark_context = self  # type: ignore[assignment]
            self.made += 1
        return self

    def close(self) -> None:
        """Forget it."""
        self.closed = True
        SparkContext._active_spark_context = None

    def _parse_ddl(self, text: str) -> str:
        return f"parsed {text}"


@pytest.fixture
def _no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark has no context; what the process has is there again afterwards."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)


def line(frame: FrameType) -> str:
    """The file that asks."""
    found: FrameType | None = frame
    while found is not None and found.f_code.co_filename != __file__:
        found = found.f_back
    assert found is not None
    return f"line {found.f_lineno}"


@pytest.mark.usefixtures("_no_context")
def test_pyspark_gets_the_session_that_it_asks_for_once() -> None:
    """Whoever asks next finds it; it is closed at the end."""
    lazy, asked = FakeLazy(), []

    def say(frame: FrameType) -> str:
        asked.append(line(frame))
        return asked[-1]

    with SessionOnDemand(lambda: lazy, say) as on_demand:  # type: ignore[arg-type, return-value]
        assert SparkContext._active_spark_context is None
        assert SparkSession.getActiveSession() is None
        assert (lazy.made, on_demand.place) == (0, None)
        assert StructType.fromDDL("id long") == "parsed id long"
        assert StructType.fromDDL("id long") == "parsed id long"
        assert (lazy.made, asked) == (1, [on_demand.place])
        assert not lazy.closed
    assert lazy.closed
    assert SparkContext._active_spark_context is None


@pytest.mark.usefixtures("_no_context")
def test_nothing_is_made_if_nothing_asks() -> None:
    """And PySpark is as it was."""
    with SessionOnDemand(FakeLazy, line):  # type: ignore[arg-type]
        pass
    assert vars(SparkContext)["_active_spark_context"] is None
    with pytest.raises(PySparkRuntimeError, match="SparkContext or SparkSession should be created"):
        StructType.fromDDL("id long")


@pytest.mark.usefixtures("_no_context")
def test_a_session_that_cannot_be_made_says_why() -> None:
    """Where it was asked for."""
    error = UnsupportedEnvironmentError("no Java")
    on_demand = SessionOnDemand(lambda: FakeLazy(error), line)  # type: ignore[arg-type, return-value]
    with on_demand, pytest.raises(UnsupportedEnvironmentError, match="no Java"):
        F.col("id")


def test_a_context_that_there_is_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's, for instance."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", "there")
    with SessionOnDemand(FakeLazy, line):  # type: ignore[arg-type]
        assert SparkContext._active_spark_context == "there"
    assert SparkContext._active_spark_context == "there"


#: A file that makes a session by F.col, in a process of its own.
ON_DEMAND = """
import sys, tempfile
from weir.config import Configuration
from weir.spark.session.on_demand import SessionOnDemand
assert "pyspark.core.context" not in sys.modules
given = Configuration({
    "weir.working-dir": tempfile.mkdtemp(), "spark.driver.memory": "600m",
})
def lazy():
    from weir.spark.session.start import LazySession
    return LazySession("orders", "local[1]", given)
with SessionOnDemand(lazy, lambda frame: "orders.py, line 3") as session:
    from pyspark.sql import functions as F
    session.check({"spark.executor.memory": "9g"}, None)
    assert session.place is None
    today = F.current_timestamp()
    assert session.place == "orders.py, line 3"
    session.check({
        **given.spark_conf(), "spark.sql.shuffle.partitions": "7", "spark.sql.catalog.lake": "X",
        "spark.ui.enabled": "false", "spark.master": "local[1]",
    }, None)
    for conf, master in (
        ({"spark.executor.memory": "9g"}, None), ({}, "local[2]"),
        ({"spark.sql.warehouse.dir": "/w"}, None), ({"spark.hadoop.a": "b"}, None),
    ):
        try:
            session.check(conf, master)
        except Exception as error:
            print(type(error).__name__, error)
    from pyspark.sql import SparkSession
    assert SparkSession.builder.getOrCreate().conf.get("spark.sql.shuffle.partitions") == "7"
"""


def test_settings_that_come_too_late_are_refused_by_key(tmp_path: Path) -> None:
    """Those that the session can still take are applied."""
    done = subprocess.run(
        [sys.executable, "-c", ON_DEMAND], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    keys = ["executor.memory", "master", "sql.warehouse.dir", "hadoop.a"]
    assert [text.split()[1] for text in lines] == [f"spark.{key}" for key in keys]
    assert all(
        text.startswith(ConfigurationError.__name__)
        and "orders.py, line 3 has already started Spark" in text
        for text in lines
    )
