"""What a job's own records say of the epochs of its sinks (PROTOCOL P15), for readers of its tables.

A checkpoint without rows for a sink leaves no trace at the sink's target. That it was empty, and not forgotten, is on
record in the job's directory, in two facts:

1. The job log names the newest completed checkpoint.
2. Its ``_metadata`` holds everything that was staged and is not confirmed, of every epoch up to it (PROTOCOL P5).

So an epoch up to that checkpoint that has nothing pending, or only files without rows, is committed or has nothing to
commit. This stays true whatever the job does later, hence the order of a reader: first the records, then the tables.
What the records call pending may be committed by then; the table itself tells::

    records   newest checkpoint 7, sink "revenue" has epoch 6 pending
    table     newest commit 3: whole up to 5        newest commit 6: whole up to 7

A job that was begun from another one's snapshot goes on in the same tables, but adds no version to one before it has rows
for it. So its records also name its tables, and that snapshot: what the table has of the older job up to there, and nothing
else, is what it had when this job began.

How the job ended makes no difference. A finished job has committed all; one that was cancelled has left its last epochs
pending.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from weir.core.types import CompletedCheckpoint, JobId, OperatorId
from weir.errors import CheckpointNotFoundError, StorageError
from weir.state.filesystem import FileSystem
from weir.state.job_log import JobLog, JobRecord
from weir.state.paths import as_delta_path, is_same, name_of, parent
from weir.state.storage import CheckpointStorage

#: How often the newest checkpoint may be subsumed between the look at the log and the look at its metadata.
_READ_TRIES = 10


@dataclass(frozen=True, kw_only=True)
class JobEpochs:
    """The epochs of a job as of its newest completed checkpoint."""

    job_id: JobId
    #: Ids of the retained checkpoints, oldest first; the last one is the newest that completed.
    checkpoints: tuple[int, ...]
    #: Epochs with rows that were not confirmed then, by sink. Every sink of the job is named.
    pending: Mapping[OperatorId, frozenset[int]]
    #: The sinks of the job that append to Delta tables, with the table's root.
    tables: Mapping[OperatorId, str] = field(default_factory=dict)
    #: The jobs that it goes on from, with the checkpoint of each up to which it does.
    origins: Mapping[JobId, int] = field(default_factory=dict)

    def sink_of(self, root: str) -> OperatorId | None:
        """The sink that appends to a table and is part of the newest checkpoint; None if none is known to."""
        root = as_delta_path(root)
        found = [
            sink
            for sink, table in self.tables.items()
            if sink in self.pending and is_same(as_delta_path(table), root)
        ]
        return found[0] if len(found) == 1 else None

    def whole_up_to(self, sink: OperatorId, committed: int) -> int:
        """Up to which checkpoint a table has all rows of the sink, if its newest commit is that of ``committed``.

        A sink that the job does not have (any more) has no more than that commit.
        """
        if sink not in self.pending:
            return committed
        missing = (epoch - 1 for epoch in self.pending[sink] if epoch > committed)
        return max(committed, min(missing, default=self.checkpoints[-1]))


def read_job_epochs(job_directory: str, file_system: Callable[[str], FileSystem]) -> JobEpochs:
    """Read the records in a job's directory.

    Raises ``WeirError`` if they are not there, cannot be read, or name no checkpoint (any more).
    """
    storage = CheckpointStorage(
        fs=file_system, base_directory=parent(job_directory), job_id=name_of(job_directory)
    )
    log = JobLog(file_system(job_directory), storage.log_directory)
    for _ in range(_READ_TRIES):
        record = log.newest()
        if record is None or not record.checkpoints:
            raise StorageError(f"The job directory {job_directory} has no completed checkpoint.")
        newest = record.checkpoints[-1]
        try:
            checkpoint = storage.read(newest.path, expected_checksum=newest.checksum)
        except CheckpointNotFoundError as error:
            # Subsumed since the record was read, unless the log still ends with that record.
            gone = error
            continue
        return JobEpochs(
            job_id=storage.job_id,
            checkpoints=tuple(known.checkpoint_id for known in record.checkpoints),
            pending=_pending(checkpoint),
            tables=record.tables,
            origins=_origins(record, storage),
        )
    raise gone


def _origins(record: JobRecord | None, storage: CheckpointStorage) -> dict[JobId, int]:
    """The snapshots in the job's past, as far as the records of their jobs lie beside its own."""
    origins: dict[JobId, int] = {}
    while record is not None and record.origin is not None and record.origin.job_id not in origins:
        origin = record.origin
        origins[origin.job_id] = origin.checkpoint_id
        directory = replace(storage, job_id=origin.job_id).log_directory
        record = JobLog(storage.fs(directory), directory).newest()
    return origins


def _pending(checkpoint: CompletedCheckpoint) -> dict[OperatorId, frozenset[int]]:
    pending: dict[OperatorId, set[int]] = {
        operator.operator_id: set() for task in checkpoint.tasks for operator in task.operators
    }
    for task in checkpoint.tasks:
        for item in task.committables:
            # A step may have staged files, and none of them a row: such an epoch adds no version.
            if item.payload.get("files") != []:
                epoch = checkpoint.checkpoint_id if item.epoch is None else item.epoch
                pending.setdefault(item.sink, set()).add(epoch)
    return {sink: frozenset(epochs) for sink, epochs in pending.items()}
