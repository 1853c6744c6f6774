"""A query's output watermark: the event time below which it emits nothing more (PROTOCOL P25).

Without a stateful operator rows pass straight through, so it is the watermark of the query's next
batch. A stateful operator holds rows back: what an outer join emits at watermark w is older than w,
and the operator itself knows by how much. So the plan of the last batch is searched from its root
down to the first stateful operator of each branch, and that operator is asked; rows from below it
leave the query only through it. The answer holds for the watermark of the batch that ran: until the
next batch has run, the operator holds the rows that its new watermark will release.

Spark runs a query adaptively only if it has no stateful operator, so an adaptive node hides none.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaClass

from weir.spark.query.vertex_query import VertexQuery

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_STATE_STORE_WRITER = "org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter"

#: A stateful operator that only counts rows and has no watermark: its input passes unchanged.
_LIMIT = "StreamingGlobalLimit"


def output_watermark_ms(
    query: StreamingQuery, next_batch_watermark_ms: int, *, stateful: bool
) -> int | None:
    """The query's output watermark after its last batch; None if it has none yet.

    Call it between two batches. ``next_batch_watermark_ms`` comes from the last batch's entry in
    the commit log: 0 before any event time is known. ``stateful``: whether that entry has state; if
    not, the plan need not be searched, which costs a call to the JVM for each of its nodes.
    """
    if next_batch_watermark_ms <= 0:
        return None
    execution = query._jsq.streamingQuery().lastExecution()
    if execution is None:
        # No batch has run since the query's start, so its last output is unknown.
        return None
    if not stateful:
        return next_batch_watermark_ms
    lowest = next_batch_watermark_ms
    nodes = [execution.executedPlan()]
    writer = _state_store_writer(query._jsq._gateway_client)
    while nodes:
        node = nodes.pop()
        if writer.isInstance(node) and node.nodeName() != _LIMIT:
            evicted = _value(node.eventTimeWatermarkForEviction())
            emitted = None if evicted is None else _value(node.produceOutputWatermark(evicted))
            if emitted is None or emitted <= 0:
                return None
            lowest = min(lowest, emitted)
        else:
            children = node.children()
            nodes.extend(children.apply(index) for index in range(children.size()))
    return lowest


class OutputWatermarks:
    """The output watermark of one task's query after its last two batches."""

    def __init__(self, query: VertexQuery, position: int, watermark_ms: int | None) -> None:
        """``watermark_ms`` is the output watermark after ``position``, the last batch so far."""
        self._query = query
        #: By batch, of the last two complete batches, ascending. Replaced as a whole, since a
        #: snapshot may be taken beside the next batch.
        self._known = {position: watermark_ms}
        #: Whether consumers need it.
        self.is_read = False

    def at(self, position: int) -> int | None:
        """The watermark after batch ``position``, one of the last two complete batches.

        None if no consumer needs it, or if there is no watermark yet.
        """
        known = self._known
        return known[max(batch for batch in known if batch <= position)]

    def update(self, running: StreamingQuery | None, position: int) -> None:
        """Take up the watermark of the batch after ``position``, between two batches.

        For consumers it becomes the output watermark (PROTOCOL P25), but not while operators have
        yet to emit rows that are older.
        """
        needed = self.is_read or self._query.operators is not None
        if not needed or position in self._known:
            return
        batch, watermark_ms = list(self._known.items())[-1]
        self._known = {
            batch: watermark_ms,
            position: self._after(running, position, watermark_ms),
        }

    def _after(
        self, running: StreamingQuery | None, position: int, known_ms: int | None
    ) -> int | None:
        """The output watermark after the last batch; ``known_ms`` if no consumer needs it."""
        commit = self._query.directory.commit_entry(position)
        operators = self._query.operators
        reached_ms = commit.next_watermark_ms or 0
        if operators is not None:
            operators.planned(reached_ms)
        if running is None or not self.is_read:
            return known_ms
        watermark_ms = output_watermark_ms(running, reached_ms, stateful=commit.is_stateful)
        return watermark_ms if operators is None else operators.output_watermark_ms(watermark_ms)


class OperatorNodes:
    """The stateful operators of a running query, found in each batch's plan by their places."""

    def __init__(self, query: StreamingQuery) -> None:
        """Search the plan of the last batch. Call it between two batches."""
        plan = query._jsq.streamingQuery().lastExecution().executedPlan()
        writer = _state_store_writer(query._jsq._gateway_client)
        #: Spark's number of each operator, by the place of its node in the plan.
        self._places: dict[int, int] = {}
        nodes = [plan]
        place = 0
        while nodes:
            node = nodes.pop()
            if writer.isInstance(node):
                self._places[place] = int(node.stateInfo().get().operatorId())
            children = node.children()
            nodes.extend(children.apply(index) for index in reversed(range(children.size())))
            place += 1

    def watermarks_ms(self, query: StreamingQuery) -> dict[int, int | None]:
        """The watermark that each operator has let through, by number; None without a watermark."""
        plan = query._jsq.streamingQuery().lastExecution().executedPlan()
        found: dict[int, int | None] = {}
        for place, number in self._places.items():
            node = plan.apply(place)
            evicted = _value(node.eventTimeWatermarkForEviction())
            passed = None if evicted is None else _value(node.produceOutputWatermark(evicted))
            found[number] = None if passed is None else max(passed, 0)
        return found


@functools.lru_cache(maxsize=1)
def _state_store_writer(gateway_client: Any) -> Any:
    """Java's class object, looked up once for each JVM."""
    return JavaClass("java.lang.Class", gateway_client).forName(_STATE_STORE_WRITER)


def _value(option: Any) -> int | None:
    return None if option.isEmpty() else int(option.get())
