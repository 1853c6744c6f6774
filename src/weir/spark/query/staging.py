"""``BatchStaging``: what a batch does with its rows, inside ``foreachBatch``.

The Python operators get their orders, the segment of the vertex's channel is written, every sink
runs phase one, and the operators' results are collected.

The sinks of a vertex that writes a channel take their rows from the segment. Reading the segment
costs less than computing the rows again or keeping them in memory, and all sinks get the same rows
even from a plan that is not deterministic. A plain Parquet sink does not even read it: the
segment's files get a second name in the sink's staging directory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from weir.core.messages.task import BatchStaged
from weir.core.types import Committable, OperatorId
from weir.monitoring.log_lines import place
from weir.runtime.ports import RowsOf
from weir.sinks.base import Batch, Sink
from weir.spark.channels import OutputSegments
from weir.spark.operators.outputs import has_side_outputs, output_of
from weir.spark.query.vertex_query import VertexQuery
from weir.spark.rejects.gathered import GatheredRejects, Reject, parquet_of
from weir.subtasks.chain import BatchEnd

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


class BatchStaging:
    """Stages the batches of one task at its channel and sinks."""

    def __init__(
        self,
        query: VertexQuery,
        *,
        sinks: Mapping[OperatorId, Sink],
        output: OutputSegments | None,
        finish: Callable[[int], tuple[Committable, ...]],
    ) -> None:
        """``output`` is None unless the vertex writes a channel.

        ``finish`` makes the sinks stage what they have held back, at the given position.
        """
        self._query = query
        self._sinks = sinks
        self._output = output
        self.finish = finish
        #: Whether the rows of several outputs share the query's frame.
        self._has_side_outputs = False
        #: What the steps set aside; known once there is a plan.
        self._rejects: GatheredRejects | None = None
        #: How many rows of the newest batch were set aside, by step, or broke a rule.
        self.counted: Counter[RowsOf] = Counter()
        #: How long each sink staged the newest batch.
        self.staging_ms: dict[OperatorId, int] = {}

    @property
    def writes_rows(self) -> bool:
        """Whether another query reads the rows."""
        return self._output is not None and self._output.has_rows

    def plan(self, frame: DataFrame) -> None:
        """Prepare for the batches of a query with this plan."""
        self._has_side_outputs = has_side_outputs(frame)
        self._rejects = self._query.frames.rejects(self._query.name)

    def release(self, position: int) -> None:
        """Delete the segments up to ``position``: no consumer needs them any more."""
        if self._output is not None:
            self._output.release(position)

    def stage(
        self, frame: DataFrame, batch: int, running: StreamingQuery | None
    ) -> tuple[BatchStaged, int]:
        """Stage a batch; return its event, and how many rows Weir's own readers have read.

        ``running`` is the query whose batch it is.
        """
        operators = self._query.operators
        if operators is not None:
            operators.begin_batch(batch)
        segment, files = None, None
        if self._output is not None and self._output.has_rows:
            files = tuple(self._output.write(frame, batch))
            if self._has_side_outputs:
                # They hold the rows of all outputs.
                files = None
            if self._sinks:
                frame = self._output.read(frame, batch)
        committables = self._staged(frame, Batch(batch_id=batch, files=files))
        end = BatchEnd() if operators is None else operators.end_batch(batch)
        rejects: list[Reject] = []
        self.counted = Counter()
        if self._rejects is not None:
            rejects, self.counted = self._rejects.of_batch(running, end.rejects)
        if self._output is not None:
            segment = self._output.segment(batch, parquet_of(rejects) if rejects else None)
        staged = BatchStaged(
            position=batch,
            committables=committables,
            segment=segment,
            sent_events=end.sent,
            input_ended=end.input_ended,
            induced=end.induced,
            read_source=end.rows_read > 0 or not self._query.vertex.is_enumerated,
        )
        return staged, end.rows_read

    def _staged(self, frame: DataFrame, batch: Batch) -> tuple[Committable, ...]:
        """Run phase one of every sink."""
        # A user's function may compute its frame several times, or not to its end.
        often = (
            self._rejects is not None
            and self._rejects.observes
            and any(sink.function is not None for sink in self._sinks.values())
        )
        several = not self.writes_rows and (often or len(self._sinks) > 1)
        if several:
            # Recomputing could give two sinks different rows, and would run the state operators
            # twice.
            frame = frame.persist()
        vertex = self._query.vertex
        payloads, staging_ms, began = {}, {}, time.monotonic()
        try:
            for name, tag in zip(vertex.sinks, vertex.sink_tags, strict=True):
                with place(task=vertex.name, step=name):
                    rows = output_of(frame, tag) if self._has_side_outputs else frame
                    payloads[name] = self._sinks[name].stage(rows, batch)
                began, ended = time.monotonic(), began
                staging_ms[name] = int(1000 * (began - ended))
            self.staging_ms = staging_ms
        finally:
            if several:
                frame.unpersist()
        return tuple(
            Committable(sink=name, position=batch.batch_id, payload=payload)
            for name, payload in payloads.items()
            if payload is not None
        )
