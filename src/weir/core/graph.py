"""The graph of steps that a user builds, and how it is cut into vertices.

A vertex is a tree of chained steps with a common last step, and runs as one task. Between two
vertices is a *channel*: the upstream vertex writes it, each downstream vertex reads it. A step ends
a vertex if

1. its output feeds a further step and something else, another step or a sink: a query has one
   output (PROTOCOL P1);
2. the user asks for it (``start_new_chain``, ``disable_chaining``);
3. the next step cannot share a query with it:

   - bounded and unbounded sources never share a query (P33);
   - a source and a channel never do: each planning call decides what a task may read from
     its channels, but not what Spark reads from its own sources;
   - a source read by Python readers shares a query with no other input, since only the readers
     know when its records end;
   - rows of a Python operator go through a channel where they meet other rows;

4. only sinks follow.

A step has a *name*, which users see, and an *id*, by which its state is found after a restart: its
``uid`` if given, its name otherwise. A step that keeps its uid can therefore be renamed. A
vertex has the id of its last step. Names are unique, except that a sink may have the name of the
step that it writes; ids always are.

A source that meets a channel is therefore read by a vertex of its own, through a channel. The same
cut lets a bounded source meet an unbounded source.

A *rejects* step has the rows that other steps have set aside (``GraphStep.on_error``). They take
the channel of the vertex in which that happens, whichever of its steps it is, so they cut no chain.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from weir.core.types import NAME, OperatorId, OperatorState, VertexId
from weir.errors import PipelineError

_NAME = re.compile(NAME)

#: The main output of a step, where a side output has its tag.
MAIN_OUTPUT = ""


class StepKind(enum.Enum):
    """What a step does."""

    SOURCE = "source"
    TRANSFORM = "transform"
    UNION = "union"
    PROCESS = "process"
    REJECTS = "rejects"
    SINK = "sink"


class ChainEnd(enum.Enum):
    """Why a vertex ends with its last step. If several reasons apply, the first checked is kept."""

    ONLY_SINKS = "only sinks follow"
    SEVERAL_READERS = "several steps read its output"
    ASKED_FOR = "start_new_chain() or disable_chaining() cuts the chain"
    BOUNDED_MEETS_UNBOUNDED = "downstream, bounded input meets unbounded input"
    SOURCE_MEETS_CHANNEL = "downstream, a source meets a channel"
    PROCESSED_MEETS_OTHERS = "downstream, a Python operator's rows meet others"
    CONNECTED = "a connected operator reads it"
    READERS_MEET_OTHERS = "downstream, a source with its own readers meets another input"


@dataclass(frozen=True, kw_only=True)
class GraphStep:
    """One named step; ``inputs`` are the ids of the steps it reads, in order."""

    name: str
    kind: StepKind
    inputs: tuple[OperatorId, ...] = ()
    #: The side output that it reads of each input, in the same order, ``MAIN_OUTPUT`` for the main
    #: one; empty: the main outputs.
    tags: tuple[str, ...] = ()
    #: Replaces the name when state is matched; None: the name is used.
    uid: OperatorId | None = None
    #: How many state partitions it asks for; None: as configured.
    parallelism: int | None = None
    #: For a source: whether its input ends, and whether it is read by Python readers with a split
    #: enumerator instead of by Spark.
    bounded: bool = False
    enumerated: bool = False
    #: For an unbounded source: whether only what it has at the start of an attempt is read.
    available_now: bool = False
    #: Whether those readers say themselves when a checkpoint is due (MISSION B4).
    externally_induced: bool = False
    #: After how long without rows it is idle, in milliseconds; None: never.
    idle_after_ms: int | None = None
    #: Whether its query emits what changed instead of what is final (Spark's update mode).
    emits_updates: bool = False
    #: The rejects step that gets the rows on which it raises; None: an error fails the job.
    on_error: OperatorId | None = None
    #: Whether it may share a vertex with the steps it reads, and with the step that reads it.
    chains_backward: bool = True
    chains_forward: bool = True

    @property
    def operator_id(self) -> OperatorId:
        """The id by which its state is found."""
        return self.name if self.uid is None else self.uid

    @property
    def outputs_read(self) -> tuple[tuple[OperatorId, str], ...]:
        """The outputs that it reads: the step of each, and the side output's tag."""
        tags = self.tags or (MAIN_OUTPUT,) * len(self.inputs)
        return tuple(zip(self.inputs, tags, strict=True))

    @property
    def label(self) -> str:
        """Its label in checkpoint metadata and in the job view."""
        return f"{self.kind.value} {self.name}"


@dataclass(frozen=True, kw_only=True)
class Vertex:
    """A chain of steps that runs as one task, named by the id of its last step, which sinks read.

    A vertex that reads channels (``inputs``) has no sources.
    """

    name: VertexId
    #: Sources, transformations and unions, inputs first. An input that is not a step of the vertex
    #: is the vertex of that name, read through its channel.
    steps: tuple[GraphStep, ...]
    sinks: tuple[OperatorId, ...]
    #: The names of its sinks, in the same order.
    sink_names: tuple[str, ...]
    #: The side output of its last step that each sink takes, in the same order; ``MAIN_OUTPUT`` for
    #: the main output.
    sink_tags: tuple[str, ...]
    #: Whether all of its inputs end.
    bounded: bool
    end: ChainEnd
    #: Whether its input is what unbounded sources have at the start of an attempt.
    available_now: bool = False
    #: Vertices whose channels it reads, in order of first use.
    inputs: tuple[VertexId, ...] = ()
    #: How many state partitions its steps ask for; None: as configured.
    parallelism: int | None = None
    #: Those of its steps and inputs whose rows may replace earlier rows.
    updated: frozenset[OperatorId] = frozenset()

    @property
    def is_enumerated(self) -> bool:
        """Whether Python readers read its source; only they know when its records end."""
        return any(step.enumerated for step in self.steps)

    @property
    def emits_updates(self) -> bool:
        """Whether its query runs in Spark's update mode."""
        return any(step.emits_updates for step in self.steps)

    @property
    def rejects(self) -> tuple[OperatorId, ...]:
        """The rejects steps that get rows of this vertex, each once."""
        return tuple(dict.fromkeys(step.on_error for step in self.steps if step.on_error))

    @property
    def is_externally_induced(self) -> bool:
        """Whether the readers of its source say themselves when a checkpoint is due."""
        return any(step.externally_induced for step in self.steps)

    @property
    def idle_after_ms(self) -> int | None:
        """After how long without rows its only source is idle; None: never."""
        return next((step.idle_after_ms for step in self.steps if step.idle_after_ms), None)

    @property
    def operators(self) -> tuple[OperatorState, ...]:
        """Its operators as named in checkpoint metadata, sinks included."""
        sinks = zip(self.sinks, self.sink_names, strict=True)
        labels = [(step.operator_id, step.label) for step in self.steps]
        labels += [(sink, f"{StepKind.SINK.value} {name}") for sink, name in sinks]
        return tuple(
            OperatorState(operator_id=operator_id, name=label) for operator_id, label in labels
        )


def step_name(operator: OperatorState) -> str:
    """The name of an operator's step: its label without the kind."""
    return operator.name.partition(" ")[2] or operator.name


def source_names(operators: Iterable[OperatorState]) -> tuple[OperatorId, ...]:
    """The ids of the sources among a vertex's operators, in order, recognised by their labels."""
    return tuple(
        operator.operator_id
        for operator in operators
        if operator.name.startswith(f"{StepKind.SOURCE.value} ")
    )


class JobGraph:
    """The steps of one job, checked as they are added."""

    def __init__(self) -> None:
        self._steps: dict[OperatorId, GraphStep] = {}

    def add(self, step: GraphStep) -> None:
        """Add a step.

        Raises ``PipelineError`` if its name or uid is taken or invalid, or its parallelism is.
        """
        for what, value in (("name", step.name), ("uid", step.operator_id)):
            if not _NAME.fullmatch(value):
                raise PipelineError(
                    f"Invalid step {what} {value!r}: use at most 100 letters, digits, '_', '-' and"
                    " '.', starting with a letter or digit."
                )
        for taken in self._steps.values():
            self._check_distinct(taken, step)
        if step.parallelism is not None and (
            type(step.parallelism) is not int or step.parallelism < 1
        ):
            raise PipelineError(
                f"Step {step.name!r} has parallelism {step.parallelism!r}: it must be an integer"
                " of at least 1."
            )
        self._steps[step.operator_id] = step

    @staticmethod
    def _check_distinct(taken: GraphStep, step: GraphStep) -> None:
        kinds = f"(a {taken.kind.value} and a {step.kind.value})"
        if taken.name == step.name and step.kind is StepKind.SINK:
            if step.inputs == (taken.operator_id,):
                # A sink may have the name of the step that it writes, with an id of its own.
                if step.operator_id not in (taken.name, taken.operator_id):
                    return
            elif taken.kind is StepKind.SINK and taken.inputs == step.inputs:
                raise PipelineError(
                    f"Two sinks of one step are named {step.name!r}: give the second a name of its"
                    f" own, such as .sink({step.name + '_2'!r}, ...)."
                )
        if taken.name == step.name:
            raise PipelineError(
                f"Two steps are named {step.name!r} {kinds}: state is matched by name, so give"
                " each step a unique name."
            )
        shared = sorted({taken.name, taken.operator_id} & {step.name, step.operator_id})
        if shared:
            raise PipelineError(
                f"Steps {taken.name!r} and {step.name!r} {kinds} share the name or uid"
                f" {shared[0]!r}: state is matched by it, so make it unique."
            )

    def is_source(self, name: OperatorId) -> bool:
        """Whether the step is a source."""
        return self._steps[name].kind is StepKind.SOURCE

    def is_rejects(self, name: OperatorId) -> bool:
        """Whether the step has the rows that others have set aside."""
        return self._steps[name].kind is StepKind.REJECTS

    def has_updates(self, name: OperatorId) -> bool:
        """Whether rows of the step's output may replace earlier rows."""
        return name in self._updated()

    def _updated(self) -> frozenset[OperatorId]:
        """The steps whose rows may replace earlier rows: they or steps before them say so.

        The output of a Python operator is what the operator makes of its input.
        """
        found: set[OperatorId] = set()
        for name, step in self._steps.items():
            reads = step.kind is not StepKind.PROCESS and not found.isdisjoint(step.inputs)
            if step.emits_updates or reads:
                found.add(name)
        return frozenset(found)

    def cut(self, name: OperatorId, *, upstream: bool = False, downstream: bool = False) -> None:
        """Cut the chain upstream or downstream of a step."""
        step = self._steps[name]
        self._steps[name] = replace(
            step,
            chains_backward=step.chains_backward and not upstream,
            chains_forward=step.chains_forward and not downstream,
        )

    def vertices(self) -> tuple[Vertex, ...]:
        """The vertices, each after those whose channels it reads.

        Raises ``PipelineError`` if the graph cannot run.
        """
        if not any(step.kind is StepKind.SOURCE for step in self._steps.values()):
            raise PipelineError("The job has no source: start with job.source(name, function).")
        self._check_endless()
        readers = self._readers()
        ends = self._ends(readers)
        vertices = []
        for name in readers:
            if name in ends:
                sinks = [reader for reader in readers[name] if reader.kind is StepKind.SINK]
                vertices.append(self._vertex(self._steps[name], sinks, ends))
        return self._ordered(vertices)

    def _ordered(self, vertices: Iterable[Vertex]) -> tuple[Vertex, ...]:
        """The vertices, each after those whose channels it reads, which say whether it ends.

        Raises ``PipelineError`` if a vertex would read what is made of its own rejects.
        """
        found: dict[VertexId, Vertex] = {}
        waiting = {vertex.name: self._with_rejects(vertex, vertices) for vertex in vertices}
        while waiting:
            ready = next((one for one in waiting.values() if found.keys() >= {*one.inputs}), None)
            if ready is None:
                raise self._circle(waiting)
            del waiting[ready.name]
            sources = [step for step in ready.steps if step.kind is StepKind.SOURCE]
            bounded = all(one.bounded for one in (*sources, *map(found.get, ready.inputs)) if one)
            found[ready.name] = replace(
                ready, bounded=bounded, available_now=self.available_now and not bounded
            )
        return tuple(found.values())

    def _with_rejects(self, vertex: Vertex, vertices: Iterable[Vertex]) -> Vertex:
        """The vertex with the channels of those whose rejects it reads.

        Raises ``PipelineError`` if it reads the rejects of no step.
        """
        inputs = dict.fromkeys(vertex.inputs)
        for step in vertex.steps:
            if step.kind is StepKind.REJECTS:
                rejecting = [one.name for one in vertices if step.operator_id in one.rejects]
                if not rejecting:
                    raise PipelineError(
                        f"No step sets rows aside to {step.name!r}: pass it to one as on_error, or"
                        " remove it."
                    )
                inputs |= dict.fromkeys(rejecting)
        return replace(vertex, inputs=tuple(inputs))

    def _circle(self, waiting: Mapping[VertexId, Vertex]) -> PipelineError:
        """The error for vertices of which each waits for the rejects of another, or of its own."""
        step = next(
            step
            for vertex in waiting.values()
            for step in vertex.steps
            if step.on_error and any(step.on_error in _ids(one) for one in waiting.values())
        )
        rejects = self._steps[step.on_error or ""].name
        return PipelineError(
            f"Step {step.name!r} sets rows aside to {rejects!r}, and its query reads what is made"
            " of them: call start_new_chain() on the first step that reads both, or set these rows"
            " aside elsewhere."
        )

    @property
    def available_now(self) -> bool:
        """Whether the job reads what is available now, and then stops by itself."""
        return any(step.available_now for step in self._steps.values())

    @property
    def unbounded_sources(self) -> tuple[GraphStep, ...]:
        """The sources without an end."""
        return tuple(
            step
            for step in self._steps.values()
            if step.kind is StepKind.SOURCE and not step.bounded
        )

    def reading(self, *, available_now: bool) -> JobGraph:
        """The same graph, of whose unbounded sources what is available now is read, or all."""
        other, unbounded = JobGraph(), self.unbounded_sources
        other._steps = {
            name: replace(step, available_now=available_now and step in unbounded)
            for name, step in self._steps.items()
        }
        return other

    def _check_endless(self) -> None:
        """Raise ``PipelineError`` for a job that is to stop once it has read an endless source."""
        some = next((step for step in self._steps.values() if step.available_now), None)
        endless = next((step for step in self.unbounded_sources if not step.available_now), None)
        if some is not None and endless is not None:
            raise PipelineError(
                f"Source {some.name!r} has available_now=True, so the job stops once everything"
                f" there is has been read, but source {endless.name!r} has no end: give it"
                " available_now=True too, or bounded=True."
            )

    def _readers(self) -> dict[OperatorId, list[GraphStep]]:
        """The readers of each step that is not a sink."""
        readers: dict[OperatorId, list[GraphStep]] = {
            step.operator_id: [] for step in self._steps.values() if step.kind is not StepKind.SINK
        }
        for step in self._steps.values():
            for name in dict.fromkeys(step.inputs):
                readers[name].append(step)
        for name, found in readers.items():
            if not found:
                step = self._steps[name]
                raise PipelineError(
                    f"Nobody reads the rejects {step.name!r}: add a sink."
                    if step.kind is StepKind.REJECTS
                    else f"The output of step {step.name!r} is unused: add a sink or remove the"
                    " step."
                )
        return readers

    def _ends(self, readers: dict[OperatorId, list[GraphStep]]) -> dict[OperatorId, ChainEnd]:
        """The steps that end a vertex, and why. Relies on steps being ordered inputs first."""
        ends: dict[OperatorId, ChainEnd] = {}
        for name, found in readers.items():
            if all(reader.kind is StepKind.SINK for reader in found):
                ends[name] = ChainEnd.ONLY_SINKS
            elif len(found) > 1:
                ends[name] = ChainEnd.SEVERAL_READERS
        roots: dict[OperatorId, _Roots | OperatorId] = {}
        #: Steps whose query has a Python operator upstream of their output.
        processed: set[OperatorId] = set()
        for name in readers:
            step = self._steps[name]
            if not step.inputs:
                roots[name] = _root_of(step)
                continue
            if step.kind is StepKind.PROCESS and len(step.inputs) > 1:
                # Its inputs end one by one, and only a channel says when.
                for before in step.inputs:
                    ends.setdefault(before, ChainEnd.CONNECTED)
            for before in step.inputs:
                if not (step.chains_backward and self._steps[before].chains_forward):
                    ends.setdefault(before, ChainEnd.ASKED_FOR)
            _cut_after_operators(step, processed, ends)
            met = {_Roots.CHANNELS if before in ends else roots[before] for before in step.inputs}
            if len(met) > 1:
                for before in step.inputs:
                    if roots[before] is not _Roots.CHANNELS:
                        ends.setdefault(before, _why_cut(met))
            roots[name] = (
                _Roots.CHANNELS if ends.keys() & set(step.inputs) else roots[step.inputs[0]]
            )
        return ends

    def _vertex(
        self,
        end: GraphStep,
        sinks: list[GraphStep],
        ends: dict[OperatorId, ChainEnd],
    ) -> Vertex:
        """A vertex as its steps make it; ``_ordered`` adds what follows from others."""
        steps: dict[OperatorId, GraphStep] = {}
        inputs: dict[VertexId, None] = {}

        def collect(step: GraphStep) -> None:
            for name in step.inputs:
                if name in ends:
                    inputs[name] = None
                elif name not in steps:
                    collect(self._steps[name])
            steps[step.operator_id] = step

        collect(end)
        _check_idleness(steps.values())
        return Vertex(
            name=end.operator_id,
            steps=tuple(steps.values()),
            sinks=tuple(sink.operator_id for sink in sinks),
            sink_names=tuple(sink.name for sink in sinks),
            sink_tags=tuple(tag for sink in sinks for _, tag in sink.outputs_read),
            bounded=False,
            end=ends[end.operator_id],
            inputs=tuple(inputs),
            parallelism=_parallelism(steps.values()),
            updated=self._updated() & {*steps, *inputs},
        )


def _root_of(step: GraphStep) -> _Roots | OperatorId:
    """What a step without inputs reads: a source with its own readers shares a query with none."""
    if step.kind is StepKind.REJECTS:
        return _Roots.CHANNELS
    ordinary = _Roots.BOUNDED if step.bounded else _Roots.UNBOUNDED
    return step.operator_id if step.enumerated else ordinary


def _ids(vertex: Vertex) -> set[OperatorId]:
    return {step.operator_id for step in vertex.steps}


def _cut_after_operators(
    step: GraphStep, processed: set[OperatorId], ends: dict[OperatorId, ChainEnd]
) -> None:
    """Put a channel between a Python operator and a step with several inputs.

    Spark numbers a union's partitions consecutively across its inputs, but partition i must be
    subtask i. ``processed`` are the steps whose output comes from a Python operator in the same
    query.
    """
    after_operators = [name for name in step.inputs if name in processed]
    if len(step.inputs) > 1:
        for name in after_operators:
            ends.setdefault(name, ChainEnd.PROCESSED_MEETS_OTHERS)
    if step.kind is StepKind.PROCESS or any(name not in ends for name in after_operators):
        processed.add(step.operator_id)


def _check_idleness(steps: Iterable[GraphStep]) -> None:
    """Raise ``PipelineError`` for a source that may be idle beside another in one query."""
    sources = [step for step in steps if step.kind is StepKind.SOURCE]
    idle = next((step.name for step in sources if step.idle_after_ms is not None), None)
    if idle is not None and len(sources) > 1:
        other = next(step.name for step in sources if step.name != idle)
        raise PipelineError(
            f"Source {idle!r} has idle_after_ms, but shares a query with source {other!r}, and"
            " Spark has one watermark for a query, the lowest of its sources: cut the chain where"
            " they meet, with start_new_chain()."
        )


def _parallelism(steps: Iterable[GraphStep]) -> int | None:
    """The parallelism that the steps of a vertex ask for.

    They share one query, so they must agree. Raises ``PipelineError`` otherwise.
    """
    asking = {step.parallelism: step.name for step in steps if step.parallelism is not None}
    if len(asking) > 1:
        (first, name), (second, other), *_ = asking.items()
        raise PipelineError(
            f"Steps {name!r} and {other!r} share one query, but have parallelism {first} and"
            f" {second}: give both the same, or start a new query at {other!r} with"
            " start_new_chain()."
        )
    return next(iter(asking), None)


def _why_cut(met: set[_Roots | OperatorId]) -> ChainEnd:
    """Why inputs with these roots cannot share a vertex."""
    if any(not isinstance(root, _Roots) for root in met):
        return ChainEnd.READERS_MEET_OTHERS
    if met >= {_Roots.BOUNDED, _Roots.UNBOUNDED}:
        return ChainEnd.BOUNDED_MEETS_UNBOUNDED
    return ChainEnd.SOURCE_MEETS_CHANNEL


class _Roots(enum.Enum):
    """What the vertex of a step reads: bounded sources, unbounded sources or channels."""

    BOUNDED = enum.auto()
    UNBOUNDED = enum.auto()
    CHANNELS = enum.auto()
