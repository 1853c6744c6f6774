"""``DurableJob``: orders the durable operations of one job: records, checkpoints and commits.

The order within each operation::

    begin_attempt      1. read the targets' newest commits
                       2. record "attempt began"
                       3. open the sinks, and check that no target has gone back
                       4. verify the restore point, map it to the pipeline, and check that it
                          covers the rows at the targets
                       5. restore hooks
                       6. commit again
                       7. clean the targets
                       8. delete orphans
    allocate           the counter's next id, and a savepoint's directory
    record_checkpoint  _metadata, then the job log's next number (PROTOCOL P17), then the deletion
                       of a claimed snapshot
    commit_sinks       ``sink_port``, with retries, then listeners; after the attempt's first
                       commit, clean once more
    record_end         the job log's next number, then deletions
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from weir.core.messages.job import (
    AllocateLocation,
    CheckpointRecorded,
    DiscardCheckpoint,
    RecordCheckpoint,
    RecordEnd,
    TriggerHook,
)
from weir.core.messages.task import CommitSinks, ReportAborted
from weir.core.status import JobStatus
from weir.core.types import (
    CompletedCheckpoint,
    JobId,
    OperatorId,
    Payload,
    Recorded,
    SnapshotKind,
    StateHandle,
    TaskState,
    VertexId,
)
from weir.durable.hooks import CheckpointListeners, MasterHooks
from weir.durable.recovery import older_checkpoints, restore_point
from weir.durable.sink_port import SinkPort
from weir.durable.state_mapping import StateMapping
from weir.durable.targets import (
    UnknownCommit,
    accepted,
    begun_elsewhere,
    check_not_begun_from_another,
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
    JobFencedError,
    StorageError,
)
from weir.runtime.concurrency import Waits
from weir.runtime.ports import AttemptStart
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import Transfer
from weir.storage.job_log import (
    CheckpointReference,
    JobLog,
    JobLogWriter,
    JobRecord,
    Origin,
    RecordStatus,
    StartCommand,
)
from weir.storage.paths import lies_in, parent

#: How often to retry the record of an attempt, since the driver being fenced may complete
#: checkpoints meanwhile.
_BEGIN_TRIES = 20
#: The message for people when the job log has a newer attempt.
FENCED = "another driver has taken over the job: this driver stops without touching any file."

_log = logging.getLogger(__name__)

_END_STATUS = {
    JobStatus.FINISHED: RecordStatus.FINISHED,
    JobStatus.FAILED: RecordStatus.FAILED,
    JobStatus.CANCELED: RecordStatus.CANCELED,
    JobStatus.SUSPENDED: RecordStatus.SUSPENDED,
}


#: A job that has ended so has committed everything.
_COMMITTED = (RecordStatus.FINISHED, RecordStatus.STOPPED, RecordStatus.SUSPENDED)


@dataclass(frozen=True, kw_only=True)
class DurableSettings:
    """Settings of a ``DurableJob``."""

    job_name: str
    savepoint_directory: str
    #: Where the job's queries keep their files until it ends.
    working_directory: str
    #: The savepoint or another job's checkpoint from which a new job starts, and the checksum of
    #: its ``_metadata``.
    from_savepoint: str | None
    snapshot_checksum: str | None = None
    accept_duplicates: bool
    #: ``execution.state-recovery.claim-mode=CLAIM``: the job owns that snapshot, and deletes it
    #: once it is subsumed.
    claims_snapshot: bool
    num_retained: int
    #: How this driver was started, for the job's records.
    command: StartCommand | None = None


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
        waits: Waits,
        note: Callable[[str], None],
        restored: Callable[[CompletedCheckpoint], None],
        state_mapping: StateMapping,
    ) -> None:
        """``note`` gets messages for people, ``restored`` the checkpoint to resume from.

        ``state_mapping`` refuses a checkpoint that does not fit the pipeline.
        """
        self._storage = storage
        self._sinks = sinks
        self._hooks = hooks
        self._listeners = listeners
        self._state_mapping = state_mapping
        self._settings = settings
        self._kernel = storage.kernel
        self._note = note
        self._restored = restored
        self._transfer = Transfer(storage.fs)
        fs = storage.fs(storage.base_directory)
        self._log = JobLog(fs, storage.log_directory, self._kernel, job_id=storage.job_id)
        self._writer_token = self._kernel.new_name()[:16]
        self._writer: JobLogWriter | None = None
        self._lock = waits.lock()
        self._attempt = 0
        self._ancestors: dict[JobId, int] = {}
        #: The newest checkpoint id that this driver knows to be taken.
        self._allocated = 0
        #: Whether an attempt's record is being won: targets are read, or the record is written.
        self._winning = False
        self._cleaned_attempt = 0
        self._claim_is_over = False
        #: Checkpoints whose records failed, but may land later: an object store can carry out a
        #: request long after the client gave up on it.
        self._may_land: set[int] = set()

    @property
    def attempt(self) -> int:
        """The newest attempt that this driver started; 0 before the first."""
        return self._attempt

    def begin_attempt(self) -> AttemptStart:
        """Win the record "attempt began", restore, and repeat the commits."""
        self._winning = True
        try:
            record, allocated = self._win_attempt(own_commits(self._sinks, self._storage.job_id))
        finally:
            self._winning = False
        self._attempt = record.attempt
        self._allocated = max(self._allocated, allocated, record.completed or 0)
        self._open_sinks(record)
        if not self._settings.accept_duplicates:
            self._sinks.check_not_gone_back()
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
        states: dict[VertexId, TaskState] = {}
        if checkpoint is not None:
            states = self._state_mapping.assign(checkpoint)
            self._check_newest(checkpoint, record)
        self._ancestors = self._rows_before(checkpoint)
        if checkpoint is not None:
            self._restored(checkpoint)
        self._hooks.restore(checkpoint)
        if checkpoint is not None:
            self._commit_again(checkpoint, record)
        older = older_checkpoints(record, checkpoint, self._storage)
        if older is not None:
            # Only now: a newer checkpoint that could not be used may still need staged files.
            self._sinks.clean(record.attempt)
            # Files of drivers that died during a checkpoint or a deletion.
            kept = [*older, *([checkpoint] if checkpoint is not None else [])]
            own = [known for known in kept if known.job_id == record.job_id]
            self._storage.discard_orphans(own, up_to=allocated)
        return AttemptStart(
            attempt=record.attempt,
            restored=checkpoint,
            states=states,
            older=older or (),
            allocated=allocated,
        )

    def resume(self) -> None:
        """An attempt is about to start."""
        self._sinks.resume()

    def stop(self) -> None:
        """Stop waiting between retries of a commit."""
        self._sinks.stop()

    def commit_sinks(self, effect: CommitSinks) -> None:
        """Commit the epoch in the task's sinks, and notify listeners.

        After the attempt's first commit, clean the targets again: executors of older attempts may
        have written late.
        """
        attempt = self._attempt
        self._sinks.commit(effect.checkpoint_id, effect.payloads, self._is_fenced)
        if attempt != self._attempt:
            # The commit hung, and another attempt has started since.
            return
        self._listeners.complete(effect.vertex, effect.checkpoint_id)
        with self._lock:
            # Not if a newer attempt has started: it has to repeat its commits first.
            first = self._cleaned_attempt < attempt == self._attempt
            if first:
                self._cleaned_attempt = attempt
        if first:
            self._sinks.clean(attempt)

    def report_aborted(self, effect: ReportAborted) -> None:
        """Notify the task's listeners that a checkpoint was aborted."""
        self._listeners.aborted(effect.vertex, effect.checkpoint_id)

    def allocate(self, effect: AllocateLocation) -> tuple[int, str | None]:
        """Allocate the next checkpoint id and, for a savepoint, its directory."""
        checkpoint_id = self._storage.next_checkpoint_id(self._allocated)
        self._allocated = checkpoint_id
        if not effect.kind.is_savepoint:
            return checkpoint_id, None
        target = effect.target or self._settings.savepoint_directory
        self._check_lasts(target)
        return checkpoint_id, self._storage.make_savepoint_directory(target)

    def trigger_hook(self, effect: TriggerHook) -> Payload | None:
        """Ask one master hook for its state."""
        return self._hooks.trigger(effect)

    def record_checkpoint(self, effect: RecordCheckpoint) -> CheckpointRecorded:
        """Write the metadata, then win the record.

        An intermediate savepoint needs no record (PROTOCOL P14).
        """
        n = effect.checkpoint_id
        checkpoint = CompletedCheckpoint(
            job_id=self._storage.job_id,
            checkpoint_id=n,
            kind=effect.kind,
            timestamp_ms=effect.timestamp_ms,
            completion_timestamp_ms=self._kernel.wall_ms(),
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
        outcome = self._append(
            writer,
            newest.checkpoint_completed(
                reference,
                timestamp_ms=checkpoint.completion_timestamp_ms,
                retained=effect.retained,
                written=self._sinks.written(),
                epochs=self._sinks.epochs(),
                claim_is_over=self._claim_is_over,
            ),
        )
        if outcome is Recorded.WON:
            with _only_logged("delete the claimed snapshot"):
                self._subsume_claimed(writer.newest)
        elif outcome is Recorded.FAILED and self._storage.fs(self._storage.log_directory).acts_late:
            self._may_land.add(n)
        return CheckpointRecorded(
            checkpoint_id=n,
            outcome=outcome,
            checkpoint=checkpoint if outcome is Recorded.WON else None,
            message=FENCED if outcome is Recorded.FENCED else writer.failure,
        )

    def discard(self, effect: DiscardCheckpoint) -> None:
        """Delete the files that only this checkpoint uses.

        An aborted checkpoint whose record may still land keeps its files: the next attempt, which
        knows whether the record landed, resumes from the checkpoint or deletes it.
        """
        if not effect.subsumed and effect.checkpoint_id in self._may_land:
            return
        self._storage.discard(
            effect.checkpoint_id, effect.files, effect.target, subsumed=effect.subsumed
        )

    def record_end(self, effect: RecordEnd) -> Recorded:
        """Record how the job ended, then delete files that are no longer needed."""
        if self._winning:
            raise StorageError(
                "It is unknown whether this attempt is recorded: the write, or the check of the"
                " sinks' targets before it, has not returned. Find out why the checkpoint"
                " directory or a target does not respond."
            )
        if self._writer is None:
            # No attempt ever started: the log's newest record still holds.
            return Recorded.WON
        writer, newest = self._writing()
        status = RecordStatus.STOPPED if effect.savepoint else _END_STATUS[effect.status]
        outcome = self._append(
            writer,
            newest.ended(
                status,
                timestamp_ms=self._kernel.wall_ms(),
                savepoint=effect.savepoint,
                failure=effect.failure,
                delete_checkpoints=effect.delete_checkpoints,
                claim_is_over=self._claim_is_over,
            ),
        )
        if outcome is Recorded.WON:
            with _only_logged("delete the job's remaining files"):
                if effect.delete_checkpoints:
                    self._storage.discard_all(known.checkpoint_id for known in newest.checkpoints)
                if status in _COMMITTED:
                    # Everything is committed: what is still staged are batches without rows.
                    self._sinks.clean(self._attempt + 1)
        return outcome

    # ---- internals

    def _check_lasts(self, target: str) -> None:
        """Raise ``StorageError`` for savepoints below a directory where the job deletes files."""
        found = self._storage.fs(target).real_path(target)
        for place in (self._storage.job_directory, self._settings.working_directory):
            if lies_in(found, self._storage.fs(place).real_path(place)):
                raise StorageError(
                    f"Cannot take a savepoint below {target}: it is in {place}, where the job"
                    " deletes its own files. Choose another directory."
                )

    def _win_attempt(self, committed: Sequence[UnknownCommit]) -> tuple[JobRecord, int]:
        """Win the record "attempt began"; also return the newest checkpoint id before it.

        ``committed`` are the job's commits, looked up before its records were read. Raises
        ``DuplicatesError`` if the records end before them. If the user accepts that, ids and
        attempts continue above those at the targets (PROTOCOL P19).
        """
        for _ in range(_BEGIN_TRIES):
            newest = self._log.newest()
            if newest is None and self._writer is not None:
                raise self._records_gone()
            completed = 0 if newest is None else newest.completed or 0
            beyond = [known for known in committed if known.commit.checkpoint_id > completed]
            for known in beyond:
                self._settle_beyond(known.target, known.sink, known.commit.checkpoint_id, completed)
            # Before the record: attempts that start after it get higher ids.
            allocated = self._storage.newest_checkpoint_id()
            if (
                self._writer is not None
                and newest is not None
                and newest.writer != self._writer_token
            ):
                break
            above = max((unknown.commit.attempt for unknown in beyond), default=0)
            began = self._next_attempt(newest, above)
            self._check_targets_are_there(newest)
            try:
                self._writer = self._log.begin_attempt(began)
                return self._writer.newest, allocated
            except JobFencedError:
                now = self._log.newest()
                if newest is None or now is None or now.attempt != newest.attempt:
                    raise
                # The driver being fenced has completed a checkpoint meanwhile: read its record and
                # try again (PROTOCOL P17).
        raise JobFencedError(
            f"Another driver runs job {self._storage.job_id}: this driver, attempt"
            f" {self._attempt}, stops."
        )

    def _next_attempt(self, newest: JobRecord | None, above_attempt: int) -> JobRecord:
        """The record "attempt began" after ``newest``.

        Raises ``JobEndedError`` if the job has ended since this driver started (PROTOCOL P20).
        """
        settings = self._settings
        if newest is None:
            return JobRecord.first_attempt(
                job_id=self._storage.job_id,
                job_name=settings.job_name,
                writer=self._writer_token,
                timestamp_ms=self._kernel.wall_ms(),
                above_attempt=above_attempt,
                restored_from=settings.from_savepoint,
                restored_checksum=settings.snapshot_checksum,
                claimed=settings.claims_snapshot,
                origin=self._origin(settings.from_savepoint, settings.snapshot_checksum),
                tables=self._sinks.tables(),
                command=settings.command,
            )
        path = settings.from_savepoint or newest.restored_from
        return newest.attempt_began(
            writer=self._writer_token,
            timestamp_ms=self._kernel.wall_ms(),
            above_attempt=above_attempt,
            restored_from=settings.from_savepoint,
            origin=newest.origin or self._origin(path, newest.restored_checksum),
            tables=self._sinks.tables(),
            written={} if settings.accept_duplicates else None,
            epochs={} if settings.accept_duplicates else None,
            command=settings.command,
        )

    def _open_sinks(self, record: JobRecord) -> None:
        """Open the sinks for the job's own rows."""
        self._sinks.open(
            self._storage.job_id,
            record.attempt,
            record.written,
            epochs=record.epochs,
            may_have_gone_back=self._settings.accept_duplicates,
        )

    def _is_fenced(self) -> bool:
        """Whether another driver's record is the job's newest."""
        newest = self._log.newest()
        if newest is None:
            raise self._records_gone()
        return newest.writer != self._writer_token

    def _records_gone(self) -> StorageError:
        return StorageError(
            f"The records of job {self._storage.job_id} in {self._storage.log_directory} are"
            " gone: check that the volume is mounted; the job continues once they are back."
        )

    def _origin(self, path: str | None, checksum: str | None) -> Origin | None:
        """The snapshot from which the job was started, for readers of its tables.

        It is kept in every record, since the snapshot may be deleted.
        """
        if path is None:
            return None
        try:
            snapshot = self._storage.read(path, expected_checksum=checksum)
        except StorageError as error:
            _log.debug("Cannot read the snapshot that the job started from: %s", error)
            return None
        return Origin(job_id=snapshot.job_id, checkpoint_id=snapshot.checkpoint_id)

    def _writing(self) -> tuple[JobLogWriter, JobRecord]:
        if self._writer is None:
            raise InvariantError("a record is written before an attempt started")
        return self._writer, self._writer.newest

    def _append(self, writer: JobLogWriter, record: JobRecord) -> Recorded:
        """Win the next number of the job log.

        If an error leaves it unknown whether the number was won, this driver must not act any more:
        it counts as fenced.
        """
        try:
            return writer.append(record)
        except Exception as error:
            # An error here would count as a record that was surely lost.
            with _only_logged("report why this driver stops"):
                self._note(f"this driver stops, because it cannot write the job log: {error}")
            return Recorded.FENCED

    def _subsume_claimed(self, record: JobRecord) -> None:
        """Delete the claimed snapshot once ``num_retained`` own checkpoints are retained."""
        fs = self._storage.fs(self._storage.job_directory)
        place = fs.real_path(self._storage.job_directory)
        own = [known for known in record.checkpoints if lies_in(fs.real_path(known.path), place)]
        if self._claim_is_over or not record.claimed or len(own) < self._settings.num_retained:
            # Once the claimed snapshot is deleted, files at its path belong to somebody else. The
            # next record says so to later drivers (``claim_is_over``).
            return
        if record.restored_from is not None:
            self._storage.discard_claimed(
                record.restored_from, expected_checksum=record.restored_checksum
            )
        self._claim_is_over = True

    def _check_targets_are_there(self, record: JobRecord | None) -> None:
        """Raise ``StorageError`` if a target that had visible rows of the job is gone."""
        if record is None or self._settings.accept_duplicates:
            return
        for sink, target in self._sinks.vanished(record.written):
            raise StorageError(
                f"{target} (sink {sink!r}) has rows of this job, but nothing is there now: new"
                " rows would be hidden once its volume is mounted. Mount the volume, and the job"
                " continues. If the target was deleted, continue without its rows with"
                " --accept-duplicates."
            )

    def _settle_beyond(self, target: str, sink: OperatorId, committed: int, completed: int) -> None:
        """A target has an epoch of the job beyond its records: refuse, or continue above it.

        Raises ``DuplicatesError`` unless duplicates are accepted (PROTOCOL P19, P21).
        """
        if not self._settings.accept_duplicates:
            raise DuplicatesError(
                older_records(target, sink, committed, completed, self._storage.job_directory)
            )
        self._storage.skip_checkpoint_ids(committed)

    def _rows_before(self, checkpoint: CompletedCheckpoint | None) -> dict[JobId, int]:
        """Rows of other jobs that precede this job's at the targets: by job, the last checkpoint.

        Raises ``DuplicatesError`` for rows that the checkpoint does not know of, unless they are
        accepted (PROTOCOL P21).
        """
        own, known = self._storage.job_id, known_rows(checkpoint)
        foreign = checkpoint is not None and checkpoint.job_id != own
        ancestors = {job_id: up_to for job_id, up_to in known.items() if job_id != own}
        # Its own rows have been checked: they end with its records, or more was accepted.
        known = {**ancestors, own: sys.maxsize}
        unknown = unknown_commits(self._sinks, own, known, of_any_name=foreign)
        if self._settings.accept_duplicates:
            return {**ancestors, **accepted(unknown)}
        first = next(unknown, None)
        # The generator holds a sink's lock until it is closed.
        unknown.close()
        if first is not None:
            snapshot = checkpoint if foreign else None
            raise DuplicatesError(begun_elsewhere(first, snapshot, self._sinks))
        if checkpoint is not None and foreign:
            check_not_begun_from_another(self._sinks, own, checkpoint)
        return ancestors

    def _check_newest(self, checkpoint: CompletedCheckpoint, record: JobRecord) -> None:
        """Raise ``DuplicatesError`` if the checkpoint's own job has committed beyond it (P21).

        Only for a checkpoint of another job, and unless duplicates are accepted.
        """
        if checkpoint.job_id == self._storage.job_id or self._settings.accept_duplicates:
            return
        self._sinks.open(checkpoint.job_id, record.attempt)
        self._sinks.check_newest(checkpoint)
        self._open_sinks(record)

    def _commit_again(self, checkpoint: CompletedCheckpoint, record: JobRecord) -> None:
        """Repeat the checkpoint's commits; another job's under its own transaction ids (P19)."""
        foreign = checkpoint.job_id != self._storage.job_id
        accepts = self._settings.accept_duplicates
        left_out = self._sinks.learn_left_out(checkpoint)
        if foreign:
            self._sinks.open(checkpoint.job_id, record.attempt, may_have_gone_back=accepts)
        elif left_out:
            self._open_sinks(record)
        removed = self._sinks.commit_again(
            checkpoint,
            partial(self._put_back, checkpoint),
            foreign=foreign,
            allow_removed=self._state_mapping.allow_non_restored_state,
        )
        for name in removed:
            self._note(
                f"the rows of removed sink {name!r} that {checkpoint.external_path} has to commit"
                " are left out: its table has them if that job was stopped by weir stop"
            )
        if foreign or any(task.committables for task in checkpoint.tasks):
            # The commits may have made a target, to which rows must fit from now on.
            self._open_sinks(record)

    def _put_back(self, checkpoint: CompletedCheckpoint, handle: StateHandle, path: str) -> None:
        """Copy staged output from a savepoint back to where it was staged, durably."""
        self._storage.fs(path).make_directory(parent(path))
        self._transfer.copy(self._storage.file_path(checkpoint, handle), path)


@contextmanager
def _only_logged(what: str) -> Iterator[None]:
    """For what follows a decision, such as deletions after a won record: it stands if they fail."""
    try:
        yield
    except Exception as error:
        _log.warning("Could not %s: %s", what, error)
