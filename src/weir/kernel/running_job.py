"""``RunningJob``: the gateway through which REST, signals and progress reach the driver's main thread.

Every call posts to the main thread and waits, at most briefly, for nothing but that thread, which itself never blocks.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from typing import Any

from weir.core.job_master import JobMaster
from weir.core.job_status import JobStatus
from weir.core.master_messages import JobEnded, JobMasterEvent, JobStatusChanged
from weir.core.requests import (
    AnswerRequest,
    CancelRequested,
    RequestKind,
    SnapshotRequested,
    SuspendRequested,
)
from weir.core.types import CheckpointType, CompletedCheckpoint, OperatorId, Payload, VertexId
from weir.core.view import JobView, VertexView
from weir.errors import JobEndedError, JobError
from weir.kernel.clock import Clock
from weir.kernel.driver import JobDriver
from weir.kernel.ports import (
    CoordinatorAnswer,
    CoordinatorPort,
    DurablePort,
    TaskPlan,
    TaskPort,
    VertexMetrics,
)

#: Entries of the exception history (Flink: ``web.exception-history-size``).
_EXCEPTIONS = 16


class RunningJob:
    """Implements ``weir.kernel.gateway.JobGateway`` over a driver."""

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
        observe: Callable[[object], None],
    ) -> None:
        """``observe`` sees every effect, on the main thread."""
        self._job_id = job_id
        self._name = name
        self._master = master
        self._plans = plans
        self._task_port = tasks
        self._coordinators = coordinators
        self._clock = clock
        self._configuration = dict(configuration)
        self._observe = observe
        self._requests = itertools.count(1)
        self._futures: dict[str, Future[Any]] = {}
        self._start_time_ms = clock.wall_ms()
        self._end_time_ms = -1
        self._timestamps_ms = {JobStatus.CREATED.name: self._start_time_ms}
        self._exceptions: list[tuple[int, str]] = []
        self._savepoint: str | None = None
        self._last_view: JobView | None = None
        self._over = threading.Event()
        self.driver = JobDriver(
            master=master,
            plans=plans,
            tasks=tasks,
            durable=durable,
            coordinators=coordinators,
            clock=clock,
            on_effect=self._on_effect,
        )

    # -- gateway -----------------------------------------------------------------------------------------------

    def view(self) -> JobView:
        """The job as it is now, or as it ended."""
        if not self._over.is_set():
            future: Future[JobView] = Future()
            # Counters may come from Spark, so they are read here and not on the main thread.
            metrics = self._metrics()
            self.driver.call(lambda: self._answer_view(future, metrics))
            while not self._over.is_set():
                try:
                    return future.result(timeout=0.1)
                except TimeoutError:
                    continue
        if self._last_view is None:
            raise JobEndedError(f"Job {self._job_id} ended before it could be looked at.")
        return self._last_view

    def trigger_checkpoint(
        self, checkpoint_type: CheckpointType = CheckpointType.CONFIGURED
    ) -> Future[CompletedCheckpoint]:
        """Take a checkpoint now."""
        return self._snapshot(RequestKind.CHECKPOINT, None, checkpoint_type)

    def trigger_savepoint(self, target: str | None) -> Future[CompletedCheckpoint]:
        """Take a savepoint."""
        return self._snapshot(RequestKind.SAVEPOINT, target)

    def stop_with_savepoint(self, target: str | None, *, drain: bool = False) -> Future[CompletedCheckpoint]:
        """Stop at a clean point between two steps."""
        return self._snapshot(RequestKind.STOP, target, drain=drain)

    def send_to_coordinator(self, operator: OperatorId, request: Payload) -> Future[CoordinatorAnswer]:
        """Ask an operator coordinator for something."""
        future: Future[CoordinatorAnswer] = Future()
        if self._over.is_set():
            _settle(future, None, f"Job {self._job_id} has ended: there is nothing to ask it for.")
        else:
            self._coordinators.request(operator, request, future)
            if not self._master.has_periodic_checkpoints:
                # The answer waits for one, and nobody else would ask for it.
                asked = self.trigger_checkpoint()
                asked.add_done_callback(lambda done: self._settle_if_failed(future, done))
        return future

    def _settle_if_failed(
        self, answer: Future[CoordinatorAnswer], checkpoint: Future[CompletedCheckpoint]
    ) -> None:
        """No checkpoint has what was asked for: whoever waits for the answer is told why. If the job itself failed or ends,
        the coordinator tells what became of it."""
        error = checkpoint.exception()
        if error is not None and self._master.status is JobStatus.RUNNING:
            _settle(answer, None, f"Whether it holds is not known: {error} Look, or ask again.")

    def cancel(self) -> Future[None]:
        """Cancel the job."""
        return self._request(lambda request: CancelRequested(request=request))

    def suspend(self) -> None:
        """Stop the tasks and leave the job resumable. Safe in a signal handler."""
        self.driver.post(SuspendRequested())

    # -- the run -----------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The driver has returned: keep the last view, and fail requests that nobody answered."""
        self._end_time_ms = self._clock.wall_ms()
        try:
            self._last_view = self._make_view(self._metrics())
        finally:
            self._over.set()
        for future in list(self._futures.values()):
            _settle(future, None, f"Job {self._job_id} ended before the request was answered.")

    def _on_effect(self, effect: object) -> None:
        match effect:
            case JobStatusChanged(status=status, message=message):
                self._timestamps_ms[status.name] = self._clock.wall_ms()
                if status is JobStatus.FAILING:
                    self._exceptions = [*self._exceptions, (self._clock.wall_ms(), message)][-_EXCEPTIONS:]
            case JobEnded(savepoint=savepoint):
                self._savepoint = savepoint
            case AnswerRequest(request=request, checkpoint=checkpoint, failure=failure):
                future = self._futures.pop(request, None)
                if future is not None:
                    _settle(future, checkpoint, failure)
        self._observe(effect)

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
                request=request, kind=kind, target=target, checkpoint_type=checkpoint_type, drain=drain
            )
        )

    def _request(self, event: Callable[[str], JobMasterEvent]) -> Future[Any]:
        future: Future[Any] = Future()
        request = f"request-{next(self._requests)}"
        if self._over.is_set():
            _settle(future, None, f"Job {self._job_id} has ended: there is nothing to ask it for.")
            return future
        self._futures[request] = future
        self.driver.post(event(request))
        if self._over.is_set():
            # The run ended in between, and perhaps did not see the request any more.
            _settle(future, None, f"Job {self._job_id} ended before the request was answered.")
        return future

    def _metrics(self) -> dict[VertexId, VertexMetrics]:
        return {vertex: self._task_port.metrics(vertex) for vertex in self._plans}

    def _answer_view(self, future: Future[JobView], metrics: Mapping[VertexId, VertexMetrics]) -> None:
        try:
            future.set_result(self._make_view(metrics))
        except Exception as error:
            # Whoever looks must not end the job.
            future.set_exception(error)

    def _make_view(self, metrics: Mapping[VertexId, VertexMetrics]) -> JobView:
        vertices = [
            VertexView(
                vertex=vertex,
                operators=tuple(operator.name for operator in plan.operators),
                parallelism=metrics[vertex].parallelism,
                status=self._master.task_status(vertex),
                position=metrics[vertex].position,
                records_in=metrics[vertex].records_in,
                records_in_per_second=metrics[vertex].records_in_per_second,
                records_committed=metrics[vertex].records_committed,
            )
            for vertex, plan in self._plans.items()
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
            exceptions=tuple(self._exceptions),
            configuration=self._configuration,
        )


def _settle(future: Future[Any], result: object, failure: str | None) -> None:
    try:
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(JobError(failure))
    except InvalidStateError:
        # The asker gave up waiting and cancelled the future.
        return
