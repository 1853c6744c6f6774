"""The graph of steps that a user builds, and how it is cut into vertices.

A vertex is a tree of chained steps that ends in one step, and runs as one task. Where it is cut a *channel* stands: the
vertex before it writes, each vertex behind it reads. A step ends a vertex if

1. its output feeds a further step and anything else, another step or a sink: one query has one output (PROTOCOL P1);
2. the user asks for it (``start_new_chain``, ``disable_chaining``);
3. the step behind it could not share a query with it: bounded and unbounded sources never share one (P33), nor do a source
   and a channel, since what a task may read of its channels is decided in each planning call, and what Spark reads of its
   own sources is not;
4. only sinks follow.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from weir.core.types import OperatorId, OperatorState, VertexId
from weir.errors import PipelineError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class StepKind(enum.Enum):
    """What a step does."""

    SOURCE = "source"
    TRANSFORM = "transform"
    UNION = "union"
    SINK = "sink"


class ChainEnd(enum.Enum):
    """Why a vertex ends with its last step. Of several reasons it is the first in this order that counts."""

    ONLY_SINKS = "only sinks follow"
    SEVERAL_READERS = "its output feeds several"
    ASKED_FOR = "start_new_chain() or disable_chaining() asks for it"
    BOUNDED_MEETS_UNBOUNDED = "behind it bounded meets unbounded"
    SOURCE_MEETS_CHANNEL = "behind it a source meets a channel"


@dataclass(frozen=True, kw_only=True)
class GraphStep:
    """One named step. ``inputs`` are the names of the steps that it reads, in order."""

    name: OperatorId
    kind: StepKind
    inputs: tuple[OperatorId, ...] = ()
    #: Of a source: whether its input ends.
    bounded: bool = False
    #: Whether it may share a vertex with the steps that it reads, and with the step that reads it.
    chains_backward: bool = True
    chains_forward: bool = True


@dataclass(frozen=True, kw_only=True)
class Vertex:
    """A chain of steps that runs as one task. Named after its last step, on which its sinks hang."""

    name: VertexId
    #: Sources, transformations and unions in an order in which inputs come first. An input that is no step of the vertex
    #: is the vertex of that name, read through its channel.
    steps: tuple[GraphStep, ...]
    sinks: tuple[OperatorId, ...]
    #: Whether its records end by themselves.
    bounded: bool
    end: ChainEnd
    #: Vertices whose channels it reads, in the order of their first use. A vertex with inputs has no sources.
    inputs: tuple[VertexId, ...] = ()

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

    def is_source(self, name: OperatorId) -> bool:
        """Whether the step is a source."""
        return self._steps[name].kind is StepKind.SOURCE

    def cut(self, name: OperatorId, *, before: bool = False, behind: bool = False) -> None:
        """Begin a vertex with a step (``before``) or end one with it (``behind``)."""
        step = self._steps[name]
        self._steps[name] = replace(
            step,
            chains_backward=step.chains_backward and not before,
            chains_forward=step.chains_forward and not behind,
        )

    def vertices(self) -> tuple[Vertex, ...]:
        """The vertices, each behind those whose channels it reads. Raises ``PipelineError`` if the graph cannot run."""
        if not any(step.kind is StepKind.SOURCE for step in self._steps.values()):
            raise PipelineError("The job has no source: begin with job.source(name, function).")
        readers = self._readers()
        ends = self._ends(readers)
        bounded: dict[OperatorId, bool] = {}
        vertices = []
        for step in self._steps.values():
            bounded[step.name] = step.bounded or (
                bool(step.inputs) and all(bounded[name] for name in step.inputs)
            )
            if step.name in ends:
                sinks = tuple(reader.name for reader in readers[step.name] if reader.kind is StepKind.SINK)
                vertices.append(self._vertex(step, sinks, ends, bounded[step.name]))
        return tuple(vertices)

    def _readers(self) -> dict[OperatorId, list[GraphStep]]:
        """What reads each step that is no sink."""
        readers: dict[OperatorId, list[GraphStep]] = {
            step.name: [] for step in self._steps.values() if step.kind is not StepKind.SINK
        }
        for step in self._steps.values():
            for name in dict.fromkeys(step.inputs):
                readers[name].append(step)
        for name, found in readers.items():
            if not found:
                raise PipelineError(
                    f"The output of step {name!r} goes nowhere: give it a sink, or remove the step."
                )
        return readers

    def _ends(self, readers: dict[OperatorId, list[GraphStep]]) -> dict[OperatorId, ChainEnd]:
        """The steps that end a vertex, and why. Steps stand in an order in which inputs come first."""
        ends: dict[OperatorId, ChainEnd] = {}
        for name, found in readers.items():
            if all(reader.kind is StepKind.SINK for reader in found):
                ends[name] = ChainEnd.ONLY_SINKS
            elif len(found) > 1:
                ends[name] = ChainEnd.SEVERAL_READERS
        roots: dict[OperatorId, _Roots] = {}
        for name in readers:
            step = self._steps[name]
            if step.kind is StepKind.SOURCE:
                roots[name] = _Roots.BOUNDED if step.bounded else _Roots.UNBOUNDED
                continue
            for before in step.inputs:
                if not (step.chains_backward and self._steps[before].chains_forward):
                    ends.setdefault(before, ChainEnd.ASKED_FOR)
            met = {_Roots.CHANNELS if one in ends else roots[one] for one in step.inputs}
            if len(met) > 1:
                why = (
                    ChainEnd.BOUNDED_MEETS_UNBOUNDED
                    if met >= {_Roots.BOUNDED, _Roots.UNBOUNDED}
                    else ChainEnd.SOURCE_MEETS_CHANNEL
                )
                for one in step.inputs:
                    if roots[one] is not _Roots.CHANNELS:
                        ends.setdefault(one, why)
            roots[name] = _Roots.CHANNELS if ends.keys() & set(step.inputs) else roots[step.inputs[0]]
        return ends

    def _vertex(
        self, end: GraphStep, sinks: tuple[OperatorId, ...], ends: dict[OperatorId, ChainEnd], bounded: bool
    ) -> Vertex:
        steps: dict[OperatorId, GraphStep] = {}
        inputs: dict[VertexId, None] = {}

        def collect(step: GraphStep) -> None:
            for name in step.inputs:
                if name in ends:
                    inputs[name] = None
                elif name not in steps:
                    collect(self._steps[name])
            steps[step.name] = step

        collect(end)
        return Vertex(
            name=end.name,
            steps=tuple(steps.values()),
            sinks=sinks,
            bounded=bounded,
            end=ends[end.name],
            inputs=tuple(inputs),
        )


class _Roots(enum.Enum):
    """What the vertex of a step reads."""

    BOUNDED = enum.auto()
    UNBOUNDED = enum.auto()
    CHANNELS = enum.auto()
