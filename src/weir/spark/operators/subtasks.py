"""The subtasks of one query's Python operators, in Spark's workers, for ``subtasks/chain.py``.

Spark must run all N subtasks in every batch, empty ones too, so that every event is handled: the
query is started with ``SETTINGS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import AccumulatorParam

from weir.core.graph import GraphStep, Vertex
from weir.core.types import OperatorId
from weir.monitoring.log_lines import Form
from weir.sinks.arrow_rows import map_in_arrow
from weir.spark.channels import has_event_time
from weir.spark.operators.inputs import given_schema, key_types, partitioned
from weir.spark.operators.outputs import output_schemas, shared_schema
from weir.spark.operators.worker import (
    CALL_SCHEMA,
    PROPERTY,
    CallFunction,
    OperatorFunction,
    Results,
    WorkerLog,
)
from weir.spark.releases import arrow_schema
from weir.subtasks.chain import OperatorChain, ProcessStep
from weir.subtasks.messages import (
    BATCH_RESULTS,
    CALL_RESULTS,
    BatchOrder,
    BatchResult,
    Call,
    CallResult,
    encoded,
    received,
)
from weir.subtasks.worker import SubtaskFunction, key_columns

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

#: Settings for starting the query of a vertex with operators. Otherwise Spark would fold a shuffle
#: over an empty relation and merge small partitions, and not every subtask would run.
SETTINGS = {"spark.sql.adaptive.enabled": "false"}
#: Settings unless the user has set them: state is read and written by whole Arrow batches, so each
#: costs a few calls of Python, however many rows it has.
DEFAULTS = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100000"}
#: The setting of excluded optimizer rules. ``EMPTY_RELATION_RULE`` is added to the user's own.
EXCLUDED_RULES = "spark.sql.optimizer.excludedRules"
EMPTY_RELATION_RULE = "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation"


class _Merge(AccumulatorParam[Results]):
    """Merges results: later ones of a batch and subtask replace earlier ones."""

    def zero(self, value: Results) -> Results:
        """No results."""
        return {}

    def addInPlace(self, value1: Results, value2: Any) -> Results:  # noqa: N802 (Spark's name)
        """The results of both."""
        value1.update(value2)
        return value1


class SparkSubtasks:
    """Implements ``weir.subtasks.chain.SubtaskPort`` for one vertex in one attempt."""

    def __init__(
        self,
        session: SparkSession,
        vertex: Vertex,
        steps: Mapping[OperatorId, ProcessStep],
        log_form: Form,
        rejects_max: int,
    ) -> None:
        """``log_form``: of the workers' lines. ``rejects_max``: see ``SubtaskFunction``."""
        self._session = session
        self._vertex = vertex
        self._log = WorkerLog(task=vertex.name, form=log_form)
        self._rejects_max = rejects_max
        self._steps = dict(steps)
        self._results: dict[OperatorId, Accumulator[Results]] = {
            name: session.sparkContext.accumulator({}, _Merge()) for name in steps
        }
        #: Runs ``CallFunction``, by operator.
        self._calls: dict[OperatorId, DataFrame] = {}

    def apply(self, step: GraphStep, inputs: list[DataFrame], chain: OperatorChain) -> DataFrame:
        """Add the step to Spark's plan. Raises ``PipelineError`` if the stream does not fit."""
        one, name = self._steps[step.operator_id], step.operator_id
        given = given_schema(inputs)
        schemas = output_schemas(step, one.operator, given)
        if has_event_time(given):
            chain.add_timed(name)
        frame = partitioned(step, inputs, one.key_by, one.parallelism)
        chain.add_key(name, key_types(inputs, one.key_by))
        main, *sides = (arrow_schema(one) for one in schemas.values())
        function = SubtaskFunction(
            name,
            one.operator,
            output_schema=main,
            side_outputs=dict(zip(list(schemas)[1:], sides, strict=True)),
            parallelism=one.parallelism,
            keys=key_columns(one.key_by),
            rejects_max=None if step.on_error is None else self._rejects_max,
        )
        # Enough tasks to reach every Python worker: Spark uses them in turn, and has no more than
        # cores.
        tasks = max(one.parallelism, self._session.sparkContext.defaultParallelism)
        call = CallFunction(function, self._log)
        self._calls[name] = self._session.range(0, tasks, 1, tasks).mapInArrow(call, CALL_SCHEMA)
        run = OperatorFunction(function, self._results[name], self._log)
        return map_in_arrow(frame, frame.columns, run, shared_schema(schemas))

    def order(self, name: OperatorId, order: BatchOrder) -> None:
        """Set the order as a local property of this thread."""
        self._session.sparkContext.setLocalProperty(PROPERTY + name, encoded(order))

    def results(self, name: OperatorId, batch: int) -> dict[int, BatchResult]:
        """Take the results of a batch out of the accumulator."""
        results = self._results[name]
        found = {
            subtask: received(text, BATCH_RESULTS, name)
            for (at, subtask), text in results.value.items()
            if at == batch
        }
        results.value = {}
        return found

    def call(self, name: OperatorId, call: Call) -> dict[int, CallResult]:
        """Run ``CallFunction``; nobody answers before the step is in a plan."""
        if name not in self._calls:
            return {}
        context, key = self._session.sparkContext, PROPERTY + name
        context.setLocalProperty("spark.scheduler.pool", self._vertex.name)
        context.setLocalProperty(key, encoded(call))
        try:
            rows = self._calls[name].collect()
        finally:
            # The thread runs other jobs too.
            context.setLocalProperty(key, None)  # type: ignore[arg-type]
            context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]
        return {row["subtask"]: received(row["result"], CALL_RESULTS, name) for row in rows}
