"""The inputs that Weir adds to one query: the control input, and a source for each channel.

All of them ask the driver together, once for each batch (``weir/spark/control_input.py``). The
answer to a call admits segments and carries watermarks; both are in memory, so it costs no file
operation.

``source_ids`` maps each offset to its directory below ``sources/``. The offset log has one offset
for each place in the plan that reads a source, so a source that is read in several places (a stream
joined with itself; the control input in front of each channel) occurs several times. Directories
are numbered by distinct source. Neither log has the mapping, so the running query is asked, once.

A snapshot of a query that reads channels carries the answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from weir.core.graph import Vertex
from weir.core.messages.task import AnswerPlanning
from weir.core.types import VertexId
from weir.spark.channels import SOURCE_NUMBER, ChannelSource, plain_schema, segment_files
from weir.spark.control_input import ControlInput, PlanningAnswer, PlanningRounds
from weir.spark.java import Jvm
from weir.spark.state.directory import SPARK_MAX_WATERMARK_MS
from weir.storage.paths import as_spark_path
from weir.subtasks.chain import process_steps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


def source_ids(query: StreamingQuery) -> tuple[int, ...]:
    """The directory number of each offset, in the order of the offset log.

    Call it between two batches.
    """
    sources = query._jsq.streamingQuery().sources()
    first_places = [int(sources.indexOf(sources.apply(index))) for index in range(sources.size())]
    distinct = sorted(set(first_places))
    return tuple(distinct.index(place) for place in first_places)


#: Called with (vertex, call) for every planning call, on the query's own thread.
OnCall = Callable[[VertexId, int], None]

_calls = itertools.count(1)


class QueryInputs:
    """The inputs of one vertex's query in one attempt."""

    def __init__(self, jvm: Jvm, vertex: Vertex, on_call: OnCall) -> None:
        self._jvm = jvm
        self._vertex = vertex
        self._numbers = {name: number for number, name in enumerate(vertex.inputs)}
        self._on_call = on_call
        self._rounds = PlanningRounds(self.call)
        self._controls: list[ControlInput] = []
        self._channels: dict[VertexId, ChannelSource] = {}

    # -- the plan

    def control(self, schema: StructType) -> DataFrame:
        """The control input as a stream without rows, with the columns of the source after it."""
        control = ControlInput(self._jvm, schema, self._rounds)
        self._controls.append(control)
        return control.frame()

    def segments(self, channel: VertexId, schema: StructType) -> DataFrame:
        """The rows of a channel. ``schema`` has its producer's columns."""
        ordered = bool(process_steps(self._vertex))
        source = ChannelSource(
            self._jvm, channel, plain_schema(schema), self._rounds, ordered=ordered
        )
        self._channels[channel] = source
        return source.frame()

    # -- its runs

    def start_run(self) -> None:
        """Prepare for a start of the query."""
        self._rounds.start_run()
        for control in self._controls:
            control.start_run()

    def answer(
        self,
        effect: AnswerPlanning,
        directory: str,
        *,
        force: bool,
        source_watermark_ms: int | None = None,
    ) -> None:
        """Admit segments, and answer the waiting call.

        ``directory`` is the query's own; restored segments are below it. With ``force`` a batch
        runs even without rows. ``source_watermark_ms`` is the watermark of Weir's own readers.
        """
        for admission in effect.admitted:
            for segment in admission.segments:
                files = [as_spark_path(file) for file in segment_files(segment.payload, directory)]
                self._channels[admission.channel].admit(segment.position, files)
        # The watermark of an ended channel is beyond Spark's last timestamp.
        watermarks_ms = {
            self._numbers[name]: min(ms, SPARK_MAX_WATERMARK_MS)
            for name, ms in effect.watermarks_ms.items()
        }
        if source_watermark_ms is not None:
            watermarks_ms[SOURCE_NUMBER] = source_watermark_ms
        self._rounds.reply(PlanningAnswer(watermarks_ms=watermarks_ms, force=force))

    def stop_waiting(self) -> None:
        """Interrupt the waiting call and any later one: the query is no longer active."""
        self._rounds.release()

    def call(self) -> None:
        """Make a planning call in place of the query, which has ended by itself."""
        self._on_call(self._vertex.name, next(_calls))

    def consumed(self) -> dict[VertexId, int]:
        """The last position that this attempt's batches have read, by channel (PROTOCOL P7).

        Call it while the query rests. Channels of which nothing was read are missing.
        """
        read = ((name, source.consumed) for name, source in self._channels.items())
        return {name: position for name, position in read if position is not None}

    def release(self) -> None:
        """Release the inputs and their plans in Java: no query reads them any more."""
        self.stop_waiting()
        for source in (*self._controls, *self._channels.values()):
            source.release()
