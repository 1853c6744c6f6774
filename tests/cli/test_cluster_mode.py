"""``--deploy-mode cluster``: what is sent to YARN, and what the application master does with it.

``spark-submit`` is a script here that keeps what it was given; ``tests/cluster`` has a real YARN.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

import weir
from weir.cli.cluster_driver import application_master
from weir.cli.cluster_driver.driver import run_submitted
from weir.cli.cluster_mode import submit
from weir.cli.cluster_mode.submit import Submitted
from weir.errors import ConfigurationError
from weir.launch.options import RunOptions
from weir.spark import yarn
from weir.spark.session.defaults_file import read_settings

#: Nothing is uploaded.
NAMED = {"spark.yarn.archive": "hdfs:///jars.zip", "spark.pyspark.python": "/opt/venv/bin/python"}
#: Nothing is lost with the application master.
LASTING = {
    "execution.checkpointing.dir": "hdfs:///weir/checkpoints",
    "execution.checkpointing.savepoint-dir": "/mnt/shared/savepoints",
    "weir.working-dir": "hdfs:///weir/work",
}


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a Spark whose ``spark-submit`` keeps its files does so; the home is a new one."""
    home, kept = tmp_path / "spark", tmp_path / "sent"
    (home / "bin").mkdir(parents=True)
    kept.mkdir()
    script = home / "bin" / "spark-submit"
    script.write_text(
        f'#!/bin/sh\necho "$@" > {kept}/arguments\ncp "$2" {kept}/spark.conf\n'
        f'cp "$(dirname "$2")"/job.zip {kept}\nexit 7\n'
    )
    script.chmod(0o755)
    (home / "yarn-site.xml").write_text("")
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return kept


def pipeline(directory: Path, files: Mapping[str, str]) -> Path:
    """Write files; return the first."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory / next(iter(files))


def test_the_modules_beside_the_file_that_it_needs_are_found(tmp_path: Path) -> None:
    """Packages as a whole, modules of modules, imports in functions; not what nobody imports."""
    file = pipeline(
        tmp_path,
        {
            "orders.py": "import rules\n\ndef f():\n    from shop.prices import price\n",
            "rules.py": "import json, more",
            "more.py": "import rules",
            "other.py": "",
            "shop/__init__.py": "",
            "shop/prices.py": "import money.coins",
            "shop/table.csv": "1",
            "shop/__pycache__/prices.pyc": "",
            "money/coins.py": "",
            "money/coins.csv": "1",
            "json.txt": "",
        },
    )
    found = [str(path.relative_to(tmp_path)) for path in submit.neighbours(file)]
    assert found == [
        *("money/coins.py", "more.py", "rules.py"),
        *("shop/__init__.py", "shop/prices.py", "shop/table.csv"),
    ]


def test_the_options_and_the_settings_of_a_command_are_sent(sent: Path, tmp_path: Path) -> None:
    """Spark's to spark-submit, all to the driver, but for those that name files of this machine; a
    secret is on no command line."""
    file = pipeline(tmp_path, {"orders.py": "import weir"})
    conf = {
        **NAMED,
        **LASTING,
        "rest.authentication.token": "a-token-that-is-secret",
        "spark.x": "a\\b",
    }
    files = {
        "spark.submit.pyFiles": str(tmp_path / "more.py"),
        "spark.jars": "/here/a.jar",
    }
    options = RunOptions(
        master="yarn", conf={**conf, **files}, name="mine", arguments=("--day", "1")
    )
    said: list[str] = []
    assert submit.submit(f"{file}:job", options, said.append) == 7
    assert said == []
    assert "secret" not in (sent / "arguments").read_text()
    settings = read_settings((sent / "spark.conf").read_text())
    assert settings["spark.master"] == "yarn"
    assert settings["spark.submit.deployMode"] == "cluster"
    assert settings["spark.app.name"] == "weir: mine"
    assert settings["spark.x"] == "a\\b"
    assert settings["spark.jars"] == "/here/a.jar"
    assert settings["spark.submit.pyFiles"] == files["spark.submit.pyFiles"]
    assert settings["spark.yarn.dist.archives"].endswith("/job.zip#job")
    with zipfile.ZipFile(sent / "job.zip") as archive:
        assert archive.namelist() == ["options.json", "orders.py"]
        submitted = msgspec.json.decode(archive.read("options.json"), type=Submitted)
    assert submitted.spec == "orders.py:job"
    assert submitted.options == RunOptions(conf=conf, name="mine", arguments=("--day", "1"))


@pytest.mark.parametrize("named", ["state/weir/token", "mine"])
def test_a_driver_that_others_reach_gets_a_token(sent: Path, tmp_path: Path, named: str) -> None:
    """From a file of this machine, the user's or Weir's own, which any command can be given."""
    file = pipeline(tmp_path, {"orders.py": "import weir"})
    token = tmp_path / named
    conf = {**NAMED, **LASTING}
    if named == "mine":
        conf["rest.authentication.token-file"] = str(token)
    said: list[str] = []
    submit.submit(str(file), RunOptions(master="yarn", conf=conf), said.append)
    [line] = said
    assert str(token) in line
    with zipfile.ZipFile(sent / "job.zip") as archive:
        submitted = msgspec.json.decode(archive.read("options.json"), type=Submitted)
    has = {key: value for key, value in submitted.options.conf.items() if key.startswith("rest.")}
    assert has == {"rest.authentication.token": token.read_text().strip()}
    assert token.stat().st_mode & 0o077 == 0


def test_the_token_of_those_who_only_read_is_sent_as_a_file(sent: Path, tmp_path: Path) -> None:
    """The driver would make one of its own, which nobody knows."""
    file = pipeline(tmp_path, {"orders.py": "import weir"})
    token = tmp_path / "mine" / "reading"
    token.parent.mkdir()
    conf = {
        **NAMED,
        **LASTING,
        "rest.authentication.token": "a" * 32,
        "weir.rest.reading-token-file": str(token),
        "spark.yarn.dist.files": "hdfs:///a.csv",
    }
    submit.submit(str(file), RunOptions(master="yarn", conf=conf), print)
    settings = read_settings((sent / "spark.conf").read_text())
    assert settings["spark.yarn.dist.files"] == f"hdfs:///a.csv,{token}"
    with zipfile.ZipFile(sent / "job.zip") as archive:
        submitted = msgspec.json.decode(archive.read("options.json"), type=Submitted)
    assert submitted.options.conf["weir.rest.reading-token-file"] == "reading"
    assert token.is_file()


def test_ctrl_c_ends_the_command_and_says_what_goes_on(
    sent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the exit code of shells, and without a traceback."""

    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(yarn, "spark_submit", interrupted)
    said: list[str] = []
    conf = {**NAMED, **LASTING, "rest.authentication.token": "a" * 32}
    options = RunOptions(master="yarn", conf=conf)
    file = pipeline(tmp_path, {"orders.py": "import weir"})
    assert submit.submit(str(file), options, said.append) == 130
    assert said == [
        "what YARN has accepted goes on: see 'weir list DIR', and 'weir stop' to end it"
    ]
    assert not list(sent.iterdir())


def test_cluster_mode_is_for_yarn(sent: Path, tmp_path: Path) -> None:
    """Where Weir starts no driver, nothing is sent."""
    file = pipeline(tmp_path, {"orders.py": "import weir"})
    with pytest.raises(ConfigurationError, match="is for --master yarn, but the master is local"):
        submit.submit(str(file), RunOptions(master="local[2]"), print)
    assert not list(sent.iterdir())


@pytest.mark.parametrize("key", LASTING)
def test_directories_in_the_application_master_are_refused_before_an_upload(
    sent: Path, tmp_path: Path, key: str
) -> None:
    """Unset, or relative; what the pipeline sets by itself is checked where it runs."""
    unset = {name: path for name, path in LASTING.items() if name != key}
    file = pipeline(tmp_path, {"orders.py": "import weir"})
    for conf, shown in ((unset, r"\.weir/"), ({**unset, key: "mine/here"}, "mine/here")):
        options = RunOptions(master="yarn", conf=conf)
        with pytest.raises(ConfigurationError, match=rf"^{key} is {shown}.* own directory, which"):
            submit.submit(str(file), options, print)
    assert not list(sent.iterdir())
    file = pipeline(tmp_path, {"orders.py": f"import weir\nCONF = {{{key!r}: 'hdfs:///x'}}"})
    assert submit.submit(str(file), RunOptions(master="yarn", conf=NAMED | unset), print) == 7


@pytest.mark.parametrize(
    "sink",
    [
        weir.sinks.Files("out/lost"),
        weir.sinks.KafkaTopic("orders", servers="kafka:9092", staging="out/lost", value="json"),
        weir.sinks.ForeachEpoch(print, staging="out/lost"),
    ],
    ids=lambda sink: type(sink).__name__,
)
def test_a_sink_in_the_application_masters_own_directory_is_refused_there(
    tmp_path: Path, sink: weir.sinks.Sink
) -> None:
    """Only the pipeline's code says where it is: committed or staged rows would be deleted."""
    job = weir.Job("orders", conf={**LASTING, "spark.submit.deployMode": "cluster"})
    rows = job.source("rows", lambda spark: spark.readStream.format("rate").load())
    rows.sink("kept", weir.sinks.DeltaTable(str(tmp_path)))
    rows.sink("lost", sink)
    with pytest.raises(ConfigurationError, match=r" of sink 'lost' is /.*/out/lost, below the app"):
        job.run(master="yarn")


def test_a_script_has_its_checkpoints_where_it_says(sent: Path, tmp_path: Path) -> None:
    """Only the working directory is not beside them."""
    file = pipeline(tmp_path, {"script.py": "import pyspark"})
    conf = {**NAMED, "weir.working-dir": "hdfs:///weir/work"}
    assert submit.submit(str(file), RunOptions(master="yarn", conf=conf), print) == 7
    with pytest.raises(ConfigurationError, match=r"weir\.working-dir is \.weir/work"):
        submit.submit(str(file), RunOptions(master="yarn", conf=NAMED), print)


def test_another_weir_on_the_nodes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By both versions: a packed environment may be an old one."""
    submitted = Submitted(version="0.0.1", spec="orders.py", options=RunOptions())
    pipeline(tmp_path, {"job/options.json": msgspec.json.encode(submitted).decode()})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NM_HOST", "node7")
    assert run_submitted() == 1
    said = capsys.readouterr().err
    assert f"have Weir {weir.__version__}, but Weir 0.0.1 sent the job" in said


def test_a_python_without_weir_says_what_it_lacks() -> None:
    """The file runs alone, in a Python that was not given the packages."""
    found = subprocess.run(
        [sys.executable, "-I", "-S", application_master.__file__],
        env={**os.environ, "NM_HOST": "node7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert "of node node7 cannot import weir (No module named 'weir')" in found.stderr
    assert "Traceback" not in found.stderr
