"""``RunningJob``: the gateway from REST, signals and progress to the driver's main thread.

Every request is posted to the main thread; only its future waits for the answer. So requests are
accepted while the main thread or the JVM hangs. Views are in ``live_view.py``.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from typing import Any

from weir.core.job.master import JobMaster
from weir.core.messages.job import (
    AnswerRequest,
    CancelRequested,
    JobMasterEvent,
    RequestKind,
    SnapshotRequested,
    SuspendRequested,
)
from weir.core.status import JobStatus
from weir.core.task.plan import TaskPlan
from weir.core.types import CheckpointType, CompletedCheckpoint, OperatorId, Payload, VertexId
from weir.errors import JobError
from weir.gateway.live_view import LiveView
from weir.monitoring.recorder import Recorder
from weir.monitoring.views import CoordinatorView, JobView
from weir.runtime.concurrency import Clock
from weir.runtime.driver import JobDriver
from weir.runtime.ports import (
    CoordinatorAnswer,
    CoordinatorPort,
    DurablePort,
    SubtaskView,
    TaskPort,
)


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
        saves_on_sigterm: bool = False,
    ) -> None:
        """``patience_ms``: how long the end of an attempt waits for work that hangs.

        ``coordinated``: the operators that have a coordinator. ``engine_log``: the path of Spark's
        own log.
        """
        #: Why a request fails that comes after the end, or just before it.
        self._refusal = f"Job {job_id} has ended and takes no more requests."
        self._unanswered = f"Job {job_id} ended before the request was answered."
        self._master = master
        self._tasks = tasks
        self._coordinators = coordinators
        self.engine_log = engine_log
        self.saves_on_sigterm = saves_on_sigterm
        self._requests = itertools.count(1)
        self._futures: dict[str, Future[Any]] = {}
        self._over = threading.Event()
        #: Set once the driver was asked to exit.
        self.left = threading.Event()
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
        self._view = LiveView(
            job_id=job_id,
            name=name,
            master=master,
            plans=plans,
            tasks=tasks,
            clock=clock,
            configuration=configuration,
            coordinated=coordinated,
            driver=self.driver,
            recorder=self.recorder,
        )
        self.driver.watchers.watch_effects({AnswerRequest: self._answered})

    # ---- gateway

    def view(self) -> JobView:
        """The current view, the last if the main thread hangs, or the final view after the end."""
        return self._view.newest()

    def silent_ms(self) -> int:
        """For how long the main thread has not answered; 0 if it does."""
        return self._view.silent_ms()

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

    def stop_with_checkpoint(self) -> Future[CompletedCheckpoint]:
        """Stop between two batches; running the command again resumes the job."""
        self.recorder.note("request", "A stop with a checkpoint was requested.")
        return self._snapshot(RequestKind.STOP_WITH_CHECKPOINT, None)

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
                # The answer waits for a checkpoint, which nothing else would trigger.
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
        try:
            self._view.finish()
        finally:
            self._over.set()
        for future in list(self._futures.values()):
            _settle(future, None, self._unanswered)

    def _answered(self, effect: AnswerRequest) -> None:
        future = self._futures.pop(effect.request, None)
        if future is not None:
            self._view.publish()
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


def _settle(future: Future[Any], result: object, failure: str | None) -> None:
    try:
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(JobError(failure))
    except InvalidStateError:
        # The requester gave up and cancelled the future, or the future was settled before.
        return
