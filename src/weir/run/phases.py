"""What a run is waiting for while it starts, so that nobody sits before a silent terminal.

A start has phases: loading libraries, checking sinks, starting Spark, recovering, starting queries.
Most take no time worth a word, some take long, and one may hang. Two small parts tell of them:

1. ``StartPhases`` knows the phases of an attempt, by what the runtime does, and reports them to the
   run's listener.
2. ``Phases`` puts them into lines. A phase is told once it has lasted for a second, while it lasts,
   so one that hangs is seen; and when it is over, with its time. A phase that is over sooner is
   never told::

       starting Spark ...
       starting Spark took 4.2 s

``look`` is to be called a few times a second, by whoever has a thread for it; the time comes from
the clock passed in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from weir.core.messages.job import BeginAttempt, JobStatusChanged
from weir.core.messages.protocol import TaskStatusChanged
from weir.core.status import JobStatus
from weir.core.types import CompletedCheckpoint, TaskStatus, VertexId
from weir.runtime.concurrency import Clock

#: A phase that takes no longer is not told.
WORTH_A_LINE_MS = 1_000


class Phases:
    """Tells of the phases that take longer than a second. Its methods may be called on any
    thread."""

    def __init__(self, say: Callable[[str], None], clock: Clock) -> None:
        self._say = say
        self._clock = clock
        self._lock = threading.Lock()
        #: The phase that lasts; None if there is none.
        self._name: str | None = None
        self._since_ms = 0
        self._is_told = False

    def begin(self, name: str | None) -> None:
        """The phase that lasts is over, and this one begins; None: none does. Its own name again
        changes nothing."""
        with self._lock:
            if name == self._name:
                return
            now_ms = self._clock.now_ms()
            if self._name is not None and now_ms - self._since_ms > WORTH_A_LINE_MS:
                self._say(f"{self._name} took {describe_time(now_ms - self._since_ms)}")
            self._name, self._since_ms, self._is_told = name, now_ms, False

    def look(self) -> None:
        """Tell of the phase that lasts, once, if it is worth it by now."""
        with self._lock:
            lasts_ms = self._clock.now_ms() - self._since_ms
            if self._name is not None and not self._is_told and lasts_ms > WORTH_A_LINE_MS:
                self._say(f"{self._name} ...")
                self._is_told = True


def describe_time(ms: int) -> str:
    """``4.2 s``, or ``2 min 5 s``."""
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    return f"{minutes} min {seconds} s"


class PhaseListener(Protocol):
    """The part of a run's listener that is told of phases."""

    def phase(self, name: str | None) -> None:
        """The run has come to this phase of its start; None: the start is over."""
        ...

    def restored(self, checkpoint: CompletedCheckpoint) -> None:
        """The job goes on from this checkpoint or savepoint."""
        ...


class StartPhases:
    """The phases of each attempt, from the runtime's effects and the durable part's words."""

    def __init__(self, listener: PhaseListener, vertices: Iterable[VertexId]) -> None:
        self._listener = listener
        self._vertices = frozenset(vertices)
        #: Those that are not started, since they were finished in the restored checkpoint.
        self._finished: frozenset[VertexId] = frozenset()
        #: Those whose queries are being started.
        self._starting: set[VertexId] = set()

    def restored(self, checkpoint: CompletedCheckpoint) -> None:
        """The attempt goes on from this checkpoint: what its sinks owe is committed again."""
        self._finished = frozenset(task.vertex for task in checkpoint.tasks if task.fully_finished)
        self._listener.restored(checkpoint)
        what = "savepoint" if checkpoint.kind.is_savepoint else "checkpoint"
        self._listener.phase(f"bringing sinks to {what} {checkpoint.checkpoint_id}")

    def observe(self, effect: object) -> None:
        """An effect is being carried out."""
        match effect:
            case BeginAttempt():
                self._finished = frozenset()
                self._listener.phase("looking for the newest checkpoint")
            case JobStatusChanged(status=JobStatus.RUNNING):
                self._starting = set(self._vertices - self._finished)
                count = len(self._starting)
                self._listener.phase(f"starting {count} {'query' if count == 1 else 'queries'}")
                self._end_if_all_run()
            case JobStatusChanged():
                self._starting.clear()
                self._listener.phase(None)
            case TaskStatusChanged(vertex=vertex, status=status) if (
                status is not TaskStatus.INITIALIZING
            ):
                if vertex in self._starting:
                    self._starting.remove(vertex)
                    self._end_if_all_run()

    def _end_if_all_run(self) -> None:
        if not self._starting:
            self._listener.phase(None)
