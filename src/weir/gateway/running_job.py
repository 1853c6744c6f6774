"""``RunningJob``: the gateway from REST, signals and progress to the driver's main thread.

1. Every request is posted to the main thread; only its future waits for the answer.
2. The main thread publishes the job's view: an immutable value, swapped by reference. It publishes
   when the job's status changes, and before it answers a request, so the requester sees the result;
   and when somebody asks for a view while the current one is older than ``_FRESH_MS``, that is, at
   most ten times a second however many ask.
3. A caller waits at most ``_PATIENCE_S`` for the JVM, and as long for the main thread. While one of
   them hangs, it gets the last view, and requests are accepted as usual.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError, wait
from functools import partial
from typing import Any

from weir.core.job.master import JobMaster
from weir.core.messages.job import (
    AnswerRequest,
    CancelRequested,
    JobEnded,
    JobMasterEvent,
    JobStatusChanged,
    RequestKind,
    SnapshotRequested,
    SuspendRequested,
)
from weir.core.status import JobStatus
from weir.core.task.plan import TaskPlan
from weir.core.task.stream_task import StreamTask
from weir.core.types import CheckpointType, CompletedCheckpoint, OperatorId, Payload, VertexId
from weir.errors import JobError
from weir.monitoring.counters import Counters
from weir.monitoring.recorder import Recorder
from weir.monitoring.timeline import SpanKind
from weir.monitoring.views import ChannelView, CoordinatorView, ExceptionView, JobView, VertexView
from weir.runtime.concurrency import Clock
from weir.runtime.driver import JobDriver
from weir.runtime.ports import (
    CoordinatorAnswer,
    CoordinatorPort,
    DurablePort,
    SubtaskView,
    TaskPort,
    VertexMetrics,
)

_log = logging.getLogger(__name__)

#: A view younger than this, in milliseconds, is fresh enough for everybody.
_FRESH_MS = 100
#: A view may show counters of so long ago in milliseconds: reading them asks the JVM, which takes
#: longer than all else while its cores are busy.
_SERVE_MS = 1_000
#: How long ``view`` waits for the counters, and then for the main thread, in seconds.
_PATIENCE_S = 0.1
#: How long the end of the run waits for the last counters, in seconds.
_LAST_PATIENCE_S = 2.0
#: Entries of the exception history (Flink: ``web.exception-history-size``).
_EXCEPTIONS = 16


class RunningJob:
    """Implements ``weir.gateway.job_gateway.JobGateway`` over a driver."""

    def __init__(
        self,
        *,
        job_id: str,
        name: str,
        master: JobMaster,
        plans: Mapping[VertexId, TaskPlan],
        tasks: TaskPort,
        durable: DurablePort,
        coordinators: CoordinatorPort,
        clock: Clock,
        configuration: Mapping[str, str],
        patience_ms: int,
        coordinated: tuple[CoordinatorView, ...] = (),
        engine_log: str | None = None,
    ) -> None:
        """``patience_ms``: how long the end of an attempt waits for work that hangs.

        ``coordinated``: the operators that have a coordinator. ``engine_log``: the path of Spark's
        own log.
        """
        self._job_id = job_id
        #: Why a request fails that comes after the end, or just before it.
        self._refusal = f"Job {job_id} has ended and takes no more requests."
        self._unanswered = f"Job {job_id} ended before the request was answered."
        self._name = name
        self._master = master
        self._plans = plans
        self._counters = Counters(plans, tasks, clock)
        self._coordinators = coordinators
        self._clock = clock
        self._configuration = dict(configuration)
        self._coordinated = coordinated
        self.engine_log = engine_log
        self._tasks = tasks
        self._requests = itertools.count(1)
        self._futures: dict[str, Future[Any]] = {}
        self._start_time_ms = clock.wall_ms()
        self._end_time_ms = -1
        self._timestamps_ms = {JobStatus.CREATED.name: self._start_time_ms}
        self._exceptions: list[ExceptionView] = []
        self._restarts = 0
        self._savepoint: str | None = None
        self._over = threading.Event()
        #: Set once somebody wants the driver to exit.
        self.left = threading.Event()
        #: The latest request for a view; done once the main thread has published for it.
        self._look: Future[None] = Future()
        self._look.set_result(None)
        self._looking = threading.Lock()
        #: When a caller of ``view`` last got a freshly published view.
        self._looked_ms = clock.now_ms() - _FRESH_MS
        self.driver = JobDriver(
            master=master,
            plans=plans,
            tasks=tasks,
            durable=durable,
            coordinators=coordinators,
            clock=clock,
            patience_ms=patience_ms,
        )
        #: What happened over the last hour.
        self.recorder = Recorder(
            clock, {name: plan.inputs for name, plan in plans.items()}, lambda: self.driver.tasks
        )
        self.recorder.watch(self.driver.watchers, master)
        self.driver.watchers.watch_effects(
            {
                JobStatusChanged: self._status_changed,
                JobEnded: self._job_ended,
                AnswerRequest: self._answered,
            }
        )
        self._view = self._make_view()

    # ---- gateway

    def view(self) -> JobView:
        """The current view, the last one if the main thread does not answer, or the final one."""
        if self._over.is_set() or self._clock.now_ms() - self._looked_ms < _FRESH_MS:
            return self._view
        self._counters.read(_PATIENCE_S, serve_ms=_SERVE_MS)
        with self._looking:
            if self._look.done():
                self._look = Future()
                self.driver.call(partial(self._publish_for, self._look))
            look = self._look
        wait((look,), timeout=_PATIENCE_S)
        if look.done():
            look.result()
            self._looked_ms = self._clock.now_ms()
        return self._view

    def subtasks(self, vertex: VertexId) -> tuple[SubtaskView, ...]:
        """How the newest batch of a vertex was spread over its subtasks; waits for the JVM."""
        return () if self._over.is_set() else self._tasks.subtasks(vertex)

    def trigger_checkpoint(
        self, checkpoint_type: CheckpointType = CheckpointType.CONFIGURED
    ) -> Future[CompletedCheckpoint]:
        """Take a checkpoint now."""
        self.recorder.note("request", "A checkpoint was requested.")
        return self._snapshot(RequestKind.CHECKPOINT, None, checkpoint_type)

    def trigger_savepoint(self, target: str | None) -> Future[CompletedCheckpoint]:
        """Take a savepoint."""
        self.recorder.note("request", "A savepoint was requested.")
        return self._snapshot(RequestKind.SAVEPOINT, target)

    def stop_with_savepoint(
        self, target: str | None, *, drain: bool = False
    ) -> Future[CompletedCheckpoint]:
        """Stop between two batches."""
        how = "A drain" if drain else "A stop"
        self.recorder.note("request", f"{how} with a savepoint was requested.")
        return self._snapshot(RequestKind.STOP, target, drain=drain)

    def send_to_coordinator(
        self, operator: OperatorId, request: Payload
    ) -> Future[CoordinatorAnswer]:
        """Send a request to an operator's coordinator."""
        self.recorder.note("request", f"A request was sent to the coordinator of {operator}.")
        future: Future[CoordinatorAnswer] = Future()
        if self._over.is_set():
            _settle(future, None, self._refusal)
        else:
            self._coordinators.request(operator, request, future)
            if not self._master.has_periodic_checkpoints:
                # The answer waits for a checkpoint, which nobody else would trigger.
                asked = self.trigger_checkpoint()
                asked.add_done_callback(lambda done: self._settle_if_failed(future, done))
        return future

    def _settle_if_failed(
        self, answer: Future[CoordinatorAnswer], checkpoint: Future[CompletedCheckpoint]
    ) -> None:
        """If the checkpoint of a request failed, fail its answer with the reason.

        If the job is not running, the coordinator reports the outcome.
        """
        error = checkpoint.exception()
        if error is not None and self._master.status is JobStatus.RUNNING:
            _settle(
                answer,
                None,
                f"It is unknown whether the request took effect: {error} Check, or ask again.",
            )

    def cancel(self) -> Future[None]:
        """Cancel the job."""
        self.recorder.note("request", "A cancellation was requested.")
        return self._request(lambda request: CancelRequested(request=request))

    def suspend(self) -> None:
        """Stop the tasks and leave the job resumable. Safe in a signal handler."""
        self.left.set()
        self.recorder.note("request", "The driver was asked to exit.")
        self.driver.post(SuspendRequested())

    # ---- the run

    def finish(self) -> None:
        """The driver has returned: publish the final view, and fail unanswered requests."""
        self._end_time_ms = self._clock.wall_ms()
        self._counters.read_anew(_LAST_PATIENCE_S)
        try:
            self._view = self._make_view()
        finally:
            self._over.set()
        for future in list(self._futures.values()):
            _settle(future, None, self._unanswered)

    def _status_changed(self, effect: JobStatusChanged) -> None:
        now_ms = self._clock.wall_ms()
        self._timestamps_ms[effect.status.name] = now_ms
        self._restarts += effect.status is JobStatus.RESTARTING
        if effect.status is JobStatus.FAILING:
            failure = ExceptionView(
                timestamp_ms=now_ms,
                message=effect.message,
                trace=effect.trace,
                vertex=effect.vertex,
                attempt=self._master.attempt,
            )
            self._exceptions = [*self._exceptions, failure][-_EXCEPTIONS:]
        self._publish_for(Future())

    def _job_ended(self, effect: JobEnded) -> None:
        self._savepoint = effect.savepoint

    def _answered(self, effect: AnswerRequest) -> None:
        future = self._futures.pop(effect.request, None)
        if future is not None:
            self._publish_for(Future())
            _settle(future, effect.checkpoint, effect.failure)

    def _snapshot(
        self,
        kind: RequestKind,
        target: str | None,
        checkpoint_type: CheckpointType = CheckpointType.CONFIGURED,
        *,
        drain: bool = False,
    ) -> Future[CompletedCheckpoint]:
        return self._request(
            lambda request: SnapshotRequested(
                request=request,
                kind=kind,
                target=target,
                checkpoint_type=checkpoint_type,
                drain=drain,
            )
        )

    def _request(self, event: Callable[[str], JobMasterEvent]) -> Future[Any]:
        future: Future[Any] = Future()
        request = f"request-{next(self._requests)}"
        if self._over.is_set():
            _settle(future, None, self._refusal)
            return future
        self._futures[request] = future
        self.driver.post(event(request))
        if self._over.is_set():
            # The run ended in between, and may not have seen the request.
            _settle(future, None, self._unanswered)
        return future

    def _publish_for(self, look: Future[None]) -> None:
        """Publish the view and wake those who wait for it; called on the main thread.

        A failure here goes to the waiters and does not fail the job.
        """
        try:
            self._view = self._make_view()
            look.set_result(None)
        except Exception as error:
            look.set_exception(error)

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
            exceptions=tuple(self._exceptions),
            configuration=self._configuration,
            latest_completed=self._master.coordinator.latest,
            coordinators=self._coordinated,
        )

    def _vertex_view(self, vertex: VertexId, plan: TaskPlan, metrics: VertexMetrics) -> VertexView:
        timeline = self.recorder.timelines[vertex]
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
            staging_ms=metrics.staging_ms,
            outputs=_outputs(self.driver.tasks.get(vertex)),
        )


def _outputs(task: StreamTask | None) -> tuple[ChannelView, ...]:
    fill = {} if task is None else task.outputs.fill
    return tuple(
        ChannelView(consumer=name, segments=segments, size=size)
        for name, (segments, size) in fill.items()
    )


def _settle(future: Future[Any], result: object, failure: str | None) -> None:
    try:
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(JobError(failure))
    except InvalidStateError:
        # The requester gave up and cancelled the future, or the future was settled before.
        return
