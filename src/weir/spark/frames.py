"""``Frames``: the plans of one attempt's queries, built from the user's functions (MISSION F3).

A vertex that reads sources gets the control input in front of its first source; one that reads channels gets it in front
of each (``channel_input``). For one whose source has a split enumerator that is all of Spark's input: its readers bring
the rows. Each vertex is built once: a query that reads its channel needs the schema of what it puts out, also when it has
finished and is not started any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from weir.core.graph import GraphStep, StepKind, Vertex
from weir.core.types import OperatorId, VertexId
from weir.errors import PipelineError, WeirError
from weir.spark.channel_input import channel_frame, check_channel_schema
from weir.spark.control_input import CHANNEL_SCHEMA, ControlInput
from weir.spark.error_text import first_cause
from weir.spark.operators import QueryOperators, process_steps
from weir.spark.pipeline import Pipeline
from weir.spark.plan_checks import check_result, check_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: The path of the inbox in which a vertex (first) finds the segments of another (second).
InboxOf = Callable[[VertexId, VertexId], str]


class Frames:
    """The streaming DataFrames of one attempt, by vertex."""

    def __init__(
        self,
        *,
        session: SparkSession,
        pipeline: Pipeline,
        attempt: int,
        planning_directory: str,
        inbox_of: InboxOf,
        token: str,
    ) -> None:
        """``token`` names the attempt among all that a Python worker may see."""
        self._session = session
        self._pipeline = pipeline
        self._attempt = attempt
        self._planning_directory = planning_directory
        self._inbox_of = inbox_of
        self._lock = threading.RLock()
        self._frames: dict[VertexId, DataFrame] = {}
        self._operators = {
            name: QueryOperators(
                session, vertex, {one: pipeline.operators[one] for one in process_steps(vertex)}, token
            )
            for name, vertex in pipeline.vertices.items()
            if process_steps(vertex)
        }

    def of(self, name: VertexId) -> DataFrame:
        """What the vertex puts out. Raises ``PipelineError`` if the user's code is wrong."""
        with self._lock:
            frame = self._frames.get(name)
            if frame is None:
                frame = self._frames[name] = self._build(self._pipeline.vertices[name])
            return frame

    def operators(self, name: VertexId) -> QueryOperators | None:
        """The Python operators of a vertex; None if it has none."""
        return self._operators.get(name)

    def _build(self, vertex: Vertex) -> DataFrame:
        frames = self._channels(vertex)
        needs_control = not vertex.inputs
        for step in vertex.steps:
            frame = self._apply(vertex, step, [frames[name] for name in step.inputs])
            if step.kind is StepKind.SOURCE and needs_control and not step.enumerated:
                # One control input, in front of the first source: it is asked before the others. It has no rows, and the
                # source's schema with its column metadata (PROTOCOL P26).
                frame = self._control_input(vertex, frame.schema).union(frame)
                needs_control = False
            frames[step.operator_id] = frame
        frame = frames[vertex.name]
        if self._pipeline.consumers(vertex.name):
            check_channel_schema(vertex.name, frame.schema)
        return frame

    def _channels(self, vertex: Vertex) -> dict[OperatorId, DataFrame]:
        if not vertex.inputs:
            return {}
        control = self._control_input(vertex, CHANNEL_SCHEMA)
        return {
            name: channel_frame(
                self._session,
                control,
                index=index,
                schema=self.of(name).schema,
                inbox=self._inbox_of(vertex.name, name),
            )
            for index, name in enumerate(vertex.inputs)
        }

    def _apply(self, vertex: Vertex, step: GraphStep, inputs: list[DataFrame]) -> DataFrame:
        if step.kind is StepKind.UNION:
            union = inputs[0]
            for other in inputs[1:]:
                union = union.unionByName(other)
            return union
        if step.kind is StepKind.PROCESS:
            return self._processed(vertex, step, inputs[0])
        if step.enumerated:
            return self._enumerated(vertex, step)
        function = self._pipeline.functions[step.operator_id]
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

    def _enumerated(self, vertex: Vertex, step: GraphStep) -> DataFrame:
        schema = self._pipeline.operators[step.operator_id].operator.output_schema or ""
        try:
            control = self._control_input(vertex, schema)
        except Exception as error:
            raise PipelineError(
                f"Spark cannot read the schema {schema!r} of source {step.name!r}: {first_cause(error)}."
            ) from error
        return self._processed(vertex, step, control)

    def _processed(self, vertex: Vertex, step: GraphStep, frame: DataFrame) -> DataFrame:
        try:
            return self._operators[vertex.name].apply(step, frame)
        except WeirError:
            raise
        except Exception as error:
            raise PipelineError(
                f"The operator of step {step.name!r} cannot run in Spark's workers: {first_cause(error)}. Give it a valid"
                " output_schema, and hold what cannot be pickled (locks, connections) only from its open() on."
            ) from error

    def _control_input(self, vertex: Vertex, schema: StructType | str) -> DataFrame:
        control_input = ControlInput.of_vertex(vertex.name)
        self._session.dataSource.register(control_input)
        reader = self._session.readStream.format(control_input.name()).schema(schema)
        options = {
            "directory": self._planning_directory,
            "vertex": vertex.name,
            "attempt": str(self._attempt),
        }
        return reader.options(**options).load()
