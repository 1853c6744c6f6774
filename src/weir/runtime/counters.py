"""The counters of a job's vertices, read on a thread of their own: who looks at them never waits
for a JVM that hangs."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait

from weir.core.types import VertexId
from weir.runtime.ports import VertexMetrics


class Counters:
    """What ``read_all`` last returned. One reading runs at a time; who asks meanwhile waits for
    that one."""

    def __init__(self, read_all: Callable[[], Mapping[VertexId, VertexMetrics]]) -> None:
        """``read_all`` may block."""
        self._read_all = read_all
        #: By vertex; of each, nothing is counted until the first reading has ended.
        self.newest: Mapping[VertexId, VertexMetrics] = defaultdict(VertexMetrics)
        self._lock = threading.Lock()
        self._reading: Future[None] | None = None

    def read(self, patience_s: float) -> None:
        """Bring ``newest`` up to date, unless that takes longer. Raises what the reading raised."""
        with self._lock:
            reading = self._reading
            if reading is None:
                reading = self._reading = Future()
                # Not of a pool: the process does not wait at its end for a thread that hangs.
                threading.Thread(
                    target=self._run, args=(reading,), name="weir-counters", daemon=True
                ).start()
        wait((reading,), timeout=patience_s)
        if reading.done():
            reading.result()

    def _run(self, reading: Future[None]) -> None:
        error: BaseException | None = None
        try:
            self.newest = self._read_all()
        except BaseException as raised:
            error = raised
        with self._lock:
            self._reading = None
        if error is None:
            reading.set_result(None)
        else:
            reading.set_exception(error)
