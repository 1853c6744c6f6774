"""``PlanningCalls``: the query's part in the planning calls of one task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weir.core.messages.task import AnswerPlanning, TaskErrored
from weir.errors import PipelineError
from weir.spark.query.inputs import source_ids
from weir.spark.query.plan_checks import check_bounded
from weir.spark.query.vertex_query import VertexQuery

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class PlanningCalls:
    """Prepares for the planning calls of one task, and answers them: the query rests meanwhile."""

    def __init__(self, query: VertexQuery) -> None:
        self._query = query

    def resume(self, position: int) -> None:
        """Prepare a query that was restored after batch ``position``."""
        operators, directory = self._query.operators, self._query.directory
        if operators is not None and position >= 0:
            operators.planned(directory.commit_entry(position).next_watermark_ms or 0)
            operators.resume_at(directory.watermark_ms(position))

    def inspect(self, running: StreamingQuery) -> TaskErrored | None:
        """At the first call, learn what Spark made of the plan.

        Returns the failure of a bounded query with a source that Spark cannot bound.
        """
        self._query.directory.source_ids = source_ids(running)
        if self._query.ends_by_itself:
            try:
                check_bounded(self._query.name, running)
            except PipelineError as error:
                return TaskErrored(message=str(error), fatal=True)
        return None

    def answer(
        self, effect: AnswerPlanning, position: int, *, ends_by_itself: bool, force: bool = False
    ) -> None:
        """Answer the call in which the query rests after ``position``.

        The next batch may read what is admitted. It runs in any case with ``force``, else as the
        operators want.
        """
        query, operators = self._query, self._query.operators
        wanted = operators is not None and operators.forces_batch(
            effect, first=position < 0, ends_by_itself=ends_by_itself
        )
        query.inputs.answer(
            effect,
            query.directory.path,
            force=force or wanted,
            source_watermark_ms=None if operators is None else operators.source_watermark_ms,
        )
