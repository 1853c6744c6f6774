"""``PlanOwners``: which step owns what in the running plan of one task, for its snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weir.spark.query.output_watermark import OperatorNodes
from weir.spark.query.vertex_query import VertexQuery
from weir.spark.state.plan_layout import PlanLayout
from weir.spark.state.rocksdb_files import operator_metadata

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class PlanOwners:
    """The owners in one task's plan. Ask only between two batches."""

    def __init__(self, query: VertexQuery, position: int) -> None:
        """``position`` is the batch before the first of this attempt."""
        self._query = query
        self._started_at = position
        self._operator_nodes: OperatorNodes | None = None
        #: Whether the query has state; known after its first batch.
        self._is_stateful: bool | None = None
        #: The owners as of the last snapshot.
        self.newest: PlanLayout | None = None

    def needs_plan(self, position: int) -> bool:
        """Whether a snapshot must ask the plan of the last batch for its operators' watermarks."""
        if self._is_stateful is None and position >= 0:
            self._is_stateful = self._query.directory.commit_entry(position).is_stateful
        return self._is_stateful is not False

    def layout(self, running: StreamingQuery | None, position: int) -> PlanLayout | None:
        """The owners in the plan after the last batch.

        None if no batch has run in this attempt, or the owners are not known.
        """
        layout = self._query.frames.layout(self._query.name)
        if running is None or layout is None or position == self._started_at:
            return None
        if self._operator_nodes is None:
            if not layout.matches(operator_metadata(self._query.directory)):
                return None
            self._operator_nodes = OperatorNodes(running) if layout.operators else None
        if self._operator_nodes is not None:
            layout = layout.with_watermarks(self._operator_nodes.watermarks_ms(running))
        self.newest = layout
        return layout
