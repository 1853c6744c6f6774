"""The checkpoint from which a run would start, found before there is a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.test_submission import FILES, NAME, make_savepoint, record, run

from weir.core.types import CompletedCheckpoint, SnapshotKind
from weir.launch.options import RunOptions
from weir.launch.submission import Submission, started_from
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.job_log import CheckpointReference, RecordStatus


@pytest.fixture
def base(tmp_path: Path) -> str:
    """A checkpoint directory that does not exist yet."""
    return str(tmp_path / "checkpoints")


def found(base: str, **options: object) -> int | None:
    """The id of the checkpoint from which a run with these options would start."""
    checkpoint: CompletedCheckpoint | None = started_from(
        name=NAME,
        options=RunOptions(**options),  # type: ignore[arg-type]
        base_directory=base,
        fs=lambda _: FILES,
    )
    return None if checkpoint is None else checkpoint.checkpoint_id


def took(submission: Submission, directory: Path, checkpoint_id: int) -> None:
    """Let a run of the job fail after its checkpoint."""
    path = make_savepoint(
        directory,
        job_id=submission.job_id,
        kind=SnapshotKind.CHECKPOINT,
        checkpoint_id=checkpoint_id,
    )
    storage = CheckpointStorage(fs=lambda _: FILES, base_directory=path, job_id=submission.job_id)
    reference = CheckpointReference(
        checkpoint_id=checkpoint_id, path=path, checksum=storage.checksum(path)
    )
    record(submission, RecordStatus.FAILED, checkpoints=(reference,))


def test_a_job_that_never_ran_starts_from_nothing_or_from_its_savepoint(
    base: str, tmp_path: Path
) -> None:
    """And nothing is written."""
    assert found(base) is None
    assert found(base, from_savepoint=make_savepoint(tmp_path / "savepoint")) == 7
    assert not Path(base).exists()


def test_a_job_that_ran_starts_from_its_newest_checkpoint(base: str, tmp_path: Path) -> None:
    """Unless it is to start over, or from another snapshot."""
    took(run(base), tmp_path / "checkpoint", 12)
    savepoint = make_savepoint(tmp_path / "savepoint")
    assert found(base) == 12
    assert found(base, fresh=True) is None
    assert found(base, from_savepoint=savepoint) == 7
    assert found(base, from_savepoint=savepoint, fresh=True) == 7


def test_a_run_that_a_savepoint_began_goes_on_from_its_own_checkpoints(
    base: str, tmp_path: Path
) -> None:
    """And from the savepoint before the first, whether or not it is named again."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    began = run(base, from_savepoint=savepoint)
    assert found(base) == found(base, from_savepoint=savepoint) == 7
    took(began, tmp_path / "checkpoint", 12)
    assert found(base) == found(base, from_savepoint=savepoint) == 12
    assert found(base, from_savepoint=savepoint, fresh=True) == 7


def test_the_latest_savepoint_is_the_start_of_a_job_that_was_stopped(
    base: str, tmp_path: Path
) -> None:
    """Of any other job, its newest checkpoint is."""
    assert found(base, from_savepoint="latest") is None
    began = run(base)
    took(began, tmp_path / "checkpoint", 12)
    assert found(base, from_savepoint="latest") == 12
    savepoint = make_savepoint(tmp_path / "savepoint", job_id=began.job_id)
    record(began, RecordStatus.STOPPED, savepoint=savepoint)
    assert found(base, from_savepoint="latest") == 7
