"""``JobDriver``: runs the dispatcher on threads, with one main thread, one queue and one timer."""

from __future__ import annotations

import queue
import random
from collections.abc import Callable, Mapping
from contextlib import suppress

from weir.core.job.master import JobMaster
from weir.core.messages.job import JobEnded, JobMasterEvent, JobSubmitted
from weir.core.task.plan import TaskPlan
from weir.core.task.stream_task import StreamTask
from weir.core.types import VertexId
from weir.runtime.concurrency import Clock, ThreadWorkers
from weir.runtime.dispatcher import Call, Dispatcher, Envelope
from weir.runtime.ports import CoordinatorPort, DurablePort, TaskPort
from weir.runtime.watching import Watchers


class JobDriver:
    """Runs the machines of one job. ``run`` returns when the job has ended in this process."""

    def __init__(
        self,
        *,
        master: JobMaster,
        plans: Mapping[VertexId, TaskPlan],
        tasks: TaskPort,
        durable: DurablePort,
        coordinators: CoordinatorPort,
        clock: Clock,
        patience_ms: int,
    ) -> None:
        """``patience_ms``: how long the end of an attempt waits for work that hangs."""
        self._clock = clock
        self._patience_ms = patience_ms
        self._queue: queue.SimpleQueue[Envelope] = queue.SimpleQueue()
        # First in the queue: requests may arrive as soon as the driver exists.
        self._queue.put(JobSubmitted())
        self._workers = ThreadWorkers()
        #: Who watches the machines.
        self.watchers = Watchers()
        self._dispatcher = Dispatcher(
            master=master,
            plans=plans,
            tasks=tasks,
            durable=durable,
            coordinators=coordinators,
            clock=clock,
            workers=self._workers,
            chance=random.random,
            mailbox=self._queue.put,
            watchers=self.watchers,
            patience_ms=patience_ms,
        )

    @property
    def tasks(self) -> Mapping[VertexId, StreamTask]:
        """The machines of the newest attempt's tasks; for reading on the main thread only."""
        return self._dispatcher.tasks

    # ---- from any thread

    def post(self, event: JobMasterEvent) -> None:
        """Post an event of the job master."""
        self._queue.put(event)

    def call(self, function: Callable[[], None]) -> None:
        """Run a short function on the main thread."""
        self._queue.put(Call(function))

    # ---- on the main thread

    def run(self) -> JobEnded:
        """Run until the job has ended. Call it once; the calling thread becomes the main thread."""
        try:
            deadline = self._dispatcher.next_deadline()
            while (ended := self._dispatcher.ended) is None:
                deadline = self._turn(deadline)
            return ended
        finally:
            try:
                self._dispatcher.stop()
            finally:
                self._workers.close(self._patience_ms / 1000)

    def _turn(self, deadline: int | None) -> int | None:
        """Wait for an envelope until the deadline, and serve both. Returns the next deadline."""
        timeout = None if deadline is None else max(0.0, (deadline - self._clock.now_ms()) / 1000)
        envelope: Envelope | None = None
        with suppress(queue.Empty):
            envelope = self._queue.get(timeout=timeout)
        return self._dispatcher.turn(envelope)
