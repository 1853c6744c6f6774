"""``QueryCounters``: what one task has read and dropped, from Spark's reports of its batches."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from weir.core.types import Counted, OperatorId, RowCount, VertexId
from weir.monitoring.log_lines import place
from weir.runtime.ports import RowsOf, VertexMetrics
from weir.spark.query.progress import BatchProgress, decoded

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)

#: How often at most a task says that there are more rows of a kind, in seconds.
_SAID_S = 60.0


class QueryCounters:
    """Counts each batch of a task once. Thread-safe."""

    def __init__(self, name: VertexId) -> None:
        self._name = name
        self._lock = threading.Lock()
        #: The last batch of each query that was counted; a drain has a query of its own.
        self._counted: dict[StreamingQuery, int] = {}
        self._records_in = 0
        #: What Spark's stateful operators and the steps have counted.
        self._rows: Counter[RowsOf] = Counter()
        #: The same at the snapshots since the newest completed checkpoint, and at that.
        self._rows_at: dict[int, Counter[RowsOf]] = {}
        self._rows_completed: Counter[RowsOf] = Counter()
        self._late_said, self._others_said = _Said(), _Said()
        #: Spark's report of the newest batch that was counted; None before the first.
        self._newest: BatchProgress | None = None

    def add(self, rows: int, counted: Counter[RowsOf]) -> None:
        """Count what Spark does not know of a batch.

        That is: rows that Weir's own readers have read, and rows that steps have counted.
        """
        with self._lock:
            self._records_in += rows
            self._rows.update(counted)
            self._say_others()

    def count(self, query: StreamingQuery, position: int) -> None:
        """Count the rows of a query's batches up to ``position``."""
        with self._lock:
            try:
                self._read_progress(query, position)
            except Exception:
                # The JVM may have gone; earlier counts still hold.
                _log.debug("Spark's counters can no longer be read.", exc_info=True)

    def snapshot_taken(self, checkpoint_id: int) -> None:
        """What has been counted belongs to this checkpoint, and nothing later."""
        with self._lock:
            self._rows_at[checkpoint_id] = self._rows.copy()

    def of_checkpoint(self, checkpoint_id: int) -> tuple[RowCount, ...]:
        """What was counted for a checkpoint since the newest completed one."""
        with self._lock:
            rows = self._rows_at.get(checkpoint_id, Counter()) - self._rows_completed
        return tuple(
            RowCount(kind=of.kind, by=of.by, rule=of.rule, rows=number)
            for of, number in rows.items()
        )

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """The next checkpoint counts from here."""
        with self._lock:
            self._rows_completed = self._rows_at.get(checkpoint_id, self._rows_completed)
            self._rows_at = {n: rows for n, rows in self._rows_at.items() if n > checkpoint_id}

    def metrics(self, position: int, staging_ms: Mapping[OperatorId, int]) -> VertexMetrics:
        """The counters, with the task's position and how long each sink staged."""
        with self._lock:
            newest = self._newest
            lags = None if newest is None else newest.lags
            return VertexMetrics(
                position=position,
                records_in=self._records_in,
                records_in_per_second=0.0 if newest is None else newest.processed_rows_per_second,
                pending_records=None
                if lags is None
                else sum(sum(partitions.values()) for partitions in lags.values()),
                lags=lags or {},
                watermark_ms=None if newest is None else newest.watermark_ms,
                state=() if newest is None else newest.state,
                counted=self._rows.copy(),
                staging_ms=staging_ms,
            )

    def _read_progress(self, query: StreamingQuery, position: int) -> None:
        counted = self._counted.get(query, -1)
        if counted >= position:
            return
        entries = query._jsq.recentProgress()
        newest: BatchProgress | None = None
        for index in range(len(entries) - 1, -1, -1):
            if int(entries[index].batchId()) <= counted:
                break
            batch = decoded(entries[index])
            newest = newest or batch
            self._records_in += batch.rows_read
            self._rows.update(batch.late)
        if newest is not None:
            self._newest = newest
            self._counted[query] = newest.batch_id
            self._say_late(newest)

    def _say_late(self, newest: BatchProgress) -> None:
        dropped = sum(rows for of, rows in self._rows.items() if of.kind is Counted.LATE)
        if not self._late_said.is_due(dropped):
            return
        with place(task=self._name):
            _log.warning(
                "Late rows that %s has dropped so far: %s. The watermark (%s now) had passed their"
                " event times; an aggregation counts them once they are combined by key. A longer"
                " delay of withWatermark keeps such rows.",
                self._name,
                f"{dropped:,}",
                newest.event_time.get("watermark", "unknown"),
            )

    def _say_others(self) -> None:
        """Say what became of rows that a step set aside, or that broke its rules."""
        others = {
            of: rows for of, rows in self._rows.items() if rows and of.kind is not Counted.LATE
        }
        if not self._others_said.is_due(sum(others.values())):
            return
        shown = [
            f"{rows:,} set aside by {of.by}"
            if of.kind is Counted.REJECTED
            else f"{rows:,} that break {of.rule!r} of {of.by}"
            for of, rows in others.items()
        ]
        with place(task=self._name):
            _log.warning("Rows of %s so far: %s.", self._name, ", ".join(shown))


class _Said:
    """What was said of a number that grows, and when."""

    def __init__(self) -> None:
        self._number = 0
        self._at_s = 0.0

    def is_due(self, number: int) -> bool:
        """Whether to say it now: the first time at once, then at most once a minute."""
        if number == self._number or (self._number and time.monotonic() - self._at_s < _SAID_S):
            return False
        self._number, self._at_s = number, time.monotonic()
        return True
