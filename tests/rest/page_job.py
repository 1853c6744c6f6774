"""A fake job for the page: any number of vertices, and an hour of recorded figures and bars."""

from __future__ import annotations

from array import array
from dataclasses import replace
from math import sin

from tests.kit.gateway import VIEW, FakeGateway

from weir.core.checkpoints.stats import (
    CheckpointCounts,
    CheckpointStats,
    CheckpointStatsSnapshot,
    TaskCheckpointStats,
)
from weir.core.status import JobStatus
from weir.core.types import (
    CompletedCheckpoint,
    Counted,
    RowCount,
    SnapshotKind,
    SnapshotMetrics,
    StateHandle,
    TaskState,
    TaskStatus,
)
from weir.monitoring.recorder import SAMPLES, Failure, Moment, Recorder, Sample, checkpoint_bar
from weir.monitoring.timeline import Span, SpanKind
from weir.monitoring.views import (
    ChannelView,
    CoordinatorView,
    JobView,
    VertexView,
)
from weir.runtime.concurrency import Clock, SystemClock

_SMALL = {
    "clean": (),
    "orders_by_minute": ("clean",),
    "score": ("clean",),
    "audit": ("clean",),
    "alerts": ("score", "orders_by_minute"),
}

_COUNTED = (
    RowCount(kind=Counted.LATE, by="0 stateStoreSave", rule="", rows=1_204),
    RowCount(kind=Counted.REJECTED, by="price", rule="", rows=100),
    RowCount(kind=Counted.BROKEN, by="valid", rule="has an id", rows=7),
)


def _wide(many: int) -> dict[str, tuple[str, ...]]:
    """Layers of sources, of steps that read one to three others, and of ends."""
    names = [f"{'source' if n < 6 else 'step'}_{n:02}" for n in range(many)]
    graph: dict[str, tuple[str, ...]] = {}
    for n, name in enumerate(names):
        if n < 6:
            graph[name] = ()
        else:
            graph[name] = tuple(dict.fromkeys(names[(n * k) % (n - 2)] for k in (3, 5, 7)))[
                : 1 + n % 3
            ]
    return graph


def page_gateway(many: int = 5, clock: Clock | None = None) -> FakeGateway:
    """The gateway of a running job with so many vertices, behind since one of them is slow."""
    clock = clock or SystemClock()
    now_ms = clock.wall_ms()
    graph = _SMALL if many == len(_SMALL) else _wide(many)
    slow = list(graph)[3 if many == len(_SMALL) else many // 2]
    view = _view(graph, slow, now_ms)
    gateway = FakeGateway(view, clock)
    _record(gateway.recorder, view, slow, now_ms)
    return gateway


def _view(graph: dict[str, tuple[str, ...]], slow: str, now_ms: int) -> JobView:
    consumers = {name: [other for other in graph if name in graph[other]] for name in graph}
    vertices = tuple(
        VertexView(
            vertex=name,
            operators=(
                ("source " + name, "transform " + name)
                if not inputs
                else ("transform " + name, f"sink {name}_table")
            ),
            parallelism=4,
            status=TaskStatus.RUNNING,
            inputs=inputs,
            position=700,
            records_in=10_000 * SAMPLES,
            records_in_per_second=2_000.0,
            pending_records=None if inputs else 1_200,
            records_committed=5_000 * SAMPLES,
            watermark_ms=now_ms - 4_000 * (number + 1) if number % 3 else None,
            counted=_COUNTED if inputs else (),
            outputs=tuple(
                ChannelView(
                    consumer=one,
                    segments=6 if one == slow else 0,
                    size=480_000 if one == slow else 0,
                )
                for one in consumers[name]
            ),
        )
        for number, (name, inputs) in enumerate(graph.items())
    )
    history = [_checkpoint(n, graph, slow, now_ms) for n in range(40, 4, -1)]
    running = replace(
        history[0],
        checkpoint_id=41,
        status="IN_PROGRESS",
        trigger_timestamp_ms=now_ms - 3_000,
        end_to_end_duration_ms=3_000,
        external_path=None,
        tasks=tuple(
            TaskCheckpointStats(vertex=one.vertex) if one.vertex == slow else one
            for one in history[0].tasks
        ),
    )
    failed = replace(
        history[5],
        status="FAILED",
        external_path=None,
        failure_timestamp_ms=history[5].trigger_timestamp_ms + 60_000,
        failure_message=f"Checkpoint expired before completing. Task {slow} has not acknowledged.",
    )
    savepoint = replace(
        history[9], kind=SnapshotKind.SAVEPOINT, external_path="/data/savepoints/savepoint-0123-ab"
    )
    history[5], history[9] = failed, savepoint
    return replace(
        VIEW,
        start_time_ms=now_ms - 3_700_000,
        last_modification_ms=now_ms - 900_000,
        timestamps_ms={"CREATED": now_ms - 3_700_000, "RUNNING": now_ms - 900_000},
        vertices=vertices,
        failure=None,
        restarts=1,
        checkpoints=CheckpointStatsSnapshot(
            counts=CheckpointCounts(total=41, in_progress=1, completed=39, failed=1),
            history=(running, *history),
            latest_completed=history[0],
            latest_savepoint=savepoint,
            latest_failed=failed,
            durations_ms=tuple(4_000 + 300 * n for n in range(36)),
            state_sizes=tuple(900_000 + 1_000 * n for n in range(36)),
            checkpointed_sizes=tuple(90_000 + 100 * n for n in range(36)),
        ),
        latest_completed=_completed(graph, now_ms),
        coordinators=(CoordinatorView(operator="score", vertex=list(graph)[2], parallelism=4),),
    )


def _checkpoint(
    number: int, graph: dict[str, tuple[str, ...]], slow: str, now_ms: int
) -> CheckpointStats:
    triggered = now_ms - (41 - number) * 20_000 + 5_000
    tasks = tuple(
        TaskCheckpointStats(
            vertex=name,
            ack_timestamp_ms=triggered + (9_000 if name == slow else 1_400),
            state_size=40_000,
            metrics=SnapshotMetrics(
                sync_duration_ms=40,
                async_duration_ms=200,
                checkpointed_size=4_000,
                counted=_COUNTED[1:] if name == slow else (),
            ),
        )
        for name in graph
    )
    return CheckpointStats(
        checkpoint_id=number,
        kind=SnapshotKind.CHECKPOINT,
        status="COMPLETED",
        trigger_timestamp_ms=triggered,
        end_to_end_duration_ms=9_100,
        latest_ack_timestamp_ms=triggered + 9_000,
        checkpointed_size=4_000 * len(graph),
        state_size=40_000 * len(graph),
        tasks=tasks,
        external_path=f"/data/checkpoints/chk-{number}",
    )


def _completed(graph: dict[str, tuple[str, ...]], now_ms: int) -> CompletedCheckpoint:
    files = tuple(
        StateHandle(
            key=f"state/0/{partition}/40.zip",
            path=f"shared/{partition}",
            size=90_000 if partition == 2 else 3_000,
            checksum="crc32:00000000",
        )
        for partition in range(4)
    )
    return CompletedCheckpoint(
        job_id=VIEW.job_id,
        checkpoint_id=40,
        kind=SnapshotKind.CHECKPOINT,
        timestamp_ms=now_ms - 15_000,
        completion_timestamp_ms=now_ms - 6_000,
        attempt=2,
        tasks=tuple(
            TaskState(vertex=name, position=700, operators=(), files=files) for name in graph
        ),
        external_path="/data/checkpoints/chk-40",
        coordinator_states={"score": {"rules": {"often": 5, "rare": 1}}},
    )


def _record(recorder: Recorder, view: JobView, slow: str, now_ms: int) -> None:
    for number in range(SAMPLES):
        at = now_ms - (SAMPLES - number) * 5_000
        rows = 10_000 * number + int(4_000 * sin(number / 15) + 1_500 * sin(number / 2))
        values = array("q")
        for one in view.vertices:
            busy, held = _shares(one.vertex == slow)
            values.extend(
                (
                    *(rows, rows // 2, number, 900),
                    *(busy * number, (4_980 - busy - held) * number, held * number, 20 * number),
                    *(at - 6_000, 400_000 + 1_000 * (number % 50)),
                )
            )
        recorder.samples.append(Sample(time_ms=at, values=values))
    for one in view.vertices:
        lanes = recorder.timelines[one.vertex]
        long = 4_000 if one.vertex == slow else 1_200
        for batch in range(120_000 // 5_000):
            start = now_ms - 120_000 + batch * 5_000
            idle = SpanKind.RESTED if one.vertex == slow else SpanKind.HELD
            lanes.query.append(
                Span(kind=SpanKind.BATCH, start_ms=start, end_ms=start + long, batch=batch)
            )
            lanes.query.append(Span(kind=idle, start_ms=start + long, end_ms=start + 5_000))
        for stats in view.checkpoints.history[:8]:
            _parts(recorder, one, stats, slow)
        lanes.batches, lanes.batch_ms = 700, long
        busy, held = _shares(one.vertex == slow)
        for kind, ms in (
            (SpanKind.BATCH, busy),
            (SpanKind.HELD, held),
            (SpanKind.RESTED, 4_980 - busy - held),
            (SpanKind.SNAPSHOT, 20),
        ):
            lanes._totals[kind] = ms * SAMPLES
    told = [
        (3_700_000, "job", "The job is RUNNING (attempt 1).", None),
        (905_000, "failure", f"Failure: Task {slow!r} failed: connection refused", slow),
        (904_000, "job", "The job is RESTARTING (attempt 1).", None),
        (900_000, "job", "The job is RUNNING (attempt 2).", None),
    ]
    for stats in reversed(view.checkpoints.history[:12]):
        ago_ms, n = now_ms - stats.trigger_timestamp_ms, stats.checkpoint_id
        told.append((ago_ms, "checkpoint", f"Checkpoint {n} was triggered.", None))
        if stats.status != "IN_PROGRESS":
            recorder.checkpoints.append(checkpoint_bar(stats))
        if stats.status == "COMPLETED":
            ended = f"Checkpoint {n} completed in 9.1 s"
            told.append((ago_ms - 9_100, "checkpoint", ended, None))
    for number, (ago_ms, kind, text, vertex) in enumerate(told, start=1):
        recorder.moments.append(
            Moment(number=number, time_ms=now_ms - ago_ms, kind=kind, text=text, vertex=vertex)
        )
        recorder.log.add(now_ms - ago_ms, "INFO", f"weir.{kind}", text, task=vertex or "")
    recorder.failures.append(
        Failure(
            time_ms=now_ms - 905_000,
            attempt=1,
            message=f"Task {slow!r} failed: ConnectionError: connection refused by db:5432 (batch"
            " 12)",
            trace="Traceback (most recent call last):\n  File orders.py, line 12, in stage\n"
            "ConnectionError: connection refused",
            vertex=slow,
            story=tuple(recorder.moments)[:1],
            outcome="The restart strategy begins attempt 2 in 1.0 s.",
            recovered_ms=now_ms - 900_000,
        )
    )


def _shares(is_slow: bool) -> tuple[int, int]:
    """For how many of 5,000 ms a task is busy, and held."""
    return (4_900, 0) if is_slow else (1_500, 2_000)


def _parts(recorder: Recorder, one: VertexView, stats: CheckpointStats, slow: str) -> None:
    n, start = stats.checkpoint_id, stats.trigger_timestamp_ms
    parts = recorder.timelines[one.vertex].parts
    reached = start + (8_000 if one.vertex == slow else 900)
    kind = SpanKind.CATCH_UP if one.inputs else SpanKind.WAIT
    for what, begin, end in (
        (kind, start, reached),
        (SpanKind.SYNC, reached, reached + 40),
        (SpanKind.ASYNC, reached + 40, reached + 400),
        (SpanKind.COMMIT, start + 9_100, start + 9_700),
    ):
        if stats.status == "COMPLETED":
            parts.append(Span(kind=what, start_ms=begin, end_ms=end, checkpoint_id=n))


def ended(gateway: FakeGateway) -> None:
    """The job fails for good."""
    gateway.set_status(JobStatus.FAILED)
    now_ms = SystemClock().wall_ms()
    gateway.current = replace(gateway.current, end_time_ms=now_ms, failure="Disk full.")
