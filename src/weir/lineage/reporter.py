"""OpenLineage: reports what the job reads and writes to a server or a file (``weir.lineage.*``).

A run is what one driver does with a job; a job that is resumed has a new run of the same name.

1. START when all tasks run for the first time, since Spark knows the datasets then. It has the time
   at which the job started.
2. RUNNING when a checkpoint completes, at most once a minute.
3. COMPLETE (also if the job was stopped with a checkpoint), FAIL, or ABORT if the job was
   cancelled, suspended by a signal or taken over by another driver.

Each event has all datasets with their columns, and where the run stands. It goes through a bounded
queue to a thread of its own: the main thread never waits. An event that cannot be sent is lost, and
counted; the log says so once, and at the end how many there were.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from weir.config import Configuration
from weir.config.options import (
    LINEAGE_FILE,
    LINEAGE_NAMESPACE,
    LINEAGE_TIMEOUT,
    LINEAGE_TOKEN,
    LINEAGE_URL,
)
from weir.core.graph import Vertex
from weir.core.messages.job import JobEnded, JobStatusChanged
from weir.core.messages.protocol import (
    NotifyCheckpointComplete,
    TaskStatusChanged,
    TriggerCheckpoint,
)
from weir.core.status import JobStatus
from weir.core.types import CompletedCheckpoint, SnapshotKind, TaskStatus, VertexId
from weir.errors import ConfigurationError
from weir.lineage.datasets import JobDatasets
from weir.runtime.concurrency import Clock
from weir.runtime.failures import describe
from weir.runtime.watching import Watchers

if TYPE_CHECKING:
    from weir.lineage.events import Facts, RunIdentity

_log = logging.getLogger(__name__)

#: The minimum time between two RUNNING events.
RUNNING_MS = 60_000
#: Events that may wait: more than a night of them.
QUEUE = 1_000
#: How many started snapshots to remember.
_KINDS = 64

#: How a run ends by the job's status.
_ENDS = {
    JobStatus.FINISHED: "COMPLETE",
    JobStatus.FAILED: "FAIL",
    JobStatus.CANCELED: "ABORT",
    JobStatus.SUSPENDED: "ABORT",
}


def _end_of(ended: JobEnded) -> str:
    return "COMPLETE" if ended.checkpoint_id is not None else _ENDS[ended.status]


class Transport(Protocol):
    """Sends events (a transport of the library)."""

    def emit(self, event: Any) -> Any:
        """Send an event. Raises on failure."""
        ...


def is_on(configuration: Configuration) -> bool:
    """Whether events are wanted. Raises ``ConfigurationError`` if the library is missing."""
    if configuration.value(LINEAGE_URL) is None and configuration.value(LINEAGE_FILE) is None:
        return False
    try:
        import weir.lineage.events  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"{LINEAGE_URL.key} and {LINEAGE_FILE.key} need the OpenLineage client, which is not"
            f" installed ({error}): pip install 'weir-spark[lineage]'."
        ) from error
    return True


def configured(
    configuration: Configuration,
    *,
    job_name: str,
    job_id: str,
    run_id: str,
    spark_version: str,
    vertices: Sequence[Vertex],
    datasets: Callable[[], JobDatasets],
    clock: Clock,
    attempt: Callable[[], int],
    latest: Callable[[], CompletedCheckpoint | None],
) -> LineageReporter | None:
    """The reporter of a run; None if lineage is off. See ``LineageReporter``."""
    if not is_on(configuration):
        return None
    from weir.lineage.events import RunIdentity, transports

    timeout_s = configuration.value(LINEAGE_TIMEOUT) / 1000
    return LineageReporter(
        RunIdentity(
            run_id=run_id,
            namespace=configuration.value(LINEAGE_NAMESPACE),
            job_name=job_name,
            job_id=job_id,
            bounded=all(vertex.bounded for vertex in vertices),
            spark_version=spark_version,
        ),
        transports=transports(
            url=configuration.value(LINEAGE_URL),
            file=configuration.value(LINEAGE_FILE),
            token=configuration.value(LINEAGE_TOKEN),
            timeout_s=timeout_s,
        ),
        vertices=[vertex.name for vertex in vertices],
        datasets=datasets,
        clock=clock,
        patience_s=timeout_s,
        attempt=attempt,
        latest=latest,
    )


class LineageReporter:
    """Observes a run and sends its events; a context manager around it."""

    def __init__(
        self,
        identity: RunIdentity,
        *,
        transports: Iterable[Transport],
        vertices: Iterable[VertexId],
        datasets: Callable[[], JobDatasets],
        clock: Clock,
        patience_s: float,
        attempt: Callable[[], int],
        latest: Callable[[], CompletedCheckpoint | None],
    ) -> None:
        """``datasets`` is called on the reporter's thread when all tasks run; it may block.

        ``attempt`` returns the number of the current attempt, ``latest`` the newest completed
        checkpoint, of whichever driver. They are called on the main thread.
        ``patience_s``: how long the end of the run waits until the last event is sent.
        """
        self._identity = identity
        self._transports = tuple(transports)
        self._datasets = datasets
        self._clock = clock
        self._patience_s = patience_s
        self._attempt = attempt
        self._latest = latest
        #: Tasks that have not run yet.
        self._waiting = set(vertices)
        self._begun_ms = clock.wall_ms()
        self._checkpoint_id: int | None = None
        self._epoch: int | None = None
        #: Of the newest snapshots that were triggered.
        self._kinds: dict[int, SnapshotKind] = {}
        self._is_started = False
        self._ended = False
        self._newest_ms = clock.now_ms() - RUNNING_MS
        self._queue: queue.Queue[Facts | None] = queue.Queue(QUEUE)
        #: Events that were not sent.
        self.lost = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._send_all, name="weir-lineage", daemon=True)

    def __enter__(self) -> LineageReporter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended:
            # The driver failed before it could say how the job ended.
            self._end("ABORT", "")
        with suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            self._lose(f"the endpoint has not answered for {self._patience_s:.0f} s")
        if self.lost > 1:
            _log.warning("%d lineage events were not sent.", self.lost)

    # ---- on the main thread

    def watch(self, watchers: Watchers) -> None:
        """Subscribe to the effects that events are made of."""
        watchers.watch_effects(
            {
                JobStatusChanged: self._status_changed,
                TaskStatusChanged: self._task_status_changed,
                TriggerCheckpoint: self._triggered,
                NotifyCheckpointComplete: self._completed,
                JobEnded: lambda effect: self._end(_end_of(effect), effect.failure or ""),
            }
        )

    def _status_changed(self, effect: JobStatusChanged) -> None:
        latest = self._latest()
        if effect.status is JobStatus.RUNNING and latest is not None:
            self._checkpoint_id = latest.checkpoint_id
            if latest.kind.commits_side_effects:
                self._epoch = latest.checkpoint_id
        elif effect.status is JobStatus.FAILING:
            # It may be restarted for hours before all tasks run.
            self._start()

    def _task_status_changed(self, effect: TaskStatusChanged) -> None:
        if effect.status is not TaskStatus.INITIALIZING:
            self._waiting.discard(effect.vertex)
            if not self._waiting:
                self._start()

    def _triggered(self, effect: TriggerCheckpoint) -> None:
        self._kinds[effect.checkpoint_id] = effect.kind
        while len(self._kinds) > _KINDS:
            del self._kinds[min(self._kinds)]

    def _completed(self, effect: NotifyCheckpointComplete) -> None:
        checkpoint_id = effect.checkpoint_id
        if checkpoint_id == self._checkpoint_id:
            return
        self._checkpoint_id = checkpoint_id
        if self._kinds.get(checkpoint_id, SnapshotKind.CHECKPOINT).commits_side_effects:
            self._epoch = checkpoint_id
        self._start()
        now_ms = self._clock.now_ms()
        if now_ms - self._newest_ms >= RUNNING_MS:
            self._newest_ms = now_ms
            self._put("RUNNING")

    def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            self._put("START", time_ms=self._begun_ms)

    def _end(self, state: str, failure: str) -> None:
        self._start()
        self._ended = True
        self._put(state, failure=failure)

    def _put(self, state: str, *, time_ms: int | None = None, failure: str = "") -> None:
        from weir.lineage.events import Facts

        facts = Facts(
            state=state,
            time_ms=self._clock.wall_ms() if time_ms is None else time_ms,
            attempt=self._attempt(),
            checkpoint_id=self._checkpoint_id,
            epoch=self._epoch,
            failure=failure,
        )
        try:
            self._queue.put_nowait(facts)
        except queue.Full:
            self._lose("the queue is full")

    # ---- on its own thread

    def _send_all(self) -> None:
        from weir.lineage.events import run_event

        datasets = JobDatasets()
        while (facts := self._queue.get()) is not None:
            if datasets == JobDatasets():
                try:
                    datasets = self._datasets()
                except Exception:
                    # The next event may have them.
                    _log.debug("The datasets of the job are not known.", exc_info=True)
            for transport in self._transports:
                try:
                    transport.emit(run_event(self._identity, facts, datasets))
                except Exception as error:
                    self._lose(describe(error))

    def _lose(self, why: str) -> None:
        with self._lock:
            self.lost += 1
            is_first = self.lost == 1
        if is_first:
            _log.warning("A lineage event was not sent, and the job goes on without: %s", why)
