"""What a ``Job`` consists of, for those who run it. Not public: users see ``weir.job``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from weir.coordinators.base import OperatorCoordinator
from weir.core.graph import JobGraph, Vertex
from weir.core.task.plan import TaskPlan
from weir.core.types import Fingerprint, OperatorId
from weir.durable.changes import DeclaredOperator, declared
from weir.durable.hooks import CheckpointListener, MasterHook, listener_of
from weir.errors import PipelineError
from weir.operators.base import Operator, overrides, takes_part
from weir.sinks.base import Sink
from weir.sources.base import check_available_now
from weir.sources.coordinator import SourceCoordinator
from weir.storage.paths import is_utf8
from weir.subtasks.chain import process_steps


@dataclass(frozen=True, kw_only=True)
class ProcessFunction:
    """The arguments of ``Stream.process``, or the two sides of a source from ``weir.sources``."""

    operator: Operator
    coordinator: OperatorCoordinator | None
    parallelism: int | None
    #: The columns of the key in each input; empty without a key.
    key_by: tuple[tuple[str, ...], ...]
    #: What a source from ``weir.sources`` reads and how it makes its watermark.
    reads: Fingerprint | None = None
    #: How many splits of such a source no reader had at the end of the job; None if nobody knows.
    unassigned: Callable[[], int | None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What a job declares for ``weir sim``: see ``Job.simulation``."""

    rows: Mapping[str, Any] = field(default_factory=dict)
    event_time: Mapping[str, str] = field(default_factory=dict)
    visible: Mapping[str, Callable[[Sink], Iterable[Any]]] = field(default_factory=dict)


def checked_name(name: str) -> str:
    """The name. Raises ``PipelineError`` if no job can have it."""
    if not name.strip():
        raise PipelineError("A job needs a name: weir.Job('orders').")
    if not is_utf8(name):
        raise PipelineError(
            f"The job name {name!r} is not UTF-8 text: choose another, such as 'orders'."
        )
    return name


class JobDefinition:
    """A job's name and settings, and the graph of its steps with the user's code by step id."""

    def __init__(self, name: str, conf: Mapping[str, str | float | bool]) -> None:
        self.name = name
        self.conf = dict(conf)
        self.graph = JobGraph()
        #: Of sources and transformations.
        self.functions: dict[OperatorId, Callable[..., Any]] = {}
        #: Python operators, source readers included.
        self.operators: dict[OperatorId, ProcessFunction] = {}
        self.sinks: dict[OperatorId, Sink] = {}
        #: Of sinks that do not commit at every completed checkpoint.
        self.commit_intervals_ms: dict[OperatorId, int] = {}
        #: By identifier.
        self.hooks: dict[str, MasterHook] = {}
        self.simulation = Simulation()

    def named(self, name: str) -> JobDefinition:
        """The same job under another name. Raises ``PipelineError`` if it cannot be a name."""
        renamed = copy(self)
        renamed.name = checked_name(name)
        return renamed

    def vertices(self) -> tuple[Vertex, ...]:
        """The vertices that the steps are chained into.

        Raises ``PipelineError`` if the graph cannot run.
        """
        return self.graph.vertices()

    def reading(self, *, available_now: bool) -> JobDefinition:
        """The same job, of whose unbounded sources what is available now is read, or all.

        Raises ``PipelineError`` if a source cannot say what is available.
        """
        other = copy(self)
        other.graph = self.graph.reading(available_now=available_now)
        other.operators = dict(self.operators)
        for step in self.graph.unbounded_sources:
            function = self.operators.get(step.operator_id)
            if function is not None and isinstance(function.coordinator, SourceCoordinator):
                source = function.coordinator.source
                if available_now:
                    check_available_now(step.name, source)
                coordinator = SourceCoordinator(source, available_now=available_now)
                other.operators[step.operator_id] = replace(
                    function,
                    coordinator=coordinator,
                    unassigned=partial(getattr, coordinator, "unassigned"),
                )
        return other

    def listeners(self, vertex: Vertex) -> tuple[CheckpointListener, ...]:
        """The checkpoint listeners among the functions of a vertex, in chain order."""
        functions = (self.functions.get(step.operator_id) for step in vertex.steps)
        found = (listener_of(function) for function in functions if function is not None)
        return tuple(listener for listener in found if listener is not None)


def accept_lost_rows(definition: JobDefinition, steps: Collection[str]) -> None:
    """Set which sources that Weir reads go on without rows that are gone, by name or id."""
    for operator_id, declaration in declared_operators(definition).items():
        function = definition.operators.get(operator_id)
        if function is not None and isinstance(function.coordinator, SourceCoordinator):
            known = {operator_id, declaration.name}
            function.coordinator.source.accepts_lost_rows = not known.isdisjoint(steps)


def declared_operators(definition: JobDefinition) -> dict[OperatorId, DeclaredOperator]:
    """The operators of all vertices, with what is known of them without a JVM."""
    return {
        operator.operator_id: DeclaredOperator(
            operator_id=operator.operator_id,
            label=operator.name,
            is_source=definition.graph.is_source(operator.operator_id),
            is_sink=operator.operator_id in definition.sinks,
            fingerprint=_fingerprint(definition, operator.operator_id),
        )
        for vertex in definition.vertices()
        for operator in vertex.operators
    }


def _fingerprint(definition: JobDefinition, name: OperatorId) -> Fingerprint | None:
    if name in definition.sinks:
        return declared(identity=definition.sinks[name].identity())
    function = definition.operators.get(name)
    if function is None:
        return None
    if function.reads is not None:
        return function.reads
    keys = " and ".join(", ".join(columns) for columns in function.key_by)
    return declared(expressions=[f"key by {keys}"] if keys else [])


def task_plan(
    definition: JobDefinition, vertex: Vertex, aligned_timeout_ms: int | None
) -> TaskPlan:
    """What the core must know of a vertex."""
    processing = [definition.operators[name] for name in process_steps(vertex)]
    parts: list[CheckpointListener | Operator | Sink] = [
        *(step.operator for step in processing),
        *definition.listeners(vertex),
        *(definition.sinks[name] for name in vertex.sinks),
    ]
    return TaskPlan(
        vertex=vertex.name,
        operators=tuple(
            replace(operator, fingerprint=_fingerprint(definition, operator.operator_id))
            for operator in vertex.operators
        ),
        sinks=vertex.sinks,
        bounded=vertex.bounded,
        available_now=vertex.available_now and not vertex.inputs,
        requires_final_checkpoint=any(part.requires_final_checkpoint for part in parts),
        inputs=vertex.inputs,
        aligned_timeout_ms=aligned_timeout_ms,
        has_operators=bool(processing),
        prepares_for_barriers=any(
            overrides(step.operator, "prepare_snapshot_pre_barrier") for step in processing
        ),
        operators_take_part=any(takes_part(step.operator) for step in processing),
        idle_after_ms=vertex.idle_after_ms,
        has_own_readers=vertex.is_enumerated,
        externally_induced=vertex.is_externally_induced,
        coordinated=any(step.coordinator is not None for step in processing),
        commit_intervals_ms={
            name: definition.commit_intervals_ms[name]
            for name in vertex.sinks
            if name in definition.commit_intervals_ms
        },
    )
