"""The counters of a task whose query is replaced by that of its drain (without a JVM)."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from weir.core.messages.task import StartDrain, StreamTaskEvent
from weir.spark.query.staging import BatchStaging
from weir.spark.query.task import QueryTask
from weir.spark.query.vertex_query import VertexQuery
from weir.spark.state.log_entries import CommitEntry

VERTEX = SimpleNamespace(
    name="windows", inputs=("clean",), bounded=True, is_enumerated=False, emits_updates=False
)


def progress(batch: int, rows: int) -> Any:
    """Spark's progress of one batch."""
    entry = MagicMock()
    entry.batchId.return_value = batch
    entry.json.return_value = json.dumps({"batchId": batch, "sources": [{"numInputRows": rows}]})
    return entry


def query(over: threading.Event, *batches: Any) -> Any:
    """A query that has run these batches, and whose end is noticed when ``over`` is set."""
    running = MagicMock(isActive=False)
    running.awaitTermination.side_effect = over.wait
    running._jsq.recentProgress.return_value = list(batches)
    return running


def test_the_rows_of_a_query_that_the_drain_replaces_are_counted_at_once() -> None:
    """Its own thread may notice its end only after the job's last counters were read."""
    over = threading.Event()
    frames = MagicMock()
    frames.operators.return_value = None
    writer = frames.of.return_value.writeStream.foreachBatch.return_value.option.return_value
    start = writer.outputMode.return_value.queryName.return_value.start
    start.side_effect = [query(over, progress(0, 3), progress(1, 4)), query(over)]
    posted: list[StreamTaskEvent] = []
    directory = MagicMock(path="/working/windows")
    directory.commit_entry.return_value = CommitEntry(next_watermark_ms=0, state_ids={"0": []})
    of_vertex = VertexQuery(
        session=MagicMock(),
        vertex=VERTEX,  # type: ignore[arg-type]
        attempt=1,
        frames=frames,
        directory=directory,
    )
    task = QueryTask(
        of_vertex,
        BatchStaging(of_vertex, sinks={}, output=None, finish=lambda position: ()),
        position=1,
        watermark_ms=None,
        failures=MagicMock(),
        post=posted.append,
    )
    task.start()
    task.drain(StartDrain(vertex="windows", position=1, call=7))
    try:
        assert start.call_count == 2
        assert task.metrics().records_in == 7
    finally:
        over.set()
        task.stop()
    assert task.metrics().records_in == 7
    assert posted == []
