"""Which checkpoint a job is restored from (P20, P21, P40).

The newest good one; and when an older one is refused.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from tests.kit.disk import FaultyDisk
from tests.kit.sink import FakeSink, sink_port

from weir.core.types import CompletedCheckpoint, OperatorState, SnapshotKind, StateHandle, TaskState
from weir.durable.recovery import older_checkpoints, restore_point
from weir.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    DuplicatesError,
    StorageError,
)
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.job_log import CheckpointReference, JobRecord, RecordKind

JOB = "0" * 32


class RetainedCheckpoints:
    """A checkpoint directory whose checkpoints have one state file each."""

    def __init__(self, directory: Path) -> None:
        self.files = FaultyDisk()
        self.storage = CheckpointStorage(
            fs=lambda _: self.files, base_directory=str(directory), job_id=JOB
        )
        self.storage.make_job_directory()
        self.references: list[CheckpointReference] = []
        self.sink = FakeSink()
        self.notes: list[str] = []

    def complete(self, checkpoint_id: int) -> None:
        """Write a checkpoint as a port does."""
        handle = self._file(
            self.storage.shared_directory(checkpoint_id), f"shared/{checkpoint_id}/state"
        )
        path = self.storage.checkpoint_directory(checkpoint_id)
        checksum = self.storage.write_metadata(self._checkpoint(checkpoint_id, path, handle))
        self.references.append(
            CheckpointReference(checkpoint_id=checkpoint_id, path=path, checksum=checksum)
        )

    def savepoint(self, directory: Path) -> str:
        """Write a savepoint of another job."""
        handle = self._file(str(directory), "state")
        self.storage.write_metadata(
            self._checkpoint(
                3, str(directory), handle, kind=SnapshotKind.SAVEPOINT, job_id="f" * 32
            )
        )
        return str(directory)

    def damage(self, checkpoint_id: int) -> None:
        """Change one byte of its state file."""
        Path(self.storage.shared_directory(checkpoint_id), "state").write_bytes(b"stat3")

    def restore(
        self, *, accept_duplicates: bool = False, restored_from: str | None = None
    ) -> CompletedCheckpoint | None:
        """Choose the restore point."""
        return restore_point(
            record=self.record(restored_from),
            storage=self.storage,
            sinks=sink_port(self.sink),
            accept_duplicates=accept_duplicates,
            note=self.notes.append,
        )

    def record(self, restored_from: str | None = None) -> JobRecord:
        """The job's newest record."""
        return JobRecord(
            number=9,
            kind=RecordKind.ATTEMPT_BEGAN,
            job_id=JOB,
            job_name="orders",
            attempt=2,
            writer="w",
            timestamp_ms=0,
            checkpoints=tuple(self.references),
            restored_from=restored_from,
        )

    def _file(self, directory: str, path: str) -> StateHandle:
        Path(directory).mkdir(parents=True)
        Path(directory, "state").write_bytes(b"state")
        checksum = f"crc32:{zlib.crc32(b'state'):08x}"
        return StateHandle(key="state/0/0/1.changelog", path=path, size=5, checksum=checksum)

    def _checkpoint(
        self,
        checkpoint_id: int,
        path: str,
        handle: StateHandle,
        *,
        kind: SnapshotKind = SnapshotKind.CHECKPOINT,
        job_id: str = JOB,
    ) -> CompletedCheckpoint:
        operators = (OperatorState(operator_id="v", name="v"),)
        return CompletedCheckpoint(
            job_id=job_id,
            checkpoint_id=checkpoint_id,
            kind=kind,
            timestamp_ms=0,
            completion_timestamp_ms=0,
            attempt=1,
            tasks=(
                TaskState(vertex="v", position=checkpoint_id, operators=operators, files=(handle,)),
            ),
            external_path=path,
        )


@pytest.fixture
def world(tmp_path: Path) -> RetainedCheckpoints:
    """Checkpoints 4, 5 and 6 are retained."""
    made = RetainedCheckpoints(tmp_path / "checkpoints")
    for checkpoint_id in (4, 5, 6):
        made.complete(checkpoint_id)
    return made


def restored_id(world: RetainedCheckpoints, *, accept_duplicates: bool = False) -> int | None:
    """The id of the restore point."""
    checkpoint = world.restore(accept_duplicates=accept_duplicates)
    return None if checkpoint is None else checkpoint.checkpoint_id


def test_a_job_without_checkpoints_starts_at_the_beginning(tmp_path: Path) -> None:
    """There is nothing to restore, and that is not an error."""
    assert RetainedCheckpoints(tmp_path).restore() is None


def test_the_newest_good_checkpoint_is_used(world: RetainedCheckpoints) -> None:
    """Whatever sinks have committed: it is the newest, and nothing is reported."""
    world.sink.newest = 6
    assert restored_id(world) == 6
    assert world.notes == []


def test_an_older_checkpoint_replaces_a_damaged_one_if_no_sink_is_beyond_it(
    world: RetainedCheckpoints,
) -> None:
    """Both the damaged file and the older checkpoint are named."""
    world.damage(6)
    world.sink.newest = 5
    assert restored_id(world) == 5
    assert "shared/6/state" in world.notes[0]
    assert world.notes[-1] == "Checkpoint 6 is damaged: falling back to the older checkpoint 5."


def test_an_older_checkpoint_is_refused_if_a_sink_has_committed_beyond_it(
    world: RetainedCheckpoints,
) -> None:
    """Its rows would be written twice: the error names both ids (P21)."""
    world.damage(6)
    world.sink.newest = 6
    with pytest.raises(DuplicatesError, match=r"Checkpoint 6 is damaged.*checkpoint 5"):
        world.restore()


def test_duplicates_can_be_accepted(world: RetainedCheckpoints) -> None:
    """The user's setting overrides the refusal."""
    world.damage(6)
    world.sink.newest = 6
    assert restored_id(world, accept_duplicates=True) == 5


def test_the_refusal_looks_at_the_checkpoint_that_would_be_used(world: RetainedCheckpoints) -> None:
    """With two damaged ones, the third is compared with what the sink has committed."""
    world.damage(6)
    world.damage(5)
    world.sink.newest = 5
    with pytest.raises(DuplicatesError, match="checkpoint 4"):
        world.restore()
    world.sink.newest = 4
    assert restored_id(world) == 4


def test_metadata_that_the_job_record_does_not_know_is_damaged(world: RetainedCheckpoints) -> None:
    """The record contains its checksum, so a different valid file in its place is noticed."""
    newest, older = (
        Path(world.storage.checkpoint_directory(number), "_metadata") for number in (6, 5)
    )
    newest.write_bytes(older.read_bytes())
    assert restored_id(world) == 5
    assert "_metadata" in world.notes[0]


def test_metadata_that_is_gone_counts_as_damaged(world: RetainedCheckpoints) -> None:
    """A checkpoint that somebody deleted is replaced like a damaged one."""
    Path(world.storage.checkpoint_directory(6), "_metadata").unlink()
    assert restored_id(world) == 5


def test_a_checkpoint_that_cannot_be_read_for_a_moment_is_not_replaced_by_an_older_one(
    world: RetainedCheckpoints,
) -> None:
    """Such a read proves nothing about the checkpoint: the attempt fails, and the next attempt can
    use it (P21)."""
    world.files.fail("read", times=1)
    with pytest.raises(StorageError, match="the network is down") as caught:
        world.restore(accept_duplicates=True)
    assert type(caught.value) is StorageError
    assert world.notes == []
    assert restored_id(world) == 6


def test_state_files_that_cannot_be_read_for_a_moment_are_not_damaged(
    world: RetainedCheckpoints,
) -> None:
    """The checkpoint that names them is not damaged either."""
    world.files.fail("checksum", times=1)
    with pytest.raises(StorageError, match="the network is down"):
        world.restore(accept_duplicates=True)
    assert world.notes == []
    assert restored_id(world) == 6


def test_if_all_are_damaged_the_newest_is_named(world: RetainedCheckpoints) -> None:
    """Starting from scratch would silently lose or duplicate rows."""
    for number in (4, 5, 6):
        world.damage(number)
    with pytest.raises(CheckpointDamagedError, match="chk-6"):
        world.restore(accept_duplicates=True)


def test_until_the_first_checkpoint_the_savepoint_is_the_restore_point(tmp_path: Path) -> None:
    """It is verified each time and belongs to the job that took it (P40)."""
    world = RetainedCheckpoints(tmp_path / "checkpoints")
    savepoint = world.savepoint(tmp_path / "savepoint")
    restored = world.restore(restored_from=savepoint)
    assert restored is not None
    assert (restored.checkpoint_id, restored.job_id) == (3, "f" * 32)
    Path(savepoint, "state").write_bytes(b"stat3")
    with pytest.raises(CheckpointDamagedError):
        world.restore(restored_from=savepoint)


def test_a_missing_savepoint_is_an_error_and_not_a_fresh_start(tmp_path: Path) -> None:
    """The error names its path."""
    with pytest.raises(CheckpointNotFoundError, match="savepoint"):
        RetainedCheckpoints(tmp_path / "checkpoints").restore(
            restored_from=str(tmp_path / "savepoint")
        )


def test_after_the_first_checkpoint_the_savepoint_is_not_needed(
    world: RetainedCheckpoints, tmp_path: Path
) -> None:
    """The user may delete it."""
    restored = world.restore(restored_from=str(tmp_path / "gone"))
    assert restored is not None
    assert restored.checkpoint_id == 6


def test_the_older_retained_checkpoints_stay_known(world: RetainedCheckpoints) -> None:
    """Oldest first, without the restored checkpoint."""
    older = older_checkpoints(world.record(), world.restore(), world.storage)
    assert older is not None
    assert [checkpoint.checkpoint_id for checkpoint in older] == [4, 5]


def test_nothing_is_called_older_if_the_newest_was_not_restored(world: RetainedCheckpoints) -> None:
    """It is unknown what a damaged checkpoint needs, so nothing may be deleted."""
    world.damage(6)
    assert older_checkpoints(world.record(), world.restore(), world.storage) is None


def test_nothing_is_called_older_if_one_cannot_be_read(world: RetainedCheckpoints) -> None:
    """Its files would be taken for orphans."""
    Path(world.storage.checkpoint_directory(4), "_metadata").unlink()
    assert older_checkpoints(world.record(), world.restore(), world.storage) is None
