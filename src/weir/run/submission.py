"""Running the command again: which job id a name stands for, and whether it may run (PROTOCOL P19,
P20).

==========================  =====================================================================================
newest record of the job    what running the same command does
==========================  =====================================================================================
none                        a new job
running, failed             goes on from the newest completed checkpoint
stopped                     refuses and names the savepoint
finished                    says so; nothing is run
canceled                    refuses and names the newest checkpoint
superseded                  refuses and names the newest checkpoint: a start under a new id died before it had the name
==========================  =====================================================================================

A live driver (fresh lease) is left alone, unless ``--takeover``. ``--fresh`` and a new
``--from-savepoint`` draw a new job id, unless the targets have rows that this would double
(PROTOCOL P21). The same ``--from-savepoint`` again continues the run that it began; a snapshot is
known by the checksum of its ``_metadata``, not by its path. Before the name stands for a new id,
the log of the old one says so: a driver of the old id that lives, or only seemed dead, is fenced at
its next record (PROTOCOL P17) and completes and commits nothing beside the new one.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from weir.core.types import JobId, Recorded
from weir.durable.sink_port import SinkPort
from weir.durable.targets import check_before_begin
from weir.errors import (
    CheckpointNotFoundError,
    JobAlreadyRunningError,
    JobEndedError,
    JobFencedError,
    StorageError,
)
from weir.run.options import RunOptions
from weir.runtime.concurrency import Clock
from weir.storage.checkpoints import CheckpointStorage, snapshot_directory
from weir.storage.filesystem import FileSystem
from weir.storage.job_log import JobLog, JobRecord, RecordStatus
from weir.storage.job_names import JobNames, NameRecord
from weir.storage.lease import Lease, holder_is_alive
from weir.storage.paths import is_same


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The job that is to be run."""

    job_id: JobId
    storage: CheckpointStorage
    #: The job's sinks, once each has found its target fit; None for a job that has finished.
    sinks: SinkPort | None
    #: The savepoint that the job begins from, or None, and the checksum of its ``_metadata``.
    from_savepoint: str | None
    snapshot_checksum: str | None
    #: The newest record, or None for a new job.
    record: JobRecord | None

    @property
    def has_finished(self) -> bool:
        """Whether there is nothing to run."""
        return self.record is not None and self.record.status is RecordStatus.FINISHED


def submit(
    *,
    name: str,
    options: RunOptions,
    base_directory: str,
    fs: Callable[[str], FileSystem],
    clock: Clock,
    sinks: Callable[[CheckpointStorage], SinkPort],
    private: bool = True,
    claims: bool = False,
) -> Submission:
    """Find or draw the job's id and check that it may run; ``sinks`` makes the sinks of the job
    that has this storage. ``private``: see ``CheckpointStorage``. ``claims``: a new job owns the
    snapshot that it begins from.

    Raises ``JobAlreadyRunningError``, ``JobEndedError``, ``JobFencedError`` (two commands at once),
    ``StorageError`` for a checkpoint directory or savepoint that cannot be used, ``SinkError`` for
    a target that is not fit, and ``DuplicatesError`` if a job that is to begin would write rows
    that its targets have. Until all of that is checked nothing has changed: neither what the name
    stands for, nor the job that it stood for.
    """
    fresh_storage = CheckpointStorage(
        fs=fs, base_directory=base_directory, job_id=secrets.token_hex(16), private=private
    )
    fresh_storage.check_writable()
    names = JobNames(fs(base_directory), base_directory)
    known = names.lookup(name)
    snapshot = _snapshot(options.from_savepoint, known, fresh_storage)
    continues = (
        known is not None and snapshot is not None and snapshot.checksum == known.snapshot_checksum
    )
    if known is not None and not options.takeover:
        _check_no_live_driver(name, known, fs(base_directory), base_directory, clock)
    if known is None or options.fresh or (snapshot is not None and not continues):
        checkpoint = None
        if snapshot is not None:
            checkpoint = fresh_storage.read(snapshot.path, expected_checksum=snapshot.checksum)
            taken_over = (
                options.takeover and known is not None and checkpoint.job_id == known.job_id
            )
            if claims and not taken_over:
                # The driver of a job that is taken over is fenced before anything of it is deleted.
                fresh_storage.check_claimable(checkpoint, clock.wall_ms())
            fresh_storage.verify(checkpoint)
        port = _checked(sinks, fresh_storage)
        if not options.accept_duplicates:
            check_before_begin(port, fresh_storage.job_id, checkpoint)
        if known is not None:
            _supersede(
                known, fresh_storage.job_id, replace(fresh_storage, job_id=known.job_id), clock
            )
        _assign(name, fresh_storage.job_id, names, known, snapshot)
        fresh_storage.make_job_directory()
        return Submission(
            job_id=fresh_storage.job_id,
            storage=fresh_storage,
            sinks=port,
            from_savepoint=None if snapshot is None else snapshot.path,
            snapshot_checksum=None if snapshot is None else snapshot.checksum,
            record=None,
        )
    storage = replace(fresh_storage, job_id=known.job_id)
    storage.make_job_directory()
    record = JobLog(fs(base_directory), storage.log_directory).newest()
    _check_resumable(name, known, record)
    # Where the snapshot is now, as far as it was said: it may have been moved.
    recorded = known.from_savepoint if record is None else record.restored_from
    submission = Submission(
        job_id=known.job_id,
        storage=storage,
        sinks=None,
        from_savepoint=recorded if snapshot is None else snapshot.path,
        snapshot_checksum=known.snapshot_checksum,
        record=record,
    )
    return (
        submission
        if submission.has_finished
        else replace(submission, sinks=_checked(sinks, storage))
    )


@dataclass(frozen=True, kw_only=True)
class _Snapshot:
    """What ``--from-savepoint`` names."""

    path: str
    #: Of its ``_metadata``: by this it is the same one, however its path is spelt and wherever it
    #: was moved.
    checksum: str


def _snapshot(
    path: str | None, known: NameRecord | None, storage: CheckpointStorage
) -> _Snapshot | None:
    """The snapshot at a path, its directory or its ``_metadata``.

    The one that the job began from may have been deleted since, because the job had claimed it.
    """
    if path is None:
        return None
    directory = snapshot_directory(path)
    try:
        return _Snapshot(path=directory, checksum=storage.checksum(directory))
    except CheckpointNotFoundError:
        before = None if known is None else known.from_savepoint
        if (
            known is None
            or before is None
            or known.snapshot_checksum is None
            or not is_same(before, directory)
        ):
            raise
        return _Snapshot(path=directory, checksum=known.snapshot_checksum)


def _checked(
    sinks: Callable[[CheckpointStorage], SinkPort], storage: CheckpointStorage
) -> SinkPort:
    port = sinks(storage)
    port.check(storage.job_id)
    return port


def _supersede(known: NameRecord, by: JobId, storage: CheckpointStorage, clock: Clock) -> None:
    """End the job that the name stood for; also one that has no record yet, since its driver may be
    about to begin."""
    storage.make_job_directory()
    JobLog(storage.fs(storage.base_directory), storage.log_directory).supersede(
        job_id=known.job_id,
        job_name=known.name,
        by=by,
        writer=secrets.token_hex(8),
        timestamp_ms=clock.wall_ms(),
    )


def _assign(
    name: str, job_id: JobId, names: JobNames, known: NameRecord | None, snapshot: _Snapshot | None
) -> None:
    outcome = names.assign(
        name,
        job_id,
        from_savepoint=None if snapshot is None else snapshot.path,
        snapshot_checksum=None if snapshot is None else snapshot.checksum,
        after=0 if known is None else known.generation,
    )
    if outcome is Recorded.FENCED:
        raise JobFencedError(
            f"Another command started job {name!r} at the same moment: leave it running, or run"
            " this one again."
        )
    if outcome is Recorded.FAILED:
        raise StorageError(
            f"The id of job {name!r} could not be recorded: look at the checkpoint directory's"
            " disk."
        )


def _check_no_live_driver(
    name: str, known: NameRecord, fs: FileSystem, base_directory: str, clock: Clock
) -> None:
    lease = Lease(fs, base_directory, known.job_id).read()
    if lease is not None and holder_is_alive(lease, clock.wall_ms(), socket.gethostname()):
        raise JobAlreadyRunningError(
            f"Job {name!r} ({known.job_id}) is running in process {lease.pid} on {lease.host}, with"
            f" its REST server at {lease.rest_address}: use that one, stop it with 'weir stop', or"
            " take the job over with --takeover."
        )


def _check_resumable(name: str, known: NameRecord, record: JobRecord | None) -> None:
    if record is None:
        return
    newest = record.checkpoints[-1].path if record.checkpoints else None
    if record.status is RecordStatus.STOPPED:
        raise JobEndedError(
            f"Job {name!r} was stopped with a savepoint: go on with --from-savepoint"
            f" {record.savepoint}, or start anew with --fresh."
        )
    if record.status is RecordStatus.CANCELED:
        way = f"go on with --from-savepoint {newest}, or " if newest else ""
        raise JobEndedError(f"Job {name!r} was cancelled: {way}start anew with --fresh.")
    if record.status is RecordStatus.SUPERSEDED:
        if newest is not None:
            way = f"go on with --from-savepoint {newest}, or "
        else:
            began = known.from_savepoint
            way = "" if began is None else f"begin again with --fresh --from-savepoint {began}, or "
        raise JobEndedError(
            f"Job {name!r} ({known.job_id}) was superseded by a start under the new id"
            f" {record.superseded_by}, which did not come to be: {way}start anew with --fresh."
        )
