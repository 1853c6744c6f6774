"""``QueryCounters``: the rows that one task has read, from Spark's reports of its batches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weir.core.types import OperatorId
from weir.runtime.ports import VertexMetrics
from weir.spark.control_input import CONTROL_INPUT
from weir.spark.query.progress import BatchProgress, decoded

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)


class QueryCounters:
    """Counts each batch of a task once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The last batch of each query that was counted; a drain has a query of its own.
        self._counted: dict[StreamingQuery, int] = {}
        self._records_in = 0
        #: Spark's report of the newest batch that was counted; None before the first.
        self._newest: BatchProgress | None = None

    def add(self, rows: int) -> None:
        """Count rows that Weir's own readers have read: Spark does not know them."""
        with self._lock:
            self._records_in += rows

    def count(self, query: StreamingQuery, position: int) -> None:
        """Count the rows of a query's batches up to ``position``."""
        with self._lock:
            try:
                self._read_progress(query, position)
            except Exception:
                # The JVM may have gone; earlier counts still hold.
                _log.debug("Spark's counters can no longer be read.", exc_info=True)

    def metrics(self, position: int, staging_ms: Mapping[OperatorId, int]) -> VertexMetrics:
        """The counters, with the task's position and how long each sink staged."""
        with self._lock:
            newest = self._newest
            return VertexMetrics(
                position=position,
                records_in=self._records_in,
                records_in_per_second=0.0 if newest is None else newest.processed_rows_per_second,
                pending_records=None if newest is None else newest.pending_records,
                watermark_ms=None if newest is None else newest.watermark_ms,
                state=() if newest is None else newest.state,
                staging_ms=staging_ms,
            )

    def _read_progress(self, query: StreamingQuery, position: int) -> None:
        counted = self._counted.get(query, -1)
        if counted >= position:
            return
        newest, rows = counted, 0
        entries = query._jsq.recentProgress()
        for index in range(len(entries) - 1, -1, -1):
            batch = int(entries[index].batchId())
            if batch <= counted:
                break
            if index == len(entries) - 1:
                newest = batch
                self._newest = decoded(entries[index])
            rows += _rows_read(entries[index].sources())
        self._records_in += rows
        self._counted[query] = newest


def _rows_read(sources: Any) -> int:
    """The rows of a batch by Spark's progress of each source, without the control input's."""
    return sum(
        int(source.numInputRows())
        for source in sources
        if str(source.description()) != CONTROL_INPUT
    )
