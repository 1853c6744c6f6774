"""Reads the counters of a job's vertices on a separate thread.

So a caller who looks at them never waits for a JVM that hangs.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait

from weir.core.types import VertexId
from weir.runtime.concurrency import in_background
from weir.runtime.ports import VertexMetrics


class Counters:
    """The last result of ``read_all``.

    One read runs at a time; callers that come meanwhile wait for that one.
    """

    def __init__(self, read_all: Callable[[], Mapping[VertexId, VertexMetrics]]) -> None:
        """``read_all`` may block."""
        self._read_all = read_all
        #: By vertex; defaults until the first read has ended.
        self.newest: Mapping[VertexId, VertexMetrics] = defaultdict(VertexMetrics)
        self._lock = threading.Lock()
        self._reading: Future[None] | None = None

    def read(self, patience_s: float) -> None:
        """Update ``newest``, waiting at most ``patience_s`` seconds.

        Raises what ``read_all`` raised.
        """
        with self._lock:
            reading = self._reading
            if reading is None or reading.done():
                reading = self._reading = in_background(self._update)
        wait((reading,), timeout=patience_s)
        if reading.done():
            reading.result()

    def _update(self) -> None:
        self.newest = self._read_all()
