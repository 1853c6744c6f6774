"""One task: a vertex as a streaming query of one attempt, with the control input in front.

The query's life as events, in order: ``TaskStarted`` with its first planning call, then for each batch ``StepStaged``
and ``PlanningCalled``, and at last one of ``RecordsEnded`` (bounded input used up), ``TaskErrored``, or nothing (it was
stopped). A drain is a second query on the same directory; its one batch ends with ``Drained``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from weir.core.graph import GraphStep, StepKind, Vertex
from weir.core.messages import Drained, PlanningCalled, RecordsEnded, StepStaged, TaskErrored, TaskStarted
from weir.core.types import Committable, OperatorId
from weir.errors import InvariantError, PipelineError, SinkError, WeirError, invariant
from weir.kernel.ports import PostToTask, VertexMetrics
from weir.sinks.base import Sink, Step
from weir.spark.control_input import ControlInput
from weir.spark.plan_checks import check_bounded, check_result, check_source
from weir.spark.query_directory import QueryDirectory, is_stateful

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)


class QueryTask:
    """Runs the query of one vertex."""

    def __init__(
        self,
        *,
        session: SparkSession,
        vertex: Vertex,
        functions: Mapping[OperatorId, Callable[..., Any]],
        sinks: Mapping[OperatorId, Sink],
        attempt: int,
        directory: QueryDirectory,
        planning_directory: str,
        position: int,
        post: PostToTask,
    ) -> None:
        self._session = session
        self._vertex = vertex
        self._functions = functions
        self._sinks = sinks
        self._attempt = attempt
        self._directory = directory
        self._planning_directory = planning_directory
        self._position = position
        self._post = post
        self._query: StreamingQuery | None = None
        #: Set once ``start`` of Spark has returned: the first planning call can come before that.
        self._query_known = threading.Event()
        self._started = False
        self._draining = False
        self._stopping = threading.Event()
        self._waiters: list[threading.Thread] = []
        self._progress_lock = threading.Lock()
        self._seen: tuple[str, int] = ("", -1)
        self._records_in = 0
        self._rate = 0.0

    # -- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Build the plan and start the query. Raises ``PipelineError`` if the user's code or plan is wrong."""
        frame = self._frame()
        if not self._stopping.is_set():
            self._run(frame)

    def drain(self, position: int) -> None:
        """Run one more batch with the maximal watermark; posts ``Drained`` after it (MISSION E1).

        A query without state has nothing to fire, and is drained at once.
        """
        invariant(
            position == self._position, f"{self._vertex.name} drains at {position}, not {self._position}"
        )
        if position < 0 or not is_stateful(self._directory.commit_entry(position)):
            self._post(Drained(position=position))
            return
        self._directory.prune_sources(position)
        self._directory.write_drain_entry(position)
        self._draining = True
        if not self._stopping.is_set():
            self._run(self._frame())

    def stop(self) -> None:
        """Stop the query, wherever it is; returns when its threads are gone."""
        self._stopping.set()
        query = self._query
        if query is not None:
            query.stop()
        for waiter in self._waiters:
            if waiter is not threading.current_thread():
                waiter.join()

    def planning(self, call: int) -> None:
        """The control input's call: all batches up to the position are committed, and no other has begun."""
        if self._stopping.is_set():
            return
        if self._draining:
            self._drained()
            return
        if not self._started:
            self._started = True
            if self._vertex.bounded:
                self._check_bounded()
            self._post(TaskStarted(position=self._position))
        self._post(PlanningCalled(call=call, position=self._position))

    def metrics(self) -> VertexMetrics:
        """Rows that the query has read."""
        with self._progress_lock:
            try:
                self._read_progress()
            except Exception:
                # The JVM may have gone; what was counted before still holds.
                _log.debug("Spark's counters cannot be read any more.", exc_info=True)
            return VertexMetrics(
                position=self._position,
                records_in=self._records_in,
                records_in_per_second=self._rate,
            )

    # -- plan --------------------------------------------------------------------------------------------------

    def _frame(self) -> DataFrame:
        frames: dict[OperatorId, DataFrame] = {}
        control = True
        for step in self._vertex.steps:
            frame = self._apply(step, [frames[name] for name in step.inputs])
            if step.kind is StepKind.SOURCE and control:
                # One control input, in front of the first source: it is asked before the others.
                frame = self._control_input(frame).union(frame)
                control = False
            frames[step.name] = frame
        return frames[self._vertex.steps[-1].name]

    def _apply(self, step: GraphStep, inputs: list[DataFrame]) -> DataFrame:
        if step.kind is StepKind.UNION:
            union = inputs[0]
            for other in inputs[1:]:
                union = union.unionByName(other)
            return union
        function = self._functions[step.name]
        arguments = [self._session] if step.kind is StepKind.SOURCE else inputs
        try:
            frame = function(*arguments)
        except WeirError:
            raise
        except Exception as error:
            raise PipelineError(
                f"The function of step {step.name!r} raised {first_cause(error)}. Correct it and run again."
            ) from error
        if step.kind is StepKind.SOURCE:
            return check_source(step.name, frame)
        return check_result(step.name, frame)

    def _control_input(self, source: DataFrame) -> DataFrame:
        """A relation without rows, with the source's schema, column metadata included (PROTOCOL P26)."""
        control_input = ControlInput.of_vertex(self._vertex.name)
        self._session.dataSource.register(control_input)
        reader = self._session.readStream.format(control_input.name()).schema(source.schema)
        options = {
            "directory": self._planning_directory,
            "vertex": self._vertex.name,
            "attempt": str(self._attempt),
        }
        return reader.options(**options).load()

    # -- query -------------------------------------------------------------------------------------------------

    def _run(self, frame: DataFrame) -> None:
        # The pool holds for the tasks of the queries that this thread starts.
        self._session.sparkContext.setLocalProperty("spark.scheduler.pool", self._vertex.name)
        writer = (
            frame.writeStream.foreachBatch(self._stage)
            .option("checkpointLocation", self._directory.path)
            .outputMode("append")
            .queryName(f"{self._vertex.name}-{self._attempt}{'-drain' if self._draining else ''}")
        )
        if self._vertex.bounded:
            writer = writer.trigger(availableNow=True)
        try:
            self._query = writer.start()
        except Exception as error:
            raise PipelineError(
                f"Spark cannot run the chain that ends in {self._vertex.name!r}: {first_cause(error)}."
            ) from error
        finally:
            self._query_known.set()
        waiter = threading.Thread(
            target=self._wait, args=(self._query,), name=f"weir-query-{self._vertex.name}", daemon=True
        )
        self._waiters.append(waiter)
        waiter.start()
        if self._stopping.is_set():
            self._query.stop()

    def _stage(self, frame: DataFrame, batch: int) -> None:
        """Phase one of every sink, inside the batch (``foreachBatch``)."""
        try:
            committables = self._staged(frame, batch)
        except WeirError:
            raise
        except Exception as error:
            # Short: through the text of what is raised here Spark runs a regular expression that recurses for each
            # character, and a Java stack in it overflows the thread's own.
            raise SinkError(f"Step {batch} failed: {first_cause(error)}") from None
        self._post(StepStaged(position=batch, committables=committables))
        self._position = batch

    def _staged(self, frame: DataFrame, batch: int) -> tuple[Committable, ...]:
        several = len(self._sinks) > 1
        if several:
            # Recomputing could give two sinks different rows, and would run the state operators twice.
            frame = frame.persist()
        try:
            payloads = {name: sink.stage(frame, Step(position=batch)) for name, sink in self._sinks.items()}
        finally:
            if several:
                frame.unpersist()
        return tuple(
            Committable(sink=name, position=batch, payload=payload)
            for name, payload in payloads.items()
            if payload is not None
        )

    def _wait(self, query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
        except Exception as error:
            if not self._stopping.is_set():
                self._post(TaskErrored(message=first_cause(error)))
            return
        # Before the next query of the task takes its place: the last figures of this one.
        self.metrics()
        if self._stopping.is_set() or self._draining:
            return
        if self._vertex.bounded:
            if not self._started:
                self._post(TaskStarted(position=self._position))
            self._post(RecordsEnded(position=self._position))
        else:
            self._post(TaskErrored(message=f"the query of {self._vertex.name!r} was stopped from outside"))

    def _drained(self) -> None:
        """The drain batch is committed. The call is never answered, so nothing more is planned."""
        self._post(Drained(position=self._position))
        self._stopping.set()
        query = self._query
        if query is not None:
            threading.Thread(target=query.stop, name="weir-drained", daemon=True).start()

    def _check_bounded(self) -> None:
        self._query_known.wait()
        query = self._query
        if query is None:
            return
        try:
            check_bounded(self._vertex.name, query)
        except PipelineError as error:
            self._post(TaskErrored(message=str(error), fatal=True))

    def _read_progress(self) -> None:
        query = self._query
        if query is None:
            return
        run = str(query.runId)
        seen = self._seen[1] if self._seen[0] == run else -1
        entries = query._jsq.recentProgress()
        for index in range(len(entries) - 1, -1, -1):
            batch = int(entries[index].batchId())
            if batch <= seen:
                break
            if index == len(entries) - 1:
                self._seen = (run, batch)
                self._rate = float(entries[index].processedRowsPerSecond())
            self._records_in += int(entries[index].numInputRows())


def first_cause(error: BaseException) -> str:
    """One line that names the cause of a Spark error, without its stack: Weir's own sentence, else what Python raised,
    else what Java threw."""
    text = str(error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    own = [line for line in lines if line.startswith("weir.errors.")]
    if own:
        return own[-1].split(": ", 1)[-1]
    if isinstance(error, InvariantError):
        return text
    _, traceback, raised = text.rpartition("Traceback (most recent call last):\n")
    # Places and code are indented; the exception is not.
    python = [line for line in raised.splitlines() if line and not line[0].isspace()] if traceback else []
    java = [line.removeprefix(": ") for line in text.splitlines() if line.startswith(": ")]
    cause: str = [*python[:1], *java[:1], lines[0]][0]
    return cause.removesuffix(".")[:500]
