"""``QueryRuns``: starts and stops the streaming query of one task.

A task has one query, and another one on the same directory if it is drained, or if it has read what
was available and needs a batch nevertheless.

To stop a query without failing it, call Spark's ``stop`` on a thread of its own first and, once the
query is no longer active, release the planning call in which it rests. Released earlier, the query
would plan a batch or take the interruption for an error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from weir.errors import PipelineError
from weir.runtime.concurrency import in_background
from weir.spark.failures import first_cause
from weir.spark.java import end_quietly
from weir.spark.own_calls import own_calls
from weir.spark.query.vertex_query import VertexQuery
from weir.storage.paths import as_spark_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: How often to check whether a query that is being stopped is still active.
_STOP_POLL_S = 0.002
#: What to do about an aggregation whose rows never become final.
_WITHOUT_WATERMARK = (
    " Give the rows a watermark (withWatermark), so that each result becomes final; or make the"
    " step emit what changes (transform(..., output_mode='update')) into a sink with a key; or use"
    " Stream.process."
)

#: Runs a batch (``foreachBatch``).
StageBatch = Callable[["DataFrame", int], None]
#: Called on a thread of its own when a query has ended, with what Spark raised if it failed.
OnEnd = Callable[["StreamingQuery", Exception | None], None]


class QueryRuns:
    """The running query of one task."""

    def __init__(self, query: VertexQuery, *, stage: StageBatch, on_end: OnEnd) -> None:
        self._query = query
        self._stage = stage
        self._on_end = on_end
        self._running: StreamingQuery | None = None
        #: Set once Spark's ``start`` has returned: the first planning call can come before that.
        self._known = threading.Event()
        self._stopping = threading.Event()
        self._waiters: list[threading.Thread] = []

    @property
    def running(self) -> StreamingQuery | None:
        """The newest query; None until Spark's ``start`` has returned it."""
        return self._running

    @property
    def stopping(self) -> bool:
        """Whether the task was stopped, perhaps before it had a query."""
        return self._stopping.is_set()

    def start(self, frame: DataFrame, *, suffix: str = "", endless: bool = False) -> None:
        """Start a query; ``suffix`` follows the usual name.

        ``endless``: it does not end by itself even if the task's first query does. Raises
        ``PipelineError`` if Spark refuses the plan.
        """
        query, vertex = self._query, self._query.vertex
        # The pool applies to the Spark tasks of queries that this thread starts.
        query.session.sparkContext.setLocalProperty("spark.scheduler.pool", vertex.name)
        query.inputs.start_run()
        try:
            with own_calls():
                self._running = self._writer(frame, suffix, endless=endless).start()
        except Exception as error:
            cause = first_cause(error)
            hint = _WITHOUT_WATERMARK if "STREAMING_OUTPUT_MODE" in cause else ""
            raise PipelineError(
                f"Spark cannot run the chain ending in {vertex.name!r}: {cause}.{hint}"
            ) from error
        finally:
            self._known.set()
        end_quietly(self._running)
        waiter = threading.Thread(
            target=self._wait,
            args=(self._running,),
            name=f"weir-query-{vertex.name}",
            daemon=True,
        )
        self._waiters.append(waiter)
        waiter.start()
        if self._stopping.is_set():
            self.end(self._running)

    def _writer(self, frame: DataFrame, suffix: str, *, endless: bool) -> DataStreamWriter:
        query, vertex = self._query, self._query.vertex
        writer = (
            frame.writeStream.foreachBatch(self._stage)
            .option("checkpointLocation", as_spark_path(query.directory.path))
            .outputMode("update" if vertex.emits_updates else "append")
            .queryName(f"{vertex.name}-{query.attempt}{suffix}")
        )
        if query.ends_by_itself and not endless:
            writer = writer.trigger(availableNow=True)
        return writer

    def known(self) -> StreamingQuery | None:
        """The newest query, once Spark's ``start`` has returned; None if it failed."""
        self._known.wait()
        return self._running

    def forget(self) -> None:
        """Prepare for another query: from now on ``known`` waits for its start."""
        self._running = None
        self._known.clear()

    def end(self, running: StreamingQuery) -> None:
        """Stop a query, whatever it is doing; return when its threads have ended."""
        stopped = in_background(running.stop)
        try:
            while not stopped.done() and running.isActive:
                time.sleep(_STOP_POLL_S)
        finally:
            self._query.inputs.stop_waiting()
        stopped.result()

    def stop(self) -> None:
        """Stop the task's query, now or when it starts; return when its threads have ended."""
        self._stopping.set()
        running = self._running
        if running is not None:
            self.end(running)
        for waiter in self._waiters:
            if waiter is not threading.current_thread():
                waiter.join()

    def stop_from_within(self) -> None:
        """Stop the query from its own thread, for which ``stop`` would wait."""
        self._stopping.set()
        threading.Thread(target=self._end_known, name="weir-drained", daemon=True).start()

    def _end_known(self) -> None:
        running = self.known()
        if running is not None:
            self.end(running)

    def _wait(self, running: StreamingQuery) -> None:
        failed: Exception | None = None
        try:
            running.awaitTermination()
        except Exception as error:
            failed = error
        self._on_end(running, failed)
