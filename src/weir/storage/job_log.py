"""The job log: who runs a job, which checkpoints are complete, how the job ended (PROTOCOL P17).

Rules of this file:

1. Every record is the *full* state of the job, so the newest one is sufficient and older ones are
   pruned.
2. A record counts once its number is won. A checkpoint is complete if and only if a won record
   lists it.
3. An attempt begins by winning the number after the record on which the decision to begin was
   based. From then on, a number taken by anyone else means that a newer attempt holds the job: this
   driver exits and touches no file.
4. Each record carries ``writer``, a random token of the driver, so that after a create that ended
   in doubt, the driver can tell its own record from another driver's.

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
would report that. Its writer records the same state under the next number, which then is the newest
and does not need the one before (rule 1).
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import msgspec

from weir.core.types import (
    AbsolutePath,
    JobId,
    MetadataChecksum,
    OperatorId,
    Ordinal,
    Recorded,
    Timestamp,
)
from weir.errors import JobEndedError, JobFencedError, LostWriteError, StorageError
from weir.kernel import MACHINE, Kernel
from weir.storage.filesystem import FileSystem
from weir.storage.numbered_log import Entry, NumberedLog, Recorder
from weir.storage.records import decoded

_logger = logging.getLogger(__name__)

RECORD_VERSION = 1
#: Records kept for people who look into the directory; the protocol needs one.
KEPT_RECORDS = 32
#: How often ``supersede`` retries because the driver completed a checkpoint after its log was read.
_SUPERSEDE_TRIES = 32


class RecordKind(enum.Enum):
    """Why a record was written."""

    ATTEMPT_BEGAN = "attempt-began"
    CHECKPOINT_COMPLETED = "checkpoint-completed"
    ENDED = "ended"
    SUPERSEDED = "superseded"


class RecordStatus(enum.Enum):
    """The job's status. RUNNING without a live driver: the driver died or was suspended."""

    RUNNING = "running"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"
    #: The job's name was assigned to a new id: no driver may run this id again.
    SUPERSEDED = "superseded"

    @property
    def may_be_run(self) -> bool:
        """Whether a driver runs the job, or a command may begin another attempt at any moment."""
        return self in (RecordStatus.RUNNING, RecordStatus.FAILED)


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
class JobRecord:
    """The state of a job as of one record."""

    #: The record's number in the log.
    number: Ordinal
    kind: RecordKind
    version: int = RECORD_VERSION
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
    #: Whether the job owns the snapshot of ``restored_from`` and has not deleted it yet
    #: (``execution.state-recovery.claim-mode=CLAIM`` when the job began).
    claimed: bool = False
    #: Why the job failed for good.
    failure: str | None = None
    #: The job that the name was to be assigned to instead.
    superseded_by: JobId | None = None


class _Header(msgspec.Struct):
    version: Ordinal


class JobLog:
    """The log of one job, in ``directory``."""

    def __init__(self, fs: FileSystem, directory: str, kernel: Kernel = MACHINE) -> None:
        self._log = NumberedLog(fs, directory)
        self._kernel = kernel

    def newest(self) -> JobRecord | None:
        """The newest record, or None if the job never began.

        Raises ``StorageError`` if it cannot be read.
        """
        entry = self._log.newest()
        return None if entry is None else _decode(entry, self._log)

    def begin_attempt(
        self,
        *,
        after: JobRecord | None,
        job_id: JobId,
        job_name: str,
        writer: str,
        timestamp_ms: int,
        restored_from: str | None = None,
        restored_checksum: str | None = None,
        claimed: bool = False,
        above_attempt: int = 0,
        origin: Origin | None = None,
        tables: Mapping[OperatorId, str] = MappingProxyType({}),
        written: Mapping[OperatorId, str] = MappingProxyType({}),
    ) -> JobLogWriter:
        """Win the record "attempt began", which fences every older attempt.

        ``after`` is the newest record, on which the decision to begin was based; its checkpoints
        and its snapshot are carried over, except that ``restored_from`` updates where the snapshot
        lies. ``origin`` is the snapshot that the job started from. The attempt's number is also
        above ``above_attempt``, an attempt that the records do not know. Raises ``JobFencedError``
        if another driver began meanwhile, ``JobEndedError`` if the job is superseded, and
        ``StorageError`` if the record could not be written.
        """
        if after is not None and after.status is RecordStatus.SUPERSEDED:
            raise JobEndedError(
                f"Job {job_name} ({job_id}) is superseded by job {after.superseded_by} of the"
                " same name and is not run again: leave the new job running, or run the command"
                " again to see the state of the name."
            )
        record = JobRecord(
            number=1 if after is None else after.number + 1,
            kind=RecordKind.ATTEMPT_BEGAN,
            job_id=job_id,
            job_name=job_name,
            attempt=1 + max(above_attempt, 0 if after is None else after.attempt),
            writer=writer,
            timestamp_ms=timestamp_ms,
            started_ms=timestamp_ms if after is None else after.started_ms,
            completed=None if after is None else after.completed,
            completed_ms=None if after is None else after.completed_ms,
            checkpoints=() if after is None else after.checkpoints,
            restored_from=restored_from if after is None else restored_from or after.restored_from,
            restored_checksum=restored_checksum if after is None else after.restored_checksum,
            origin=origin,
            tables=dict(tables),
            written=dict(written),
            claimed=claimed if after is None else after.claimed,
        )
        recorder = Recorder(self._log, self._kernel)
        outcome, record = _win(recorder, record)
        if outcome is Recorded.FENCED:
            raise JobFencedError(
                f"Another driver started job {job_name} ({job_id}) at the same moment and now"
                " holds it: leave it running, or stop it before you run the job again."
            )
        if outcome is Recorded.FAILED:
            raise StorageError(
                f"Cannot record the start of job {job_name} ({job_id}): {recorder.failure}"
            )
        _prune(self._log)
        return JobLogWriter(self._log, recorder, record)

    def supersede(
        self, *, job_id: JobId, job_name: str, by: JobId, writer: str, timestamp_ms: int
    ) -> JobRecord | None:
        """End job ``job_id`` for whoever runs it or is about to: job ``by`` takes its place.

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
            ends: dict[str, Any] = {
                "kind": RecordKind.SUPERSEDED,
                "status": RecordStatus.SUPERSEDED,
                "job_name": job_name,
                "writer": writer,
                "timestamp_ms": timestamp_ms,
                "superseded_by": by,
            }
            record = (
                JobRecord(number=1, job_id=job_id, attempt=1, **ends)
                if after is None
                else replace(after, number=after.number + 1, attempt=after.attempt + 1, **ends)
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
        self._next_number = began.number + 1

    @property
    def newest(self) -> JobRecord:
        """The newest record that this attempt won."""
        return self._newest

    @property
    def failure(self) -> str:
        """The storage error of the last append that ended in doubt; empty if none did."""
        return self._recorder.failure

    def append(
        self,
        *,
        kind: RecordKind,
        timestamp_ms: int,
        status: RecordStatus,
        completed: int | None,
        checkpoints: tuple[CheckpointReference, ...],
        savepoint: str | None = None,
        failure: str | None = None,
        claim_is_over: bool = False,
        written: Mapping[OperatorId, str] = MappingProxyType({}),
    ) -> Recorded:
        """Win the next number with this state of the job.

        ``claim_is_over``: the claimed snapshot has been deleted. ``written`` adds targets with
        visible rows to those of earlier records. Blocks while the outcome is in doubt. WON:
        durable. FENCED: a newer attempt holds the job; touch no file. FAILED: nothing was recorded.
        Raises ``StorageError`` if the outcome stays unknown: stop as if fenced.
        """
        record = replace(
            self._newest,
            number=self._next_number,
            kind=kind,
            timestamp_ms=timestamp_ms,
            status=status,
            completed=completed,
            completed_ms=self._newest.completed_ms
            if completed == self._newest.completed
            else timestamp_ms,
            checkpoints=checkpoints,
            savepoint=savepoint,
            failure=failure,
            claimed=self._newest.claimed and not claim_is_over,
            written={**self._newest.written, **written},
        )
        outcome, record = _win(self._recorder, record)
        if outcome is Recorded.FENCED and self._landed_late(record.number):
            outcome, record = _win(self._recorder, replace(record, number=record.number + 1))
        if outcome is Recorded.WON:
            self._newest = record
            self._next_number = record.number + 1
            _prune(self._log)
        return outcome

    def _landed_late(self, number: int) -> bool:
        """Whether the number was taken by an earlier record of ours that was reported as FAILED.

        An object store can carry out a request long after the client gave up on it. The record
        appended now supersedes the late one, which therefore never counts for anyone, unless this
        driver dies in between.
        """
        entry = self._log.newest()
        return (
            entry is not None
            and entry.number == number
            and _decode(entry, self._log).writer == self._newest.writer
        )


def _win(recorder: Recorder, record: JobRecord) -> tuple[Recorded, JobRecord]:
    """Take the record's number, or the next one if the record was written but may be lost.

    Raises ``LostWriteError`` if that is not written: other drivers may still find the first.
    """
    try:
        return recorder.record(record.number, _encode(record)), record
    except LostWriteError:
        record = replace(record, number=record.number + 1)
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
            "Old records in %s are kept until the next one is written: %s", log.directory, error
        )


def _encode(record: JobRecord) -> bytes:
    return msgspec.json.encode(record, order="sorted") + b"\n"


def _decode(entry: Entry, log: NumberedLog) -> JobRecord:
    path = log.path(entry.number)
    try:
        version = decoded(entry.data, _Header).version
        if version > RECORD_VERSION:
            raise StorageError(
                f"The job record {path} has version {version}, but this Weir supports versions up"
                f" to {RECORD_VERSION}: run the job with the newer Weir that wrote it."
            )
        record = decoded(entry.data, JobRecord)
        if record.number != entry.number:
            raise ValueError(f"its number is {record.number}")
        return record
    except ValueError as error:
        raise StorageError(
            f"The job record {path} is damaged ({error}): restore it from a copy, or start the"
            " job from one of its checkpoints with --from-savepoint."
        ) from error
