"""``LiveView``: the view of a running job, made on the main thread and read from any.

A view is an immutable value that the main thread publishes by swapping a reference: when the job's
status changes, before a request is answered, so that the requester sees its effect, and when a
reader finds that the current one is older than ``_FRESH_MS``, that is, at most ten times a second
for any number of readers.

A reader waits at most ``_PATIENCE_S`` for the JVM, and as long for the main thread. While either
hangs, it gets the last view.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from functools import partial

from weir.core.job.master import JobMaster
from weir.core.messages.job import JobEnded, JobStatusChanged
from weir.core.status import JobStatus
from weir.core.task.plan import TaskPlan
from weir.core.task.stream_task import StreamTask
from weir.core.types import RowCount, VertexId
from weir.monitoring.counters import Counters
from weir.monitoring.recorder import Recorder
from weir.monitoring.timeline import SpanKind
from weir.monitoring.views import (
    ChannelView,
    CoordinatorView,
    ExceptionView,
    JobView,
    VertexView,
)
from weir.runtime.concurrency import Clock
from weir.runtime.driver import JobDriver
from weir.runtime.ports import TaskPort, VertexMetrics

#: A view younger than this, in milliseconds, is fresh enough for every reader.
_FRESH_MS = 100
#: A view may show counters of so long ago in milliseconds: reading them asks the JVM, which takes
#: longer than all else while its cores are busy.
_SERVE_MS = 1_000
#: How long a reader waits for the counters, and then for the main thread, in seconds.
_PATIENCE_S = 0.1
#: How long the end of the run waits for the last counters, in seconds.
_LAST_PATIENCE_S = 2.0
#: Entries of the exception history (Flink: ``web.exception-history-size``).
_EXCEPTIONS = 16


class LiveView:
    """Keeps what a view needs besides the machines, and publishes views."""

    def __init__(
        self,
        *,
        job_id: str,
        name: str,
        master: JobMaster,
        plans: Mapping[VertexId, TaskPlan],
        tasks: TaskPort,
        clock: Clock,
        configuration: Mapping[str, str],
        coordinated: tuple[CoordinatorView, ...],
        driver: JobDriver,
        recorder: Recorder,
    ) -> None:
        self._job_id = job_id
        self._name = name
        self._master = master
        self._plans = plans
        self._clock = clock
        self._configuration = dict(configuration)
        self._coordinated = coordinated
        self._driver = driver
        self._recorder = recorder
        self._counters = Counters(plans, tasks, clock)
        self._start_time_ms = clock.wall_ms()
        self._end_time_ms = -1
        self._timestamps_ms = {JobStatus.CREATED.name: self._start_time_ms}
        self._restarts = 0
        self._savepoint: str | None = None
        #: The latest request for a view; done once the main thread has published for it.
        self._look: Future[None] = Future()
        self._look.set_result(None)
        #: When it was made.
        self._asked_ms = clock.now_ms()
        self._looking = threading.Lock()
        #: When a reader last got a freshly published view.
        self._looked_ms = clock.now_ms() - _FRESH_MS
        self._is_final = False
        self._view = self._make_view()
        driver.watchers.watch_effects(
            {JobStatusChanged: self._status_changed, JobEnded: self._job_ended}
        )

    # ---- from any thread

    def newest(self) -> JobView:
        """The current view, the last if the main thread hangs, or the final view after the end."""
        if self._is_final or self._clock.now_ms() - self._looked_ms < _FRESH_MS:
            return self._view
        self._counters.read(_PATIENCE_S, serve_ms=_SERVE_MS)
        with self._looking:
            if self._look.done():
                self._look = Future()
                self._asked_ms = self._clock.now_ms()
                self._driver.call(partial(self._publish_for, self._look))
            look = self._look
        wait((look,), timeout=_PATIENCE_S)
        if look.done():
            look.result()
            self._looked_ms = self._clock.now_ms()
        return self._view

    def silent_ms(self) -> int:
        """For how long the main thread has not answered, in milliseconds; 0 if it does."""
        self.newest()
        return 0 if self._look.done() or self._is_final else self._clock.now_ms() - self._asked_ms

    # ---- on the main thread

    def publish(self) -> None:
        """Replace the view; after a failure, the last view remains."""
        self._publish_for(Future())

    def finish(self) -> None:
        """The driver has returned: publish the final view."""
        self._end_time_ms = self._clock.wall_ms()
        self._counters.read_again(_LAST_PATIENCE_S)
        try:
            self._view = self._make_view()
        finally:
            self._is_final = True

    def _publish_for(self, look: Future[None]) -> None:
        """Publish the view and wake the readers that wait for it.

        A failure here goes to them and does not fail the job.
        """
        try:
            self._view = self._make_view()
            look.set_result(None)
        except Exception as error:
            look.set_exception(error)

    def _status_changed(self, effect: JobStatusChanged) -> None:
        self._timestamps_ms[effect.status.name] = self._clock.wall_ms()
        self._restarts += effect.status is JobStatus.RESTARTING
        self.publish()

    def _job_ended(self, effect: JobEnded) -> None:
        self._savepoint = effect.savepoint

    def _make_view(self) -> JobView:
        metrics = self._counters.newest
        vertices = [
            self._vertex_view(vertex, plan, metrics[vertex]) for vertex, plan in self._plans.items()
        ]
        return JobView(
            job_id=self._job_id,
            name=self._name,
            status=self._master.status,
            attempt=self._master.attempt,
            start_time_ms=self._start_time_ms,
            end_time_ms=self._end_time_ms,
            last_modification_ms=max(self._timestamps_ms.values()),
            timestamps_ms=dict(self._timestamps_ms),
            vertices=tuple(vertices),
            checkpoints=self._master.stats(self._clock.now_ms()),
            failure=self._master.failure,
            savepoint=self._savepoint,
            restarts=self._restarts,
            exceptions=self._exceptions(),
            configuration=self._configuration,
            latest_completed=self._master.coordinator.latest,
            coordinators=self._coordinated,
        )

    def _vertex_view(self, vertex: VertexId, plan: TaskPlan, metrics: VertexMetrics) -> VertexView:
        timeline = self._recorder.timelines[vertex]
        totals_ms = timeline.totals_ms()
        return VertexView(
            vertex=vertex,
            operators=tuple(operator.name for operator in plan.operators),
            parallelism=metrics.parallelism,
            status=self._master.task_status(vertex),
            inputs=plan.inputs,
            position=metrics.position,
            records_in=metrics.records_in,
            records_in_per_second=metrics.records_in_per_second,
            pending_records=metrics.pending_records,
            lags=metrics.lags,
            records_committed=metrics.records_committed,
            batches=timeline.batches,
            batch_ms=timeline.batch_ms,
            busy_ms=totals_ms[SpanKind.BATCH] + totals_ms[SpanKind.DRAIN],
            rested_ms=totals_ms[SpanKind.RESTED],
            held_ms=totals_ms[SpanKind.HELD],
            commits=timeline.commits,
            commit_ms=timeline.commit_ms,
            watermark_ms=metrics.watermark_ms,
            state=metrics.state,
            counted=tuple(
                RowCount(kind=of.kind, by=of.by, rule=of.rule, rows=rows)
                for of, rows in metrics.counted.items()
            ),
            staging_ms=metrics.staging_ms,
            outputs=_outputs(self._driver.tasks.get(vertex)),
        )

    def _exceptions(self) -> tuple[ExceptionView, ...]:
        return tuple(
            ExceptionView(
                timestamp_ms=failure.time_ms,
                message=failure.message,
                trace=failure.trace,
                vertex=failure.vertex,
                attempt=failure.attempt,
            )
            for failure in tuple(self._recorder.failures)[-_EXCEPTIONS:]
        )


def _outputs(task: StreamTask | None) -> tuple[ChannelView, ...]:
    fill = {} if task is None else task.outputs.fill
    return tuple(
        ChannelView(consumer=name, segments=segments, size=size)
        for name, (segments, size) in fill.items()
    )
