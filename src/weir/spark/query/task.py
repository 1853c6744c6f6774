"""One task: a vertex as a streaming query of one attempt, with the control input in front.

The query posts these events, in order: ``TaskStarted`` with its first planning call, then for each
batch ``BatchStaged`` and ``PlanningCalled``, and finally one of ``RecordsEnded`` (the bounded input
is used up), ``TaskErrored``, or nothing (it was stopped). A drain is a second query on the same
directory; its one batch ends with ``Drained``.

A query that reads channels waits in its planning calls until there is something to read, and never
ends on its own.

To stop a query without failing it, call Spark's ``stop`` on a thread of its own first and, once the
query is no longer active, release the planning call in which it rests. Released earlier, the query
would plan a batch or take the interruption for an error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from weir.core.graph import Vertex
from weir.core.messages.task import (
    AnswerPlanning,
    BatchStaged,
    Drained,
    PlanningCalled,
    RecordsEnded,
    StartDrain,
    TaskErrored,
    TaskStarted,
)
from weir.core.types import Committable, OperatorId
from weir.errors import PipelineError, SinkError, invariant
from weir.monitoring.log_lines import place
from weir.runtime.concurrency import in_background
from weir.runtime.ports import PostToTask, SubtaskView, VertexMetrics
from weir.sinks.base import Batch, Sink
from weir.spark.channels import OutputSegments, has_event_time
from weir.spark.control_input import CONTROL_INPUT, QueryInterruptedError
from weir.spark.failures import TaskFailures, first_cause
from weir.spark.operators.outputs import has_side_outputs, output_of
from weir.spark.query.frames import Frames
from weir.spark.query.inputs import QueryInputs, source_ids
from weir.spark.query.output_watermark import OperatorNodes, output_watermark_ms
from weir.spark.query.plan_checks import check_bounded, misfit
from weir.spark.query.progress import BatchProgress, decoded, newest_subtasks
from weir.spark.state.directory import QueryDirectory, is_stateful
from weir.spark.state.files import operator_metadata
from weir.spark.state.plan_layout import PlanLayout
from weir.storage.paths import as_spark_path
from weir.subtasks.chain import BatchEnd, OperatorChain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)

#: How often to check whether a query that is being stopped is still active.
_STOP_POLL_S = 0.002
#: What to do about an aggregation whose rows never become final.
_WITHOUT_WATERMARK = (
    " Give the rows a watermark (withWatermark), so that each result becomes final; or let the step"
    " emit what changes (transform(..., output_mode='update')) into a sink with a key; or use"
    " Stream.process."
)


class QueryTask:
    """Runs the query of one vertex."""

    def __init__(
        self,
        *,
        session: SparkSession,
        vertex: Vertex,
        frames: Frames,
        sinks: Mapping[OperatorId, Sink],
        attempt: int,
        directory: QueryDirectory,
        inputs: QueryInputs,
        output: OutputSegments | None,
        operators: OperatorChain | None,
        position: int,
        watermark_ms: int | None,
        finish: Callable[[int], tuple[Committable, ...]],
        failures: TaskFailures,
        post: PostToTask,
    ) -> None:
        """Make the task of one attempt; ``start`` starts its query.

        ``output`` is None unless the vertex writes a channel, ``operators`` unless it has Python
        operators. ``position`` is the last batch of a restored query, and ``watermark_ms`` its
        output watermark then. ``finish`` lets the sinks stage what they have held back, at the
        given position.
        """
        self._session = session
        self._vertex = vertex
        self._frames = frames
        self._sinks = sinks
        self._attempt = attempt
        self._directory = directory
        self._inputs = inputs
        self._output = output
        self._operators = operators
        #: Whether the last batch was forced.
        self._position = position
        #: The output watermark of the query by batch, of the last complete one and the one before,
        #: ascending. Replaced as a whole, since a snapshot may be taken beside the next batch.
        self._watermarks = {position: watermark_ms}
        #: The batch before the first of this attempt.
        self._started_at = position
        self._operator_nodes: OperatorNodes | None = None
        #: Whether the query has state; known after its first batch.
        self._is_stateful: bool | None = None
        #: The owners as of the last snapshot.
        self._layout: PlanLayout | None = None
        self._tells_watermark = False
        #: Whether the rows of several outputs share the query's frame.
        self._has_side_outputs = False
        self._finish = finish
        self._failures = failures
        #: Why a batch failed, kept until Spark reports that the query failed.
        self._failure: TaskErrored | None = None
        self._post = post
        self._query: StreamingQuery | None = None
        #: Set once Spark's ``start`` has returned: the first planning call can come before that.
        self._query_known = threading.Event()
        self._started = False
        self._draining = False
        self._stopping = threading.Event()
        self._waiters: list[threading.Thread] = []
        self._progress_lock = threading.Lock()
        #: The last batch of each query that was counted; a drain has a query of its own.
        self._counted: dict[StreamingQuery, int] = {}
        self._records_in = 0
        #: Spark's report of the newest batch that was counted; None before the first.
        self._progress: BatchProgress | None = None
        #: How long each sink staged the newest batch.
        self._staging_ms: dict[OperatorId, int] = {}

    # -- life

    def start(self) -> None:
        """Build the plan and start the query.

        Raises ``PipelineError`` if the user's code or plan is wrong.
        """
        if self._stopping.is_set():
            # The attempt ended while the task waited for its turn.
            return
        frame = self._frames.of(self._vertex.name)
        self._tells_watermark = self._output is not None and has_event_time(frame.schema)
        self._has_side_outputs = has_side_outputs(frame)
        if self._operators is not None and self._position >= 0:
            self._operators.planned(self._directory.commit_entry(self._position))
            self._operators.resume_at(self._directory.watermark_ms(self._position))
        if not self._stopping.is_set():
            self._run(frame)

    def answer(self, effect: AnswerPlanning) -> None:
        """Answer the planning call in which the query rests: it may read what is admitted."""
        operators = self._operators
        force = operators is not None and operators.forces_batch(
            effect, first=self._position < 0, ends_by_itself=self._ends_by_itself
        )
        self._inputs.answer(
            effect,
            self._directory.path,
            force=force,
            source_watermark_ms=None if operators is None else operators.source_watermark_ms,
        )

    def release(self, position: int) -> None:
        """Delete the segments up to ``position``: no consumer needs them any more."""
        if self._output is not None:
            self._output.release(position)

    def drain(
        self,
        effect: StartDrain,
        *,
        starting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Run one more batch with the maximal watermark, then finish the sinks (MISSION E1, E2).

        Posts ``Drained``. A query that has run no batch (one with Python operators has), or has no
        state and no such operators, is drained at once. A query that rests in a planning call is
        stopped: the call is never answered. ``starting`` is entered while the batch's query starts.
        """
        position = effect.position
        invariant(
            position == self._position,
            f"{self._vertex.name} drains at {position}, not {self._position}",
        )
        self._draining = True
        if effect.call is not None and self._query is not None:
            self._stop_query(self._query)
            # Its own thread may do so after the next query has started, and nobody else would.
            self._count_rows(self._query)
        if position < 0 or not (
            self._operators or is_stateful(self._directory.commit_entry(position))
        ):
            self._finish_sinks()
            return
        if self._operators is not None:
            self._operators.take_orders(effect)
        self._directory.prune_sources(position)
        self._directory.write_drain_entry(position)
        # From here on the query is the drain's, which is known once it has started.
        self._query = None
        self._query_known.clear()
        if not self._stopping.is_set():
            with starting():
                self._run(self._frames.of(self._vertex.name))

    def stop(self) -> None:
        """Stop the query, whatever it is doing; return when its threads have ended."""
        self._stopping.set()
        query = self._query
        if query is not None:
            self._stop_query(query)
        for waiter in self._waiters:
            if waiter is not threading.current_thread():
                waiter.join()

    def planning(self, call: int) -> None:
        """Report a planning call, or the end of the drain.

        All batches up to the position are committed, and no other has started.
        """
        if self._stopping.is_set():
            return
        if self._draining:
            self._drained()
            return
        try:
            if not self._started:
                self._begin()
            consumed = self._inputs.consumed()
            self._update_watermark()
        except Exception as error:
            self._post(self._failures.errored(error, self._between_batches))
            return
        self._post(
            PlanningCalled(
                call=call,
                position=self._position,
                consumed=consumed,
                watermark_ms=self.watermark_ms(self._position),
                timer_in_ms=None if self._operators is None else self._operators.timer_in_ms,
                outlives_call=not self._has_state,
            )
        )

    def watermark_ms(self, position: int) -> int | None:
        """The output watermark after batch ``position``, the last complete one or the one before.

        None if no consumer needs it or there is none yet.
        """
        known = self._watermarks
        return known[max(batch for batch in known if batch <= position)]

    @property
    def _has_state(self) -> bool:
        """Whether a snapshot must ask the plan of the last batch for its operators' watermarks."""
        if self._is_stateful is None and self._position >= 0:
            self._is_stateful = is_stateful(self._directory.commit_entry(self._position))
        return self._is_stateful is not False

    def layout(self) -> PlanLayout | None:
        """The owners in the plan after the last batch, between two batches.

        None if no batch has run in this attempt, or the owners are not known.
        """
        query, layout = self._query, self._frames.layout(self._vertex.name)
        if query is None or layout is None or self._position == self._started_at:
            return None
        if self._draining:
            # The snapshot is of the batch before the drain's, which has another watermark.
            return self._layout
        if self._operator_nodes is None:
            if not layout.matches(operator_metadata(self._directory)):
                return None
            self._operator_nodes = OperatorNodes(query) if layout.operators else None
        if self._operator_nodes is not None:
            layout = layout.with_watermarks(self._operator_nodes.watermarks_ms(query))
        self._layout = layout
        return layout

    def metrics(self) -> VertexMetrics:
        """The counters of the rows that the task has read."""
        query = self._query
        if query is not None:
            self._count_rows(query)
        with self._progress_lock:
            newest = self._progress
            return VertexMetrics(
                position=self._position,
                records_in=self._records_in,
                records_in_per_second=0.0 if newest is None else newest.processed_rows_per_second,
                pending_records=None if newest is None else newest.pending_records,
                watermark_ms=None if newest is None else newest.watermark_ms,
                state=() if newest is None else newest.state,
                staging_ms=self._staging_ms,
            )

    def subtasks(self) -> tuple[SubtaskView, ...]:
        """The Spark tasks of the newest batch's longest stage."""
        query = self._query
        return () if query is None else newest_subtasks(self._session, str(query.runId))

    # -- query

    def _run(self, frame: DataFrame) -> None:
        # The pool applies to the Spark tasks of queries that this thread starts.
        self._session.sparkContext.setLocalProperty("spark.scheduler.pool", self._vertex.name)
        writer = (
            frame.writeStream.foreachBatch(self._stage)
            .option("checkpointLocation", as_spark_path(self._directory.path))
            .outputMode("update" if self._vertex.emits_updates else "append")
            .queryName(f"{self._vertex.name}-{self._attempt}{'-drain' if self._draining else ''}")
        )
        if self._ends_by_itself:
            writer = writer.trigger(availableNow=True)
        self._inputs.start_run()
        try:
            self._query = writer.start()
        except Exception as error:
            cause = first_cause(error)
            hint = _WITHOUT_WATERMARK if "STREAMING_OUTPUT_MODE" in cause else ""
            raise PipelineError(
                f"Spark cannot run the chain ending in {self._vertex.name!r}: {cause}.{hint}"
            ) from error
        finally:
            self._query_known.set()
        waiter = threading.Thread(
            target=self._wait,
            args=(self._query,),
            name=f"weir-query-{self._vertex.name}",
            daemon=True,
        )
        self._waiters.append(waiter)
        waiter.start()
        if self._stopping.is_set():
            self._stop_query(self._query)

    def _stop_query(self, query: StreamingQuery) -> None:
        """Stop a query, whatever it is doing; return when its threads have ended."""
        stopped = in_background(query.stop)
        try:
            while not stopped.done() and query.isActive:
                time.sleep(_STOP_POLL_S)
        finally:
            self._inputs.stop_waiting()
        stopped.result()

    def _stage(self, frame: DataFrame, batch: int) -> None:
        """Run phase one of every sink, inside the batch (``foreachBatch``)."""
        try:
            if self._operators is not None:
                self._operators.begin_batch(batch)
            segment, files = None, None
            if self._output is not None:
                segment = self._output.write(frame, batch)
                files = () if segment is None else tuple(segment.payload["files"])
                if self._has_side_outputs:
                    # They hold the rows of all outputs.
                    files = None
                if self._sinks:
                    frame = self._output.read(frame, batch)
            committables = self._staged(frame, Batch(batch_id=batch, files=files))
            end = BatchEnd() if self._operators is None else self._operators.end_batch(batch)
        except Exception as error:
            if self._stopping.is_set():
                raise QueryInterruptedError from None
            self._failure = self._failures.errored(error, f"batch {batch}")
            # Keep it short: Spark matches the text with a regular expression that recurses for each
            # character, and a Java stack in the text overflows the thread's stack.
            raise SinkError(f"Batch {batch} failed.") from None
        self._post(
            BatchStaged(
                position=batch,
                committables=committables,
                segment=segment,
                sent_events=end.sent,
                input_ended=end.input_ended,
                induced=end.induced,
            )
        )
        with self._progress_lock:
            self._records_in += end.rows_read
        self._position = batch

    def _staged(self, frame: DataFrame, batch: Batch) -> tuple[Committable, ...]:
        several = len(self._sinks) > 1 and self._output is None
        if several:
            # Recomputing could give two sinks different rows, and would run the state operators
            # twice.
            frame = frame.persist()
        payloads, staging_ms, began = {}, {}, time.monotonic()
        try:
            for name, tag in zip(self._vertex.sinks, self._vertex.sink_tags, strict=True):
                with place(task=self._vertex.name, step=name):
                    rows = output_of(frame, tag) if self._has_side_outputs else frame
                    payloads[name] = self._sinks[name].stage(rows, batch)
                began, ended = time.monotonic(), began
                staging_ms[name] = int(1000 * (began - ended))
            self._staging_ms = staging_ms
        finally:
            if several:
                frame.unpersist()
        return tuple(
            Committable(sink=name, position=batch.batch_id, payload=payload)
            for name, payload in payloads.items()
            if payload is not None
        )

    def _wait(self, query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
        except Exception as error:
            if not self._stopping.is_set():
                changed = misfit(self._vertex, error)
                when = self._between_batches
                self._post(self._failure or self._failures.errored(error, when, misfit=changed))
            return
        # The task's next query may already have replaced this one.
        self._count_rows(query)
        if self._stopping.is_set() or self._draining:
            return
        if self._ends_by_itself:
            if not self._started:
                self._post(TaskStarted(position=self._position))
            self._post(RecordsEnded(position=self._position))
        else:
            self._post(
                TaskErrored(message=f"the query of {self._vertex.name!r} was stopped from outside")
            )

    def _drained(self) -> None:
        """Finish the sinks: the drain batch is committed.

        The planning call is never answered, so Spark plans nothing more.
        """
        try:
            self._finish_sinks()
        except Exception as error:
            self._post(self._failures.errored(error, self._between_batches))
        self._stopping.set()
        # This is the query's own thread, for which ``stop`` would wait.
        threading.Thread(target=self._stop_drained, name="weir-drained", daemon=True).start()

    def _stop_drained(self) -> None:
        self._query_known.wait()
        query = self._query
        if query is not None:
            self._stop_query(query)

    def _finish_sinks(self) -> None:
        """Stage what sinks have held back until the end, at a position of its own."""
        committables = self._finish(self._position + 1)
        if committables:
            self._position += 1
            self._post(BatchStaged(position=self._position, committables=committables))
        self._post(Drained(position=self._position))

    @property
    def _between_batches(self) -> str:
        return "before its first batch" if self._position < 0 else f"after batch {self._position}"

    @property
    def _ends_by_itself(self) -> bool:
        """Whether Spark ends the query when its input is used up.

        Channels and Weir's own readers report the end of their input themselves.
        """
        return self._vertex.bounded and not self._vertex.inputs and not self._vertex.is_enumerated

    def _update_watermark(self) -> None:
        """Take up the next batch's watermark, between two batches.

        For consumers it becomes the output watermark (PROTOCOL P25), but not while operators have
        yet to emit rows that are older.
        """
        told = self._tells_watermark or self._operators is not None
        if not told or self._position in self._watermarks:
            return
        batch, watermark_ms = list(self._watermarks.items())[-1]
        self._watermarks = {
            batch: watermark_ms,
            self._position: self._next_watermark_ms(watermark_ms),
        }

    def _next_watermark_ms(self, known_ms: int | None) -> int | None:
        """The output watermark after the last batch; ``known_ms`` if no consumer needs it."""
        query = self._query
        commit = self._directory.commit_entry(self._position)
        operators = self._operators
        if operators is not None:
            operators.planned(commit)
        if query is None or not self._tells_watermark:
            return known_ms
        reached = int(commit["nextBatchWatermarkMs"])
        watermark_ms = output_watermark_ms(query, reached, stateful=is_stateful(commit))
        return watermark_ms if operators is None else operators.output_watermark_ms(watermark_ms)

    def _begin(self) -> None:
        """At the first planning call, inspect what Spark made of the plan; post ``TaskStarted``."""
        self._started = True
        self._query_known.wait()
        query = self._query
        if query is not None:
            self._directory.source_ids = source_ids(query)
            if self._ends_by_itself:
                self._check_bounded(query)
        self._post(TaskStarted(position=self._position))

    def _check_bounded(self, query: StreamingQuery) -> None:
        try:
            check_bounded(self._vertex.name, query)
        except PipelineError as error:
            self._post(TaskErrored(message=str(error), fatal=True))

    def _count_rows(self, query: StreamingQuery) -> None:
        with self._progress_lock:
            try:
                self._read_progress(query)
            except Exception:
                # The JVM may have gone; earlier counts still hold.
                _log.debug("Spark's counters can no longer be read.", exc_info=True)

    def _read_progress(self, query: StreamingQuery) -> None:
        counted = self._counted.get(query, -1)
        if counted >= self._position:
            return
        newest, rows = counted, 0
        entries = query._jsq.recentProgress()
        for index in range(len(entries) - 1, -1, -1):
            batch = int(entries[index].batchId())
            if batch <= counted:
                break
            if index == len(entries) - 1:
                newest = batch
                self._progress = decoded(entries[index])
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
