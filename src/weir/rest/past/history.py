"""Jobs as their checkpoint directory shows them, whether a driver is alive or not.

What a driver knows in memory only (rates, logs, a timeline) is gone with it; what decides how a job
goes on is on disk, and is read here without changing anything:

- the job log: status, attempt, the retained checkpoints, a final savepoint, why the job failed;
- the metadata of the retained checkpoints: vertices, channels, sizes, times;
- the lease: whether a driver is alive, and where;
- the archive: what the newest driver knew when it last wrote that, which is its end unless it was
  killed. Where the job log says otherwise, the job log is right.

Flink's history server reads only what its jobs write at their end. So a job whose driver was killed
is missing there, and is here.
"""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from ipaddress import ip_address
from urllib.parse import urlsplit

from weir.core.checkpoints.stats import (
    CheckpointCounts,
    CheckpointStats,
    CheckpointStatsSnapshot,
    TaskCheckpointStats,
)
from weir.core.status import JobStatus
from weir.core.types import CompletedCheckpoint, TaskStatus
from weir.errors import StorageError
from weir.monitoring.views import (
    ChannelView,
    CoordinatorView,
    DriverView,
    ExceptionView,
    JobBrief,
    JobView,
    VertexView,
)
from weir.rest.past.archive import JobArchive
from weir.runtime.concurrency import Clock
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.filesystem import FileSystem
from weir.storage.job_log import JobLog, JobRecord, RecordStatus
from weir.storage.lease import Lease, LeaseRecord, holder_is_alive
from weir.storage.paths import join

#: How long an answer is good, and how many of the newest jobs are shown at most.
_FRESH_MS = 2_000
MAX_JOBS = 1_000

_JOB_ID = re.compile("[0-9a-f]{32}")
_STATUSES = {
    RecordStatus.STOPPED: JobStatus.FINISHED,
    RecordStatus.FINISHED: JobStatus.FINISHED,
    RecordStatus.FAILED: JobStatus.FAILED,
    RecordStatus.CANCELED: JobStatus.CANCELED,
    RecordStatus.SUPERSEDED: JobStatus.CANCELED,
}


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What a job's directory says without its checkpoints."""

    job_id: str
    #: None if it cannot be read.
    record: JobRecord | None
    driver: DriverView | None = None
    #: What cannot be read, in sentences.
    damage: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[bool, int]:
        """Its place in a list, the newest first.

        A damaged record has no time: such a job comes first, since it needs attention.
        """
        return (False, 0) if self.record is None else (True, -self.record.timestamp_ms)


class StoredJobs:
    """The jobs below one checkpoint directory. Each method may be called on any thread.

    The metadata of a checkpoint may have megabytes, so a list of jobs reads no metadata.
    """

    def __init__(self, base_directory: str, fs: Callable[[str], FileSystem], clock: Clock) -> None:
        self._base_directory = base_directory
        self._fs = fs
        self._clock = clock
        self._lock = threading.Lock()
        self._views: tuple[JobView, ...] = ()
        self._read_ms: int | None = None
        #: The archives of jobs that have ended, which change no more: by job, with the number of
        #: the record that they were read beside.
        self._archives: dict[str, tuple[int, JobView]] = {}
        #: Metadata does not change, so each is read once: by job, path and checksum. What could not
        #: be read is tried again.
        self._checkpoints: dict[str, dict[tuple[str, str], CompletedCheckpoint]] = {}

    def briefs(self) -> tuple[JobBrief, ...]:
        """Damaged jobs, then the others, the newest first. Raises ``StorageError``."""
        return tuple(map(_brief, self._found()))

    def views(self) -> tuple[JobView, ...]:
        """The same with all that is known of them. Raises ``StorageError``."""
        with self._lock:
            now_ms = self._clock.now_ms()
            if self._read_ms is None or now_ms - self._read_ms >= _FRESH_MS:
                found = self._found()
                self._views = tuple(map(self._view, found))
                known = {job.job_id for job in found}
                for cache in (self._checkpoints, self._archives):
                    for job_id in cache.keys() - known:
                        del cache[job_id]
                self._read_ms = self._clock.now_ms()
            return self._views

    def view(self, job_id: str) -> JobView | None:
        """All that is known of a job; None if there is no such job."""
        found = self._find(job_id)
        return None if found is None else self._view(found)

    def _found(self) -> list[_Found]:
        names = [entry.name for entry in self._fs(self._base_directory).list(self._base_directory)]
        jobs = [self._find(name) for name in names if _JOB_ID.fullmatch(name)]
        found = [job for job in jobs if job is not None]
        return sorted(found, key=lambda job: job.order)[:MAX_JOBS]

    def _find(self, job_id: str) -> _Found | None:
        """A job; None if it has not begun yet. A damaged job is shown as such."""
        directory = join(self._base_directory, job_id, "log")
        try:
            record = JobLog(self._fs(self._base_directory), directory).newest()
        except StorageError as error:
            return _Found(job_id=job_id, record=None, damage=(str(error),))
        if record is None:
            storage = CheckpointStorage(
                fs=self._fs, base_directory=self._base_directory, job_id=job_id
            )
            if (left := storage.newest_left()) is None:
                return None
            why = f"The records in {directory} are gone, but {left} is there: restore them."
            return _Found(job_id=job_id, record=None, damage=(why,))
        if record.job_id != job_id:
            why = (
                f"The records in {directory} are of job {record.job_id}: restore those of job"
                f" {job_id} from a copy, or delete the directory."
            )
            return _Found(job_id=job_id, record=None, damage=(why,))
        try:
            driver = self._driver(job_id)
        except StorageError as error:
            return _Found(job_id=job_id, record=record, damage=(str(error),))
        return _Found(job_id=job_id, record=record, driver=driver)

    def _view(self, found: _Found) -> JobView:
        record = found.record
        if record is None:
            return _damaged(found)
        storage = CheckpointStorage(
            fs=self._fs, base_directory=self._base_directory, job_id=found.job_id
        )
        known = self._checkpoints.get(found.job_id, {})
        retained: dict[tuple[str, str], CompletedCheckpoint] = {}
        damage = list(found.damage)
        for checkpoint in record.checkpoints:
            key = checkpoint.path, checkpoint.checksum
            try:
                retained[key] = known.get(key) or storage.read(
                    checkpoint.path, expected_checksum=checkpoint.checksum
                )
            except StorageError as error:
                damage.append(str(error))
        self._checkpoints[found.job_id] = retained
        try:
            archived = self._archived(record)
        except StorageError as error:
            archived = None
            damage.append(str(error))
        return _stored_view(record, list(retained.values()), archived, found.driver, damage)

    def _archived(self, record: JobRecord) -> JobView | None:
        """What the newest driver of a job knew. Raises ``StorageError``."""
        number, known = self._archives.get(record.job_id, (0, None))
        if known is not None and number == record.number:
            return known
        fs = self._fs(self._base_directory)
        archived = JobArchive(fs, self._base_directory, record.job_id).read()
        if archived is not None and archived.status.is_terminal and record.status in _STATUSES:
            self._archives[record.job_id] = record.number, archived
        return archived

    def _driver(self, job_id: str) -> DriverView | None:
        """The driver that runs the job, if it runs. Raises ``StorageError``."""
        lease = Lease(self._fs(self._base_directory), self._base_directory, job_id).read()
        here = socket.gethostname()
        if lease is None or not holder_is_alive(lease, self._clock.wall_ms(), here):
            return None
        return DriverView(host=lease.host, address=_reachable_address(lease, here))


def _reachable_address(lease: LeaseRecord, here: str) -> str | None:
    """The driver's address, if it means the driver on the machine ``here`` too.

    Anyone who may write the directory may write the lease, so it is no more than a link.
    """
    try:
        url = urlsplit(lease.rest_address)
        name, port = url.hostname, url.port
    except ValueError:
        return None
    if not name or port is None:
        return None
    try:
        is_loopback = ip_address(name).is_loopback
    except ValueError:
        is_loopback = name == "localhost"
    return None if is_loopback and lease.host != here else lease.rest_address


def _status(record: JobRecord, driver: DriverView | None) -> JobStatus:
    """A driver that died leaves its job suspended: it can resume."""
    running = JobStatus.SUSPENDED if driver is None else JobStatus.RUNNING
    return _STATUSES.get(record.status, running)


def _brief(found: _Found) -> JobBrief:
    record = found.record
    if record is None:
        return _damaged(found).brief
    status = _status(record, found.driver)
    newest = record.checkpoints[-1] if record.checkpoints else None
    return JobBrief(
        job_id=record.job_id,
        name=record.job_name,
        status=status,
        start_time_ms=record.timestamp_ms if record.started_ms is None else record.started_ms,
        end_time_ms=-1 if status is JobStatus.RUNNING else record.timestamp_ms,
        checkpoint_id=None if newest is None else newest.checkpoint_id,
        checkpoint_time_ms=None if newest is None else record.completed_ms,
        problem=record.failure or " ".join(found.damage),
        driver=found.driver,
    )


def _stored_view(
    record: JobRecord,
    retained: list[CompletedCheckpoint],
    archived: JobView | None,
    driver: DriverView | None,
    damage: Iterable[str],
) -> JobView:
    """The job as of its newest record, and what its driver knew beside that."""
    status = _status(record, driver)
    known_ms = [record.timestamp_ms, *(checkpoint.timestamp_ms for checkpoint in retained)]
    started_ms = min(known_ms) if record.started_ms is None else record.started_ms
    newest = retained[-1] if retained else None
    view = JobView(
        job_id=record.job_id,
        name=record.job_name,
        status=status,
        attempt=record.attempt,
        start_time_ms=started_ms,
        end_time_ms=-1 if status is JobStatus.RUNNING else record.timestamp_ms,
        last_modification_ms=record.timestamp_ms,
        timestamps_ms={
            JobStatus.CREATED.name: started_ms,
            # When it last began to run is not known.
            status.name: record.timestamp_ms,
            JobStatus.RUNNING.name: started_ms,
        },
        vertices=() if newest is None else _vertices(newest),
        checkpoints=_stats(retained),
        failure=record.failure,
        savepoint=record.savepoint,
        exceptions=(() if record.failure is None else (_failure(record),)),
        latest_completed=newest,
        coordinators=() if newest is None else _coordinators(newest),
        driver=driver,
        damage=tuple(damage),
    )
    return view if archived is None else _with_archive(view, archived)


def _failure(record: JobRecord) -> ExceptionView:
    return ExceptionView(
        timestamp_ms=record.timestamp_ms, message=record.failure or "", attempt=record.attempt
    )


def _with_archive(view: JobView, archived: JobView) -> JobView:
    """Add what only the driver knew. If that was killed, the records go beyond it."""
    stored = {vertex.vertex: vertex for vertex in view.vertices}
    exceptions = archived.exceptions
    if view.failure is not None and view.failure != archived.failure:
        exceptions = (*exceptions, *view.exceptions)
    status = view.status.name
    return replace(
        view,
        timestamps_ms={**archived.timestamps_ms, status: view.timestamps_ms[status]},
        vertices=tuple(
            replace(vertex, outputs=known.outputs, position=known.position)
            if (known := stored.get(vertex.vertex))
            else replace(vertex, outputs=())
            for vertex in archived.vertices
        ),
        checkpoints=_joined(view.checkpoints, archived),
        restarts=archived.restarts,
        exceptions=exceptions,
        configuration=archived.configuration,
        coordinators=archived.coordinators,
    )


def _joined(retained: CheckpointStatsSnapshot, archived: JobView) -> CheckpointStatsSnapshot:
    """The driver's statistics, with the retained checkpoints that it did not write there."""
    stats = archived.checkpoints
    known = {checkpoint.checkpoint_id for checkpoint in stats.history}
    missing = [
        checkpoint for checkpoint in retained.history if checkpoint.checkpoint_id not in known
    ]
    newer = [
        checkpoint
        for checkpoint in reversed(missing)
        if checkpoint.checkpoint_id > max(known, default=0)
        and checkpoint.trigger_timestamp_ms >= archived.start_time_ms
    ]
    return replace(
        stats,
        counts=replace(
            stats.counts,
            total=stats.counts.total + len(newer),
            completed=stats.counts.completed + len(newer),
        ),
        history=tuple(sorted((*stats.history, *missing), key=_id, reverse=True)),
        latest_completed=_newer(stats.latest_completed, retained.latest_completed),
        latest_savepoint=_newer(stats.latest_savepoint, retained.latest_savepoint),
        durations_ms=(
            *stats.durations_ms,
            *(checkpoint.end_to_end_duration_ms for checkpoint in newer),
        ),
        state_sizes=(*stats.state_sizes, *(checkpoint.state_size for checkpoint in newer)),
        checkpointed_sizes=(
            *stats.checkpointed_sizes,
            *(checkpoint.checkpointed_size for checkpoint in newer),
        ),
    )


def _id(checkpoint: CheckpointStats) -> int:
    return checkpoint.checkpoint_id


def _newer(left: CheckpointStats | None, right: CheckpointStats | None) -> CheckpointStats | None:
    return max((known for known in (left, right) if known is not None), key=_id, default=None)


def _vertices(newest: CompletedCheckpoint) -> tuple[VertexView, ...]:
    """The vertices of the checkpoint; what waits in channels is what its barriers overtook."""
    segments: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for task in newest.tasks:
        for segment in task.in_flight:
            segments[segment.channel, task.vertex] += 1
            sizes[segment.channel, task.vertex] += segment.size
    return tuple(
        VertexView(
            vertex=task.vertex,
            operators=tuple(operator.name for operator in task.operators),
            parallelism=1,
            status=TaskStatus.FINISHED if task.fully_finished else TaskStatus.RUNNING,
            inputs=task.inputs,
            position=task.position,
            outputs=tuple(
                ChannelView(consumer=consumer, segments=count, size=sizes[producer, consumer])
                for (producer, consumer), count in segments.items()
                if producer == task.vertex
            ),
        )
        for task in newest.tasks
    )


def _coordinators(newest: CompletedCheckpoint) -> tuple[CoordinatorView, ...]:
    """Those whose state the checkpoint has."""
    return tuple(
        CoordinatorView(operator=operator.operator_id, vertex=task.vertex, parallelism=1)
        for task in newest.tasks
        for operator in task.operators
        if operator.operator_id in newest.coordinator_states
    )


def _stats(retained: list[CompletedCheckpoint]) -> CheckpointStatsSnapshot:
    """The retained checkpoints, which are all that is known of the job's checkpoints."""
    history = tuple(_of_checkpoint(checkpoint) for checkpoint in reversed(retained))
    return CheckpointStatsSnapshot(
        counts=CheckpointCounts(total=len(history), completed=len(history)),
        history=history,
        latest_completed=next(
            (checkpoint for checkpoint in history if not checkpoint.kind.is_savepoint), None
        ),
        latest_savepoint=next(
            (checkpoint for checkpoint in history if checkpoint.kind.is_savepoint), None
        ),
        durations_ms=tuple(checkpoint.end_to_end_duration_ms for checkpoint in reversed(history)),
        state_sizes=tuple(checkpoint.state_size for checkpoint in reversed(history)),
        checkpointed_sizes=tuple(checkpoint.checkpointed_size for checkpoint in reversed(history)),
    )


def _of_checkpoint(checkpoint: CompletedCheckpoint) -> CheckpointStats:
    tasks = tuple(
        TaskCheckpointStats(
            vertex=task.vertex,
            ack_timestamp_ms=checkpoint.completion_timestamp_ms,
            state_size=task.state_size,
        )
        for task in checkpoint.tasks
    )
    return CheckpointStats(
        checkpoint_id=checkpoint.checkpoint_id,
        kind=checkpoint.kind,
        status="COMPLETED",
        trigger_timestamp_ms=checkpoint.timestamp_ms,
        end_to_end_duration_ms=max(0, checkpoint.completion_timestamp_ms - checkpoint.timestamp_ms),
        latest_ack_timestamp_ms=checkpoint.completion_timestamp_ms,
        state_size=sum(task.state_size for task in tasks),
        tasks=tasks,
        external_path=checkpoint.external_path,
    )


def _damaged(found: _Found) -> JobView:
    """A job of which nothing can be read."""
    why = " ".join(found.damage)
    return JobView(
        job_id=found.job_id,
        name="(damaged)",
        status=JobStatus.SUSPENDED,
        attempt=1,
        start_time_ms=0,
        end_time_ms=0,
        last_modification_ms=0,
        timestamps_ms={},
        vertices=(),
        checkpoints=CheckpointStatsSnapshot(),
        failure=why,
        exceptions=(ExceptionView(timestamp_ms=0, message=why),),
        damage=found.damage,
    )
