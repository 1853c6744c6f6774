"""The graph of steps that a user builds, and how it becomes vertices.

Steps with one producer and one consumer are chained; a vertex is a whole tree of steps that ends in one step with
sinks, and runs as one task. A step whose output feeds a streaming consumer and anything else, another consumer or a
sink, would have to end a vertex and write a channel (PROTOCOL P1). Channels do not exist yet, so such a graph is refused
in one sentence.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

from weir.core.types import OperatorId, OperatorState, VertexId
from weir.errors import PipelineError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class StepKind(enum.Enum):
    """What a step does."""

    SOURCE = "source"
    TRANSFORM = "transform"
    UNION = "union"
    SINK = "sink"


@dataclass(frozen=True, kw_only=True)
class GraphStep:
    """One named step. ``inputs`` are the names of the steps that it reads, in order."""

    name: OperatorId
    kind: StepKind
    inputs: tuple[OperatorId, ...] = ()
    #: Of a source: whether its input ends.
    bounded: bool = False


@dataclass(frozen=True, kw_only=True)
class Vertex:
    """A chain of steps that runs as one task. Named after the step that its sinks hang on."""

    name: VertexId
    #: Sources, transformations and unions in an order in which inputs come first; the last one has the sinks.
    steps: tuple[GraphStep, ...]
    sinks: tuple[OperatorId, ...]
    bounded: bool

    @property
    def operators(self) -> tuple[OperatorState, ...]:
        """Its operators as the metadata of checkpoints names them, sinks included."""
        steps = [(step.name, step.kind) for step in self.steps]
        steps += [(sink, StepKind.SINK) for sink in self.sinks]
        return tuple(OperatorState(operator_id=name, name=_label(name, kind)) for name, kind in steps)


def source_names(operators: Iterable[OperatorState]) -> tuple[OperatorId, ...]:
    """The sources among the operators of a vertex, in their order, told by the label that ``Vertex.operators`` gave."""
    return tuple(
        operator.operator_id
        for operator in operators
        if operator.name == _label(operator.operator_id, StepKind.SOURCE)
    )


def _label(name: OperatorId, kind: StepKind) -> str:
    return f"{kind.value} {name}"


class JobGraph:
    """The steps of one job, checked as they are added."""

    def __init__(self) -> None:
        self._steps: dict[OperatorId, GraphStep] = {}

    def add(self, step: GraphStep) -> None:
        """Add a step; raises ``PipelineError`` if its name is taken or cannot be a name."""
        if not _NAME.fullmatch(step.name):
            raise PipelineError(
                f"The step name {step.name!r} cannot be used: take letters, digits, '_', '-' and '.',"
                " at most 100 of them, and begin with a letter or digit."
            )
        taken = self._steps.get(step.name)
        if taken is not None:
            raise PipelineError(
                f"Two steps are named {step.name!r} (a {taken.kind.value} and a {step.kind.value}):"
                " state is found by name, so give each step a name of its own."
            )
        self._steps[step.name] = step

    def vertices(self) -> tuple[Vertex, ...]:
        """The vertices, in the order in which their sources were defined."""
        if not any(step.kind is StepKind.SOURCE for step in self._steps.values()):
            raise PipelineError("The job has no source: begin with job.source(name, function).")
        consumers: dict[OperatorId, list[GraphStep]] = {name: [] for name in self._steps}
        for step in self._steps.values():
            for name in step.inputs:
                consumers[name].append(step)
        for name, readers in consumers.items():
            self._check_consumers(self._steps[name], readers)
        ends = [
            name
            for name, readers in consumers.items()
            if readers and all(reader.kind is StepKind.SINK for reader in readers)
        ]
        return tuple(self._vertex(name, tuple(reader.name for reader in consumers[name])) for name in ends)

    def _check_consumers(self, step: GraphStep, readers: list[GraphStep]) -> None:
        if step.kind is StepKind.SINK:
            return
        if not readers:
            raise PipelineError(
                f"The output of step {step.name!r} goes nowhere: give it a sink, or remove the step."
            )
        streaming = [reader.name for reader in readers if reader.kind is not StepKind.SINK]
        if streaming and len(readers) > 1:
            others = ", ".join(repr(reader.name) for reader in readers)
            raise PipelineError(
                f"Step {step.name!r} feeds {others}: a step that feeds a further step and anything else needs a"
                " channel between queries, which this version does not have. Read the source twice, once for each"
                " of them, as two sources with names of their own."
            )

    def _vertex(self, end: OperatorId, sinks: tuple[OperatorId, ...]) -> Vertex:
        steps: list[GraphStep] = []
        self._collect(self._steps[end], steps)
        sources = [step for step in steps if step.kind is StepKind.SOURCE]
        bounded = [step.name for step in sources if step.bounded]
        unbounded = [step.name for step in sources if not step.bounded]
        if bounded and unbounded:
            raise PipelineError(
                f"Step {end!r} joins the bounded source {bounded[0]!r} with the unbounded source"
                f" {unbounded[0]!r}, which cannot share a query: make both bounded or both unbounded."
            )
        return Vertex(name=end, steps=tuple(steps), sinks=sinks, bounded=bool(bounded))

    def _collect(self, step: GraphStep, into: list[GraphStep]) -> None:
        for name in step.inputs:
            self._collect(self._steps[name], into)
        into.append(step)
