"""Jobs as their drivers leave them in a checkpoint directory."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import psutil

from weir.core.types import (
    CompletedCheckpoint,
    InFlightSegment,
    OperatorState,
    SnapshotKind,
    StateHandle,
    TaskState,
)
from weir.runtime.concurrency import SystemClock
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.job_log import CheckpointReference, JobLog, JobRecord, RecordStatus
from weir.storage.lease import Lease, LeaseRecord
from weir.storage.local import LocalFileSystem

FS = LocalFileSystem()
DRIVER = "http://127.0.0.1:8081"
#: The jobs of ``leave_jobs``.
FAILED, STOPPED, ALIVE, DAMAGED = (letter * 32 for letter in "abcd")

#: One task, as small as it can be.
CLEAN = TaskState(
    vertex="clean",
    position=4,
    operators=(OperatorState(operator_id="clean", name="transform clean"),),
    entries={"offsets": "0123456789"},
)


def pipeline() -> tuple[TaskState, ...]:
    """Three tasks: one feeds two others, of which one has state and one overtaken records."""
    files = tuple(
        StateHandle(
            key=f"state/0/{partition}/40.zip",
            path=f"shared/3/{partition}",
            size=90_000 if partition == 2 else 3_000,
            checksum="crc32:00000000",
        )
        for partition in range(4)
    )
    return (
        TaskState(
            vertex="clean",
            position=40,
            operators=(
                OperatorState(operator_id="orders", name="source orders"),
                OperatorState(operator_id="clean", name="transform clean"),
                OperatorState(operator_id="orders_clean", name="sink orders_clean"),
            ),
            entries={"offsets": "0" * 900},
        ),
        TaskState(
            vertex="per_minute",
            position=38,
            operators=(
                OperatorState(operator_id="per_minute", name="transform per_minute"),
                OperatorState(operator_id="revenue", name="sink revenue"),
            ),
            inputs=("clean",),
            files=files,
        ),
        TaskState(
            vertex="score",
            position=38,
            operators=(OperatorState(operator_id="score", name="process score"),),
            inputs=("clean",),
            in_flight=(
                InFlightSegment(channel="clean", position=39, size=20_000, payload={}),
                InFlightSegment(channel="clean", position=40, size=21_000, payload={}),
            ),
        ),
    )


def leave_job(
    base: Path,
    job_id: str,
    status: RecordStatus = RecordStatus.RUNNING,
    failure: str | None = None,
    *,
    name: str | None = None,
    tasks: Sequence[TaskState] = (CLEAN,),
    start_ms: int = 4_000,
    savepoint: str | None = None,
    number: int = 3,
    completed: bool = True,
) -> None:
    """What a job with one completed checkpoint, or with none, leaves in its directory.

    It ran for five seconds, unless it still runs. ``savepoint``: the directory of the one with
    which it was stopped. ``number``: that of the checkpoint.
    """
    storage = CheckpointStorage(fs=lambda _: FS, base_directory=str(base), job_id=job_id)
    storage.make_job_directory()
    writer = JobLog(FS, storage.log_directory).begin_attempt(
        JobRecord.first_attempt(
            job_id=job_id,
            job_name=name or f"job-{job_id[0]}",
            writer="w" * 16,
            timestamp_ms=start_ms,
        )
    )
    kinds = {number: SnapshotKind.CHECKPOINT} if completed else {}
    if savepoint is not None:
        kinds[number + 1] = SnapshotKind.SYNC_SAVEPOINT
        FS.make_directory(savepoint)
    for checkpoint_id, kind in kinds.items():
        checkpoint = CompletedCheckpoint(
            job_id=job_id,
            checkpoint_id=checkpoint_id,
            kind=kind,
            timestamp_ms=start_ms + 1_000,
            completion_timestamp_ms=start_ms + 1_400,
            attempt=1,
            tasks=tuple(tasks),
            external_path=savepoint
            if savepoint is not None and kind.is_savepoint
            else storage.checkpoint_directory(checkpoint_id),
            coordinator_states={"score": {"rules": {"often": 5}}} if len(tasks) > 1 else {},
        )
        reference = CheckpointReference(
            checkpoint_id=checkpoint_id,
            path=checkpoint.external_path,
            checksum=storage.write_metadata(checkpoint),
        )
        writer.append(
            writer.newest.checkpoint_completed(
                reference, timestamp_ms=start_ms + 1_400, retained=kinds
            )
        )
    if status is not RecordStatus.RUNNING:
        writer.append(
            writer.newest.ended(
                status, timestamp_ms=start_ms + 5_000, savepoint=savepoint, failure=failure
            )
        )


def take_lease(
    base: Path, job_id: str, *, host: str | None = None, rest_address: str = DRIVER
) -> None:
    """As the driver of this process would, or one on another machine."""
    Lease(FS, str(base), job_id).write(
        LeaseRecord(
            attempt=1,
            host=socket.gethostname() if host is None else host,
            pid=os.getpid(),
            pid_started=psutil.Process().create_time(),
            rest_address=rest_address,
            timestamp_ms=SystemClock().wall_ms(),
            timeout_ms=600_000,
        )
    )


def damage_log(base: Path, job_id: str) -> None:
    """Make the newest record of a job unreadable."""
    newest = max(path for path in (base / job_id / "log").iterdir() if path.name.isdecimal())
    newest.write_text("{")


def leave_jobs(root: Path) -> Path:
    """A failed, a stopped, a running and a damaged job; returns their checkpoint directory."""
    now_ms = SystemClock().wall_ms()
    directory = root / "checkpoints"
    for number, (job_id, name, status) in enumerate(
        (
            (FAILED, "orders", RecordStatus.FAILED),
            (STOPPED, "payments", RecordStatus.STOPPED),
            (ALIVE, "flights", RecordStatus.RUNNING),
            (DAMAGED, "broken", RecordStatus.FINISHED),
        ),
        start=1,
    ):
        leave_job(
            directory,
            job_id,
            status,
            "Task 'clean' failed: KeyError: 'amount'" if status is RecordStatus.FAILED else None,
            name=name,
            tasks=pipeline(),
            start_ms=now_ms - number * 3_600_000,
            savepoint=str(root / "savepoint-1") if job_id == STOPPED else None,
        )
    take_lease(directory, ALIVE)
    damage_log(directory, DAMAGED)
    return directory
