"""Which code needs Spark's Kafka connector, and which release is taken (without a JVM)."""

from __future__ import annotations

import re
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import weir
from weir.errors import UnsupportedEnvironmentError
from weir.spark.adopt.session import fitting
from weir.spark.kafka import connector
from weir.spark.kafka.code import CONNECTOR, artifacts_in, artifacts_of, is_uncommitted

FORMAT = "kafka"
SPARK = pytest.importorskip("pyspark").__version__


def _reader(spark: Any) -> Any:
    return spark.readStream.format("kafka")


def by_hand(spark: Any) -> Any:
    return spark.readStream.format("kafka").option("subscribe", "orders").load()


def committed(spark: Any) -> Any:
    return by_hand(spark).option("kafka.isolation.level", "read_committed").format("kafka")


def by_a_constant(spark: Any) -> Any:
    return spark.readStream.format(FORMAT).load()


def by_another(spark: Any) -> Any:
    return _reader(spark).load()


def nested(spark: Any) -> Any:
    def reader() -> Any:
        return spark.readStream.format("kafka")

    return reader().load()


def labelled(frame: Any) -> Any:
    return frame.withColumn("from", "kafka")


class Reader:
    """A source function that is an object."""

    def __call__(self, spark: Any) -> Any:
        return by_hand(spark)


def files(spark: Any) -> Any:
    return spark.readStream.format("parquet").load("kafka-archive")


@pytest.mark.parametrize(
    ("function", "artifacts", "uncommitted"),
    [
        (by_hand, (CONNECTOR,), True),
        (by_a_constant, (CONNECTOR,), True),
        (by_another, (CONNECTOR,), True),
        (nested, (CONNECTOR,), True),
        (committed, (CONNECTOR,), False),
        (partial(by_another), (CONNECTOR,), True),
        (Reader(), (CONNECTOR,), True),
        (files, (), False),
        (labelled, (), False),
        (SimpleNamespace(), (), False),
        (None, (), False),
        (weir.sources.kafka("orders", servers="b:9092"), (CONNECTOR,), False),
        (
            weir.sources.kafka("orders", servers="b:9092", value="avro", schema="{}"),
            (CONNECTOR, "spark-avro"),
            False,
        ),
    ],
)
def test_the_code_of_a_function_says_what_it_needs(
    function: object, artifacts: tuple[str, ...], uncommitted: bool
) -> None:
    """Before it is called, since a running JVM takes no connector."""
    assert artifacts_of([function, files]) == artifacts
    assert is_uncommitted(function) is uncommitted


def test_the_code_of_a_script_says_what_it_needs(tmp_path: Path) -> None:
    """A file that is not Python is somebody else's to refuse."""
    script = tmp_path / "script.py"
    script.write_text('def read(spark):\n    return spark.readStream.format("kafka")\n')
    assert artifacts_in(script) == (CONNECTOR,)
    script.write_text("# kafka\nx = 'kafka topics'\n")
    assert artifacts_in(script) == ()
    script.write_text("def (")
    assert artifacts_in(script) == ()


@pytest.mark.parametrize(
    ("spark", "versions"),
    [
        ("4.3.0", ["4.3.0", "4.2.+"]),
        ("4.2.2", ["4.2.2", "4.2.1", "4.2.0", "4.1.+"]),
        ("5.0.0", ["5.0.0"]),
    ],
)
def test_the_same_release_is_asked_for_first(spark: str, versions: list[str]) -> None:
    """Then the newest lower one of the same major."""
    assert connector._versions(spark) == versions


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The versions that Ivy was asked for, which has 4.2.0 only: nothing is fetched."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked: list[str] = []

    def run(command: list[str]) -> str | None:
        module = Path(command[command.index("-ivy") + 1]).read_text()
        (version,) = re.findall(r"rev='(.+?)'", module)
        asked.append(version)
        if version != "4.2.+":
            return "unresolved dependency"
        directory = Path(command[-1]).parent
        directory.mkdir()
        for name in (f"{CONNECTOR}_2.13-4.2.0", "kafka-clients-3.9.2", "snappy-java-9.9.9.9"):
            (directory / f"{name}.jar").write_bytes(b"jar")
        return None

    monkeypatch.setattr(connector, "_run", run)
    return asked


def test_jars_are_fetched_once_and_without_those_of_pyspark(fetched: list[str]) -> None:
    """From then on a start needs no network; that it is a lower release is said each time."""
    said: list[str] = []
    for _ in range(2):
        found = connector.jars((CONNECTOR,), {}, said.append)
        assert [Path(path).name for path in found] == [
            "kafka-clients-3.9.2.jar",
            f"{CONNECTOR}_2.13-4.2.0.jar",
        ]
    assert fetched == [SPARK, "4.2.+"]
    assert [line.split()[0] for line in said] == ["fetching", "no", "no"]


@pytest.mark.parametrize(
    "conf",
    [
        {"spark.jars": f"/jars/{CONNECTOR}_2.13-4.2.0.jar"},
        {"spark.jars.packages": f"org.apache.spark:{CONNECTOR}_2.13:4.2.0"},
        {"spark.driver.extraClassPath": f"/jars/{CONNECTOR}_2.13-4.2.0.jar"},
    ],
)
def test_what_the_user_brings_is_left_alone(fetched: list[str], conf: dict[str, str]) -> None:
    """Whatever its release."""
    assert connector.jars((CONNECTOR,), conf, print) == ()
    assert fetched == []


def test_without_a_repository_the_options_to_give_are_named(
    fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jars of the user's may have the connector inside: then it is only said."""
    monkeypatch.setattr(connector, "_run", lambda command: "no route to host")
    with pytest.raises(UnsupportedEnvironmentError) as refused:
        connector.jars((CONNECTOR,), {}, print)
    for word in ("no route to host", f"--packages org.apache.spark:{CONNECTOR}_2.13:{SPARK}"):
        assert word in str(refused.value)
    said: list[str] = []
    assert connector.jars((CONNECTOR,), {"spark.jars": "/jars/all.jar"}, said.append) == ()
    assert "warning" in said[-1]


def test_a_fetch_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a network swallows packets."""

    def endless(*_: object, **options: Any) -> None:
        raise subprocess.TimeoutExpired("python", options["timeout"])

    monkeypatch.setattr(subprocess, "run", endless)
    assert connector._run(["java"]) == "no answer within 180 s"


def test_the_repositories_of_the_user_come_first(tmp_path: Path) -> None:
    """As for ``--packages``; a file with settings of Ivy holds alone."""
    given = {"spark.jars.repositories": "https://maven.example/a?b=1&c=2"}
    option, file = connector._repositories(given, tmp_path)
    text = Path(file).read_text()
    assert option == "-settings"
    assert text.index("https://maven.example/a?b=1&amp;c=2") < text.index("'central'")
    given["spark.jars.ivySettings"] = "/etc/ivysettings.xml"
    assert connector._repositories(given, tmp_path) == ["-settings", "/etc/ivysettings.xml"]
    assert connector._repositories({}, tmp_path) == []


def test_a_connector_of_a_lower_release_fits_a_script() -> None:
    """Of the same major; others of Spark's own artifacts are refused with the right one."""
    lower = f"org.apache.spark:{CONNECTOR}_2.13:4.0.0"
    assert fitting(lower) == lower
    assert fitting(f"org.apache.spark:{CONNECTOR}_2.12:3.5.1") == (
        f"org.apache.spark:{CONNECTOR}_2.13:{SPARK}"
    )
    assert fitting(f"org.apache.spark:{CONNECTOR}_2.13:9.0.0").endswith(f":{SPARK}")
