"""The job as the task port gets it: its graph with functions and sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weir.core.graph import Vertex
from weir.core.types import OperatorId, TaskState, VertexId
from weir.errors import PipelineError
from weir.monitoring.log_lines import Form, as_text
from weir.operators.output import rejects_tag
from weir.sinks.base import Sink
from weir.subtasks.chain import ProcessStep


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The user's graph, functions and sinks."""

    vertices: Mapping[VertexId, Vertex]
    #: The functions of sources and transformations.
    functions: Mapping[OperatorId, Callable[..., Any]]
    sinks: Mapping[OperatorId, Sink]
    #: The Python operators.
    operators: Mapping[OperatorId, ProcessStep] = field(default_factory=dict)
    #: The form of the lines that workers make of what operators log and print.
    log_form: Form = as_text
    #: How many rows of a batch a step may set aside.
    rejects_max: int = 100_000

    def tags(self, vertex: VertexId) -> tuple[str, ...]:
        """The outputs in the rows of a vertex besides the main one; none if there is none."""
        last, known = self.operators.get(vertex), self.vertices.get(vertex)
        sides = () if last is None else tuple(last.operator.side_outputs)
        return (*sides, *map(rejects_tag, () if known is None else known.rejects))

    def check_in_flight(self, restored: TaskState) -> None:
        """Check that nobody misses rows that an unaligned checkpoint has in flight (P27).

        Raises ``PipelineError`` if some belong to a side output that is gone.
        """
        for segment in restored.in_flight:
            declared = self.tags(segment.channel)
            gone = [tag for tag in segment.payload.get("tags", ()) if tag not in declared]
            if gone:
                raise PipelineError(
                    f"The checkpoint holds unread rows of the side output {gone[0]!r} of step"
                    f" {segment.channel!r}, which no longer declares it: declare it again, or"
                    " restore from a savepoint, which holds no unread rows."
                )

    def consumers(self, vertex: VertexId) -> tuple[VertexId, ...]:
        """The vertices that read this vertex's channel."""
        return tuple(name for name, other in self.vertices.items() if vertex in other.inputs)

    def row_readers(self, vertex: VertexId) -> tuple[VertexId, ...]:
        """Those of them that read more than what was set aside."""
        return tuple(
            name
            for name, other in self.vertices.items()
            if any(vertex in step.inputs for step in other.steps)
        )
