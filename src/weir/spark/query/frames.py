"""``Frames``: the plans of one attempt's queries, built from the user's functions (MISSION F3).

A vertex that reads sources gets the control input in front of its first source; a vertex that reads
channels gets it in front of each channel (``channel_frame``). For a source with a split enumerator
the control input is all of Spark's input: the source's readers bring the rows, and it brings their
watermark, as a channel's. Each vertex is built once, even if it has finished and is not started
again: a query that reads its channel needs its output schema.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from weir.core.graph import GraphStep, StepKind, Vertex
from weir.core.types import Fingerprint, OperatorId, VertexId
from weir.durable.changes import declared
from weir.errors import PipelineError, WeirError
from weir.expectations import Expectations
from weir.monitoring.log_lines import place
from weir.operators.output import rejects_tag
from weir.runtime.concurrency import Clock
from weir.sources.operator import SourceOperator
from weir.spark.channels import (
    channel_frame,
    check_channel_schema,
    event_time,
    source_frame,
    with_event_time,
)
from weir.spark.control_input import CHANNEL_SCHEMA
from weir.spark.failures import first_cause, read_error
from weir.spark.java import Jvm
from weir.spark.kafka.connector import packages_option
from weir.spark.kafka.topics import KafkaPlace
from weir.spark.operators.outputs import declared_schema, output_of
from weir.spark.operators.subtasks import SparkSubtasks
from weir.spark.pipeline import Pipeline
from weir.spark.query.inputs import OnCall, QueryInputs
from weir.spark.query.plan_checks import check_result, check_source
from weir.spark.query.source_leaves import read_identity, streaming_leaves
from weir.spark.quiet import without_pyspark_log
from weir.spark.rejects.expected import kept
from weir.spark.rejects.gathered import GatheredRejects, rejects_schema
from weir.spark.rejects.guard import Guarding
from weir.spark.rejects.observation import GuardedStep
from weir.spark.state.plan_layout import (
    CONTROL,
    PlanLayout,
    PlanMarks,
    channel_of,
    channel_owner,
)
from weir.spark.state.plan_words import PlanWords
from weir.subtasks.chain import OperatorChain, process_steps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_log = logging.getLogger(__name__)


class Frames:
    """The streaming DataFrames of one attempt, by vertex."""

    def __init__(
        self,
        *,
        session: SparkSession,
        pipeline: Pipeline,
        on_call: OnCall,
        token: str,
        clock: Clock,
    ) -> None:
        """``on_call`` is called for every planning call.

        ``token`` names the attempt uniquely among all that a Python worker may see.
        """
        self._session = session
        self._pipeline = pipeline
        self._lock = threading.RLock()
        self._jvm = Jvm(session)
        self._inputs = {
            name: QueryInputs(self._jvm, vertex, on_call)
            for name, vertex in pipeline.vertices.items()
        }
        self._frames: dict[VertexId, DataFrame] = {}
        self._layouts: dict[VertexId, PlanLayout | None] = {}
        self._marks: dict[VertexId, PlanMarks] = {}
        self._words: dict[VertexId, PlanWords] = {}
        #: The steps that set rows aside or count them, by vertex.
        self._guarded: dict[VertexId, list[GuardedStep]] = {}
        #: The sources' own frames.
        self._sources: dict[OperatorId, DataFrame] = {}
        steps = {
            name: {step: pipeline.operators[step] for step in process_steps(vertex)}
            for name, vertex in pipeline.vertices.items()
            if process_steps(vertex)
        }
        self._subtasks = {
            name: SparkSubtasks(
                session,
                pipeline.vertices[name],
                of_vertex,
                pipeline.log_form,
                pipeline.rejects_max,
            )
            for name, of_vertex in steps.items()
        }
        self._operators = {
            name: OperatorChain(
                pipeline.vertices[name],
                steps[name],
                subtasks=subtasks,
                token=token,
                clock=clock,
            )
            for name, subtasks in self._subtasks.items()
        }

    def of(self, name: VertexId) -> DataFrame:
        """The output of the vertex. Raises ``PipelineError`` if the user's code is wrong."""
        with self._lock:
            frame = self._frames.get(name)
            if frame is None:
                frame = self._frames[name] = self._build(self._pipeline.vertices[name])
            return frame

    def built(self, name: VertexId) -> DataFrame | None:
        """The output of the vertex, if it is built. Unlike ``of``, it calls no user code."""
        return self._frames.get(name)

    def source(self, step: OperatorId) -> DataFrame | None:
        """What a source's function returned, if it was called."""
        return self._sources.get(step)

    def layout(self, name: VertexId) -> PlanLayout | None:
        """Which step owns what in the plan of the vertex; None if that is not known."""
        with self._lock:
            self.of(name)
            return self._layouts[name]

    def kafka_places(self, name: VertexId) -> tuple[KafkaPlace, ...]:
        """Where the plan of a vertex reads Kafka; none if its layout is not known."""
        layout = self.layout(name)
        inputs = () if layout is None else layout.inputs
        steps = {step.operator_id: step.name for step in self._pipeline.vertices[name].steps}
        # Other vertices are built meanwhile, so nothing goes through all sources.
        leaves = {
            owner: streaming_leaves(frame)
            for owner in steps
            if (frame := self._sources.get(owner)) is not None
        }
        found = []
        for number, one in enumerate(inputs):
            own = sorted({other.number for other in inputs if other.owner == one.owner})
            of_owner = leaves.get(one.owner, [])
            if not of_owner or len(own) != len(of_owner):
                continue
            source, options = of_owner[own.index(one.number)]
            if source == "kafka":
                step = steps[one.owner]
                found.append(KafkaPlace(step=one.owner, name=step, number=number, options=options))
        return tuple(found)

    def fingerprints(self, name: VertexId) -> dict[OperatorId, Fingerprint]:
        """What Spark's plan says of the steps of a vertex (``durable/changes.py``).

        Without steps that Python workers run. Empty if the plan cannot be read.
        """
        with self._lock:
            self.of(name)
            if self._layouts[name] is None:
                return {}
            engine = f"Spark {self._session.version}"
            try:
                found = self._words_of(name).expressions() if self._marks[name].has_words else {}
                return {
                    step.operator_id: declared(
                        identity=self._identity(step),
                        expressions=found.get(step.operator_id, ()),
                        engine=engine,
                    )
                    for step in self._pipeline.vertices[name].steps
                    if step.operator_id in self._pipeline.functions or step.kind is StepKind.UNION
                }
            except Exception:
                # The job runs as well without.
                _log.warning("Cannot say in words what the steps of %r do.", name, exc_info=True)
                return {}

    def rejects(self, name: VertexId) -> GatheredRejects:
        """What the steps of the vertex set aside in its batches."""
        return GatheredRejects(self._jvm, self._guarded[name], self._pipeline.rejects_max)

    def operators(self, name: VertexId) -> OperatorChain | None:
        """The Python operators of a vertex; None if it has none."""
        return self._operators.get(name)

    def inputs(self, name: VertexId) -> QueryInputs:
        """The inputs that Weir adds to the query of a vertex."""
        return self._inputs[name]

    def release(self) -> None:
        """Release the inputs, and the plans that read them, in Java: the attempt has ended."""
        for inputs in self._inputs.values():
            inputs.release()

    def _identity(self, step: GraphStep) -> str:
        frame = self._sources.get(step.operator_id)
        return "" if frame is None or step.enumerated else read_identity(frame)

    def _words_of(self, name: VertexId) -> PlanWords:
        words = self._words.get(name)
        if words is None:
            words = self._words[name] = self._marks[name].words(self.of(name), self._column)
        return words

    def _column(self, owner: str, column: str) -> str | None:
        """What a column of a channel is made of in its producer's plan."""
        producer = channel_of(owner)
        return None if producer is None else self._words_of(producer).column(column)

    def _build(self, vertex: Vertex) -> DataFrame:
        # User code may ask for the active session, and without one PySpark does not record where
        # an expression was written.
        self._jvm.activate_session()
        marks = PlanMarks(self._jvm)
        frames = self._channels(vertex, marks)
        self._guarded[vertex.name] = []
        needs_control = not vertex.inputs
        for step in vertex.steps:
            if step.kind is StepKind.REJECTS:
                inputs = [
                    output_of(frames[name], rejects_tag(step.operator_id))
                    for name in self._rejecting(vertex, step)
                ]
            else:
                inputs = [output_of(frames[name], tag) for name, tag in step.outputs_read]
            frame = self._apply(vertex, step, inputs)
            marks.mark(step.operator_id, frame)
            if step.kind is StepKind.SOURCE:
                self._sources[step.operator_id] = frame
            if step.kind is StepKind.SOURCE and needs_control and not step.enumerated:
                # One control input, in front of the first source. It has no rows, and has the
                # source's schema with its column metadata (PROTOCOL P26).
                control = self._inputs[vertex.name].control(frame.schema)
                marks.mark(CONTROL, control)
                frame = control.union(frame)
                needs_control = False
            frames[step.operator_id] = frame
        frame = frames[vertex.name]
        layout = self._layouts[vertex.name] = marks.layout(frame)
        self._marks[vertex.name] = marks
        if layout is not None:
            _check_updates(vertex, layout)
        if self._pipeline.row_readers(vertex.name):
            check_channel_schema(vertex.name, frame.schema)
        return frame

    def _channels(self, vertex: Vertex, marks: PlanMarks) -> dict[OperatorId, DataFrame]:
        inputs = self._inputs[vertex.name]
        schemas = {name: self._channel_schema(vertex, name) for name in vertex.inputs}
        if not schemas:
            return {}
        control = inputs.control(CHANNEL_SCHEMA)
        marks.mark(CONTROL, control)
        frames = {}
        for index, (name, schema) in enumerate(schemas.items()):
            segments = inputs.segments(name, schema)
            marks.mark(channel_owner(name), segments)
            frames[name] = channel_frame(control, segments, index=index, schema=schema)
            marks.mark(channel_owner(name), frames[name])
        return frames

    def _channel_schema(self, vertex: Vertex, name: VertexId) -> StructType:
        """The columns of a channel that the vertex reads."""
        from pyspark.sql.types import StructType

        rows = self.of(name).schema
        producer = self._pipeline.vertices[name]
        if not producer.rejects:
            return rows
        own = {step.operator_id for step in vertex.steps if step.kind is StepKind.REJECTS}
        rejects = rejects_schema([one for one in producer.rejects if one in own])
        if vertex.name not in self._pipeline.row_readers(name):
            return rejects
        known = [one for one in rejects.fields if one.name not in rows.names]
        return StructType([*rows.fields, *known])

    def _rejecting(self, vertex: Vertex, step: GraphStep) -> list[VertexId]:
        """The vertices whose rejects a step has."""
        vertices = self._pipeline.vertices
        return [name for name in vertex.inputs if step.operator_id in vertices[name].rejects]

    def _apply(self, vertex: Vertex, step: GraphStep, inputs: list[DataFrame]) -> DataFrame:
        if step.kind in (StepKind.UNION, StepKind.REJECTS):
            union = inputs[0]
            for other in inputs[1:]:
                union = union.unionByName(other)
            return union
        if step.kind is StepKind.PROCESS:
            if step.on_error is not None:
                operator = GuardedStep(step=step, event_time=event_time(inputs[0].schema))
                self._guarded[vertex.name].append(operator)
            return self._processed(vertex, step, inputs)
        if step.enumerated:
            return self._enumerated(vertex, step)
        function = self._pipeline.functions[step.operator_id]
        if isinstance(function, Expectations):
            frame, expected = kept(self._jvm, step, inputs[0], function, self._pipeline.rejects_max)
            self._guarded[vertex.name].append(expected)
            return frame
        arguments = [self._session] if step.kind is StepKind.SOURCE else inputs
        guarding = None
        if step.on_error is not None:
            guarding = Guarding(self._jvm, step, inputs[0], self._pipeline.rejects_max)
        with place(task=vertex.name, step=step.operator_id):
            frame = _called(step.name, function, *arguments)
        if step.kind is StepKind.SOURCE:
            return check_source(step.name, frame)
        frame = check_result(step.name, frame)
        if guarding is not None:
            frame, guarded = guarding.guarded(frame)
            self._guarded[vertex.name] += [] if guarded is None else [guarded]
        return frame

    def _enumerated(self, vertex: Vertex, step: GraphStep) -> DataFrame:
        operator = self._pipeline.operators[step.operator_id].operator
        schema = declared_schema(step, operator.output_schema or "")
        # Spark asks it for each batch, and gets the watermark from it: nobody reads its rows.
        control = self._inputs[vertex.name].control(CHANNEL_SCHEMA)
        rows = self._processed(vertex, step, [control.filter(F.spark_partition_id() < 0)])
        watermarks = operator.watermarks if isinstance(operator, SourceOperator) else None
        if watermarks is None:
            return rows
        timed = with_event_time(step, schema, watermarks.column)
        return source_frame(control, rows, schema=timed)

    def _processed(self, vertex: Vertex, step: GraphStep, inputs: list[DataFrame]) -> DataFrame:
        try:
            chain = self._operators[vertex.name]
            return self._subtasks[vertex.name].apply(step, inputs, chain)
        except WeirError:
            raise
        except Exception as error:
            raise PipelineError(
                f"The operator of step {step.name!r} cannot run in Spark's workers:"
                f" {first_cause(error)}. Check its output_schema, and acquire what cannot be"
                " pickled (locks, connections) in open()."
            ) from error


def _check_updates(vertex: Vertex, layout: PlanLayout) -> None:
    """Raise ``PipelineError`` if a stateful step would count changed rows as new rows."""
    kept = {operator.step: operator.kind for operator in layout.operators}
    for step in vertex.steps:
        if step.operator_id in kept and vertex.updated & set(step.inputs):
            raise PipelineError(
                f"Step {step.name!r} keeps state in Spark ({kept[step.operator_id]}) and reads"
                " updates, so it would take each change of a row for a new row: aggregate after a"
                " watermark (withWatermark) instead of with output_mode='update', or use a Python"
                " operator (Stream.process), which recognizes a change by its key."
            )


def source_fingerprints(
    session: SparkSession, functions: Mapping[OperatorId, Callable[..., Any]]
) -> dict[OperatorId, Fingerprint]:
    """What sources that Spark reads would read now, without a query.

    Raises ``PipelineError`` if the user's code is wrong.
    """
    Jvm(session).activate_session()
    return {
        name: declared(identity=read_identity(check_source(name, _called(name, function, session))))
        for name, function in functions.items()
    }


def plan_layouts(
    session: SparkSession, pipeline: Pipeline, clock: Clock
) -> dict[VertexId, PlanLayout | None]:
    """Which step owns what in each plan of the pipeline, before any attempt has begun.

    Raises ``PipelineError`` if the user's code is wrong.
    """
    frames = Frames(
        session=session,
        pipeline=pipeline,
        on_call=lambda vertex, call: None,
        token="layouts",
        clock=clock,
    )
    try:
        return {name: frames.layout(name) for name in pipeline.vertices}
    finally:
        frames.release()


def _called(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of the function of a step. Raises ``PipelineError`` if it raises."""
    try:
        with without_pyspark_log():
            return function(*arguments)
    except WeirError:
        raise
    except Exception as error:
        raise PipelineError(
            f"The function of step {name!r} raised {_described(error)}. {_way(error)}"
        ) from error


def _way(error: Exception) -> str:
    if "data source: kafka" not in str(error):
        return "Fix it and run again."
    return f"Give Spark's connector with --packages {packages_option()}."


def _described(error: Exception) -> str:
    """What the user's function raised, and on which line."""
    read = read_error(error)
    return read.said if read.place is None else f"{read.said} (in {read.place})"
