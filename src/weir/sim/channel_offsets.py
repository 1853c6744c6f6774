"""What a modelled query has of its channels: its offset in each, which is a position, and the
watermarks that it was told.

Every channel is a source of the query, and one answer of the driver decides each planning round for
all of them (PROTOCOL P7). So a batch reads exactly what was admitted: of each channel the segments
after its last offset, up to the new one. The offsets stand in the query's offset log, so a snapshot
holds them, and a restored query goes on from there.

What a query was told of watermarks belongs to its state in the same way. Laws, of P25:

1. No record lies below the watermark that the query was told for its channel with an earlier batch.
2. The watermark of a channel never falls, not over a restart either.
3. After a checkpoint each channel's watermark is at least what its producer's was at the barrier; a
   producer whose records had ended holds nothing back. Not where an unaligned checkpoint has
   overtaken records: the watermarks behind them follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from weir.core.messages.channel import Admission, Segment
from weir.core.types import VertexId


class BrokenWatermarkError(Exception):
    """A query was told a watermark that is wrong. Caught by nobody: the auditor looks for it in
    failures of tasks."""


class ChannelOffsets:
    """The channels of one query, on Spark's side."""

    def __init__(self, inputs: Sequence[VertexId]) -> None:
        self._inputs = tuple(inputs)
        #: The last position that a complete batch has read, of channels of which one has.
        self._committed: dict[VertexId, int] = {}
        self._watermarks_ms: dict[VertexId, int] = {}
        #: Those that hold in the batch under way: what was told before it.
        self._holding_ms: dict[VertexId, int] = {}

    @property
    def committed(self) -> dict[VertexId, int]:
        """How far each channel has been read by complete batches."""
        return dict(self._committed)

    @property
    def watermark_ms(self) -> int | None:
        """The watermark of what was read: the least over the channels, once each has one."""
        if len(self._watermarks_ms) < len(self._inputs):
            return None
        return min(self._watermarks_ms.values(), default=None)

    def dump(self) -> str:
        """Its part of a snapshot. Segments are none: those that a barrier has overtaken wait in the
        core."""
        return msgspec.json.encode([self._committed, self._watermarks_ms]).decode()

    def load(self, dumped: str) -> None:
        """Take up what a snapshot holds. Spark asks for the last committed batch again, which reads
        nothing."""
        self._committed, self._watermarks_ms = msgspec.json.decode(
            dumped, type=tuple[dict[VertexId, int], dict[VertexId, int]]
        )
        self._holding_ms = dict(self._watermarks_ms)

    def between(self, admitted: Sequence[Admission]) -> dict[VertexId, list[Segment]]:
        """What the batch reads whose new offsets are those that the answer admits: nothing at or
        below the last ones."""
        return {
            one.channel: [
                segment
                for segment in one.segments
                if segment.position > self._committed.get(one.channel, -1)
            ]
            for one in admitted
        }

    def commit(self, admitted: Sequence[Admission]) -> None:
        """The batch with these new offsets is complete."""
        for one in admitted:
            self._committed[one.channel] = one.segments[-1].position

    def tell(
        self, watermarks_ms: Mapping[VertexId, int], at_barrier: Mapping[VertexId, int]
    ) -> bool:
        """The answer to the call carries watermarks; says whether one has risen. ``at_barrier``:
        what those of the producers were at the last checkpoint, of channels that were empty
        there."""
        for name, before in self._watermarks_ms.items():
            if watermarks_ms.get(name, before) < before:
                raise BrokenWatermarkError(
                    f"the watermark of {name} falls from {before} to {watermarks_ms[name]}"
                )
        for name, least in at_barrier.items():
            if watermarks_ms.get(name, -1) < least:
                raise BrokenWatermarkError(
                    f"{name} was at {least} at the barrier, and behind it {watermarks_ms.get(name)}"
                    " is told"
                )
        self._holding_ms = dict(self._watermarks_ms)
        risen = any(self._watermarks_ms.get(name) != told for name, told in watermarks_ms.items())
        self._watermarks_ms |= watermarks_ms
        return risen

    def check(self, channel: VertexId, rows: Sequence[int]) -> None:
        """The query reads these rows of a channel."""
        watermark_ms = self._holding_ms.get(channel)
        if watermark_ms is not None and rows and min(rows) < watermark_ms:
            raise BrokenWatermarkError(
                f"{min(rows)} of {channel} is read below the watermark {watermark_ms}"
            )
