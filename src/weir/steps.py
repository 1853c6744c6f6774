"""What a ``Job`` consists of, for those who run it. Not public: users see ``weir.job``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.coordinators.base import OperatorCoordinator
from weir.core.graph import JobGraph, Vertex
from weir.core.types import OperatorId
from weir.durable.hooks import CheckpointListener, MasterHook, listener_of
from weir.operators.base import Operator
from weir.sinks.base import Sink

if TYPE_CHECKING:
    from weir.job import Job


@dataclass(frozen=True, kw_only=True)
class ProcessFunction:
    """The arguments of ``Stream.process``, or the two sides of a source from ``weir.sources``."""

    operator: Operator
    coordinator: OperatorCoordinator | None
    parallelism: int | None
    #: The columns of the key in each input; empty without a key.
    key_by: tuple[tuple[str, ...], ...]


class Steps:
    """The graph of a job's steps, with the user's code by step id."""

    def __init__(self) -> None:
        self.graph = JobGraph()
        #: Of sources and transformations.
        self.functions: dict[OperatorId, Callable[..., Any]] = {}
        #: Python operators, source readers included.
        self.operators: dict[OperatorId, ProcessFunction] = {}
        self.sinks: dict[OperatorId, Sink] = {}
        #: By identifier.
        self.hooks: dict[str, MasterHook] = {}

    def vertices(self) -> tuple[Vertex, ...]:
        """The vertices that the steps are chained into.

        Raises ``PipelineError`` if the graph cannot run.
        """
        return self.graph.vertices()

    def listeners(self, vertex: Vertex) -> tuple[CheckpointListener, ...]:
        """The checkpoint listeners among the functions of a vertex, in chain order."""
        functions = (self.functions.get(step.operator_id) for step in vertex.steps)
        found = (listener_of(function) for function in functions if function is not None)
        return tuple(listener for listener in found if listener is not None)


def steps_of(job: Job) -> Steps:
    """The steps that were added to a job."""
    return job._steps
