"""One task: a vertex as a streaming query of one attempt, with the control input in front.

The query posts these events, in order: ``TaskStarted`` with its first planning call, then for each
batch ``BatchStaged`` and ``PlanningCalled``, and finally one of ``RecordsEnded`` (the bounded input
is used up), ``TaskErrored``, or nothing (it was stopped). A drain is a second query on the same
directory; its one batch ends with ``Drained``.

A query that reads channels waits in its planning calls until there is something to read, and never
ends on its own.

The query of a task that reads what is available now ends when Spark has read that. The task then
makes a planning call in its place, with ``caught_up``: the directory does not change until the call
is answered. If it is, since operators need a batch, the task starts another query for it, which
does not end by itself.

``QueryTask`` keeps this order. Its parts do the rest::

    VertexQuery        the query's vertex, directory, inputs and operators (vertex_query.py)
    QueryRuns          starts and stops the query (runs.py)
    PlanningCalls      answers its planning calls (planning.py)
    BatchStaging       stages its batches at the channel and the sinks (staging.py)
    OutputWatermarks   what consumers may rely on (output_watermark.py)
    PlanOwners         which step owns what in its plan (plan_owners.py)
    QueryCounters      the rows that it has read (counters.py)
    TaskFailures       what went wrong, and where (weir/spark/failures.py)
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

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
from weir.core.types import VertexId
from weir.errors import SinkError, WeirError, invariant
from weir.runtime.concurrency import in_background
from weir.runtime.failures import named
from weir.runtime.ports import PostToTask, SubtaskView, Unread, VertexMetrics
from weir.spark.channels import has_event_time
from weir.spark.control_input import QueryInterruptedError
from weir.spark.failures import TaskFailures
from weir.spark.query.counters import QueryCounters
from weir.spark.query.output_watermark import OutputWatermarks
from weir.spark.query.plan_checks import misfit
from weir.spark.query.plan_owners import PlanOwners
from weir.spark.query.planning import PlanningCalls
from weir.spark.query.progress import newest_subtasks
from weir.spark.query.runs import QueryRuns
from weir.spark.query.staging import BatchStaging
from weir.spark.query.vertex_query import VertexQuery
from weir.spark.quiet import without_pyspark_log
from weir.spark.state.plan_layout import PlanLayout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


class QueryTask:
    """Runs the query of one vertex."""

    def __init__(
        self,
        query: VertexQuery,
        staging: BatchStaging,
        *,
        position: int,
        watermark_ms: int | None,
        failures: TaskFailures,
        post: PostToTask,
    ) -> None:
        """Make the task of one attempt; ``start`` starts its query.

        ``position`` is the last batch of a restored query, and ``watermark_ms`` its output
        watermark then.
        """
        self._query = query
        self._staging = staging
        self._runs = QueryRuns(query, stage=self._stage, on_end=self._ended)
        self._calls = PlanningCalls(query)
        self._watermarks = OutputWatermarks(query, position, watermark_ms)
        self._owners = PlanOwners(query, position)
        self.counters = QueryCounters(query.name)
        self._failures = failures
        #: Why a batch failed, kept until Spark reports that the query failed.
        self._failure: TaskErrored | None = None
        self._post = post
        #: The last batch, or the position at which the sinks were finished.
        self._position = position
        self._started = False
        self._draining = False
        #: Whether Spark has read all that was available; whether the task rests without a query
        #: since then; the start of the query that ends this, and the answer that it begins with.
        self._caught_up = False
        self._rests = False
        self._going_on: Future[None] | None = None
        self._goes_on_with: AnswerPlanning | None = None
        #: What Spark said that its sources have, when the drain began; None if it says nothing.
        self._unread_records: int | None = None

    @property
    def name(self) -> VertexId:
        """The name of the vertex."""
        return self._query.name

    # -- life

    def start(self) -> None:
        """Build the plan and start the query.

        Raises ``PipelineError`` if the user's code or plan is wrong.
        """
        if self._runs.stopping:
            # The attempt ended while the task waited for its turn.
            return
        frame = self._query.frames.of(self._query.name)
        self._watermarks.is_read = self._staging.writes_rows and has_event_time(frame.schema)
        self._staging.plan(frame)
        self._calls.resume(self._position)
        if not self._runs.stopping:
            self._runs.start(frame)

    def answer(
        self,
        effect: AnswerPlanning,
        *,
        starting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Answer the planning call in which the query rests: it may read what is admitted.

        If the query has ended since it has caught up, another is started, which enters
        ``starting``.
        """
        if self._rests:
            self._rests, self._goes_on_with = False, effect
            self._going_on = in_background(lambda: self._go_on(starting))
        else:
            ends = self._query.ends_by_itself and not self._caught_up
            self._calls.answer(effect, self._position, ends_by_itself=ends)

    def _go_on(self, starting: Callable[[], AbstractContextManager[None]]) -> None:
        """Start a query that reads on, for a batch that operators need."""
        query = self._query
        try:
            query.directory.prune_sources(self._position)
            self._runs.forget()
            if not self._runs.stopping:
                with starting():
                    self._runs.start(query.frames.of(query.name), suffix="-more", endless=True)
        except Exception as error:
            self._post(self._failures.errored(error, self._between_batches))

    def release(self, position: int) -> None:
        """Delete the segments up to ``position``: no consumer needs them any more."""
        self._staging.release(position)

    def drain(
        self,
        effect: StartDrain,
        *,
        starting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Run one more batch with the maximal watermark, then finish the sinks (MISSION E1, E2).

        Posts ``Drained``. A query without Python operators that has run no batch, or has no state,
        is drained at once. A query that rests in a planning call is
        stopped: the call is never answered. ``starting`` is entered while the batch's query starts.
        """
        position, query = effect.position, self._query
        invariant(
            position == self._position,
            f"{query.name} drains at {position}, not {self._position}",
        )
        self._draining = True
        running = self._runs.running
        if effect.call is not None and running is not None:
            self._runs.end(running)
            # Its own thread may do so after the next query has started, and nobody else would.
            self.counters.count(running, self._position)
        self._unread_records = self.counters.metrics(position, {}).pending_records
        directory, operators = query.directory, query.operators
        if position < 0 or not (operators or directory.commit_entry(position).is_stateful):
            self._finish_sinks()
            return
        if operators is not None:
            operators.take_orders(effect)
        directory.prune_sources(position)
        directory.write_drain_entry(position)
        # From here on the query is the drain's, which is known once it has started.
        self._runs.forget()
        if not self._runs.stopping:
            with starting():
                self._runs.start(query.frames.of(query.name), suffix="-drain")

    def stop(self) -> None:
        """Stop the query, whatever it is doing; return when its threads have ended."""
        self._runs.stop()
        if self._going_on is not None:
            # A query that starts now is ended by the thread that starts it.
            self._going_on.result()

    def planning(self, call: int) -> None:
        """Report a planning call, or the end of the drain.

        All batches up to the position are committed, and no other has started.
        """
        if self._runs.stopping:
            return
        if self._draining:
            self._drained()
            return
        effect, self._goes_on_with = self._goes_on_with, None
        if effect is not None:
            self._calls.answer(effect, self._position, ends_by_itself=False, force=True)
            return
        try:
            if not self._started:
                self._begin()
            consumed = self._query.inputs.consumed()
            self._watermarks.update(self._runs.running, self._position)
        except Exception as error:
            self._post(self._failures.errored(error, self._between_batches))
            return
        operators = self._query.operators
        self._post(
            PlanningCalled(
                call=call,
                position=self._position,
                consumed=consumed,
                watermark_ms=self.watermark_ms(self._position),
                timer_in_ms=None if operators is None else operators.timer_in_ms,
                outlives_call=not self._owners.needs_plan(self._position),
                caught_up=self._caught_up,
            )
        )

    # -- what others ask

    def watermark_ms(self, position: int) -> int | None:
        """The output watermark after batch ``position``, one of the last two complete batches.

        None if no consumer needs it, or if there is no watermark yet.
        """
        return self._watermarks.at(position)

    def layout(self) -> PlanLayout | None:
        """The owners in the plan after the last batch, between two batches.

        None if no batch has run in this attempt, or the owners are not known.
        """
        running = self._runs.running
        if running is not None and self._draining:
            # The snapshot is of the batch before the drain's, which has another watermark.
            return self._owners.newest
        return self._owners.layout(running, self._position)

    def metrics(self) -> VertexMetrics:
        """The counters of the rows that the task has read."""
        self._count()
        return self.counters.metrics(self._position, self._staging.staging_ms)

    def snapshot_taken(self, checkpoint_id: int) -> None:
        """Between two batches: what has been counted by now belongs to the checkpoint."""
        self._count()
        self.counters.snapshot_taken(checkpoint_id)

    def unread(self) -> Unread:
        """What is left of the sources after the drain."""
        operators = self._query.operators
        return Unread(
            splits={} if operators is None else operators.unread_splits(),
            records=self._unread_records,
        )

    def subtasks(self) -> tuple[SubtaskView, ...]:
        """The Spark tasks of the newest batch's longest stage."""
        running = self._runs.running
        return () if running is None else newest_subtasks(self._query.session, str(running.runId))

    def _count(self) -> None:
        running = self._runs.running
        if running is not None:
            self.counters.count(running, self._position)

    # -- query

    def _begin(self) -> None:
        """At the first planning call, inspect what Spark made of the plan; post ``TaskStarted``."""
        self._started = True
        running = self._runs.known()
        unbounded = None if running is None else self._calls.inspect(running)
        if unbounded is not None:
            self._post(unbounded)
        self._post(TaskStarted(position=self._position))

    def _stage(self, frame: DataFrame, batch: int) -> None:
        """Run phase one of every sink, inside the batch (``foreachBatch``)."""
        try:
            with without_pyspark_log():
                staged, rows_read = self._staging.stage(frame, batch, self._runs.known())
        except Exception as error:
            if self._runs.stopping:
                raise QueryInterruptedError from None
            self._failure = self._failures.errored(
                error, f"batch {batch}", batch_range=self._range(batch)
            )
            # Keep it short: Spark matches the text with a regular expression that recurses for each
            # character, and a Java stack in the text overflows the thread's stack.
            raise SinkError(f"Batch {batch} failed.") from None
        self._post(staged)
        self.counters.add(rows_read, self._staging.counted)
        self._position = batch

    def _ended(self, running: StreamingQuery, error: Exception | None) -> None:
        """Report why a query has ended, unless it was stopped."""
        if error is not None:
            if not self._runs.stopping:
                changed = misfit(self._query.vertex, error)
                when = self._between_batches
                self._post(self._failure or self._failures.errored(error, when, misfit=changed))
            return
        # The task's next query may already have replaced this one.
        self.counters.count(running, self._position)
        if self._runs.stopping or self._draining:
            return
        if self._query.ends_by_itself and not self._caught_up:
            if not self._started:
                self._started = True
                self._post(TaskStarted(position=self._position))
            if self._query.vertex.available_now:
                self._caught_up = self._rests = True
                self._query.inputs.call()
            else:
                self._post(RecordsEnded(position=self._position))
        else:
            self._post(
                TaskErrored(message=f"the query of {self._query.name!r} was stopped from outside")
            )

    def _drained(self) -> None:
        """Finish the sinks: the drain batch is committed.

        The planning call is never answered, so Spark plans nothing more.
        """
        try:
            self._finish_sinks()
        except Exception as error:
            self._post(self._failures.errored(error, self._between_batches))
        self._runs.stop_from_within()

    def _finish_sinks(self) -> None:
        """Stage what sinks have held back until the end, at a position of its own."""
        committables = self._staging.finish(self._position + 1)
        if committables:
            self._position += 1
            self._post(BatchStaged(position=self._position, committables=committables))
        self._post(Drained(position=self._position))

    def _range(self, batch: int) -> str:
        """Where the rows of a batch that failed begin; "" if it has none, or that is not known.

        It begins there again as long as no completed checkpoint contains the rows, whatever the
        number of the batch, and however many rows it takes.
        """
        query = self._query
        try:
            before, after = (query.directory.rows_before(at) for at in (batch, batch + 1))
            if query.vertex.is_enumerated and query.operators is not None:
                rows, splits = query.operators.read_so_far()
                before = (*before, f"{rows} rows and {splits} whole splits")
        except (OSError, WeirError):
            return ""
        return "" if before == after else named(f"the input after {', '.join(before) or 'nothing'}")

    @property
    def _between_batches(self) -> str:
        return "before its first batch" if self._position < 0 else f"after batch {self._position}"
