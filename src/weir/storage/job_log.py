"""The job log: who runs a job, which checkpoints are complete, how the job ended (PROTOCOL P17).

Rules of this file:

1. Every record is the *full* state of the job, so the newest record is sufficient and older records
   are pruned.
2. A record counts once its number is won. A checkpoint is complete if and only if a won record
   lists it.
3. An attempt begins by winning the number after the record on which the decision to begin was
   based. From then on, a number taken by anyone else means that a newer attempt holds the job: this
   driver exits and touches no file.
4. Each record has a checksum (``records.py``), since a changed bit could bring back a job that has
   ended, or a deleted checkpoint.
5. Each record carries ``writer``, a random token of the driver, so that after a create that ended
   in doubt, the driver can distinguish its own record from another driver's.

A timeline with two drivers (A's machine suspends it, B takes over)::

    number  7  attempt-began 2 (A)
            8  checkpoint-completed 41 (A)
            9  attempt-began 3 (B)
    A wakes up and tries 9 for checkpoint 42: taken by B -> FENCED.
    Checkpoint 42 is not complete, and A deletes nothing.

The same holds when B runs the pipeline under a *new* job id, into the same tables: B then takes
number 9 of the old log for "superseded" before it assigns the name to the new id, and nobody runs
the old id again.

A record whose sync failed exists, but may be gone after the machine crashes, and no later sync
would report that. Its writer records the same state under the next number. That record is then the
newest, and does not need the lost record (rule 1).
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from weir.core.types import (
    AbsolutePath,
    JobId,
    MetadataChecksum,
    OperatorId,
    Ordinal,
    Recorded,
    Timestamp,
)
from weir.errors import (
    JobEndedError,
    JobFencedError,
    LostWriteError,
    StorageError,
    invariant,
)
from weir.kernel import MACHINE, Kernel
from weir.storage.filesystem import FileSystem
from weir.storage.numbered_log import Entry, NumberedLog, Recorder
from weir.storage.records import sealed, unsealed

_logger = logging.getLogger(__name__)

_FORM = "weir-job-record"
#: Records kept for people who look into the directory; the protocol needs only the newest.
KEPT_RECORDS = 32
_NONE: Mapping[OperatorId, AbsolutePath] = MappingProxyType({})
#: How often ``supersede`` retries because the driver completed a checkpoint after its log was read.
_SUPERSEDE_TRIES = 32


class RecordKind(enum.Enum):
    """Why a record was written."""

    ATTEMPT_BEGAN = "attempt-began"
    CHECKPOINT_COMPLETED = "checkpoint-completed"
    ENDED = "ended"
    SUPERSEDED = "superseded"


class RecordStatus(enum.Enum):
    """The job's status. RUNNING without a live driver: the driver died, or a signal ended it."""

    RUNNING = "running"
    #: It was stopped with a checkpoint: everything is committed, and the next attempt resumes.
    SUSPENDED = "suspended"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"
    #: The job's name was assigned to a new id: no driver may run this id again.
    SUPERSEDED = "superseded"

    @property
    def may_be_run(self) -> bool:
        """Whether a driver runs the job, or a command may begin another attempt at any moment."""
        return self in (RecordStatus.RUNNING, RecordStatus.SUSPENDED, RecordStatus.FAILED)


#: How a job may end by itself or at its user's request.
_ENDS = frozenset(
    {
        RecordStatus.SUSPENDED,
        RecordStatus.STOPPED,
        RecordStatus.FINISHED,
        RecordStatus.FAILED,
        RecordStatus.CANCELED,
    }
)


@dataclass(frozen=True, kw_only=True)
class CheckpointReference:
    """Where a completed checkpoint is, and the checksum of its ``_metadata``."""

    checkpoint_id: Ordinal
    #: Directory of ``_metadata``.
    path: AbsolutePath
    #: Of the ``_metadata`` file (``metadata.checksum_of``).
    checksum: MetadataChecksum


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The snapshot that a job started from."""

    #: The job that the snapshot was taken of.
    job_id: JobId
    checkpoint_id: Ordinal


@dataclass(frozen=True, kw_only=True)
class SinkEpoch:
    """The newest epoch with rows that a sink has committed, and where."""

    #: ``Sink.identity``.
    target: str
    epoch: Ordinal


@dataclass(frozen=True, kw_only=True)
class StartCommand:
    """How a driver was started: for people, and to notice at the next start what differs."""

    #: The arguments of the pipeline's file, as in a shell, without secrets.
    arguments: str
    #: The current directory, where relative paths start.
    directory: str
    #: The checkpoint locations of a script's queries, in words.
    checkpoint_locations: str = ""


_NO_EPOCHS: Mapping[OperatorId, SinkEpoch] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """The state of a job as of one record.

    Its methods are the transitions: each checks that it may follow, and returns the next record.
    A job is RUNNING from the start of an attempt to its end. After that, only a FAILED or SUSPENDED
    job begins another attempt.
    """

    #: The record's number in the log.
    number: Ordinal
    kind: RecordKind
    job_id: JobId
    job_name: str
    attempt: Ordinal
    #: Random token of the driver that wrote the record.
    writer: str
    timestamp_ms: Timestamp
    #: When the first attempt began; None if the record of that was written by an older Weir.
    started_ms: Timestamp | None = None
    status: RecordStatus = RecordStatus.RUNNING
    #: The newest completed checkpoint; None before the first.
    completed: Ordinal | None = None
    #: When it completed; None also if an older Weir wrote the record of that.
    completed_ms: Timestamp | None = None
    #: All retained checkpoints, newest last.
    checkpoints: tuple[CheckpointReference, ...] = ()
    #: The savepoint with which the job was stopped.
    savepoint: AbsolutePath | None = None
    #: The savepoint or checkpoint that the job was first started from.
    restored_from: AbsolutePath | None = None
    #: Checksum of that snapshot's ``_metadata``, which identifies it wherever it lies.
    restored_checksum: MetadataChecksum | None = None
    #: The job and checkpoint id of that snapshot; None also if it could not be read.
    origin: Origin | None = None
    #: The Delta table that a sink appends to, by sink.
    tables: dict[OperatorId, AbsolutePath] = field(default_factory=dict)
    #: A path that exists as long as a target with visible rows of the job does, by sink
    #: (``Sink.landmark``).
    written: dict[OperatorId, AbsolutePath] = field(default_factory=dict)
    #: What each sink is known to have committed, as far as it says so itself; the target must not
    #: go back behind it (PROTOCOL P21).
    epochs: dict[OperatorId, SinkEpoch] = field(default_factory=dict)
    #: Whether the job owns the snapshot of ``restored_from`` and has not deleted it yet
    #: (``execution.state-recovery.claim-mode=CLAIM`` when the job began).
    claimed: bool = False
    #: Of the driver that began the newest attempt; None if an older Weir did.
    command: StartCommand | None = None
    #: Why the job failed for good.
    failure: str | None = None
    #: The job that the name was to be assigned to instead.
    superseded_by: JobId | None = None

    @classmethod
    def first_attempt(
        cls,
        *,
        job_id: JobId,
        job_name: str,
        writer: str,
        timestamp_ms: Timestamp,
        above_attempt: int = 0,
        restored_from: AbsolutePath | None = None,
        restored_checksum: MetadataChecksum | None = None,
        claimed: bool = False,
        origin: Origin | None = None,
        tables: Mapping[OperatorId, AbsolutePath] = _NONE,
        command: StartCommand | None = None,
    ) -> JobRecord:
        """The first record of a job.

        ``above_attempt``: an attempt at the targets that no record knows.
        """
        return cls(
            number=1,
            kind=RecordKind.ATTEMPT_BEGAN,
            job_id=job_id,
            job_name=job_name,
            attempt=above_attempt + 1,
            writer=writer,
            timestamp_ms=timestamp_ms,
            started_ms=timestamp_ms,
            restored_from=restored_from,
            restored_checksum=restored_checksum,
            origin=origin,
            tables=dict(tables),
            claimed=claimed,
            command=command,
        )

    @classmethod
    def never_began(
        cls,
        *,
        job_id: JobId,
        job_name: str,
        superseded_by: JobId,
        writer: str,
        timestamp_ms: Timestamp,
    ) -> JobRecord:
        """The first and last record of a job that is superseded before its first attempt."""
        return cls(
            number=1,
            kind=RecordKind.SUPERSEDED,
            job_id=job_id,
            job_name=job_name,
            attempt=1,
            writer=writer,
            timestamp_ms=timestamp_ms,
            status=RecordStatus.SUPERSEDED,
            superseded_by=superseded_by,
        )

    def attempt_began(
        self,
        *,
        writer: str,
        timestamp_ms: Timestamp,
        above_attempt: int = 0,
        restored_from: AbsolutePath | None = None,
        origin: Origin | None = None,
        tables: Mapping[OperatorId, AbsolutePath] | None = None,
        written: Mapping[OperatorId, AbsolutePath] | None = None,
        epochs: Mapping[OperatorId, SinkEpoch] | None = None,
        command: StartCommand | None = None,
    ) -> JobRecord:
        """The next attempt, with the checkpoints of this record and the snapshot it started from.

        ``restored_from`` updates where that snapshot lies, ``origin`` what it was. ``tables``,
        ``written``, ``epochs`` and ``command`` replace those of this record. The attempt's number
        is also above ``above_attempt``, an attempt at the targets that no record knows. Raises
        ``JobEndedError`` if the job has ended and cannot be resumed (PROTOCOL P20).
        """
        if not self.status.may_be_run:
            by = f" by job {self.superseded_by}" if self.superseded_by else ""
            raise JobEndedError(
                f"Another driver marked job {self.job_name} ({self.job_id}) as"
                f" {self.status.value}{by} while this one started, so nothing was run: run the"
                " command again to see the options."
            )
        return replace(
            self,
            number=self.number + 1,
            kind=RecordKind.ATTEMPT_BEGAN,
            attempt=1 + max(above_attempt, self.attempt),
            writer=writer,
            timestamp_ms=timestamp_ms,
            status=RecordStatus.RUNNING,
            failure=None,
            restored_from=restored_from or self.restored_from,
            origin=self.origin or origin,
            tables=self.tables if tables is None else dict(tables),
            written=self.written if written is None else dict(written),
            epochs=self.epochs if epochs is None else dict(epochs),
            command=command or self.command,
        )

    def checkpoint_completed(
        self,
        reference: CheckpointReference,
        *,
        timestamp_ms: Timestamp,
        retained: Collection[Ordinal] = (),
        written: Mapping[OperatorId, AbsolutePath] = _NONE,
        epochs: Mapping[OperatorId, SinkEpoch] = _NO_EPOCHS,
        claim_is_over: bool = False,
    ) -> JobRecord:
        """The job with another completed checkpoint.

        Earlier checkpoints in ``retained`` stay. ``written`` adds targets that have visible
        rows, ``epochs`` what sinks have committed. ``claim_is_over``: the claimed snapshot has been
        deleted.
        """
        self._check_runs("complete a checkpoint")
        invariant(
            reference.checkpoint_id > (self.completed or 0),
            f"checkpoint {reference.checkpoint_id} completes after checkpoint {self.completed}",
        )
        kept = (known for known in self.checkpoints if known.checkpoint_id in retained)
        return replace(
            self,
            number=self.number + 1,
            kind=RecordKind.CHECKPOINT_COMPLETED,
            timestamp_ms=timestamp_ms,
            completed=reference.checkpoint_id,
            completed_ms=timestamp_ms,
            checkpoints=(*kept, reference),
            written={**self.written, **written},
            epochs={**self.epochs, **epochs},
            claimed=self.claimed and not claim_is_over,
        )

    def ended(
        self,
        status: RecordStatus,
        *,
        timestamp_ms: Timestamp,
        savepoint: AbsolutePath | None = None,
        failure: str | None = None,
        delete_checkpoints: bool = False,
        claim_is_over: bool = False,
    ) -> JobRecord:
        """The end of the job: STOPPED with a savepoint, SUSPENDED, FINISHED, FAILED or CANCELED.

        ``delete_checkpoints``: its checkpoints are deleted once the record is won.
        """
        self._check_runs("end")
        invariant(status in _ENDS, f"a job does not end as {status.value}")
        invariant(
            (status is RecordStatus.STOPPED) == (savepoint is not None),
            f"a job that is {status.value} has savepoint {savepoint}",
        )
        invariant(
            failure is None or status is RecordStatus.FAILED,
            f"a job that is {status.value} has failed: {failure}",
        )
        return replace(
            self,
            number=self.number + 1,
            kind=RecordKind.ENDED,
            timestamp_ms=timestamp_ms,
            status=status,
            checkpoints=() if delete_checkpoints else self.checkpoints,
            savepoint=savepoint,
            failure=failure,
            claimed=self.claimed and not claim_is_over,
        )

    def superseded(self, by: JobId, *, writer: str, timestamp_ms: Timestamp) -> JobRecord:
        """The end of a job whose name is assigned to job ``by``; all else stays (PROTOCOL P20)."""
        invariant(self.status.may_be_run, f"a job that is {self.status.value} has ended already")
        return replace(
            self,
            number=self.number + 1,
            kind=RecordKind.SUPERSEDED,
            attempt=self.attempt + 1,
            writer=writer,
            timestamp_ms=timestamp_ms,
            status=RecordStatus.SUPERSEDED,
            superseded_by=by,
        )

    def renumbered(self) -> JobRecord:
        """The same state under the next number, since this number's record may be lost."""
        return replace(self, number=self.number + 1)

    def _check_runs(self, what: str) -> None:
        invariant(
            self.status is RecordStatus.RUNNING,
            f"a job that is {self.status.value} cannot {what}",
        )


class JobLog:
    """The log of one job, in ``directory``."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        kernel: Kernel = MACHINE,
        *,
        job_id: JobId | None = None,
    ) -> None:
        """``job_id``: whose records these must be; None if any job's may be read."""
        self._log = NumberedLog(fs, directory)
        self._kernel = kernel
        self._job_id = job_id

    def newest(self) -> JobRecord | None:
        """The newest record, or None if the job never began.

        Raises ``StorageError`` if it cannot be read.
        """
        entry = self._log.newest()
        if entry is None:
            return None
        record = _decode(entry, self._log)
        if self._job_id is not None and record.job_id != self._job_id:
            raise _damaged(self._log.path(entry.number), f"it is of job {record.job_id}")
        return record

    def begin_attempt(self, began: JobRecord) -> JobLogWriter:
        """Win the record "attempt began", which fences every older attempt.

        Raises ``JobFencedError`` if another driver has taken its number, and ``StorageError`` if
        the record could not be written.
        """
        recorder = Recorder(self._log, self._kernel)
        outcome, record = _win(recorder, began)
        job = f"{began.job_name} ({began.job_id})"
        if outcome is Recorded.FENCED:
            raise JobFencedError(
                f"Another driver started job {job} at the same moment and now holds it: leave it"
                " running, or stop it before you run the job again."
            )
        if outcome is Recorded.FAILED:
            raise StorageError(f"Cannot record the start of job {job}: {recorder.failure}")
        _prune(self._log)
        return JobLogWriter(self._log, recorder, record)

    def supersede(
        self, *, job_id: JobId, job_name: str, by: JobId, writer: str, timestamp_ms: int
    ) -> JobRecord | None:
        """End job ``job_id``, whether a driver runs it or is about to: job ``by`` takes its place.

        Wins the next number, so that the job's driver is fenced at its next record (PROTOCOL P17).
        The record carries the checkpoints over, and they stay. Returns None, and writes nothing, if
        the job has already ended. Raises ``JobFencedError`` if others take every number, and
        ``StorageError`` if the record could not be written.
        """
        recorder = Recorder(self._log, self._kernel)
        for _ in range(_SUPERSEDE_TRIES):
            after = self.newest()
            if after is not None and not after.status.may_be_run:
                return None
            record = (
                JobRecord.never_began(
                    job_id=job_id,
                    job_name=job_name,
                    superseded_by=by,
                    writer=writer,
                    timestamp_ms=timestamp_ms,
                )
                if after is None
                else after.superseded(by, writer=writer, timestamp_ms=timestamp_ms)
            )
            outcome, record = _win(recorder, record)
            if outcome is Recorded.WON:
                _prune(self._log)
                return record
            if outcome is Recorded.FAILED:
                raise StorageError(
                    f"Cannot record the end of job {job_name} ({job_id}): {recorder.failure}"
                )
            # The job's driver completed a checkpoint meanwhile: read the log again.
        raise JobFencedError(
            f"Another driver of job {job_name} ({job_id}) writes records faster than this command"
            " can end the job: stop it with 'weir stop' or 'weir cancel', then run this command"
            " again."
        )


class JobLogWriter:
    """One attempt's writer of the log, made by ``JobLog.begin_attempt``. Not thread-safe."""

    def __init__(self, log: NumberedLog, recorder: Recorder, began: JobRecord) -> None:
        self._log = log
        self._recorder = recorder
        self._newest = began

    @property
    def newest(self) -> JobRecord:
        """The newest record that this attempt won."""
        return self._newest

    @property
    def failure(self) -> str:
        """The storage error of the last append that ended in doubt; empty if none did."""
        return self._recorder.failure

    def append(self, record: JobRecord) -> Recorded:
        """Win the number of this record, which follows ``newest``.

        Blocks while the outcome is in doubt. WON: durable. FENCED: a newer attempt holds the job;
        touch no file. FAILED: nothing was recorded. Raises ``StorageError`` if the outcome stays
        unknown: stop as if fenced.
        """
        newest = self._newest
        invariant(
            (record.number, record.attempt) == (newest.number + 1, newest.attempt),
            f"record {record.number} of attempt {record.attempt} does not follow record"
            f" {newest.number} of attempt {newest.attempt}",
        )
        outcome, record = _win(self._recorder, record)
        if outcome is Recorded.FENCED and self._landed_late(record.number):
            outcome, record = _win(self._recorder, record.renumbered())
        if outcome is Recorded.WON:
            self._newest = record
            _prune(self._log)
        return outcome

    def _landed_late(self, number: int) -> bool:
        """Whether the number was taken by an earlier record of ours that was reported as FAILED.

        An object store can carry out a request long after the client gave up on it. The record
        appended now supersedes the late record, which therefore never counts, unless this driver
        dies in between.

        Raises ``StorageError`` if the newest entry is no record: then nobody took over the job.
        """
        entry = self._log.newest()
        if entry is None:
            return False
        writer = _decode(entry, self._log).writer
        return entry.number == number and writer == self._newest.writer


def _win(recorder: Recorder, record: JobRecord) -> tuple[Recorded, JobRecord]:
    """Take the record's number, or the next number if the record was written but may be lost.

    Raises ``LostWriteError`` if the second record could not be written: other drivers may still
    find the first.
    """
    try:
        return recorder.record(record.number, _encode(record)), record
    except LostWriteError:
        record = record.renumbered()
        outcome = recorder.record(record.number, _encode(record))
        if outcome is Recorded.FAILED:
            raise
        return outcome, record


def _prune(log: NumberedLog) -> None:
    """Delete old records. A failure only postpones that: the new record is already won."""
    try:
        log.prune(KEPT_RECORDS)
    except StorageError as error:
        _logger.warning(
            "Old records in %s are kept until the next record is written: %s", log.directory, error
        )


def _encode(record: JobRecord) -> bytes:
    return sealed(_FORM, record)


def _decode(entry: Entry, log: NumberedLog) -> JobRecord:
    path = log.path(entry.number)
    try:
        record = unsealed(_FORM, entry.data, JobRecord, name=f"The job record {path}")
        if record.number != entry.number:
            raise ValueError(f"its number is {record.number}")
        return record
    except ValueError as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: str, why: str) -> StorageError:
    return StorageError(
        f"The job record {path} is damaged ({why}): restore it from a copy, or start the job from"
        " one of its checkpoints with --from-savepoint."
    )
