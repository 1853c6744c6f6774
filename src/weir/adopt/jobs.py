"""``ScriptJob``: the streaming queries of a script that run as one Weir job.

A job collects queries until it begins. It runs on a thread of its own, since the script has the
main thread, and ends there: finished, failed, suspended, or at rest, from which the same command
resumes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Set
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from weir.core.status import JobStatus
from weir.core.types import TaskStatus
from weir.errors import JobError
from weir.launch.options import JobResult, RunListener
from weir.runtime.failures import describe

if TYPE_CHECKING:
    from weir.core.types import OperatorId, Position, VertexId
    from weir.gateway.job_gateway import JobGateway
    from weir.spark.adopt.handles import AdoptedQuery
    from weir.spark.adopt.query import StartedQuery

#: How often a wait looks up, so that Python runs the handlers of signals.
_TURN_S = 0.2
#: How often ``processAllAvailable`` looks whether rows are still read, and for how long none may
#: be.
_SETTLE_POLL_S = 0.25
_SETTLED_S = 1.5
#: The first and the longest pause between two checkpoints that show what is committed by then.
_COMMIT_PAUSE_S = 0.1
_COMMIT_PAUSE_MAX_S = 5.0
#: For how long a job that is to rest may fail to take its last checkpoint.
_REST_S = 60.0


class Display(RunListener, Protocol):
    """Shows a run, and knows its gateway."""

    @property
    def gateway(self) -> JobGateway | None:
        """The job, once it is submitted."""
        ...


#: Makes the display of one run.
Shows = Callable[[], AbstractContextManager[Display]]


class Assembled(Protocol):
    """A job that is ready to run."""

    def vertex_of(self, index: int) -> VertexId:
        """The vertex that computes the query of this index."""
        ...

    def run(self, listener: RunListener) -> JobResult:
        """Run the job until it ends; raises ``WeirError`` if it cannot start."""
        ...


class ScriptJob:
    """Some queries of a script, and the job that they become."""

    def __init__(
        self,
        *,
        assemble: Callable[[ScriptJob], Assembled],
        show: Shows,
        ended: Callable[[ScriptJob], None],
    ) -> None:
        """``ended`` is called on the job's thread when it has ended."""
        self._assemble = assemble
        self._show = show
        self._when_ended = ended
        self._lock = threading.RLock()
        self._display: Display | None = None
        self._job: Assembled | None = None
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self.queries: list[AdoptedQuery] = []
        #: How the job ended; None while it runs, or if it could not start.
        self.result: JobResult | None = None
        #: Whether the script has asked for the failure.
        self.is_failure_known = False

    # -- collecting

    @property
    def has_begun(self) -> bool:
        """Whether no query can be added any more."""
        return self._thread is not None or self._is_over.is_set()

    @property
    def asked(self) -> tuple[StartedQuery, ...]:
        """What the script asked of the queries."""
        return tuple(query.asked for query in self.queries)

    def begin(self) -> None:
        """Start the job, unless it has started.

        Raises ``PipelineError`` if the queries cannot run, each time.
        """
        with self._lock:
            if self._thread is not None:
                return
            if self._error is not None:
                raise self._error
            try:
                job = self._job = self._assemble(self)
            except BaseException as error:
                self._error = error
                self._is_over.set()
                raise
            self._thread = threading.Thread(
                target=self._work, args=(job,), name="weir-run", daemon=True
            )
            self._thread.start()

    # -- running

    @property
    def is_running(self) -> bool:
        """Whether it has not ended, though it may not have started."""
        return not self._is_over.is_set()

    @property
    def gateway(self) -> JobGateway | None:
        """The running job; None before it is submitted."""
        return None if self._display is None else self._display.gateway

    @property
    def status(self) -> str:
        """The job's status, for people."""
        gateway = self.gateway
        if gateway is None:
            return "Initializing the job" if self.is_running else "Terminated"
        return f"The job is {gateway.view().status.value}"

    @property
    def error(self) -> BaseException | None:
        """What was raised because the job could not start."""
        return self._error

    @property
    def failure(self) -> str | None:
        """Why it failed for good; None otherwise."""
        if self._error is not None:
            return describe(self._error)
        if self.result is not None and self.result.status is JobStatus.FAILED:
            return self.result.failure or "unknown cause"
        return None

    def vertex_of(self, query: AdoptedQuery) -> VertexId | None:
        """The vertex that computes a query; None before the start."""
        return None if self._job is None else self._job.vertex_of(self.queries.index(query))

    def wait(self, timeout: float | None) -> bool:
        """Wait until it has ended; False if it has not within so many seconds."""
        self.begin()
        until = None if timeout is None else time.monotonic() + timeout
        while not self._is_over.is_set():
            left = _TURN_S if until is None else min(_TURN_S, until - time.monotonic())
            if left <= 0:
                return False
            self._is_over.wait(left)
        return True

    def wait_until_it_runs(self) -> None:
        """Wait until all its tasks run, or it has ended."""
        gateway = self._submitted()
        while gateway is not None and self.is_running and not self._has_started(gateway):
            self._is_over.wait(_TURN_S)

    @staticmethod
    def _has_started(gateway: JobGateway) -> bool:
        """Whether all tasks of the present attempt have started."""
        view = gateway.view()
        return view.status is JobStatus.RUNNING and not any(
            vertex.status is TaskStatus.INITIALIZING for vertex in view.vertices
        )

    def settle(self) -> None:
        """Wait until all rows that its sources have now are committed.

        A row is taken to be the last if none follows for more than a second. A sink that commits at
        intervals (``processingTime``) is waited for, as in Spark.
        """
        self.begin()
        quiet_since, seen = time.monotonic(), -1
        while not self._is_over.wait(_SETTLE_POLL_S):
            gateway = self.gateway
            if gateway is None or not self._has_started(gateway):
                quiet_since = time.monotonic()
                continue
            vertices = gateway.view().vertices
            rows = sum(vertex.records_in for vertex in vertices)
            started = all(vertex.batches or vertex.rested_ms for vertex in vertices)
            if rows != seen or not started:
                quiet_since, seen = time.monotonic(), rows
            elif time.monotonic() - quiet_since > _SETTLED_S:
                staged = self._staged(gateway)
                # A batch that took long has been counted by then.
                rows_now = sum(vertex.records_in for vertex in gateway.view().vertices)
                if staged is not None and rows_now == rows:
                    self._wait_until_committed(gateway, staged)
                    return

    def _wait_until_committed(
        self, gateway: JobGateway, staged: Set[tuple[OperatorId, Position]]
    ) -> None:
        """Wait until a checkpoint has none of this output any more, or the job has ended."""
        pause_s = _COMMIT_PAUSE_S
        while staged and not self._is_over.wait(pause_s):
            left = self._staged(gateway)
            staged = staged if left is None else staged & left
            pause_s = min(2 * pause_s, _COMMIT_PAUSE_MAX_S)

    @staticmethod
    def _staged(gateway: JobGateway) -> Set[tuple[OperatorId, Position]] | None:
        """The output that a checkpoint, taken now, has as not yet committed; None if it fails."""
        try:
            taken = gateway.trigger_checkpoint().result()
        except JobError:
            return None
        return {(one.sink, one.position) for task in taken.tasks for one in task.committables}

    # -- ending

    def rest(self) -> None:
        """End the job so that the same command resumes it, with all rows read so far committed.

        If it cannot take a checkpoint for a while, because it restarts, it is suspended as it is.
        """
        self.begin()
        until = time.monotonic() + _REST_S
        why = "it did not run"
        while self.is_running:
            gateway = self._submitted()
            if gateway is not None and self._has_started(gateway):
                try:
                    gateway.stop_with_checkpoint().result()
                    break
                except JobError as error:
                    why = str(error)
            if gateway is not None and time.monotonic() > until:
                self._note(f"the job could not take a last checkpoint: {why}")
                gateway.suspend()
                break
            self._is_over.wait(_TURN_S)
        self.wait(None)

    def suspend(self) -> None:
        """End the job so that the same command resumes it, from its newest checkpoint."""
        gateway = self._submitted()
        if gateway is not None:
            gateway.suspend()

    def join(self) -> None:
        """Wait until the job's thread has ended."""
        if self._thread is not None:
            self._thread.join()

    def _submitted(self) -> JobGateway | None:
        """The gateway, as soon as there is one; None if the job ends before."""
        while self.gateway is None and self.is_running:
            self._is_over.wait(_TURN_S)
        return self.gateway

    def _note(self, message: str) -> None:
        if self._display is not None:
            self._display.note(message)

    def _work(self, job: Assembled) -> None:
        try:
            with self._show() as display:
                self._display = display
                self.result = job.run(display)
        except BaseException as error:
            self._error = error
        finally:
            self._is_over.set()
            self._when_ended(self)
