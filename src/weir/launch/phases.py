"""Reports what a run is waiting for while it starts, so that the terminal is not silent.

A start has phases: loading libraries, checking sinks, starting Spark, recovering, starting queries.
Most are too short to mention, some are long, and one may hang. Two small classes report them:

1. ``StartPhases`` derives the phases of an attempt from the runtime's effects and reports them to
   the run's listener.
2. ``Phases`` turns them into lines. A phase that has lasted for a second is reported while it
   lasts, so that a hang is visible, and again when it ends, with its duration. A shorter phase is
   never reported::

       starting Spark ...
       starting Spark took 4.2 s

The caller calls ``look`` a few times a second; time comes from the clock passed in.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from weir.core.messages.job import BeginAttempt, JobStatusChanged
from weir.core.messages.protocol import TaskStatusChanged
from weir.core.status import JobStatus
from weir.core.types import CompletedCheckpoint, TaskStatus, VertexId
from weir.runtime.concurrency import Clock
from weir.runtime.watching import Watchers

#: A phase that takes no longer than this is not reported.
WORTH_A_LINE_MS = 1_000
#: How long a Python thread may hold up the others.
_SWITCH_S = 0.000_5


class Phases:
    """Reports phases that take longer than a second. Thread-safe."""

    def __init__(self, say: Callable[[str], None], clock: Clock) -> None:
        self._say = say
        self._clock = clock
        self._lock = threading.Lock()
        #: The current phase; None between phases.
        self._name: str | None = None
        self._since_ms = 0
        self._is_reported = False

    def begin(self, name: str | None) -> None:
        """End the current phase and begin this one; None: begin no phase.

        Does nothing if this phase is the current phase.
        """
        with self._lock:
            if name == self._name:
                return
            now_ms = self._clock.now_ms()
            if self._name is not None and now_ms - self._since_ms > WORTH_A_LINE_MS:
                self._say(f"{self._name} took {describe_time(now_ms - self._since_ms)}")
            self._name, self._since_ms, self._is_reported = name, now_ms, False

    def look(self) -> None:
        """Report the current phase, once, if it has lasted long enough."""
        with self._lock:
            lasts_ms = self._clock.now_ms() - self._since_ms
            if self._name is not None and not self._is_reported and lasts_ms > WORTH_A_LINE_MS:
                self._say(f"{self._name} ...")
                self._is_reported = True


def answer_promptly() -> None:
    """Keep Python's threads from waiting for each other, once a start is done.

    Planning calls and REST are answered on threads of their own. A thread gives way to the others
    after half a millisecond, not after five. And Python's collector no longer looks at what the
    start has made, modules above all: a full collection would stop every thread for 60 ms. For a
    process that runs one job and ends with it; a second call does nothing.
    """
    if sys.getswitchinterval() > _SWITCH_S:
        sys.setswitchinterval(_SWITCH_S)
        gc.freeze()


def describe_time(ms: int) -> str:
    """``4.2 s``, or ``2 min 5 s``."""
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    return f"{minutes} min {seconds} s"


class PhaseListener(Protocol):
    """The part of a run's listener that is notified of phases."""

    def phase(self, name: str | None) -> None:
        """A phase of the start begins; None: the start is done."""
        ...

    def restored(self, checkpoint: CompletedCheckpoint) -> None:
        """The job was restored from this checkpoint or savepoint."""
        ...


class StartPhases:
    """Derives each attempt's phases from the runtime's effects and the durable part's calls."""

    def __init__(self, listener: PhaseListener, vertices: Iterable[VertexId]) -> None:
        self._listener = listener
        self._vertices = frozenset(vertices)
        #: Vertices that are not started, since they are finished in the restored checkpoint.
        self._finished: frozenset[VertexId] = frozenset()
        #: Vertices whose queries are being started.
        self._starting: set[VertexId] = set()

    def restored(self, checkpoint: CompletedCheckpoint) -> None:
        """The attempt was restored from this checkpoint; next, its pending commits are repeated."""
        self._finished = frozenset(task.vertex for task in checkpoint.tasks if task.fully_finished)
        self._listener.restored(checkpoint)
        what = "savepoint" if checkpoint.kind.is_savepoint else "checkpoint"
        self._listener.phase(f"restoring sinks from {what} {checkpoint.checkpoint_id}")

    def watch(self, watchers: Watchers) -> None:
        """Subscribe to the effects that begin and end phases."""
        watchers.watch_effects(
            {
                BeginAttempt: self._attempt_begins,
                JobStatusChanged: self._status_changed,
                TaskStatusChanged: self._task_status_changed,
            }
        )

    def _attempt_begins(self, effect: BeginAttempt) -> None:
        self._finished = frozenset()
        self._listener.phase("looking for the newest checkpoint")

    def _status_changed(self, effect: JobStatusChanged) -> None:
        if effect.status is JobStatus.RUNNING:
            self._starting = set(self._vertices - self._finished)
            count = len(self._starting)
            self._listener.phase(f"starting {count} {'query' if count == 1 else 'queries'}")
            self._end_if_all_run()
        else:
            self._starting.clear()
            self._listener.phase(None)

    def _task_status_changed(self, effect: TaskStatusChanged) -> None:
        if effect.status is not TaskStatus.INITIALIZING and effect.vertex in self._starting:
            self._starting.remove(effect.vertex)
            self._end_if_all_run()

    def _end_if_all_run(self) -> None:
        if not self._starting:
            self._listener.phase(None)
