"""Reads the counters of a job's vertices on a separate thread.

So a caller who looks at them never waits for a JVM that hangs. Counters that cannot be read keep
their last values: whoever looks wants to see the job, and a user's data must not hide it.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait

from weir.core.types import VertexId
from weir.runtime.concurrency import in_background
from weir.runtime.ports import TaskPort, VertexMetrics

_log = logging.getLogger(__name__)


class Counters:
    """The last counters of each vertex that could be read.

    One read runs at a time; callers that come meanwhile wait for that one.
    """

    def __init__(self, vertices: Iterable[VertexId], tasks: TaskPort) -> None:
        """``tasks`` may block when it is asked."""
        self._vertices = tuple(vertices)
        self._tasks = tasks
        #: By vertex; defaults until the first read has ended.
        self.newest: Mapping[VertexId, VertexMetrics] = defaultdict(VertexMetrics)
        #: The vertices that could not be read the last time: each is reported once.
        self._unreadable: set[VertexId] = set()
        self._lock = threading.Lock()
        self._reading: Future[None] | None = None

    def read(self, patience_s: float) -> None:
        """Update ``newest``, waiting at most ``patience_s`` seconds."""
        with self._lock:
            reading = self._reading
            if reading is None or reading.done():
                reading = self._reading = in_background(self._update)
        wait((reading,), timeout=patience_s)

    def _update(self) -> None:
        newest = defaultdict(VertexMetrics, self.newest)
        for vertex in self._vertices:
            try:
                newest[vertex] = self._tasks.metrics(vertex)
                self._unreadable.discard(vertex)
            except Exception:
                if vertex not in self._unreadable:
                    self._unreadable.add(vertex)
                    _log.warning("Cannot read the counters of task %s.", vertex, exc_info=True)
        self.newest = newest
