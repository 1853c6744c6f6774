"""The job as the task port gets it: its graph with functions and sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weir.core.graph import Vertex
from weir.core.types import OperatorId, VertexId
from weir.operators.base import Operator
from weir.sinks.base import Sink


@dataclass(frozen=True, kw_only=True)
class ProcessStep:
    """The arguments of ``Stream.process``."""

    operator: Operator
    #: The number of subtasks.
    parallelism: int
    key_by: tuple[str, ...]
    has_coordinator: bool


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The user's graph, functions and sinks."""

    vertices: Mapping[VertexId, Vertex]
    #: The functions of sources and transformations.
    functions: Mapping[OperatorId, Callable[..., Any]]
    sinks: Mapping[OperatorId, Sink]
    #: The Python operators.
    operators: Mapping[OperatorId, ProcessStep] = field(default_factory=dict)

    def consumers(self, vertex: VertexId) -> tuple[VertexId, ...]:
        """The vertices that read this vertex's channel."""
        return tuple(name for name, other in self.vertices.items() if vertex in other.inputs)
