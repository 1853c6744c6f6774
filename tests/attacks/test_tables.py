"""A Delta table whose log was written by somebody else, as read by ``weir.read_consistent``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.attacks.world import JOB, Victim

import weir
from weir.errors import StorageError
from weir.sinks.delta.log import TableLog

INFO: dict[str, Any] = {
    "timestamp": 1, "weir.job.id": JOB, "weir.job.name": "orders", "weir.job.directory": "",
    "weir.sink": "out", "weir.checkpoint.id": "7",
}  # fmt: skip


@pytest.fixture
def table(world: Victim) -> Path:
    """A table of one version that a job has committed as checkpoint 7."""
    path = world.root / "delta"
    write_deltalake(str(path), pa.table({"id": pa.array([1], pa.int64())}))
    commit(path, INFO)
    return path


def commit(table: Path, info: Any) -> None:
    """Replace the newest commit's description of itself."""
    entry = table / "_delta_log" / f"{0:020}.json"
    lines = [
        line for line in entry.read_text().splitlines() if "commitInfo" not in json.loads(line)
    ]
    entry.write_text("\n".join([json.dumps({"commitInfo": info}), *lines]))


def test_the_table_as_it_was_committed_is_read(table: Path) -> None:
    """Otherwise the attacks would prove nothing."""
    assert weir.read_consistent({"out": str(table)}).checkpoint_id == 7


@pytest.mark.parametrize(
    "change",
    [
        {"weir.job.id": "../../home"}, {"weir.job.id": None}, {"weir.job.id": 7},
        {"weir.sink": "../x"}, {"weir.sink": "a'b"},
        {"weir.checkpoint.id": "-1"}, {"weir.checkpoint.id": 7},
        {"weir.checkpoint.id": "9" * 5_000}, {"weir.checkpoint.id": "\u0667"},
        {"weir.checkpoint.id": ""}, {"weir.job.directory": "relative/x"},
        {"weir.job.directory": "a\0"}, {"weir.job.directory": 7}, {"timestamp": "now"},
        {"timestamp": -1}, {"timestamp": 10**30}, {"weir.job.name": None},
    ],
)  # fmt: skip
def test_a_commit_with_nonsense_about_its_job_is_refused(
    world: Victim, table: Path, change: dict[str, Any]
) -> None:
    """Ids and directory decide which records are read."""
    commit(table, {**INFO, **change})
    with world.untouched(), pytest.raises(StorageError, match="The log of table 'out'"):
        weir.read_consistent({"out": str(table)})


@pytest.mark.parametrize("field", ["weir.job.id", "weir.job.name", "weir.sink"])
def test_a_commit_that_says_only_half_is_refused(world: Victim, table: Path, field: str) -> None:
    """It claims to be one of Weir's."""
    commit(table, {name: value for name, value in INFO.items() if name != field})
    with world.untouched(), pytest.raises(StorageError, match="The log of table 'out'"):
        weir.read_consistent({"out": str(table)})


@pytest.mark.parametrize("info", [{"timestamp": "x", "any": [1]}, {"userMetadata": None}])
def test_what_others_write_into_their_commits_is_theirs(table: Path, info: Any) -> None:
    """It is not one of Weir's commits."""
    commit(table, info)
    with pytest.raises(StorageError, match="No Weir job has written"):
        weir.read_consistent({"out": str(table)})


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"7",
        b'{"add":7}',
        b'{"add":{"dataChange":"x"}}',
        b'{"commitInfo":[]}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_an_invalid_entry_of_the_log_is_refused(world: Victim, table: Path, line: bytes) -> None:
    """delta-rs may have skipped it, since it also reads checkpoints."""
    log = TableLog("out", str(table), None)
    entry = table / "_delta_log" / f"{0:020}.json"
    entry.write_bytes(entry.read_bytes() + b"\n" + line)
    with world.untouched(), pytest.raises(StorageError, match="cannot be read"):
        list(log.entries())


@pytest.mark.parametrize("method", ["open_input_file", "get_file_info"])
def test_a_log_that_cannot_be_read_is_one_sentence(world: Victim, table: Path, method: str) -> None:
    """Whatever the reason is: rights, a network that is down."""
    log = TableLog("out", str(table), None)
    with (
        world.untouched(),
        patch.object(log, "_files", MagicMock(**{f"{method}.side_effect": PermissionError("no")})),
        pytest.raises(StorageError, match=r"cannot be read \(no\)"),
    ):
        list(log.entries()) if method == "open_input_file" else log.check_one_sink(JOB, "j", "s")


@pytest.mark.parametrize(
    "directory",
    ["/nowhere/" + JOB, "hdfs://evil/" + JOB, "s3a://evil/" + JOB, "http://evil/" + JOB],
)
def test_the_directory_that_a_commit_names_is_only_looked_at(
    world: Victim, table: Path, directory: str
) -> None:
    """Without a session no request leaves the machine; the cut falls back to the tables alone."""
    commit(table, {**INFO, "weir.job.directory": directory})
    with world.untouched():
        cut = weir.read_consistent({"out": str(table)})
    assert cut.fallback is not None


@pytest.mark.parametrize(
    "path",
    ["../home/precious", "/etc/passwd", "file:///etc/passwd", "a/%2E%2E/%2E%2E/home/precious"],
)
def test_a_frame_has_no_files_from_outside_of_its_table(
    world: Victim, table: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta allows such paths, and Spark would read them as the user."""
    cut = weir.read_consistent({"out": str(table)})
    entry = table / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["path"] = path
    entry.write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(weir.readers.consistent, "check_plain", lambda *_: None)
    with world.untouched(), pytest.raises(StorageError, match="is outside"):
        cut.frame("out", None)  # type: ignore[arg-type]
