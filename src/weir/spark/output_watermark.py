"""How far a query's output has come: the event time below which it will emit nothing more
(PROTOCOL P25).

Without a stateful operator rows pass as they come, so that is the watermark of the query's next
batch. A stateful operator keeps rows back: what an outer join emits at watermark w is older than w,
and the operator itself says by how much. So the plan of the last batch is followed from its root
down to the first stateful operator of each branch, and asked there; what lies below leaves the
query through it. The answer is for the watermark of the batch that ran: until the next one has run,
the operator holds what its new watermark will let out.

Spark runs a query adaptively only if it has no stateful operator, so what an adaptive node hides
does not matter.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaClass

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_STATE_STORE_WRITER = "org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter"

#: It counts rows and knows of no watermark: what it reads passes as it is.
_LIMIT = "StreamingGlobalLimit"


def output_watermark_ms(query: StreamingQuery, next_batch_watermark_ms: int) -> int | None:
    """The query's output watermark after its last batch; None if it has none yet. Call it between
    two batches.

    ``next_batch_watermark_ms`` is that of the last batch's entry in the commit log: 0 before any
    event time is known.
    """
    if next_batch_watermark_ms <= 0:
        return None
    execution = query._jsq.streamingQuery().lastExecution()
    if execution is None:
        # Nothing has run since the query's start, so what it emitted last is not known.
        return None
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


@functools.lru_cache(maxsize=1)
def _state_store_writer(gateway_client: Any) -> Any:
    """Java's class object; looked up once for each JVM."""
    return JavaClass("java.lang.Class", gateway_client).forName(_STATE_STORE_WRITER)


def _value(option: Any) -> int | None:
    return None if option.isEmpty() else int(option.get())
