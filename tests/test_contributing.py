"""The recipes in ``CONTRIBUTING.md`` work: their code is run as it stands on the page."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.kit.gateway import JOB_ID, VIEW, FakeGateway
from tests.kit.sink import sink_context
from typer.main import get_command

from weir.cli.app import app as cli
from weir.errors import LostRowsError, SinkError
from weir.json_values import read_back
from weir.rest.flink import job_answers
from weir.rest.handling import serving
from weir.rest.schema import jobs
from weir.rest.schema.endpoints import ENDPOINTS
from weir.rest.server import app
from weir.rest.server.server import RestServer
from weir.sinks import Batch, Sink

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def section(title: str) -> dict[str, Any]:
    """The names that the code below a heading defines."""
    text = TEXT.split(f"### {title}\n")[1].split("\n## ")[0].split("\n### ")[0]
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {
        "Iterator": Iterator,
        "Path": Path,
        "Sequence": Sequence,
        "Sink": Sink,
        "LostRowsError": LostRowsError,
        "SinkError": SinkError,
        "json": json,
        "os": os,
    }
    exec("from __future__ import annotations\n" + dedent(code), names)
    return names


class Rows:
    """A DataFrame as far as the recipe's sink looks."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers

    def collect(self) -> list[Any]:
        return [type("Row", (), {"asDict": lambda _, n=n: {"n": n}})() for n in self._numbers]


def test_the_recipe_of_a_sink_commits_each_row_once(tmp_path: Path) -> None:
    """Twice the same commit, a restart, rows that nobody committed, an epoch without rows."""
    sink = section("A sink")["Lines"](str(tmp_path / "out"))

    def opened(attempt: int) -> None:
        context = sink_context(job_id="0" * 32, attempt=attempt)
        sink.check(context)
        sink.open(context)

    opened(1)
    staged = [sink.stage(Rows(1, 2), Batch(batch_id=0)), sink.stage(Rows(3), Batch(batch_id=1))]
    payloads = [read_back(payload) for payload in sink.flush(staged)]
    assert sink.stage(Rows(), Batch(batch_id=2)) is None
    sink.stage(Rows(9), Batch(batch_id=3))
    opened(2)
    assert [sink.commit(7, payloads), sink.commit(7, payloads), sink.commit(8, [])] == [3, 0, 0]
    assert sink.newest_committed() == 7
    sink.clean(2)
    [visible] = (tmp_path / "out").glob("[!.]*")
    rows = [json.loads(line)["n"] for line in visible.read_text().splitlines()]
    assert (rows, list((tmp_path / "out").glob(".*"))) == ([1, 2, 3], [])


def test_the_recipe_of_a_sink_keeps_two_sinks_of_a_job_apart(tmp_path: Path) -> None:
    """Their batches and epochs have the same numbers."""
    lines = section("A sink")["Lines"]
    sinks = [lines(str(tmp_path)), lines(str(tmp_path))]
    for number, sink in enumerate(sinks):
        context = sink_context(job_id="0" * 32, sink=f"out-{number}")
        sink.open(context)
    staged = [sink.stage(Rows(n, n), Batch(batch_id=0)) for n, sink in enumerate(sinks)]
    committed = [sink.commit(1, sink.flush([one])) for sink, one in zip(sinks, staged, strict=True)]
    assert committed == [2, 2]
    (tmp_path / f".{'0' * 32}-out-0-1-0").unlink()
    with pytest.raises(LostRowsError, match="restore the file"):
        sinks[0].commit(2, staged[:1])


def test_the_recipe_of_an_endpoint_is_served_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its message and its answer are added to a server."""
    text = TEXT.split("### A REST endpoint\n")[1].split("\n### ")[0]
    message, answer_to = (
        dedent(code) for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    )
    added = dict(vars(jobs))
    exec(message, added)
    monkeypatch.setattr(app, "HANDLERS", handlers := dict(serving.HANDLERS))
    monkeypatch.setattr(serving, "HANDLERS", handlers)
    monkeypatch.setattr(app, "ENDPOINTS", (*ENDPOINTS, added["UPTIME"]))
    exec(answer_to, {**vars(job_answers), "jobs": SimpleNamespace(**added)})
    server = RestServer(port=0)
    address = server.start(FakeGateway())
    try:
        answer = httpx.get(f"{address}/v1/jobs/{JOB_ID}/uptime", trust_env=False)
    finally:
        server.stop()
    assert answer.json()["uptime"] > VIEW.start_time_ms


def test_paths_on_the_page_exist() -> None:
    """Those in sentences, and those in commands."""
    named = re.findall(r"`((?:src|tests|docs|scripts)/[\w/.]+\.(?:py|md))`", TEXT)
    named += re.findall(r"\]\((docs/\w+\.md)\)", TEXT)
    named += re.findall(r"bin/(?:pytest|python)\b.* ((?:tests|scripts)[\w/.]+)", TEXT)
    assert {"docs/ARCHITECTURE.md", "tests/sim", "scripts/rest_api.py"} <= set(named)
    for path in named:
        assert "NAME" in path or "DAY" in path or (ROOT / path).exists(), path


def test_the_kit_is_what_the_page_says() -> None:
    """Each module is named, and has the classes and functions of its row."""
    kit = {path.name: path.read_text() for path in (ROOT / "tests" / "kit").glob("*.py")}
    assert [name for name in kit if f"{name}`" not in TEXT] == []
    rows = re.findall(r"^\| .* \| (.*\.py`.*) \|$", TEXT, re.MULTILINE)
    assert len(rows) > 10
    for row in rows:
        code = "".join(kit[name] for name in re.findall(r"`(\w+\.py)`", row))
        for name in re.findall(r"`([A-Z]\w+|\w+(?=\(\)))", row):
            assert re.search(rf"^ *(class|def) {name}\b|^{name} = ", code, re.MULTILINE), name


def test_commands_on_the_page_exist() -> None:
    """Targets of make, commands of weir, modules of Python."""
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"`make ([\w-]+)", TEXT)
    assert "test-fast" in targets
    for target in targets:
        assert f"\n{target}:" in makefile, target
    commands = set(re.findall(r"(?:`|bin/)weir\s+([a-z-]+)", TEXT))
    known = set(get_command(cli).commands)  # type: ignore[attr-defined]
    assert {"sim", "checkpoints", "inspect"} <= commands <= known
    modules = re.findall(r"python -m ([\w.]+)", TEXT)
    assert "benchmarks.overhead" in modules
    for module in modules:
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file(), module
