"""Reads the counters of a job's vertices on a separate thread.

So a caller never waits for a JVM that hangs. Counters that cannot be read keep their last values:
readers want to see the job, and a user's data must not hide it.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait

from weir.core.types import VertexId
from weir.runtime.concurrency import Clock, in_background
from weir.runtime.ports import TaskPort, VertexMetrics

_log = logging.getLogger(__name__)


class Counters:
    """The last counters of each vertex that could be read.

    One read runs at a time; callers that come meanwhile share it.
    """

    def __init__(self, vertices: Iterable[VertexId], tasks: TaskPort, clock: Clock) -> None:
        """``tasks`` may block when it is asked."""
        self._vertices = tuple(vertices)
        self._tasks = tasks
        self._clock = clock
        #: By vertex; defaults until the first read has ended.
        self.newest: Mapping[VertexId, VertexMetrics] = defaultdict(VertexMetrics)
        #: The vertices that could not be read the last time: each is reported once.
        self._unreadable: set[VertexId] = set()
        self._lock = threading.Lock()
        self._reading: Future[None] | None = None
        #: When the read that made ``newest`` began, in monotonic milliseconds; None: no read yet.
        self._read_ms: int | None = None

    def read(self, patience_s: float, *, serve_ms: int = 0) -> None:
        """Update ``newest``, waiting at most ``patience_s`` seconds.

        Counters that are younger than ``serve_ms`` serve until the read is done, without waiting.
        """
        with self._lock:
            reading = self._reading
            if reading is None or reading.done():
                reading = self._reading = in_background(self._update)
            read_ms = self._read_ms
        if read_ms is None or self._clock.now_ms() - read_ms >= serve_ms:
            wait((reading,), timeout=patience_s)

    def read_again(self, patience_s: float) -> None:
        """Update ``newest`` by a read that begins now, after any that is under way.

        Waits at most ``patience_s`` seconds for each of the two.
        """
        under_way = self._reading
        if under_way is not None:
            wait((under_way,), timeout=patience_s)
        self.read(patience_s)

    def _update(self) -> None:
        began_ms = self._clock.now_ms()
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
        self._read_ms = began_ms
