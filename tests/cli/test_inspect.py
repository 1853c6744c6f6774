"""``weir inspect`` on checkpoints written to disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from fake_job import JOB_ID, completed

from weir.core.types import Committable, OperatorState, SnapshotKind, StateHandle, TaskState
from weir.state.resolve import FileSystems
from weir.state.storage import CheckpointStorage

Weir = Callable[..., Result]


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    """A savepoint with one vertex of two operators, one file and two pending commits."""
    directory = tmp_path / "savepoint-012345-aaaaaaaaaaaa"
    directory.mkdir()
    task = TaskState(
        vertex="clean",
        position=12,
        operators=(
            OperatorState(operator_id="orders", name="orders", fully_finished=True),
            OperatorState(operator_id="out", name="out"),
        ),
        files=(StateHandle(key="k", path="state/1.sst", size=4_500, checksum="crc32:0badcafe"),),
        committables=(
            Committable(sink="out", position=11, payload={}, barrier=7, epoch=7),
            Committable(sink="out", position=12, payload={}),
        ),
    )
    checkpoint = replace(completed(8, str(directory), SnapshotKind.SAVEPOINT), tasks=(task,))
    storage = CheckpointStorage(fs=FileSystems(None), base_directory=str(tmp_path), job_id=JOB_ID)
    storage.write_metadata(checkpoint)
    return directory


def test_inspect_shows_operators_positions_sizes_files_and_pending_commits(
    weir: Weir, savepoint: Path
) -> None:
    """Everything that decides whether a savepoint is the right one."""
    result = weir("inspect", str(savepoint))
    assert result.exit_code == 0
    for part in (
        f"SAVEPOINT 8 of job {JOB_ID}", str(savepoint), "4.5 kB", "orders (finished), out", "state/1.sst",
        "crc32:0badcafe", "7, next", "12",
    ):  # fmt: skip
        assert part in result.stdout


def test_inspect_takes_the_metadata_file_and_writes_json(weir: Weir, savepoint: Path) -> None:
    """--json has every field of the metadata, and where it was found."""
    result = weir("inspect", "--json", str(savepoint / "_metadata"))
    fields = json.loads(result.stdout)
    assert (fields["checkpoint_id"], fields["kind"], fields["external_path"]) == (
        8,
        "SAVEPOINT",
        str(savepoint),
    )
    assert fields["tasks"][0]["files"][0]["path"] == "state/1.sst"


def test_inspect_of_nothing_is_one_sentence(weir: Weir, tmp_path: Path) -> None:
    """The path is named; there is no stack trace."""
    result = weir("inspect", str(tmp_path / "nothing"))
    assert result.exit_code == 1
    assert result.stderr.startswith("weir: error: ")
    assert "nothing" in result.stderr


def test_inspect_of_a_remote_path_says_what_to_do(weir: Weir) -> None:
    """Without Spark only local file systems can be read."""
    result = weir("inspect", "hdfs://nn/savepoint")
    assert result.exit_code == 1
    assert "hdfs://nn/savepoint" in result.stderr
