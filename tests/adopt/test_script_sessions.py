"""The settings of a script's session: what the command line, the script and Weir say of them."""

from __future__ import annotations

from typing import Any

import pytest

from weir.errors import PipelineError
from weir.spark.adopt.query import Place
from weir.spark.adopt.session import ScriptSession
from weir.spark.session.settings import REQUIRED

_HERE = Place("script.py", 3)
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"


class FakeLazySession:
    """A session that is never made."""

    def __init__(self) -> None:
        self.conf: dict[str, str] = {}

    def get(self) -> Any:
        return self


@pytest.fixture
def said() -> list[str]:
    """What the session says."""
    return []


@pytest.fixture
def session(said: list[str], monkeypatch: pytest.MonkeyPatch) -> ScriptSession:
    """A session of a script for which the command line sets a master and one setting."""
    monkeypatch.setattr(ScriptSession, "_made", lambda *_: FakeLazySession())
    return ScriptSession(
        name="script",
        master="local[2]",
        conf={"spark.sql.shuffle.partitions": "4"},
        say=said.append,
    )


def test_the_command_line_replaces_the_scripts_settings_and_says_so(
    session: ScriptSession, said: list[str]
) -> None:
    """A master and a setting of the script do not hold, with its line; equal ones are not said."""
    options = {
        "spark.app.name": "orders",
        "spark.master": "local[*]",
        "spark.sql.shuffle.partitions": 10,
        "spark.sql.adaptive.enabled": False,
    }
    kept = session.make(options, _HERE)
    assert kept == {"spark.app.name": "orders", "spark.sql.adaptive.enabled": "false"}
    assert session.app_name == "orders"
    assert len(said) == 2 and all(line.startswith("script.py, line 3: ") for line in said)
    assert "spark.master=local[*]" in said[0] and "spark.master=local[2]" in said[0]
    said.clear()
    session.make({"spark.master": "local[2]"}, _HERE)
    assert said == []


def test_a_secret_of_the_command_line_is_not_shown(said: list[str]) -> None:
    """Neither the value that holds nor the one that does not."""
    key = "spark.hadoop.fs.s3a.secret.key"
    session = ScriptSession(name="s", master=None, conf={key: "mine"}, say=said.append)
    assert not session.set_later(key, "theirs", _HERE)
    assert "mine" not in said[0] and "theirs" not in said[0]


def test_a_setting_that_exact_checkpoints_depend_on_is_refused_at_its_line(
    said: list[str],
) -> None:
    """Another state store, before any JVM starts."""
    session = ScriptSession(name="script", master=None, conf={}, say=said.append)
    with pytest.raises(PipelineError, match=rf"script\.py, line 3: {_PROVIDER}"):
        session.make({_PROVIDER: "HDFSBackedStateStoreProvider"}, _HERE)
    assert not session.was_made


def test_such_a_setting_keeps_its_value_when_it_is_set_later(
    session: ScriptSession, said: list[str]
) -> None:
    """It is said with the line, and not silently put back; others are set."""
    session.make({}, _HERE)
    assert not session.set_later(_PROVIDER, "HDFSBackedStateStoreProvider", _HERE)
    assert len(said) == 1 and said[0].startswith("script.py, line 3: ")
    assert session.set_later(_PROVIDER, REQUIRED[_PROVIDER], _HERE)
    assert session.set_later("spark.sql.ansi.enabled", False, _HERE)
    assert not session.set_later("spark.sql.shuffle.partitions", 7, _HERE)
    assert len(said) == 2


def test_packages_for_another_spark_are_refused_with_those_that_fit(
    session: ScriptSession,
) -> None:
    """With the line and the way to replace them."""
    options = {"spark.jars.packages": "a.b:c:1, org.apache.spark:spark-avro_2.12:3.3.0"}
    with pytest.raises(PipelineError, match=r"line 3: .*spark-avro_2\.12:3\.3\.0.*--packages") as e:
        session.make(options, _HERE)
    assert "org.apache.spark:spark-avro_2.13:4." in str(e.value)


def test_packages_of_the_command_line_replace_the_scripts(said: list[str]) -> None:
    """The script's are not looked at, which is said."""
    given = {"spark.jars.packages": "a.b:c:1"}
    session = ScriptSession(name="s", master=None, conf=given, say=said.append)
    session._made = lambda _: FakeLazySession()  # type: ignore[method-assign,assignment,return-value]
    session.make({"spark.jars.packages": "org.apache.spark:spark-avro_2.12:3.3.0"}, _HERE)
    assert len(said) == 1


def test_spark_connect_is_refused_at_its_line(session: ScriptSession) -> None:
    """``remote(...)``."""
    with pytest.raises(PipelineError, match=r"script\.py, line 3: Spark Connect"):
        session.make({"spark.remote": "sc://localhost"}, _HERE)
