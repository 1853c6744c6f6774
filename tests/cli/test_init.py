"""``weir init``: the files that it writes, and what it refuses.

``scripts/first_minutes.py``, which continuous integration runs, kills and resumes such a pipeline.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Weir

from weir.cli.project import sample, write
from weir.job import definition_of


def written(weir: Weir, directory: Path) -> Path:
    result = weir("init", str(directory))
    assert result.exit_code == 0, result.output
    return directory


def test_the_pipeline_is_two_queries_that_read_the_input_once(weir: Weir, tmp_path: Path) -> None:
    """The job has the directory's name, and the file passes the project's own linter."""
    project = written(weir, tmp_path / "deep" / "orders-2")
    names: dict[str, Any] = {}
    exec((project / "pipeline.py").read_text(), names)
    definition = definition_of(names["job"])

    assert names["job"].name == "orders-2"
    assert [vertex.name for vertex in definition.vertices()] == ["clean", "per_ten_minutes"]
    ruff = [sys.executable, "-m", "ruff", "--isolated"]
    for command in (["check", "--select", "E,F,B,UP"], ["format", "--check"]):
        subprocess.run([*ruff, *command, "--line-length", "100", str(project)], check=True)


def test_what_was_written_is_listed_with_the_next_command(weir: Weir, tmp_path: Path) -> None:
    """One path per line, and each of them exists; no word is left to replace."""
    listed = weir("init", str(tmp_path / "orders")).output.splitlines()

    assert listed[-1] == f"Next: cd {tmp_path}/orders; weir run pipeline.py"
    names = {"README.md", "landing/", "orders.service", "pipeline.py", "test_pipeline.py"}
    assert {line.removeprefix(f"{tmp_path}/orders/") for line in listed[:-1]} == names
    for file in (tmp_path / "orders").glob("*.*"):
        assert not re.search("@[A-Z]+@", file.read_text()), file


def test_the_input_is_the_same_each_time_and_ordered_by_time(weir: Weir, tmp_path: Path) -> None:
    """Ids count from 0; a file is younger than the one before it, as Spark reads them in order."""
    first, second = (written(weir, tmp_path / name) / "landing" for name in ("a", "b"))
    files = sorted(first.glob("*.json"))
    orders = [json.loads(line) for file in files for line in file.read_text().splitlines()]

    assert [order["id"] for order in orders] == list(range(sample.FILES * sample.ORDERS_PER_FILE))
    assert [order["at"] for order in orders] == sorted(order["at"] for order in orders)
    assert any(order["cents"] == 0 for order in orders)
    times = [file.stat().st_mtime for file in files]
    assert times == sorted(set(times))
    assert all(file.read_text() == (second / file.name).read_text() for file in files)


def test_the_unit_starts_the_pipeline_as_deployments_do(
    weir: Weir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lines are those of the page; characters with a meaning for systemd are escaped."""
    monkeypatch.setattr(write.sys, "executable", "/opt/a b/50%/$x/python")
    project = written(weir, tmp_path / "100% ours" / "orders")
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read_string((project / "orders.service").read_text())
    page = (Path(__file__).resolve().parents[2] / "docs" / "DEPLOYMENT.md").read_text()
    [shown] = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)

    service = dict(unit["Service"])
    assert service.pop("WorkingDirectory") == f"{tmp_path}/100%% ours/orders"
    assert (
        service.pop("ExecStart")
        == '"/opt/a b/50%%/$$x/python" -m weir run pipeline.py --from-savepoint latest'
    )
    assert {f"{key}={value}" for key, value in service.items()} <= set(shown.splitlines())


@pytest.mark.parametrize("occupied", ["file", "directory"])
def test_a_name_that_is_taken_is_refused(weir: Weir, tmp_path: Path, occupied: str) -> None:
    """In one sentence, and nothing is touched; an empty directory is taken as it is."""
    target = tmp_path / "orders"
    if occupied == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "README.md").write_text("mine")

    result = weir("init", str(target))

    assert result.exit_code == 1
    assert result.output == (
        f"weir: error: {target} exists and is not an empty directory: give another name.\n"
    )
    kept = target if occupied == "file" else target / "README.md"
    assert kept.read_text() == "mine"
    (tmp_path / "empty").mkdir()
    written(weir, tmp_path / "empty")


@pytest.mark.parametrize("name", ["my orders", "-orders", "order.s", "@NAME@", ".."])
def test_a_name_that_is_no_name_of_a_job_is_refused(weir: Weir, tmp_path: Path, name: str) -> None:
    """It would have to be quoted in commands, or would be no name of a unit."""
    result = weir("init", "--", f"{tmp_path}/{name}")

    assert result.exit_code == 1
    assert "cannot be the name of a job" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named(weir: Weir, tmp_path: Path) -> None:
    """In a sentence, too."""
    (tmp_path / "file").write_text("")

    result = weir("init", str(tmp_path / "file" / "orders"))

    assert result.exit_code == 1
    assert result.output.startswith(f"weir: error: Cannot write {tmp_path}/file")


def test_it_loads_no_spark(tmp_path: Path) -> None:
    """Nor anything else that takes long to load."""
    code = (
        "import sys, weir.cli.app as cli, weir.cli.project as project, pathlib;"
        " project.write_project(pathlib.Path('orders'));"
        " print({'pyspark', 'py4j', 'numpy', 'pandas', 'pyarrow', 'deltalake'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
