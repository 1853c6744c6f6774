"""A fake job: a gateway with a given view and futures that the test resolves, and its server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx

from weir.core.checkpoints.stats import (
    CheckpointCounts,
    CheckpointStats,
    CheckpointStatsSnapshot,
    RestoredCheckpointStats,
    TaskCheckpointStats,
)
from weir.core.status import JobStatus
from weir.core.types import (
    CheckpointType,
    CompletedCheckpoint,
    Payload,
    SnapshotKind,
    SnapshotMetrics,
    TaskStatus,
)
from weir.errors import CoordinatorError
from weir.gateway.job_gateway import JobGateway
from weir.monitoring.cluster import ExecutorView, JvmView, ThreadView
from weir.monitoring.recorder import Recorder
from weir.monitoring.views import ExceptionView, JobView, VertexView
from weir.rest.past.history import StoredJobs
from weir.rest.server.server import RestServer
from weir.runtime.concurrency import Clock, SystemClock
from weir.runtime.ports import CoordinatorAnswer, SubtaskView

JOB_ID = "0123456789abcdef0123456789abcdef"
OTHER_ID = "f" * 32

SNAPSHOT_OF_CLEAN = TaskCheckpointStats(
    vertex="clean",
    ack_timestamp_ms=5_090,
    state_size=9_000,
    metrics=SnapshotMetrics(
        sync_duration_ms=7,
        async_duration_ms=40,
        alignment_duration_ms=3,
        start_delay_ms=11,
        checkpointed_size=4_500,
    ),
)
COMPLETED = CheckpointStats(
    checkpoint_id=7,
    kind=SnapshotKind.CHECKPOINT,
    status="COMPLETED",
    trigger_timestamp_ms=5_000,
    end_to_end_duration_ms=123,
    latest_ack_timestamp_ms=5_090,
    checkpointed_size=4_500,
    state_size=9_000,
    tasks=(SNAPSHOT_OF_CLEAN, replace(SNAPSHOT_OF_CLEAN, vertex="revenue")),
    external_path="/data/chk-7",
)
FAILED = CheckpointStats(
    checkpoint_id=8,
    kind=SnapshotKind.SYNC_SAVEPOINT,
    status="FAILED",
    trigger_timestamp_ms=6_000,
    end_to_end_duration_ms=600,
    tasks=(SNAPSHOT_OF_CLEAN, TaskCheckpointStats(vertex="revenue")),
    failure_timestamp_ms=6_600,
    failure_message="expired before completing",
)
IN_PROGRESS = CheckpointStats(
    checkpoint_id=9,
    kind=SnapshotKind.CHECKPOINT,
    status="IN_PROGRESS",
    trigger_timestamp_ms=7_000,
    tasks=(TaskCheckpointStats(vertex="clean"), TaskCheckpointStats(vertex="revenue")),
)
SNAPSHOT = CheckpointStatsSnapshot(
    counts=CheckpointCounts(restored=1, total=3, in_progress=1, completed=1, failed=1),
    history=(IN_PROGRESS, FAILED, COMPLETED),
    latest_completed=COMPLETED,
    latest_failed=FAILED,
    latest_restored=RestoredCheckpointStats(
        checkpoint_id=6, restore_timestamp_ms=4_000, is_savepoint=False, external_path="/data/chk-6"
    ),
    durations_ms=(100, 123),
    state_sizes=(8_000, 9_000),
    checkpointed_sizes=(8_000, 4_500),
)
VIEW = JobView(
    job_id=JOB_ID,
    name="orders",
    status=JobStatus.RUNNING,
    attempt=2,
    start_time_ms=1_000,
    end_time_ms=-1,
    last_modification_ms=2_000,
    timestamps_ms={"CREATED": 1_000, "RUNNING": 2_000},
    vertices=(
        VertexView(
            vertex="clean",
            operators=("orders", "clean", "orders_clean"),
            parallelism=4,
            status=TaskStatus.RUNNING,
            position=12,
            records_in=1_000,
            records_in_per_second=50.0,
            records_committed=800,
        ),
        VertexView(
            vertex="revenue",
            operators=("revenue",),
            inputs=("clean",),
            parallelism=2,
            status=TaskStatus.WAITING_FOR_FINAL_CHECKPOINT,
            records_in=500,
        ),
    ),
    checkpoints=SNAPSHOT,
    exceptions=(
        ExceptionView(timestamp_ms=3_000, message="first failure"),
        ExceptionView(
            timestamp_ms=3_500,
            message="second failure (log: /w/spark.log)",
            trace="Traceback:\nKeyError",
            vertex="clean",
        ),
    ),
    configuration={
        "execution.checkpointing.interval": "5 s",
        "execution.checkpointing.timeout": "2 min",
    },
)


#: One of four subtasks has nearly all the rows.
SUBTASKS = tuple(
    SubtaskView(
        stage=3,
        index=index,
        host="127.0.0.1",
        status="SUCCESS",
        duration_ms=900 if index == 2 else 10,
        rows=9_000 if index == 2 else 100,
        size=90_000 if index == 2 else 1_000,
    )
    for index in range(4)
)


def completed(
    checkpoint_id: int, path: str, kind: SnapshotKind = SnapshotKind.CHECKPOINT
) -> CompletedCheckpoint:
    """A completed checkpoint or savepoint at a path."""
    return CompletedCheckpoint(
        job_id=JOB_ID,
        checkpoint_id=checkpoint_id,
        kind=kind,
        timestamp_ms=5_000,
        completion_timestamp_ms=5_123,
        attempt=2,
        tasks=(),
        external_path=path,
    )


class FakeGateway:
    """A ``JobGateway`` that records its calls.

    ``calls`` are the requests with their arguments; ``futures`` are their answers, set by the test.
    """

    def __init__(self, view: JobView = VIEW, clock: Clock | None = None) -> None:
        self.current = view
        self.calls: list[tuple[str, str | None]] = []
        self.futures: list[Future[Any]] = []
        #: Answers that requests get immediately, in order, while there are any.
        self.prepared: list[CompletedCheckpoint | CoordinatorAnswer | Exception | None] = []
        self.recorder = Recorder(
            clock or SystemClock(), {vertex.vertex: vertex.inputs for vertex in view.vertices}, dict
        )
        self.engine_log: str | None = None
        self.saves_on_sigterm = False
        self.spread = SUBTASKS
        #: For how long the main thread has been silent.
        self.silent = 0

    def view(self) -> JobView:
        return self.current

    def silent_ms(self) -> int:
        return self.silent

    def subtasks(self, vertex: str) -> tuple[SubtaskView, ...]:
        return self.spread

    def set_status(self, status: JobStatus) -> None:
        """Show the job in another status, ended at 10,000 ms if that is terminal."""
        end_ms = 10_000 if status.is_terminal else -1
        self.current = replace(self.current, status=status, end_time_ms=end_ms)

    def trigger_checkpoint(
        self, checkpoint_type: CheckpointType = CheckpointType.CONFIGURED
    ) -> Future[CompletedCheckpoint]:
        return self._call("checkpoint", checkpoint_type.value)

    def trigger_savepoint(self, target: str | None) -> Future[CompletedCheckpoint]:
        return self._call("savepoint", target)

    def stop_with_savepoint(
        self, target: str | None, *, drain: bool = False
    ) -> Future[CompletedCheckpoint]:
        return self._call("drain" if drain else "stop", target)

    def stop_with_checkpoint(self) -> Future[CompletedCheckpoint]:
        return self._call("stop with checkpoint", None)

    def send_to_coordinator(self, operator: str, request: Payload) -> Future[CoordinatorAnswer]:
        if operator != "score":
            raise CoordinatorError(
                f"The job has no operator {operator!r} with a coordinator;"
                " those with a coordinator: score."
            )
        return self._call("send", json.dumps(request))

    def cancel(self) -> Future[None]:
        return self._call("cancel", None)

    def suspend(self) -> None:
        self.calls.append(("suspend", None))
        self.set_status(JobStatus.SUSPENDED)

    def _call(self, name: str, target: str | None) -> Future[Any]:
        future: Future[Any] = Future()
        self.calls.append((name, target))
        self.futures.append(future)
        if self.prepared:
            answer = self.prepared.pop(0)
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        return future


class FakeCluster:
    """A driver's JVM and an executor of a cluster beside it."""

    def jvm(self) -> JvmView:
        return JvmView(
            version="OpenJDK 64-Bit Server VM - Debian - 17.0.15",
            arch="amd64",
            options=("-Xmx1g", "-Dmy.password=hunter2", "-Durl=postgres://me:hunter2@host/db"),
            classpath=("/spark/conf", "/spark/jars/spark.jar"),
            pid=os.getpid(),
            heap_used=59_000_000,
            heap_committed=119_000_000,
            heap_max=1_073_741_824,
            non_heap_used=80_000_000,
            non_heap_committed=90_000_000,
            non_heap_max=-1,
            buffers={"direct": (5, 24_577, 24_576), "mapped": (0, 0, 0)},
            threads=47,
            classes_loaded=11_627,
            collectors={"G1 Young Generation": (12, 335), "G1 Old Generation": (0, 0)},
        )

    def executors(self) -> tuple[ExecutorView, ...]:
        driver = ExecutorView(
            executor_id="driver",
            host="127.0.0.1",
            port=38_449,
            cores=2,
            active_tasks=1,
            memory_max=455_501_414,
            memory_used=1_000,
        )
        return driver, replace(driver, executor_id="0", port=40_000, active_tasks=3)

    def threads(self, executor_id: str) -> tuple[ThreadView, ...]:
        return (ThreadView(name="main", text=f'"main" of {executor_id}'),)


@contextmanager
def served(
    jobs: JobGateway | StoredJobs, *, cluster: FakeCluster | None = None, **server: Any
) -> Iterator[httpx.Client]:
    """A client of a REST server for a job or for stored ones; both end with the block."""
    running = RestServer(port=0, **server)
    try:
        address = (
            running.start_history(jobs)
            if isinstance(jobs, StoredJobs)
            else running.start(jobs, cluster=cluster)
        )
        with httpx.Client(base_url=address, trust_env=False, verify=False) as client:
            yield client
    finally:
        running.stop()
