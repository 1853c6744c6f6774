"""Running the command again: which job a name maps to, and whether it may run (PROTOCOL P19, P20).

==========================  ====================================================================
newest record of the job    what running the same command does
==========================  ====================================================================
none                        starts a new job
running, suspended, failed  resumes from the newest completed checkpoint
stopped                     refuses and names the savepoint
finished                    says so and runs nothing, unless the pipeline now reads or writes
                            something else: then refuses
canceled                    refuses and names the newest checkpoint
superseded                  refuses and names the newest checkpoint, or else the savepoint that
                            the job started from: a start under a new id died before it was
                            assigned the name
==========================  ====================================================================

``--from-savepoint latest`` stands for the savepoint with which the job was stopped. A job that was
not, or that has gone on since, is run as without the option, and that is said: never is a job put
back to a savepoint behind its newest checkpoint in silence.

A live driver (fresh lease) is left alone, unless ``--takeover`` is given. ``--fresh`` and a new
``--from-savepoint`` draw a new job id, unless the targets have rows that this would duplicate
(PROTOCOL P21). Giving the same ``--from-savepoint`` again continues the run that started from it; a
snapshot is identified by the checksum of its ``_metadata``, not by its path. Before the name is
assigned to a new id, the old id's log records that it is superseded: a driver of the old id that is
alive, or only seemed dead, is fenced at its next record (PROTOCOL P17), so it completes and commits
nothing alongside the new job.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from weir.config.values import LATEST_SAVEPOINT
from weir.core.types import CompletedCheckpoint, JobId, Recorded
from weir.durable.changes import Changes
from weir.durable.sink_port import SinkPort
from weir.durable.targets import check_before_begin
from weir.errors import (
    CheckpointNotFoundError,
    JobAlreadyRunningError,
    JobEndedError,
    JobFencedError,
    StorageError,
)
from weir.kernel import MACHINE, Kernel
from weir.launch.earlier_run import Fits, resumed_from
from weir.launch.options import RunOptions
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.filesystem import FileSystem
from weir.storage.job_log import JobLog, JobRecord, RecordStatus
from weir.storage.job_names import JobNames, NameRecord
from weir.storage.lease import Lease, holder_is_alive
from weir.storage.paths import is_same
from weir.storage.snapshots import snapshot_directory

_log = logging.getLogger(__name__)

#: How long it takes until the lease of another machine's driver is read again, and for how long
#: at most.
_ASK_AGAIN_S = 0.5
_PATIENCE_MS = 60_000


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The job to run."""

    job_id: JobId
    storage: CheckpointStorage
    #: The job's sinks, with their targets checked; None for a job that has finished.
    sinks: SinkPort | None
    #: The snapshot that the job starts from, or None, and the checksum of its ``_metadata``.
    from_savepoint: str | None
    snapshot_checksum: str | None
    #: The newest record, or None for a new job.
    record: JobRecord | None
    #: The newest checkpoint that can be read, of a job that has run.
    newest: CompletedCheckpoint | None = None

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
    kernel: Kernel,
    sinks: Callable[[CheckpointStorage], SinkPort],
    fits: Fits,
    private: bool = True,
    claims: bool = False,
    changes: Changes,
    earlier: Callable[[JobRecord | None], None] = lambda _: None,
    note: Callable[[str], None] = _log.info,
) -> Submission:
    """Find or draw the job's id and check that the job may run.

    ``sinks`` makes the sinks of the job that has the given storage. ``private``: see
    ``CheckpointStorage``. ``claims``: a new job owns the snapshot that it starts from. ``fits``
    refuses a snapshot, or the newest checkpoint of the job, that does not fit the pipeline;
    ``changes`` compares the two. ``earlier`` gets the newest record of the job, None of a new job,
    before anything of the pipeline is refused. ``note`` gets messages for people.

    Raises ``JobAlreadyRunningError``, ``JobEndedError``, ``JobFencedError`` (two commands at once),
    ``StorageError`` for a checkpoint directory or savepoint that cannot be used, ``JobError`` for a
    checkpoint that does not fit or a changed pipeline, ``SinkError`` for an unsuitable target, and
    ``DuplicatesError`` if a new job would write rows that its targets already have. Until all
    checks have passed, neither the name's assignment nor the job that it was assigned to is
    changed.
    """
    fresh_storage = CheckpointStorage(
        fs=fs,
        base_directory=base_directory,
        job_id=kernel.new_name(),
        private=private,
        kernel=kernel,
    )
    fresh_storage.check_writable()
    names = JobNames(fs(base_directory), base_directory, kernel)
    known = names.lookup(name)
    if options.from_savepoint == LATEST_SAVEPOINT:
        path = _latest_savepoint(name, known, fresh_storage, note)
        options = replace(options, from_savepoint=path)
    snapshot = _snapshot(options.from_savepoint, known, fresh_storage)
    continues = (
        known is not None and snapshot is not None and snapshot.checksum == known.snapshot_checksum
    )
    if known is not None and not options.takeover:
        _check_no_live_driver(known, fresh_storage, note)
    if known is None or options.fresh or (snapshot is not None and not continues):
        earlier(None)
        checked = _checked_as_new(
            options,
            known,
            snapshot,
            fresh_storage,
            sinks,
            fits=fits,
            changes=changes,
            claims=claims,
        )
        if known is not None:
            old_storage = replace(fresh_storage, job_id=known.job_id)
            _supersede(known, fresh_storage.job_id, old_storage)
        _assign(name, fresh_storage.job_id, names, known, snapshot)
        fresh_storage.make_job_directory()
        return checked
    own_storage = replace(fresh_storage, job_id=known.job_id)
    return _resumed(
        name, known, snapshot, own_storage, sinks, fits=fits, changes=changes, earlier=earlier
    )


def started_from(
    *, name: str, options: RunOptions, base_directory: str, fs: Callable[[str], FileSystem]
) -> CompletedCheckpoint | None:
    """The checkpoint or savepoint from which ``submit`` would start the job; None without one.

    Writes nothing. Raises ``StorageError`` if the job's records or the savepoint cannot be read.
    """
    known = JobNames(fs(base_directory), base_directory).lookup(name)
    job_id = MACHINE.new_name() if known is None else known.job_id
    storage = CheckpointStorage(fs=fs, base_directory=base_directory, job_id=job_id)
    path = options.from_savepoint
    if path == LATEST_SAVEPOINT:
        # `submit` says what there is to say.
        path = _latest_savepoint(name, known, storage, _log.debug)
    snapshot = _snapshot(path, known, storage)
    path, checksum = (None, None) if snapshot is None else (snapshot.path, snapshot.checksum)
    if known is not None and not options.fresh and checksum in (None, known.snapshot_checksum):
        record = JobLog(fs(base_directory), storage.log_directory, job_id=job_id).newest()
        if record is not None:
            return _newest_checkpoint(record, storage)
        path, checksum = path or known.from_savepoint, known.snapshot_checksum
    return None if path is None else storage.read(path, expected_checksum=checksum)


@dataclass(frozen=True, kw_only=True)
class _Snapshot:
    """What ``--from-savepoint`` names."""

    path: str
    #: Of its ``_metadata``: identifies the snapshot, however its path is spelled and wherever it
    #: was moved.
    checksum: str


def _checked_as_new(
    options: RunOptions,
    known: NameRecord | None,
    snapshot: _Snapshot | None,
    storage: CheckpointStorage,
    sinks: Callable[[CheckpointStorage], SinkPort],
    *,
    fits: Fits,
    changes: Changes,
    claims: bool,
) -> Submission:
    """A job that starts in this storage, with or without a snapshot. Changes nothing."""
    checkpoint = None
    if snapshot is not None:
        checkpoint = storage.read(snapshot.path, expected_checksum=snapshot.checksum)
        taken_over = options.takeover and known is not None and checkpoint.job_id == known.job_id
        if claims and not taken_over:
            # With --takeover the job's own driver is fenced before its files are deleted.
            storage.check_claimable(checkpoint)
        fits(checkpoint)
        storage.verify(checkpoint)
        changes.check_start(checkpoint, storage.job_id)
    port = _checked(sinks, storage)
    if not options.accept_duplicates:
        check_before_begin(port, storage.job_id, checkpoint)
    return Submission(
        job_id=storage.job_id,
        storage=storage,
        sinks=port,
        from_savepoint=None if snapshot is None else snapshot.path,
        snapshot_checksum=None if snapshot is None else snapshot.checksum,
        record=None,
    )


def _resumed(
    name: str,
    known: NameRecord,
    snapshot: _Snapshot | None,
    storage: CheckpointStorage,
    sinks: Callable[[CheckpointStorage], SinkPort],
    *,
    fits: Fits,
    changes: Changes,
    earlier: Callable[[JobRecord | None], None],
) -> Submission:
    """The job that has the name, from its newest record; without sinks if it has finished."""
    storage.make_job_directory()
    fs = storage.fs(storage.base_directory)
    record = JobLog(fs, storage.log_directory, job_id=storage.job_id).newest()
    if record is None and (left := storage.newest_left()) is not None:
        raise StorageError(
            f"Job {name!r} has checkpoints, but its records in {storage.log_directory} are gone:"
            f" restore them from a copy, or start a new job with --from-savepoint {left}, or from"
            " scratch with --fresh."
        )
    _check_resumable(name, known, record, storage)
    earlier(record)
    # The snapshot may have been moved: prefer the path given now to the recorded path.
    recorded = known.from_savepoint if record is None else record.restored_from
    submission = Submission(
        job_id=known.job_id,
        storage=storage,
        sinks=None,
        from_savepoint=recorded if snapshot is None else snapshot.path,
        snapshot_checksum=known.snapshot_checksum,
        record=record,
        newest=_newest_checkpoint(record, storage),
    )
    if submission.has_finished:
        if submission.newest is not None:
            changes.check_finished(submission.newest, {})
        return submission
    if record is not None:
        # What cannot be read is the attempt's to report: it may resume from an older checkpoint.
        with contextlib.suppress(StorageError):
            checkpoint = resumed_from(record, storage)
            if checkpoint is not None:
                fits(checkpoint)
    if submission.newest is not None:
        changes.check_start(submission.newest, known.job_id)
    return replace(submission, sinks=_checked(sinks, storage))


def _newest_checkpoint(
    record: JobRecord | None, storage: CheckpointStorage
) -> CompletedCheckpoint | None:
    """The newest checkpoint that can be read; whether it is whole is checked at the restore."""
    if record is None:
        return None
    known: list[tuple[str, str | None]] = [
        (reference.path, reference.checksum) for reference in reversed(record.checkpoints)
    ]
    if not known and record.restored_from is not None:
        known = [(record.restored_from, record.restored_checksum)]
    for path, checksum in known:
        try:
            return storage.read(path, expected_checksum=checksum)
        except StorageError as error:
            _log.debug("Cannot compare the pipeline with a checkpoint: %s", error)
    return None


def _snapshot(
    path: str | None, known: NameRecord | None, storage: CheckpointStorage
) -> _Snapshot | None:
    """The snapshot at a path, its directory or its ``_metadata``.

    The snapshot that the job started from may be gone, because the job had claimed and deleted it.
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


def _latest_savepoint(
    name: str,
    known: NameRecord | None,
    storage: CheckpointStorage,
    note: Callable[[str], None],
) -> str | None:
    """The savepoint with which the job was stopped; None if it was not, or has gone on since.

    Raises ``CheckpointNotFoundError`` if it is gone, and ``StorageError`` if another is there.
    """
    record = None
    if known is not None:
        log_directory = replace(storage, job_id=known.job_id).log_directory
        fs = storage.fs(storage.base_directory)
        record = JobLog(fs, log_directory, job_id=known.job_id).newest()
    if record is not None and record.status is RecordStatus.STOPPED and record.savepoint:
        try:
            found = storage.checksum(record.savepoint)
        except CheckpointNotFoundError as error:
            raise CheckpointNotFoundError(
                f"Job {name!r} was stopped with the savepoint {record.savepoint}, which is gone:"
                " put it back, give its new place with --from-savepoint PATH, or start from scratch"
                " with --fresh."
            ) from error
        recorded = {one.path: one.checksum for one in record.checkpoints}
        if recorded.get(record.savepoint, found) != found:
            raise StorageError(
                f"Job {name!r} was stopped with the savepoint {record.savepoint}, but another"
                " snapshot is there now: put it back, or give its new place with --from-savepoint"
                " PATH."
            )
        return record.savepoint
    said = f"--from-savepoint {LATEST_SAVEPOINT}: job {name!r}"
    started = None if known is None else known.from_savepoint
    if known is None:
        note(f"{said} has not run here before, so it starts without a savepoint")
    elif record is not None and record.completed is not None:
        note(f"{said} has no savepoint that is newer than its checkpoint {record.completed}")
    elif started is not None and (record is None or record.status.may_be_run):
        note(
            f"{said} has completed no checkpoint since it started from {started}: from there again"
        )
    else:
        note(f"{said} has no new savepoint, so it goes on as without the option")
    return None


def _checked(
    sinks: Callable[[CheckpointStorage], SinkPort], storage: CheckpointStorage
) -> SinkPort:
    port = sinks(storage)
    port.check(storage.job_id)
    return port


def _supersede(known: NameRecord, by: JobId, storage: CheckpointStorage) -> None:
    """End the job that the name was assigned to.

    Also if it has no record yet, since its driver may be about to begin.
    """
    storage.make_job_directory()
    fs = storage.fs(storage.base_directory)
    log = JobLog(fs, storage.log_directory, storage.kernel, job_id=storage.job_id)
    log.supersede(
        job_id=known.job_id,
        job_name=known.name,
        by=by,
        writer=storage.kernel.new_name()[:16],
        timestamp_ms=storage.kernel.wall_ms(),
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
            f"Another command started job {name!r} at the same moment: leave it running, or"
            " run this command again."
        )


def _check_no_live_driver(
    known: NameRecord, storage: CheckpointStorage, note: Callable[[str], None]
) -> None:
    """Refuse a job that another driver runs.

    Whether a process of another machine lives shows when it renews its lease, or does not: a
    cluster starts a driver anew where its machine has died.
    """
    directory, here, kernel = storage.base_directory, socket.gethostname(), storage.kernel
    lease = first = Lease(storage.fs(directory), directory, known.job_id).read()
    began_ms = kernel.now_ms()
    while lease is not None and holder_is_alive(lease, kernel.wall_ms(), here):
        waited_ms = kernel.now_ms() - began_ms
        # A lease that holds for longer than it says is of a machine whose clock is ahead.
        is_over = waited_ms > min(lease.timeout_ms, _PATIENCE_MS)
        if lease != first or lease.host == here or is_over:
            raise JobAlreadyRunningError(
                f"Job {known.name!r} ({known.job_id}) is running in process {lease.pid} on"
                f" {lease.host}, with its REST server at {lease.rest_address}: leave it running,"
                " stop it with 'weir stop', or take over the job with --takeover."
            )
        if first is lease:
            note(f"waiting to see whether the job's driver on {lease.host} is alive")
        kernel.sleep(_ASK_AGAIN_S)
        lease = Lease(storage.fs(directory), directory, known.job_id).read()


def _check_resumable(
    name: str, known: NameRecord, record: JobRecord | None, storage: CheckpointStorage
) -> None:
    if record is None:
        return
    newest = record.checkpoints[-1].path if record.checkpoints else None
    if record.status is RecordStatus.STOPPED:
        if _is_drained(record.savepoint, storage):
            raise JobEndedError(
                f"Job {name!r} was drained and stopped (savepoint {record.savepoint}): its input"
                " has ended and every row is committed, so nothing is left to resume. Start from"
                " scratch with --fresh, into new tables."
            )
        shown = f"{LATEST_SAVEPOINT} ({record.savepoint})"
        way = _way(storage, "resume with", record.savepoint, shown=shown)
        raise JobEndedError(
            f"Job {name!r} was stopped with a savepoint: {way}start from scratch with --fresh."
        )
    if record.status is RecordStatus.CANCELED:
        way = _way(storage, "resume with", newest)
        raise JobEndedError(f"Job {name!r} was cancelled: {way}start from scratch with --fresh.")
    if record.status is RecordStatus.SUPERSEDED:
        again = _way(storage, "restart with --fresh", known.from_savepoint)
        way = _way(storage, "resume with", newest) or again
        raise JobEndedError(
            f"Job {name!r} ({known.job_id}) was superseded by the new id {record.superseded_by},"
            f" which never started: {way}start from scratch with --fresh."
        )


def _is_drained(savepoint: str | None, storage: CheckpointStorage) -> bool:
    """Whether the input had ended before the savepoint; False if it cannot be read."""
    if savepoint is None:
        return False
    try:
        return storage.read(savepoint).drained
    except StorageError:
        return False


def _way(
    storage: CheckpointStorage, how: str, path: str | None, *, shown: str | None = None
) -> str:
    """The advice to go on from a snapshot, which may be gone; empty if there is none.

    ``shown``: what to give instead of its path.
    """
    if path is None:
        return ""
    way = f"{how} --from-savepoint {shown or path}, or "
    try:
        storage.checksum(path)
    except CheckpointNotFoundError:
        return f"put back {path}, which is gone, and {way}"
    except StorageError:
        pass  # it may be there
    return way
