"""What nodes of YARN get: which files, under which names, and when nothing is sent at all."""

from __future__ import annotations

import io
import os
import site
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from weir.errors import ConfigurationError
from weir.spark import yarn


def test_the_packages_run_under_a_python_that_has_none(tmp_path: Path) -> None:
    """The archive's ``bin/python`` is the node's Python, of the version that packed it."""
    files = {"orders/__init__.py": tmp_path / "a.py"}
    (tmp_path / "a.py").write_text("TOTAL = 7")
    packed = io.BytesIO()
    yarn._write_packages(packed, files)
    packed.seek(0)
    with tarfile.open(fileobj=packed) as archive:
        archive.extractall(tmp_path / "environment", filter="data")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    (nodes / version).symlink_to(sys.executable)
    command = [
        "/bin/sh",
        str(tmp_path / "environment/bin/python"),
        "-c",
        "import orders as o; print(o)",
    ]
    found = subprocess.run(
        command, env={"PATH": f"{nodes}:/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert "environment/site-packages/orders" in found.stdout, found.stderr
    lacking = subprocess.run(
        command, env={"PATH": str(_tools(tmp_path))}, capture_output=True, text=True, check=False
    )
    assert lacking.returncode == 1
    assert f"has no {version} on its PATH" in lacking.stderr


def _tools(directory: Path) -> Path:
    """A PATH with what the script needs beside Python."""
    place = directory / "tools"
    place.mkdir()
    for name in ("dirname", "hostname"):
        (place / name).write_text("#!/bin/sh\necho .\n")
        (place / name).chmod(0o755)
    return place


def test_the_stamp_of_packages_follows_their_sources(tmp_path: Path) -> None:
    """Byte code, which Python writes when it likes, does not count."""
    source, compiled = tmp_path / "a.py", tmp_path / "__pycache__" / "a.pyc"
    compiled.parent.mkdir()
    source.write_text("1")
    compiled.write_text("1")
    files = {"a.py": source, "__pycache__/a.pyc": compiled}
    before = yarn._stamp_of(files)
    compiled.write_text("2 and more")
    assert yarn._stamp_of(files) == before
    os.utime(source, (1, 1))
    assert yarn._stamp_of(files) != before


def test_weir_itself_is_among_the_packages_and_spark_is_not() -> None:
    """Wherever it is installed; PySpark comes with Spark."""
    files = dict(yarn._packages(lambda line: None))
    assert "weir/cli/cluster_driver/application_master.py" in files
    assert not [name for name in files if name.startswith(("pyspark/", "py4j/"))]


def test_links_are_packed_as_what_they_lead_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node has nothing of what lies elsewhere; a link that leads nowhere is left out."""
    packages, cache = tmp_path / "packages", tmp_path / "cache.py"
    packages.mkdir()
    cache.write_text("TOTAL = 7")
    (packages / "orders.py").symlink_to(cache)
    (packages / ".#orders.py").symlink_to("nobody@nowhere")
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(packages)])
    files = dict(yarn._packages(lambda line: None))
    assert ".#orders.py" not in files
    packed = io.BytesIO()
    yarn._write_packages(packed, {"orders.py": files["orders.py"]})
    packed.seek(0)
    with tarfile.open(fileobj=packed) as archive:
        found = archive.extractfile("site-packages/orders.py")
        assert found is not None
        assert found.read() == b"TOTAL = 7"


def test_modules_with_the_name_of_a_package_that_spark_brings_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the packages themselves are left out."""
    for name in ("pyspark/sql.py", "checks/pyspark/rules.py", "checks/pip/__init__.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("")
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path)])
    files = dict(yarn._packages(lambda line: None))
    assert {"checks/pyspark/rules.py", "checks/pip/__init__.py"} <= files.keys()
    assert "pyspark/sql.py" not in files


def configured(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it a configuration of YARN, on no HDFS."""
    (directory / "yarn-site.xml").write_text("")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(directory))


def test_without_a_configuration_of_hadoop_yarn_is_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark would say so too, with a stack trace."""
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match="by HADOOP_CONF_DIR or YARN_CONF_DIR, but"):
        yarn.distributed({}, home=None, note=pytest.fail)


def test_a_configuration_without_yarn_is_refused_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt one too: Spark would ask this machine for a resource manager, without end."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "missing"))
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"there is none in .*/missing, which HADOOP_CONF"):
        yarn.distributed({}, home=None, note=pytest.fail)
    own = {"spark.pyspark.python": "/opt/python"}
    there = {**own, "spark.hadoop.yarn.resourcemanager.hostname": "manager.example"}
    assert yarn.distributed(there, home=None, note=pytest.fail) == {}
    (tmp_path / "yarn-site.xml").write_text("")
    assert yarn.distributed(own, home=None, note=pytest.fail) == {}


def test_who_names_jars_and_an_interpreter_is_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then no file system is asked."""
    configured(tmp_path, monkeypatch)
    conf = {"spark.yarn.jars": "local:/opt/spark/jars/*", "spark.pyspark.python": "/opt/python"}
    assert yarn.distributed(conf, home=Path("/nowhere"), note=pytest.fail) == {}


def test_without_hdfs_nothing_is_sent_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark then does what it does without Weir."""
    configured(tmp_path, monkeypatch)
    said: list[str] = []
    assert yarn.distributed({}, home=Path("/nowhere"), note=said.append) == {}
    [line] = said
    assert "Spark uploads its jars at each start" in line
    assert "is not on HDFS" in line
