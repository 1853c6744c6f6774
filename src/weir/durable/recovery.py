"""Chooses the checkpoint from which a job resumes (PROTOCOL P20, P21, P40).

The newest record of the job log names the retained checkpoints. The job resumes from the newest
checkpoint whose files are all as recorded. If it is not the newest of all, going back must not
write rows twice: that is allowed only if no sink has committed beyond the checkpoint, or if the
user accepts duplicates. A job that started from a savepoint resumes from that savepoint until its
first checkpoint completes.

``older_checkpoints`` returns the retained checkpoints before it, from which the caller derives the
files that no checkpoint needs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from weir.core.types import CompletedCheckpoint
from weir.durable.sink_port import SinkPort
from weir.errors import CheckpointDamagedError, CheckpointNotFoundError, StorageError
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.job_log import JobRecord

_log = logging.getLogger(__name__)


def restore_point(
    *,
    record: JobRecord,
    storage: CheckpointStorage,
    sinks: SinkPort,
    accept_duplicates: bool,
    note: Callable[[str], None],
) -> CompletedCheckpoint | None:
    """The verified checkpoint or savepoint to resume from; None for a job that has none yet.

    Raises ``CheckpointDamagedError`` or ``CheckpointNotFoundError`` if none can be used, and
    ``DuplicatesError`` if a sink has committed beyond the newest usable checkpoint.
    """
    damage: StorageError | None = None
    damaged_id = 0
    for reference in reversed(record.checkpoints):
        try:
            checkpoint = storage.read(reference.path, expected_checksum=reference.checksum)
            storage.verify(checkpoint)
        except (CheckpointDamagedError, CheckpointNotFoundError) as error:
            # Any other error says nothing about the checkpoint: it fails the attempt, and the next
            # attempt tries again.
            note(str(error))
            if damage is None:
                damage, damaged_id = error, reference.checkpoint_id
            continue
        if damage is not None:
            if not accept_duplicates:
                sinks.check_not_beyond(checkpoint.checkpoint_id, damaged_id)
            note(
                f"Checkpoint {damaged_id} is damaged: falling back to the older checkpoint"
                f" {checkpoint.checkpoint_id}."
            )
        return checkpoint
    if damage is not None:
        raise damage
    if record.restored_from is not None:
        savepoint = storage.read(record.restored_from, expected_checksum=record.restored_checksum)
        storage.verify(savepoint)
        return savepoint
    return None


def older_checkpoints(
    record: JobRecord, restored: CompletedCheckpoint | None, storage: CheckpointStorage
) -> tuple[CompletedCheckpoint, ...] | None:
    """The retained checkpoints before ``restored``, oldest first.

    None if a checkpoint cannot be read or ``restored`` is not the newest: then no file may be
    considered unneeded.
    """
    newest = record.checkpoints[-1].checkpoint_id if record.checkpoints else None
    if newest is not None and (restored is None or restored.checkpoint_id != newest):
        return None
    older = []
    for reference in record.checkpoints:
        if restored is None or reference.checkpoint_id >= restored.checkpoint_id:
            break
        try:
            older.append(storage.read(reference.path, expected_checksum=reference.checksum))
        except StorageError as error:
            _log.warning("Skipping an older checkpoint that cannot be read: %s", error)
            return None
    return tuple(older)
