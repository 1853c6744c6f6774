"""``weir savepoint --dispose``: deletes a savepoint, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from tests.kit.gateway import JOB_ID, completed

from weir.core.types import OperatorState, SnapshotKind, StateHandle, TaskState
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import FileSystems

Weir = Callable[..., Result]
TASK = TaskState(
    vertex="clean",
    position=1,
    operators=(OperatorState(operator_id="clean", name="clean"),),
    files=(
        StateHandle(
            key="state/0/0/2_a.changelog", path="clean~2_a", size=5, checksum="crc32:3610a686"
        ),
    ),
)


def written(directory: Path, kind: SnapshotKind, base: Path) -> Path:
    """Write a snapshot with one file, as Weir does."""
    directory.mkdir(parents=True)
    storage = CheckpointStorage(fs=FileSystems(), base_directory=str(base), job_id=JOB_ID)
    file = TASK.files[0] if kind.is_savepoint else replace(TASK.files[0], path="shared/8/clean~2_a")
    checkpoint = replace(completed(8, str(directory), kind), tasks=(replace(TASK, files=(file,)),))
    place = Path(storage.file_path(checkpoint, file))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("hello")
    storage.write_metadata(checkpoint)
    storage.verify(checkpoint)
    return directory


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    return written(
        tmp_path / "savepoint-012345-aaaaaaaaaaaa", SnapshotKind.SYNC_SAVEPOINT, tmp_path
    )


@pytest.mark.parametrize(("flag", "file"), [("--dispose", ""), ("-d", "/_metadata")])
def test_a_savepoint_is_deleted_by_its_path_without_a_job(
    weir: Weir, savepoint: Path, flag: str, file: str
) -> None:
    """The path is its directory or its metadata file; neighbouring files stay."""
    (savepoint.parent / "other").mkdir()
    result = weir("savepoint", flag, f"{savepoint}{file}")
    assert (result.exit_code, result.stdout) == (0, f"Savepoint {savepoint} disposed.\n")
    assert [path.name for path in savepoint.parent.iterdir()] == ["other"]


def test_a_savepoint_that_is_named_by_a_link_is_deleted_itself(weir: Weir, savepoint: Path) -> None:
    """Deleting the link alone would leave the savepoint's files behind without their metadata."""
    link = savepoint.parent / "latest"
    link.symlink_to(savepoint)
    result = weir("savepoint", "--dispose", str(link))
    assert (result.exit_code, result.stdout) == (0, f"Savepoint {savepoint} disposed.\n")
    assert not savepoint.exists()
    assert link.is_symlink()


def test_a_checkpoint_of_a_job_is_not_a_savepoint(weir: Weir, tmp_path: Path) -> None:
    """Other checkpoints may need its files."""
    checkpoint = written(tmp_path / JOB_ID / "chk-8", SnapshotKind.CHECKPOINT, tmp_path)
    result = weir("savepoint", "--dispose", str(checkpoint))
    assert result.exit_code == 1
    assert result.stderr.startswith(
        f"weir: error: {checkpoint} is checkpoint 8 of job {JOB_ID}, not a savepoint,"
    )
    assert result.stderr.count("\n") == 1
    assert (checkpoint / "_metadata").exists()


@pytest.mark.parametrize("foreign", ["notes.txt", "deeper/notes.txt"])
def test_a_savepoint_with_foreign_files_stays_as_it_is(
    weir: Weir, savepoint: Path, foreign: str
) -> None:
    """The message names the files, and nothing is deleted."""
    (savepoint / foreign).parent.mkdir(exist_ok=True)
    (savepoint / foreign).write_text("mine")
    result = weir("savepoint", "--dispose", str(savepoint))
    assert result.exit_code == 1
    assert f"its directory has files of others ({foreign}): move them away" in result.stderr
    assert sorted(path.name for path in savepoint.iterdir()) == sorted(
        ["_metadata", "clean~2_a", foreign.split("/", maxsplit=1)[0]]
    )


def test_a_directory_without_metadata_is_not_a_savepoint(weir: Weir, savepoint: Path) -> None:
    """A directory without metadata and one with damaged metadata both stay."""
    metadata = (savepoint / "_metadata").read_bytes()
    (savepoint / "_metadata").write_bytes(metadata[:-9])
    damaged = weir("savepoint", "--dispose", str(savepoint))
    (savepoint / "_metadata").unlink()
    missing = weir("savepoint", "--dispose", str(savepoint))
    assert (damaged.exit_code, missing.exit_code) == (1, 1)
    assert "damaged" in damaged.stderr
    assert "has no file _metadata" in missing.stderr
    assert (savepoint / "clean~2_a").exists()


@pytest.mark.parametrize("arguments", [(), ("orders", "--dispose", "/s")])
def test_a_job_or_a_path_is_named_and_not_both(weir: Weir, arguments: tuple[str, ...]) -> None:
    """The command exits with 2, without a request to any job."""
    result = weir("savepoint", *arguments)
    assert result.exit_code == 2
    assert "either JOB, to take a savepoint, or --dispose PATH" in result.stderr.replace("\n", " ")
