"""``DurableJob``: the records, checkpoints and commits of one job, in the order in which they must
happen.

What happens when::

    begin_attempt      targets looked at -> record "attempt began" -> restore point verified, mapped, known to the targets
                       -> hooks -> commit again -> clean -> orphans
    allocate           the next id of the counter, and a savepoint's directory
    record_checkpoint  _metadata, then the job log's next number (PROTOCOL P17), then a claimed snapshot may go
    commit_sinks       ``sink_port``, with retries, then listeners; after the first one clean once more
    record_end         the job log's next number, then deletions
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from weir.core.messages.job import (
    AllocateLocation,
    CheckpointRecorded,
    DiscardCheckpoint,
    RecordCheckpoint,
    RecordEnd,
    TriggerHook,
)
from weir.core.messages.task import CommitSinks, TellAborted
from weir.core.status import JobStatus
from weir.core.types import (
    CompletedCheckpoint,
    JobId,
    OperatorId,
    Payload,
    Recorded,
    SnapshotKind,
    StateHandle,
)
from weir.durable.hooks import CheckpointListeners, MasterHooks
from weir.durable.recovery import older_checkpoints, restore_point
from weir.durable.sink_port import SinkPort
from weir.durable.state_mapping import StateMapping
from weir.durable.targets import (
    UnknownCommit,
    accepted,
    begun_elsewhere,
    known_rows,
    older_records,
    own_commits,
    unknown_commits,
)
from weir.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    DuplicatesError,
    InvariantError,
    JobEndedError,
    JobFencedError,
    LostWriteError,
    StorageError,
)
from weir.runtime.concurrency import Clock, Waits
from weir.runtime.ports import AttemptStart
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import Transfer
from weir.storage.job_log import (
    CheckpointReference,
    JobLog,
    JobLogWriter,
    JobRecord,
    Origin,
    RecordKind,
    RecordStatus,
)
from weir.storage.paths import lies_in, parent

#: How often a live driver may complete a checkpoint while it is being fenced.
_BEGIN_TRIES = 20
#: What people are told when a newer attempt was found in the job log.
FENCED = "another driver has taken over the job: this one ends and touches no file"

_log = logging.getLogger(__name__)

_END_STATUS = {
    JobStatus.FINISHED: RecordStatus.FINISHED,
    JobStatus.FAILED: RecordStatus.FAILED,
    JobStatus.CANCELED: RecordStatus.CANCELED,
}


@dataclass(frozen=True, kw_only=True)
class DurableSettings:
    """What it needs beside its collaborators."""

    job_name: str
    savepoint_directory: str
    #: Where the job's queries keep their files until it ends.
    working_directory: str
    #: The savepoint or foreign checkpoint that a new job begins from, and the checksum of its
    #: ``_metadata``.
    from_savepoint: str | None
    snapshot_checksum: str | None = None
    accept_duplicates: bool
    #: ``execution.state-recovery.claim-mode=CLAIM``: the job owns that snapshot, and deletes it
    #: once it is subsumed.
    claims_snapshot: bool
    num_retained: int


class DurableJob:
    """Implements ``weir.runtime.ports.DurablePort``."""

    def __init__(
        self,
        *,
        storage: CheckpointStorage,
        sinks: SinkPort,
        hooks: MasterHooks,
        listeners: CheckpointListeners,
        settings: DurableSettings,
        clock: Clock,
        waits: Waits,
        token: Callable[[], str],
        note: Callable[[str], None],
        restored: Callable[[CompletedCheckpoint], None],
        state_mapping: StateMapping,
    ) -> None:
        """``token`` draws 16 random hexadecimal digits. ``note`` is told what people should know,
        ``restored`` what an attempt goes on from. ``state_mapping`` refuses a checkpoint that does
        not fit the pipeline."""
        self._storage = storage
        self._sinks = sinks
        self._hooks = hooks
        self._listeners = listeners
        self._state_mapping = state_mapping
        self._settings = settings
        self._clock = clock
        self._token = token
        self._note = note
        self._restored = restored
        self._transfer = Transfer(storage.fs)
        fs = storage.fs(storage.base_directory)
        self._log = JobLog(fs, storage.log_directory, sleep=waits.sleep)
        self._writer_token = token()
        self._writer: JobLogWriter | None = None
        self._lock = waits.lock()
        self._attempt = 0
        self._ancestors: dict[JobId, int] = {}
        #: An attempt is being won: the targets are looked at, or its record is written.
        self._winning = False
        self._cleaned_attempt = 0
        self._claim_is_over = False

    @property
    def attempt(self) -> int:
        """The newest attempt that this driver began; 0 before the first."""
        return self._attempt

    def begin_attempt(self) -> AttemptStart:
        """Win the record "attempt began", restore and commit again."""
        self._winning = True
        try:
            record, allocated = self._win_attempt(own_commits(self._sinks, self._storage.job_id))
        finally:
            self._winning = False
        self._attempt = record.attempt
        self._sinks.open(self._storage.job_id, record.attempt)
        completed = record.completed or 0
        for name, target, newest in self._sinks.committed_beyond(completed):
            self._settle_beyond(target, name, newest, completed)
        try:
            checkpoint = restore_point(
                record=record,
                storage=self._storage,
                sinks=self._sinks,
                accept_duplicates=self._settings.accept_duplicates,
                note=self._note,
            )
        except (CheckpointNotFoundError, CheckpointDamagedError) as error:
            if self._log.newest() is None:
                raise self._records_gone() from error
            raise
        if checkpoint is not None:
            self._state_mapping.check(checkpoint)
            self._check_newest(checkpoint, record)
        self._ancestors = self._rows_before(checkpoint)
        if checkpoint is not None:
            self._restored(checkpoint)
        self._hooks.restore(checkpoint)
        if checkpoint is not None:
            self._commit_again(checkpoint, record)
        older = older_checkpoints(record, checkpoint, self._storage)
        if older is not None:
            # Not while a newer checkpoint, that could not be used now, may have something staged.
            self._sinks.clean(record.attempt)
            # What drivers that died in the middle of a checkpoint or of a deletion left behind.
            kept = [*older, *([checkpoint] if checkpoint is not None else [])]
            own = [known for known in kept if known.job_id == record.job_id]
            self._storage.discard_orphans(own, up_to=allocated)
        return AttemptStart(attempt=record.attempt, restored=checkpoint, older=older or ())

    def resume(self) -> None:
        """An attempt is about to begin."""
        self._sinks.resume()

    def stop(self) -> None:
        """Give up waiting between two tries of a commit."""
        self._sinks.stop()

    def commit_sinks(self, effect: CommitSinks) -> None:
        """Let the sinks of the task commit the epoch, and tell listeners; then once more clean what
        came late."""
        attempt = self._attempt
        self._sinks.commit(effect.checkpoint_id, effect.payloads)
        if attempt != self._attempt:
            # It hung, and another attempt has begun since.
            return
        self._listeners.complete(effect.vertex, effect.checkpoint_id)
        with self._lock:
            # Not for a newer attempt, which has to commit again first.
            first = self._cleaned_attempt < attempt == self._attempt
            if first:
                self._cleaned_attempt = attempt
        if first:
            self._sinks.clean(attempt)

    def tell_aborted(self, effect: TellAborted) -> None:
        """Tell the listeners of the task that a checkpoint is over."""
        self._listeners.aborted(effect.vertex, effect.checkpoint_id)

    def allocate(self, effect: AllocateLocation) -> tuple[int, str | None]:
        """The next checkpoint id, and the directory of a savepoint."""
        checkpoint_id = self._storage.next_checkpoint_id()
        if not effect.kind.is_savepoint:
            return checkpoint_id, None
        target = effect.target or self._settings.savepoint_directory
        self._check_lasts(target)
        return checkpoint_id, self._storage.make_savepoint_directory(target, self._token()[:12])

    def trigger_hook(self, effect: TriggerHook) -> Payload | None:
        """Ask one master hook for its state."""
        return self._hooks.trigger(effect)

    def record_checkpoint(self, effect: RecordCheckpoint) -> CheckpointRecorded:
        """Write the metadata, then win the record. An intermediate savepoint needs no record
        (PROTOCOL P14)."""
        n = effect.checkpoint_id
        checkpoint = CompletedCheckpoint(
            job_id=self._storage.job_id,
            checkpoint_id=n,
            kind=effect.kind,
            timestamp_ms=effect.timestamp_ms,
            completion_timestamp_ms=self._clock.wall_ms(),
            attempt=effect.attempt,
            tasks=effect.tasks,
            hook_states=effect.hook_states,
            coordinator_states=effect.coordinator_states,
            external_path=effect.target or self._storage.checkpoint_directory(n),
            drained=all(task.fully_finished for task in effect.tasks),
            ancestors=self._ancestors,
        )
        checksum = self._storage.write_metadata(checkpoint)
        if effect.kind is SnapshotKind.SAVEPOINT:
            return CheckpointRecorded(checkpoint_id=n, outcome=Recorded.WON, checkpoint=checkpoint)
        writer, newest = self._writing()
        reference = CheckpointReference(
            checkpoint_id=n, path=checkpoint.external_path, checksum=checksum
        )
        kept = [known for known in newest.checkpoints if known.checkpoint_id in effect.retained]
        outcome = self._append(
            writer,
            kind=RecordKind.CHECKPOINT_COMPLETED,
            timestamp_ms=checkpoint.completion_timestamp_ms,
            status=RecordStatus.RUNNING,
            completed=n,
            checkpoints=(*kept, reference),
            written=self._sinks.written(),
        )
        if outcome is Recorded.WON:
            with _only_logged("delete the claimed snapshot"):
                self._subsume_claimed(writer.newest)
        return CheckpointRecorded(
            checkpoint_id=n,
            outcome=outcome,
            checkpoint=checkpoint if outcome is Recorded.WON else None,
            message=FENCED if outcome is Recorded.FENCED else writer.failure,
        )

    def discard(self, effect: DiscardCheckpoint) -> None:
        """Delete what only this checkpoint has."""
        self._storage.discard(
            effect.checkpoint_id, effect.files, effect.target, subsumed=effect.subsumed
        )

    def record_end(self, effect: RecordEnd) -> Recorded:
        """Record how the job ended, then delete what nobody needs any more."""
        if self._winning:
            raise StorageError(
                "The record of an attempt is still being written, or targets of sinks are looked at"
                " before it, so whether it will count is not known: see why the checkpoint"
                " directory or a target does not answer."
            )
        if self._writer is None:
            # No attempt ever began: what the log says of the job is still so.
            return Recorded.WON
        writer, newest = self._writing()
        status = RecordStatus.STOPPED if effect.savepoint else _END_STATUS[effect.status]
        outcome = self._append(
            writer,
            kind=RecordKind.ENDED,
            timestamp_ms=self._clock.wall_ms(),
            status=status,
            completed=newest.completed,
            checkpoints=() if effect.delete_checkpoints else newest.checkpoints,
            savepoint=effect.savepoint,
            failure=effect.failure,
        )
        if outcome is Recorded.WON:
            with _only_logged("delete what the job left behind"):
                if effect.delete_checkpoints:
                    self._storage.discard_all(known.checkpoint_id for known in newest.checkpoints)
                if status in (RecordStatus.FINISHED, RecordStatus.STOPPED):
                    # Everything is committed: what is still staged are steps without rows.
                    self._sinks.clean(self._attempt + 1)
        return outcome

    # -- inside
    # ------------------------------------------------------------------------------------------

    def _check_lasts(self, target: str) -> None:
        """Raise ``StorageError`` for savepoints in a directory in which the job itself deletes."""
        found = self._storage.fs(target).real_path(target)
        for place in (self._storage.job_directory, self._settings.working_directory):
            if lies_in(found, self._storage.fs(place).real_path(place)):
                raise StorageError(
                    f"A savepoint cannot be made below {target}, since that is in {place}, where"
                    " the job deletes its own files: name another directory."
                )

    def _win_attempt(self, committed: Sequence[UnknownCommit]) -> tuple[JobRecord, int]:
        """Win the record "attempt began"; also says which checkpoint id was the newest before it.

        ``committed`` is what the job had committed before its records were read; raises
        ``DuplicatesError`` if they do not go as far. Where that is accepted, ids and attempts go on
        above what the targets have (PROTOCOL P19).
        """
        for _ in range(_BEGIN_TRIES):
            newest = self._log.newest()
            if newest is None and self._writer is not None:
                raise self._records_gone()
            completed = 0 if newest is None else newest.completed or 0
            beyond = [one for one in committed if one.commit.checkpoint_id > completed]
            for one in beyond:
                self._settle_beyond(one.target, one.sink, one.commit.checkpoint_id, completed)
            # Before the record: an attempt that begins after this one gets higher ids.
            allocated = self._storage.newest_checkpoint_id()
            if (
                self._writer is not None
                and newest is not None
                and newest.writer != self._writer_token
            ):
                break
            self._check_goes_on(newest)
            self._check_targets_are_there(newest)
            known = {} if newest is None or self._settings.accept_duplicates else newest.written
            try:
                self._writer = self._log.begin_attempt(
                    after=newest,
                    job_id=self._storage.job_id,
                    job_name=self._settings.job_name,
                    writer=self._writer_token,
                    timestamp_ms=self._clock.wall_ms(),
                    restored_from=self._settings.from_savepoint,
                    restored_checksum=self._settings.snapshot_checksum,
                    claimed=self._settings.claims_snapshot,
                    above_attempt=max((one.commit.attempt for one in beyond), default=0),
                    origin=self._origin(newest),
                    tables=self._sinks.tables(),
                    written=known,
                )
                return self._writer.newest, allocated
            except JobFencedError:
                now = self._log.newest()
                if newest is None or now is None or now.attempt != newest.attempt:
                    raise
                # The driver that is to be fenced has completed a checkpoint meanwhile: read on
                # (PROTOCOL P17).
        raise JobFencedError(
            f"Another driver runs job {self._storage.job_id}: this one, attempt {self._attempt},"
            " ends."
        )

    def _records_gone(self) -> StorageError:
        return StorageError(
            f"The records of job {self._storage.job_id} in {self._storage.log_directory} are gone:"
            " see whether that volume is mounted; the job goes on once they are there again."
        )

    def _origin(self, newest: JobRecord | None) -> Origin | None:
        """What the job was begun from, for readers of its tables. It is in each record, since the
        snapshot may go."""
        path, checksum = self._settings.from_savepoint, self._settings.snapshot_checksum
        if newest is not None:
            path, checksum = path or newest.restored_from, newest.restored_checksum
        if path is None or (newest is not None and newest.origin is not None):
            return None if newest is None else newest.origin
        try:
            snapshot = self._storage.read(path, expected_checksum=checksum)
        except StorageError as error:
            _log.debug("What the job began from cannot be read: %s", error)
            return None
        return Origin(job_id=snapshot.job_id, checkpoint_id=snapshot.checkpoint_id)

    def _check_goes_on(self, newest: JobRecord | None) -> None:
        """Raise ``JobEndedError`` if the job has come to its end since it was decided to run it
        (PROTOCOL P20)."""
        if newest is not None and newest.status not in (RecordStatus.RUNNING, RecordStatus.FAILED):
            raise JobEndedError(
                f"Job {self._settings.job_name} ({self._storage.job_id}) was {newest.status.value}"
                " by another driver while this one started, so nothing was run: run the command"
                " again to see what is possible now."
            )

    def _writing(self) -> tuple[JobLogWriter, JobRecord]:
        if self._writer is None:
            raise InvariantError("a record is written before an attempt began")
        return self._writer, self._writer.newest

    def _append(self, writer: JobLogWriter, **fields: Any) -> Recorded:
        """Win the next number. A number that stays in doubt may be ours or not: this driver must
        act no more."""
        try:
            return writer.append(**fields, claim_is_over=self._claim_is_over)
        except Exception as error:
            self._note(f"the job log cannot be written, so this driver ends: {error}")
            return Recorded.FENCED

    def _subsume_claimed(self, record: JobRecord) -> None:
        """Delete the claimed snapshot once as many checkpoints of the job's own are retained as
        there may be."""
        fs = self._storage.fs(self._storage.job_directory)
        place = fs.real_path(self._storage.job_directory)
        own = [known for known in record.checkpoints if lies_in(fs.real_path(known.path), place)]
        if self._claim_is_over or not record.claimed or len(own) < self._settings.num_retained:
            # What lies at that path once it is deleted is somebody else's: the next record says so
            # to later drivers.
            return
        if record.restored_from is not None:
            self._storage.discard_claimed(
                record.restored_from,
                self._clock.wall_ms(),
                expected_checksum=record.restored_checksum,
            )
        self._claim_is_over = True

    def _check_targets_are_there(self, record: JobRecord | None) -> None:
        """Raise ``StorageError`` for a target at which rows of the job were visible, and which is
        gone."""
        if record is None or self._settings.accept_duplicates:
            return
        for sink, target in self._sinks.vanished(record.written):
            raise StorageError(
                f"{target} (sink {sink!r}) has rows of this job, and nothing is found there now:"
                " what is written there would be hidden once its volume is mounted. Mount it, and"
                " the job goes on. If it was deleted, go on without its rows by"
                " --accept-duplicates."
            )

    def _settle_beyond(self, target: str, sink: OperatorId, committed: int, completed: int) -> None:
        """A target has an epoch of the job beyond its records: refuse, or go on above it
        (PROTOCOL P19, P21)."""
        if not self._settings.accept_duplicates:
            raise DuplicatesError(
                older_records(target, sink, committed, completed, self._storage.job_directory)
            )
        self._storage.skip_checkpoint_ids(committed)

    def _rows_before(self, checkpoint: CompletedCheckpoint | None) -> dict[JobId, int]:
        """The rows of other jobs that lie at the targets before this one's (PROTOCOL P21).

        Raises ``DuplicatesError`` if it does not know of some, and they are not accepted.
        """
        own, known = self._storage.job_id, known_rows(checkpoint)
        foreign = checkpoint is not None and checkpoint.job_id != own
        ancestors = {job_id: up_to for job_id, up_to in known.items() if job_id != own}
        # Its own rows have been looked at: they end where its records do, or that is accepted.
        known = {**ancestors, own: sys.maxsize}
        unknown = unknown_commits(self._sinks, own, known, of_any_name=foreign)
        if self._settings.accept_duplicates:
            return {**ancestors, **accepted(unknown)}
        first = next(unknown, None)
        # It holds a sink while it is asked.
        unknown.close()
        if first is not None:
            raise DuplicatesError(begun_elsewhere(first, checkpoint if foreign else None))
        return ancestors

    def _check_newest(self, checkpoint: CompletedCheckpoint, record: JobRecord) -> None:
        """Raise ``DuplicatesError`` if another job, of which the checkpoint is, has gone on at
        these targets (P21)."""
        if checkpoint.job_id == self._storage.job_id or self._settings.accept_duplicates:
            return
        self._sinks.open(checkpoint.job_id, record.attempt)
        self._sinks.check_newest(checkpoint)
        self._sinks.open(self._storage.job_id, record.attempt)

    def _commit_again(self, checkpoint: CompletedCheckpoint, record: JobRecord) -> None:
        """A checkpoint of another job commits under that job's transaction ids (PROTOCOL P19)."""
        foreign = checkpoint.job_id != self._storage.job_id
        if foreign:
            self._sinks.open(checkpoint.job_id, record.attempt)
        self._sinks.commit_again(checkpoint, partial(self._put_back, checkpoint), foreign=foreign)
        if foreign:
            self._sinks.open(self._storage.job_id, record.attempt)

    def _put_back(self, checkpoint: CompletedCheckpoint, handle: StateHandle, path: str) -> None:
        """Copy staged output out of a savepoint, durably."""
        fs = self._storage.fs(path)
        fs.make_directory(parent(path))
        self._transfer.link_or_copy(self._storage.file_path(checkpoint, handle), path)
        try:
            fs.sync([path])
        except LostWriteError:
            # The next attempt has to put it back again.
            fs.delete(path)
            raise


@contextmanager
def _only_logged(what: str) -> Iterator[None]:
    """For deletions after a record that was won: the record counts, whatever becomes of them."""
    try:
        yield
    except Exception as error:
        _log.warning("Could not %s: %s", what, error)
