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
import pyarrow as pa
import pytest
from tests.rest.fake_job import JOB_ID, VIEW, FakeGateway
from tests.sources.test_file_enumerator import FakeContext

from weir.coordinators import OperatorCoordinator
from weir.core.json_values import read_back
from weir.errors import LostRowsError, SinkError
from weir.operators import Operator
from weir.rest import app
from weir.rest.schema import ENDPOINTS, jobs
from weir.rest.server import RestServer
from weir.sinks import Batch, Sink, SinkContext
from weir.sources import SplitSource
from weir.storage.local import LocalFileSystem

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def section(title: str) -> dict[str, Any]:
    """The names that the code below a heading defines."""
    text = TEXT.split(f"### {title}\n")[1].split("\n## ")[0].split("\n### ")[0]
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {
        "Iterator": Iterator,
        "Operator": Operator,
        "OperatorCoordinator": OperatorCoordinator,
        "Path": Path,
        "Sequence": Sequence,
        "Sink": Sink,
        "LostRowsError": LostRowsError,
        "SinkError": SinkError,
        "SplitSource": SplitSource,
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
        context = SinkContext(
            job_id="0" * 32,
            job_name="orders",
            sink="out",
            attempt=attempt,
            file_system=lambda _: LocalFileSystem(),
        )
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
        context = SinkContext(
            job_id="0" * 32,
            job_name="orders",
            sink=f"out-{number}",
            attempt=1,
            file_system=lambda _: LocalFileSystem(),
        )
        sink.open(context)
    staged = [sink.stage(Rows(n, n), Batch(batch_id=0)) for n, sink in enumerate(sinks)]
    committed = [sink.commit(1, sink.flush([one])) for sink, one in zip(sinks, staged, strict=True)]
    assert committed == [2, 2]
    (tmp_path / f".{'0' * 32}-out-0-1-0").unlink()
    with pytest.raises(LostRowsError, match="restore the file"):
        sinks[0].commit(2, staged[:1])


class ReaderContext:
    """``OperatorContext`` of one subtask."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.ended = False

    def send_event_to_coordinator(self, event: Any) -> None:
        self.sent.append(event)

    def end_input(self) -> None:
        self.ended = True


def test_the_recipe_of_a_source_reads_each_number_once_over_a_restart() -> None:
    """Two subtasks ask in turns; after a restore they go on from the checkpoint."""
    source = section("A source")["Numbers"](4_500)
    assert source.bounded
    context = FakeContext(2)
    enumerator = source.enumerator()
    enumerator.start(context)
    enumerator.reset_to_checkpoint(None, None)

    def read(limit: int) -> list[int]:
        """What both readers read in at most so many batches each."""
        found: list[int] = []
        readers = [source.reader(), source.reader()]
        contexts = [ReaderContext(), ReaderContext()]
        for reader, its in zip(readers, contexts, strict=True):
            reader.open(its)
        for _ in range(limit):
            for subtask, (reader, its) in enumerate(zip(readers, contexts, strict=True)):
                for to, event in context.run():
                    readers[to].handle_operator_event(event)
                for batch in reader.end_batch() or ():
                    assert isinstance(batch, pa.RecordBatch)
                    found += batch["number"].to_pylist()
                for event in its.sent:
                    enumerator.handle_event_from_operator(subtask, 1, event)
                its.sent.clear()
            if all(its.ended for its in contexts):
                break
        return found

    first = read(2)
    state = read_back(enumerator.checkpoint_coordinator(1))
    context.run()
    enumerator.reset_to_checkpoint(1, state)
    assert 0 < len(first) < 4_500
    # What was assigned and not read by the checkpoint is sent again by the runtime, not by these.
    assert read(20) == list(range(state["next"], 4_500))


def test_the_recipe_of_an_endpoint_is_served_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its message and its handler, added to the server, answer."""
    text = TEXT.split("### A REST endpoint\n")[1].split("\n### ")[0]
    message, handler = (
        dedent(code) for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    )
    added = dict(vars(jobs))
    exec(message, added)
    known = {**vars(app), "jobs": SimpleNamespace(**added)}
    monkeypatch.setattr(app, "_HANDLERS", known["_HANDLERS"].copy())
    monkeypatch.setattr(app, "ENDPOINTS", (*ENDPOINTS, added["UPTIME"]))
    exec(handler.replace("@_serves(jobs.UPTIME)\n", ""), known)
    app._serves(added["UPTIME"])(known["uptime"])
    server = RestServer(port=0)
    address = server.start(FakeGateway())
    try:
        answer = httpx.get(f"{address}/v1/jobs/{JOB_ID}/uptime", trust_env=False)
    finally:
        server.stop()
    assert answer.json()["uptime"] > VIEW.start_time_ms


def test_paths_and_commands_on_the_page_exist() -> None:
    """Each file that it names is there."""
    for path in re.findall(r"`((?:src|tests|docs|scripts)/[\w/.]+\.(?:py|md))`", TEXT):
        assert "NAME" in path or (ROOT / path).is_file(), path
    for path in re.findall(r"\]\((docs/\w+\.md)\)", TEXT):
        assert "NAME" in path or (ROOT / path).is_file(), path
