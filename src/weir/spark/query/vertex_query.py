"""``VertexQuery``: the query of one vertex in one attempt, as the parts of its task share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weir.core.graph import Vertex
from weir.core.types import VertexId
from weir.spark.query.frames import Frames
from weir.spark.query.inputs import QueryInputs
from weir.spark.state.directory import QueryDirectory
from weir.subtasks.chain import OperatorChain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class VertexQuery:
    """What does not change while the task runs."""

    session: SparkSession
    vertex: Vertex
    attempt: int
    #: The plans of the attempt's queries.
    frames: Frames
    directory: QueryDirectory

    @property
    def name(self) -> VertexId:
        """The vertex's name."""
        return self.vertex.name

    @property
    def inputs(self) -> QueryInputs:
        """The inputs that Weir adds to the query."""
        return self.frames.inputs(self.name)

    @property
    def operators(self) -> OperatorChain | None:
        """The vertex's Python operators; None if it has none."""
        return self.frames.operators(self.name)

    @property
    def ends_by_itself(self) -> bool:
        """Whether Spark ends the query when it has read what there was when it started.

        Channels and Weir's own readers report the end of their input themselves.
        """
        ends = self.vertex.bounded or self.vertex.available_now
        return ends and not self.vertex.inputs and not self.vertex.is_enumerated
