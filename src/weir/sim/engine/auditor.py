"""The auditor: checks the laws from the disk, the tables and the effects.

It keeps its own account of what is durable (job log, tables) from what it sees on the disk, and
reports a broken law at the moment it breaks. Only law 2 takes the word of a machine, for which
checkpoints are in flight. Laws, with the rules that they follow:

1. Checkpoint ids grow, also from one driver to the next (P19).
2. At most ``max_concurrent_checkpoints`` unforced checkpoints are in flight.
3. The files that a checkpoint or savepoint names exist when it is recorded, and are never deleted
   while it is retained (P17, A11).
4. A table commits an epoch only if that checkpoint is recorded, once, and in order (P13, P18).
5. A file that a table shows is never deleted, nor is a file that a retained checkpoint staged for
   the table and that is not committed yet (P12, P22).
6. Tasks are notified only of the completion of recorded checkpoints, never of a savepoint (P14).
7. FINISHED is recorded only when every table is complete, and SUSPENDED only when every table has
   what the sources have read (P16).
8. No query misses state or a segment that it needs, or sees a wrong watermark. These laws are in
   ``own/queries.py``, ``snapshots.py`` and ``channel_offsets.py``, and a breach fails the task
   or its snapshot (P7, P25, P27).
9. A periodic checkpoint begins no sooner than the minimum pause after one completed (A4).
10. A task is triggered only while the status that it last reported in this attempt is RUNNING or
    WAITING_FOR_FINAL_CHECKPOINT (A4, A6).
11. In a completed checkpoint, operators and their coordinators agree; those laws are in
    ``own/counting.py`` (P2, P41).
12. A savepoint has nothing in flight, and a checkpoint holds the file of every segment that it has
    in flight (P27).
13. No job starts over rows that it does not know of, whatever people do to its directory (P21;
    mishaps in ``faults.py``).
14. A job is given up for repeated failures, none of which here is that of an input, only if no
    checkpoint completed between them (P39).
15. After a final checkpoint failed, the next one is requested no sooner than the growing delay
    allows (P29).
16. A cancelled job records nothing more, and the attempt that was cancelled commits nothing more.
    Every table then shows, of each source, the first records without a gap (P34, G1).
17. The listeners of a vertex hear of the checkpoint with which it ends (P14). ``world.py`` looks
    for that after a last attempt in which no fault struck.

``settle`` checks what must hold at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from weir.core.job.restart import GIVEN_UP_FROM, final_retry_ms
from weir.core.messages.job import BeginAttempt, JobStatusChanged, RecordEnd
from weir.core.messages.protocol import (
    DeclineCheckpoint,
    NotifyCheckpointComplete,
    TaskFailed,
    TaskStatusChanged,
    TriggerCheckpoint,
)
from weir.core.status import JobStatus
from weir.core.types import (
    CompletedCheckpoint,
    JobId,
    OperatorId,
    SnapshotKind,
    TaskStatus,
    VertexId,
)
from weir.durable.targets import known_rows
from weir.sim.engine.code import TABLES_DIRECTORY, RowLaws, Shown
from weir.sim.engine.disk import Disk
from weir.sim.engine.table import TableVersion
from weir.storage import metadata
from weir.storage.job_log import JobRecord, RecordKind, RecordStatus
from weir.storage.metadata import METADATA_FILE

_TRIGGERABLE = (TaskStatus.RUNNING, TaskStatus.WAITING_FOR_FINAL_CHECKPOINT)
#: Texts that no task's failure may contain, whatever fault strikes it.
_NEVER = (
    "LostState",
    "BrokenWatermark",
    "LostEvent",
    "Invariant",
    "did not read exactly the admitted",
)


class AuditError(Exception):
    """A law is broken."""


@dataclass(frozen=True)
class _Staged:
    """The table and transaction that a staged file belongs to."""

    root: str
    transaction: str
    epoch: int


@dataclass
class JobAccount:
    """The durable facts about one job."""

    record: JobRecord | None = None
    #: Every checkpoint and stop savepoint that was recorded as completed.
    recorded: set[int] = field(default_factory=set)
    newest_id: int = 0
    #: Checkpoint -> the driver that triggered it.
    triggered: dict[int, str] = field(default_factory=dict)

    @property
    def is_canceled(self) -> bool:
        """Whether the newest record says that the job was cancelled."""
        return self.record is not None and self.record.status is RecordStatus.CANCELED


class Auditor:
    """Checks the laws of one run; the disk's watcher."""

    def __init__(
        self,
        *,
        base_directory: str,
        laws: RowLaws,
        max_concurrent: int,
        claims: bool,
        min_pause_ms: int,
    ) -> None:
        """Watch one run. ``claims``: a job that starts from a savepoint may delete it."""
        self._base = base_directory
        self.laws: RowLaws = laws
        #: A user has asked for a stop with drain: from then on a job may end before its input does.
        self.drain_requested = False
        self._drained = False
        self._max_concurrent = max_concurrent
        self._claims = claims
        self._min_pause_ms = min_pause_ms
        #: Driver -> when a checkpoint last completed in it, by its own clock.
        self._completed_ms: dict[str, int] = {}
        #: Driver -> failures of its job since a checkpoint completed.
        self._failures: Counter[str] = Counter()
        #: Driver -> how many final checkpoints failed since one completed or an attempt began, and
        #: when the last one did.
        self._final: dict[str, tuple[int, int]] = {}
        self.disk: Disk | None = None
        #: The first broken law, and how. An exception reports it too, but the code under test may
        #: catch that.
        self.violation: str | None = None
        self.jobs: dict[JobId, JobAccount] = {}
        #: Path -> why it must stay, for the files that retained checkpoints need.
        self._needed: dict[str, str] = {}
        self._savepoint_files: dict[str, str] = {}
        #: Savepoint path -> its job, and the epochs under which its committables may be committed.
        self._savepoints: dict[str, tuple[JobId, set[int | None]]] = {}
        self._needed_by_job: dict[JobId, set[str]] = {}
        #: Job -> path -> the files that its retained checkpoints have staged.
        self._staged: dict[JobId, dict[str, _Staged]] = {}
        #: (driver, vertex) -> the status that the task reported last in this attempt.
        self._statuses: dict[tuple[str, VertexId], TaskStatus] = {}
        #: Table root -> its newest version.
        self.tables: dict[str, TableVersion] = {}
        #: Where the tables are, and the rows of earlier ones of which a moved job knows, by sink.
        self._tables_directory = TABLES_DIRECTORY
        self._known: dict[OperatorId, list[object]] = {}
        #: The rows of tables that are in simulated stores, by sink.
        self.stores: dict[OperatorId, Shown] = {}
        self._visible: set[str] = set()
        #: Checkpoints whose metadata cannot be read.
        self._damaged: set[str] = set()

    # -- the disk

    def created(self, path: str, data: bytes) -> None:
        """Account for a new entry of a job log or a table log, or a new checkpoint id."""
        parts = path.split("/")
        match parts[-2]:
            case "log" if path.startswith(self._base):
                self._recorded(msgspec.json.decode(data, type=JobRecord))
            case "ids":
                account = self._account(parts[-3])
                # An id below the newest is void: the driver that made it notices before using it.
                account.newest_id = max(account.newest_id, int(parts[-1]))
            case "log":
                self._committed("/".join(parts[:-2]), msgspec.json.decode(data, type=TableVersion))

    def deleted(self, path: str) -> None:
        """Raise ``AuditError`` if the deleted file is still needed."""
        if path in self._visible:
            raise self._broken(f"{path} is deleted, but a table shows it")
        why = self._needed.get(path) or self._savepoint_files.get(path)
        if why is not None:
            raise self._broken(f"{path} is deleted, but {why} needs it")
        for staged in filter(None, (of_job.get(path) for of_job in self._staged.values())):
            table = self.tables.get(staged.root)
            if table is None or table.transactions.get(staged.transaction, 0) < staged.epoch:
                raise self._broken(
                    f"{path}, staged for epoch {staged.epoch} and not committed, is deleted"
                )

    def savepoint(self, checkpoint: CompletedCheckpoint) -> None:
        """Account for a savepoint that was reported to the user, who owns it from now on."""
        self._check_files(checkpoint, checkpoint.external_path)
        why = f"savepoint {checkpoint.external_path}"
        self._savepoint_files.update(dict.fromkeys(self._files(checkpoint), why))
        # What no checkpoint had covered by then is committed under its barrier's id (P14, P19).
        epochs = {
            c.barrier if c.epoch is None else c.epoch
            for task in checkpoint.tasks
            for c in task.committables
        }
        self._savepoints[checkpoint.external_path] = (
            checkpoint.job_id,
            {checkpoint.checkpoint_id, *epochs},
        )

    def records_put_back(self, record: JobRecord, newest_id: int) -> None:
        """Roll a job's account back to ``record`` and an id, as putting back its directory did."""
        account = self._account(record.job_id)
        account.record = record
        account.recorded = {n for n in account.recorded if n < (record.completed or 0)}
        account.recorded |= set() if record.completed is None else {record.completed}
        account.newest_id = newest_id
        account.triggered = {n: driver for n, driver in account.triggered.items() if n <= newest_id}
        self._retain(record)

    def moved(self, savepoint: CompletedCheckpoint, new_directory: str) -> None:
        """The next job starts from a savepoint, and has new tables in another directory.

        These must show what was pending in the savepoint, and all that came after it.
        """
        known, directory, files = known_rows(savepoint), self._tables_directory, self._disk.files
        pending = {
            f"{directory}/{item.sink}/{item.payload['file']}"
            for task in savepoint.tasks
            for item in task.committables
        }
        for sink in self._disk.names(directory):
            shown: list[str] = []
            rows = self._known.setdefault(sink, [])
            for name in self._disk.names(f"{directory}/{sink}/log"):
                data = files[f"{directory}/{sink}/log/{name}"]
                version = msgspec.json.decode(data, type=TableVersion)
                if version.epoch <= known.get(version.job_id, 0):
                    added = version.files[len(shown) :]
                    rows += self._rows(file for file in added if file not in pending)
                shown = version.files
        self._tables_directory = new_directory

    def _rows(self, files: Iterable[str]) -> list[object]:
        return [row for file in files for row in msgspec.json.decode(self._disk.files[file])]

    def damaged(self, record: JobRecord, path: str) -> None:
        """The newest checkpoint of a job cannot be read, and may be given up."""
        self._damaged.add(path)
        self._retain(record)

    def repaired(self, job_id: JobId) -> None:
        """All checkpoints can be read again."""
        self._damaged.clear()
        if (record := self._account(job_id).record) is not None:
            self._retain(record)

    # -- effects

    def effect(self, driver: str, job_id: JobId, effect: object, unforced: int) -> None:
        """Check an effect as it begins.

        ``unforced`` is how many unforced checkpoints are in flight in its driver.
        """
        match effect:
            case NotifyCheckpointComplete(checkpoint_id=n):
                if n not in self._account(job_id).recorded:
                    raise self._broken(
                        f"tasks are notified that checkpoint {n} completed, but it is not recorded"
                    )
                self._final.pop(driver, None)
            case BeginAttempt():
                self._final.pop(driver, None)
                self._statuses = {
                    task: status for task, status in self._statuses.items() if task[0] != driver
                }
            case TaskStatusChanged(vertex=vertex, status=status):
                self._statuses[driver, vertex] = status
            case TriggerCheckpoint(checkpoint_id=n, vertex=vertex):
                self._check_trigger(driver, job_id, n, unforced)
                triggered = self._statuses.get((driver, vertex))
                if triggered not in _TRIGGERABLE:
                    name = "unknown" if triggered is None else triggered.name
                    raise self._broken(
                        f"{vertex} is triggered for checkpoint {n} while it is {name}"
                    )
            case JobStatusChanged(status=JobStatus.FAILING, message=message):
                self._failures[driver] += 1
                if any(word in message for word in _NEVER):
                    raise self._broken(f"the job failed for a forbidden reason: {message}")
            case RecordEnd(failure=str(failure)) if (
                "is given up" in failure and "not restarted" not in failure
            ):
                if self._failures[driver] < GIVEN_UP_FROM:
                    raise self._broken(
                        f"the job is given up after {self._failures[driver]} failures since a"
                        " checkpoint completed"
                    )
            case TaskFailed(message=message) | DeclineCheckpoint(message=message) if any(
                word in message for word in _NEVER
            ):
                raise self._broken(f"a task failed for a forbidden reason: {message}")

    def completed(self, driver: str, now_ms: int, checkpoint: CompletedCheckpoint | None) -> None:
        """Note that a driver has recorded a checkpoint or savepoint as completed."""
        self._completed_ms[driver] = now_ms
        if checkpoint is not None and checkpoint.kind.commits_side_effects:
            self._failures[driver] = 0

    def final_failed(self, driver: str, now_ms: int) -> None:
        """Count a final checkpoint that ended without completing."""
        failures, _ = self._final.get(driver, (0, 0))
        self._final[driver] = (failures + 1, now_ms)

    def asked_final(self, driver: str, now_ms: int) -> None:
        """Check the delay of a final checkpoint that a driver requests, queued or begun."""
        failures, at_ms = self._final.get(driver, (0, 0))
        waited_ms = now_ms - at_ms
        if failures and waited_ms < final_retry_ms(failures):
            raise self._broken(
                f"a final checkpoint is requested again {waited_ms} ms after failure {failures} in"
                " a row"
            )

    def began_periodic(self, driver: str, checkpoint_id: int, now_ms: int) -> None:
        """Check the minimum pause before a periodic checkpoint that a driver begins."""
        pause_ms = now_ms - self._completed_ms.get(driver, -self._min_pause_ms)
        if pause_ms < self._min_pause_ms:
            raise self._broken(
                f"checkpoint {checkpoint_id} starts {pause_ms} ms after the last one completed"
            )

    def _check_trigger(self, driver: str, job_id: JobId, checkpoint_id: int, unforced: int) -> None:
        account = self._account(job_id)
        if checkpoint_id > account.newest_id:
            raise self._broken(
                f"checkpoint {checkpoint_id} is triggered, but its id was not allocated"
            )
        first = account.triggered.setdefault(checkpoint_id, driver)
        if first != driver:
            raise self._broken(
                f"checkpoint {checkpoint_id} of {first} is triggered by {driver} too"
            )
        if unforced > self._max_concurrent:
            raise self._broken(f"{unforced} unforced checkpoints are in flight")

    # -- the end

    def settle(self, job_id: JobId, *, canceled: bool, undisturbed: bool) -> None:
        """Check the laws of the end: exactly once, and no orphans if the run is ``undisturbed``.

        The job is over and its driver is gone. ``canceled``: that is what its newest record says,
        even one whose sync failed. ``undisturbed``: no fault struck the last attempt.
        """
        if canceled:
            self._check(self.laws.gaps(self.shown))
        else:
            self._check(self.laws.incomplete(self.shown, drained=self._drained))
        if not undisturbed:
            return
        disk, directory = self._disk, f"{self._base}/{job_id}"
        record = self._account(job_id).record
        retained = [] if record is None else [known.path for known in record.checkpoints]
        named = {path for path in self._needed_by_job.get(job_id, set()) if path in disk.files}
        for path in disk.below(directory):
            below = path.removeprefix(f"{directory}/")
            if below.startswith(("log/", "ids/")):
                continue
            if path not in named and not any(path.startswith(f"{chk}/") for chk in retained):
                raise self._broken(f"{path} is orphaned")
        if canceled:
            # A sink may hang in a commit, so nothing that was staged is cleaned.
            return
        for root, version in self.tables.items():
            orphans = [
                path
                for path in disk.below(f"{root}/staged")
                if path not in version.files and f"/{job_id[:8]}-" in path
            ]
            if orphans:
                raise self._broken(f"{orphans[0]} stays staged forever")

    def broken(self, what: str) -> None:
        """Report a violation; the first one is kept."""
        if self.violation is None:
            self.violation = what

    # -- inside

    def _broken(self, what: str) -> AuditError:
        self.broken(what)
        return AuditError(what)

    @property
    def _disk(self) -> Disk:
        assert self.disk is not None
        return self.disk

    def _account(self, job_id: JobId) -> JobAccount:
        return self.jobs.setdefault(job_id, JobAccount())

    def _recorded(self, record: JobRecord) -> None:
        account = self._account(record.job_id)
        before = account.record
        if before is not None and record.number <= before.number:
            # Void: the driver that made it finds the newer one before acting on its own.
            return
        account.record = record
        if before is not None and record == replace(before, number=record.number):
            # The same record again, since the sync of the previous one failed: that one may not
            # survive a crash (PROTOCOL P23).
            return
        if before is not None and before.status is RecordStatus.CANCELED:
            raise self._broken(f"{record.kind.value} is recorded after the job was cancelled")
        if before is not None and record.attempt < before.attempt:
            raise self._broken(f"attempt {record.attempt} writes after attempt {before.attempt}")
        completed = record.completed
        if record.kind is RecordKind.CHECKPOINT_COMPLETED and completed in account.recorded:
            raise self._broken(f"checkpoint {completed} is recorded twice")
        if completed is not None:
            # Of any kind: the record that completed it may be one whose sync failed, left by a
            # driver that died then.
            account.recorded.add(completed)
        if record.status is RecordStatus.FINISHED:
            self._check(self.laws.incomplete(self.shown, drained=self._drained))
        if record.status is RecordStatus.SUSPENDED:
            self._check(self.laws.behind(self.shown))
        if before is None or before.checkpoints != record.checkpoints:
            self._retain(record)

    def _retain(self, record: JobRecord) -> None:
        """Recompute which files the job's retained checkpoints need."""
        for path in self._needed_by_job.get(record.job_id, ()):
            self._needed.pop(path, None)
        needed: set[str] = set()
        staged = self._staged[record.job_id] = {}
        for reference in record.checkpoints:
            if reference.path in self._damaged:
                continue
            data = self._disk.files.get(f"{reference.path}/{METADATA_FILE}")
            if data is None:
                raise self._broken(
                    f"checkpoint {reference.checkpoint_id} is recorded without its metadata"
                )
            checkpoint = metadata.decode(data, reference.path)
            if reference.checkpoint_id == record.completed:
                self._check_files(checkpoint, reference.path)
                stopped = checkpoint.kind is SnapshotKind.SYNC_SAVEPOINT
                self._drained |= self.drain_requested and stopped and checkpoint.drained
            staged.update(self._staged_files(checkpoint))
            if self._claims and checkpoint.kind.is_savepoint:
                continue
            paths = self._files(checkpoint)
            needed.update(paths)
            self._needed.update(dict.fromkeys(paths, f"checkpoint {reference.checkpoint_id}"))
        self._needed_by_job[record.job_id] = needed

    def _files(self, checkpoint: CompletedCheckpoint) -> list[str]:
        directory = checkpoint.external_path
        base = directory if checkpoint.kind.is_savepoint else directory.rpartition("/")[0]
        return [f"{directory}/{METADATA_FILE}", *(f"{base}/{path}" for path in checkpoint.files)]

    def _staged_files(self, checkpoint: CompletedCheckpoint) -> dict[str, _Staged]:
        """Files that its tables have yet to commit, with their transactions."""
        return {
            f"{self._tables_directory}/{item.sink}/{item.payload['file']}": _Staged(
                root=f"{self._tables_directory}/{item.sink}",
                transaction=f"{checkpoint.job_id}/{item.sink}",
                epoch=checkpoint.checkpoint_id if item.epoch is None else item.epoch,
            )
            for task in checkpoint.tasks
            for item in task.committables
            # What a user's own sink stages is in its payloads.
            if "file" in item.payload and "user" not in item.payload
        }

    def _check_files(self, checkpoint: CompletedCheckpoint, path: str) -> None:
        missing = [file for file in self._files(checkpoint) if file not in self._disk.files]
        if missing:
            raise self._broken(f"{path} is complete, but {missing[0]} is not there")
        unsynced = [file for file in self._files(checkpoint) if self._disk.is_volatile(file)]
        if unsynced:
            raise self._broken(f"{path} is complete, but {unsynced[0]} is not flushed")
        difference = self.laws.disagreement(checkpoint)
        if difference is not None:
            raise self._broken(f"{path} is complete, but {difference}")
        for task in checkpoint.tasks:
            if task.in_flight and checkpoint.kind.is_savepoint:
                raise self._broken(f"savepoint {path} has segments of {task.vertex} in flight")
            held = {handle.key for handle in task.files}
            for segment in task.in_flight:
                if segment.payload.get("key") not in held:
                    who = (
                        f"segment {segment.position} of {segment.channel}, in flight to"
                        f" {task.vertex}"
                    )
                    raise self._broken(f"{path} is complete, but {who}, has no file in it")

    def _committed(self, root: str, version: TableVersion) -> None:
        before = self.tables.get(root, TableVersion(transactions={}, files=[]))
        self.tables[root] = version
        who = f"epoch {version.epoch} of {version.job_id[:8]} in {root}"
        self._check_may_commit(who, version)
        for transaction, epoch in before.transactions.items():
            if version.transactions.get(transaction, 0) < epoch:
                raise self._broken(f"{who} is committed after epoch {epoch}")
        added = version.files[len(before.files) :]
        if len(set(version.files)) != len(version.files):
            raise self._broken(f"{who} shows a file twice")
        volatile = [
            file for file in added if file not in self._disk.files or self._disk.is_volatile(file)
        ]
        if volatile:
            raise self._broken(f"{who} shows {volatile[0]}, which is not flushed")
        torn = [file for file in added if not self._disk.files[file].endswith(b"]")]
        if torn:
            raise self._broken(f"{who} shows {torn[0]}, which is torn")
        self._visible.update(added)

    def _check_may_commit(self, who: str, version: TableVersion) -> None:
        account = self._account(version.job_id)
        if version.epoch not in account.recorded and not self._is_savepoints_epoch(version):
            raise self._broken(f"{who} is committed, but not recorded")
        ended = account.record if account.is_canceled else None
        # An older attempt may still commit: no table knows which drivers are fenced.
        if ended is not None and version.attempt >= ended.attempt:
            raise self._broken(f"{who} is committed after the job was cancelled")

    def _is_savepoints_epoch(self, version: TableVersion) -> bool:
        """Whether a restored job commits what its savepoint carried.

        Rows that an intermediate savepoint carried are committed under the savepoint's job id and
        epoch by the job that was restored from it.
        """
        restored = (
            account.record.restored_from for account in self.jobs.values() if account.record
        )
        origins = (self._savepoints.get(path) for path in restored if path is not None)
        return any(
            origin is not None and origin[0] == version.job_id and version.epoch in origin[1]
            for origin in origins
        )

    def _check(self, wrong: str | None) -> None:
        """Raise ``AuditError`` if something is wrong with the rows of a job that is over."""
        if wrong is not None:
            raise self._broken(wrong)

    def commits(self, sink: OperatorId, job_id: JobId, epoch: int, attempt: int) -> None:
        """Check a commit to a simulated store as it begins."""
        version = TableVersion(
            transactions={}, files=[], job_id=job_id, epoch=epoch, attempt=attempt
        )
        self._check_may_commit(f"epoch {epoch} of {job_id[:8]} in {sink}", version)

    def shown(self, sink: OperatorId) -> Sequence[object] | None:
        """The rows that a table shows; None if nobody knows which it should show."""
        if sink in self.stores:
            return self.stores[sink](sink)
        version = self.tables.get(f"{self._tables_directory}/{sink}")
        files = [] if version is None else version.files
        return [*self._known.get(sink, ()), *self._rows(files)]
