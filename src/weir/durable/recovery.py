"""Which checkpoint a job goes on from (PROTOCOL P20, P21, P40), and which files no checkpoint needs
any more.

The newest record of the job log names the retained checkpoints. The newest one whose files are all
as recorded is used. If that is not the newest of all, going back must not write rows twice: it is
allowed only if no sink has committed beyond it, or if the user accepts duplicates. Until the first
checkpoint of a job that began from a savepoint, that savepoint is its restore point.
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
    """The verified checkpoint or savepoint to go on from; None for a job that has none yet.

    Raises ``CheckpointDamagedError`` or ``CheckpointNotFoundError`` if none can be used, and
    ``DuplicatesError`` if the only usable one lies before what a sink has committed.
    """
    damage: StorageError | None = None
    damaged_id = 0
    for reference in reversed(record.checkpoints):
        try:
            checkpoint = storage.read(reference.path, expected_checksum=reference.checksum)
            storage.verify(checkpoint)
        except (CheckpointDamagedError, CheckpointNotFoundError) as error:
            # Any other error says nothing of the checkpoint: it fails the attempt, and the next one
            # looks again.
            note(str(error))
            if damage is None:
                damage, damaged_id = error, reference.checkpoint_id
            continue
        if damage is not None:
            if not accept_duplicates:
                sinks.check_not_beyond(checkpoint.checkpoint_id, damaged_id)
            note(
                f"Checkpoint {damaged_id} is damaged: going on from the older checkpoint"
                f" {checkpoint.checkpoint_id} instead."
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

    None if one of them cannot be read or ``restored`` is not the newest: then nothing may be called
    unneeded.
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
            _log.warning("An older checkpoint is passed over: %s", error)
            return None
    return tuple(older)
