"""Jobs as their checkpoint directory shows them, whether a driver is alive or not.

What a driver knows in memory (rates, failed checkpoints, logs) is gone with it; what decides how a
job goes on is on disk, and is read here without changing anything:

- the job log: status, attempt, the retained checkpoints, a final savepoint, why the job failed;
- the metadata of the retained checkpoints: vertices, channels, sizes, times;
- the lease: whether a driver is alive, and where.

Flink's history server does the same from an archive that its jobs write at their end. So a job
whose driver was killed is missing there, and is here.
"""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
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
from weir.runtime.concurrency import Clock
from weir.runtime.views import (
    ChannelView,
    CoordinatorView,
    DriverView,
    ExceptionView,
    JobView,
    VertexView,
)
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.filesystem import FileSystem
from weir.storage.job_log import CheckpointReference, JobLog, JobRecord, RecordStatus
from weir.storage.lease import Lease, LeaseRecord, holder_is_alive

#: How long an answer is good, and how many jobs are shown at most, the newest ones.
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


class StoredJobs:
    """The jobs below one checkpoint directory. ``views`` may be called on any thread."""

    def __init__(self, base_directory: str, fs: Callable[[str], FileSystem], clock: Clock) -> None:
        self._base_directory = base_directory
        self._fs = fs
        self._clock = clock
        self._lock = threading.Lock()
        self._views: tuple[JobView, ...] = ()
        self._read_ms: int | None = None
        #: Metadata does not change, so each is read once: by path and checksum. What could not be
        #: read is tried again.
        self._checkpoints: dict[tuple[str, str], CompletedCheckpoint] = {}

    def views(self) -> tuple[JobView, ...]:
        """Damaged jobs, then the others, the newest first. Raises ``StorageError``."""
        with self._lock:
            now_ms = self._clock.now_ms()
            if self._read_ms is None or now_ms - self._read_ms >= _FRESH_MS:
                self._views = self._read()
                self._read_ms = self._clock.now_ms()
            return self._views

    def _read(self) -> tuple[JobView, ...]:
        listed = self._fs(self._base_directory).list(self._base_directory)
        seen: dict[tuple[str, str], CompletedCheckpoint] = {}
        views = [
            view
            for status in listed
            if _JOB_ID.fullmatch(status.name)
            and (view := self._view(status.name, seen)) is not None
        ]
        self._checkpoints = seen
        # A damaged record has no time: such a job comes first, since somebody has to look at it.
        views.sort(key=lambda view: (view.is_readable, -view.last_modification_ms))
        return tuple(views[:MAX_JOBS])

    def _view(
        self, job_id: str, seen: dict[tuple[str, str], CompletedCheckpoint]
    ) -> JobView | None:
        """One job; None if it has no record yet. A damaged one is shown as such."""
        storage = CheckpointStorage(fs=self._fs, base_directory=self._base_directory, job_id=job_id)
        try:
            record = JobLog(self._fs(self._base_directory), storage.log_directory).newest()
        except StorageError as error:
            return _damaged(job_id, str(error))
        if record is None:
            return None
        if record.job_id != job_id:
            return _damaged(
                job_id,
                f"The records in {storage.log_directory} are of job {record.job_id}: restore those"
                f" of job {job_id} from a copy, or delete the directory.",
            )
        damage: list[str] = []
        driver = self._driver(job_id, damage)
        retained = [self._checkpoint(storage, one, seen, damage) for one in record.checkpoints]
        return _stored_view(record, [one for one in retained if one is not None], driver, damage)

    def _driver(self, job_id: str, damage: list[str]) -> DriverView | None:
        """The driver that runs the job; None if there is none, or its lease is damaged."""
        try:
            lease = Lease(self._fs(self._base_directory), self._base_directory, job_id).read()
        except StorageError as error:
            damage.append(str(error))
            return None
        here = socket.gethostname()
        if lease is None or not holder_is_alive(lease, self._clock.wall_ms(), here):
            return None
        return DriverView(host=lease.host, address=_reachable_address(lease, here))

    def _checkpoint(
        self,
        storage: CheckpointStorage,
        reference: CheckpointReference,
        seen: dict[tuple[str, str], CompletedCheckpoint],
        damage: list[str],
    ) -> CompletedCheckpoint | None:
        """A retained checkpoint; None if it cannot be read."""
        key = reference.path, reference.checksum
        found = self._checkpoints.get(key)
        if found is None:
            try:
                found = storage.read(reference.path, expected_checksum=reference.checksum)
            except StorageError as error:
                damage.append(str(error))
                return None
        seen[key] = found
        return found


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


def _stored_view(
    record: JobRecord,
    retained: list[CompletedCheckpoint],
    driver: DriverView | None,
    damage: Iterable[str],
) -> JobView:
    """The job as of its newest record. A driver that died leaves it suspended: it can resume."""
    running = JobStatus.SUSPENDED if driver is None else JobStatus.RUNNING
    status = _STATUSES.get(record.status, running)
    known_ms = [record.timestamp_ms, *(one.timestamp_ms for one in retained)]
    started_ms = min(known_ms) if record.started_ms is None else record.started_ms
    newest = retained[-1] if retained else None
    return JobView(
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
        exceptions=(
            ()
            if record.failure is None
            else (ExceptionView(timestamp_ms=record.timestamp_ms, message=record.failure),)
        ),
        latest_completed=newest,
        coordinators=() if newest is None else _coordinators(newest),
        driver=driver,
        damage=tuple(damage),
    )


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
    history = tuple(_of_checkpoint(one) for one in reversed(retained))
    return CheckpointStatsSnapshot(
        counts=CheckpointCounts(total=len(history), completed=len(history)),
        history=history,
        latest_completed=next((one for one in history if not one.kind.is_savepoint), None),
        latest_savepoint=next((one for one in history if one.kind.is_savepoint), None),
        durations_ms=tuple(one.end_to_end_duration_ms for one in reversed(history)),
        state_sizes=tuple(one.state_size for one in reversed(history)),
        checkpointed_sizes=tuple(one.checkpointed_size for one in reversed(history)),
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


def _damaged(job_id: str, why: str) -> JobView:
    return JobView(
        job_id=job_id,
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
        damage=(why,),
    )
