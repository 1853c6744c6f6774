"""Channel state of a modelled query: its offset in each channel, and the watermarks it received.

Every channel is a source of the query, and one answer of the driver decides each planning round for
all of them (PROTOCOL P7). So a batch reads exactly what was admitted: from each channel the
segments after its last offset, up to the new one. An offset is a position. The offsets are in the
query's offset log, so a snapshot holds them, and a restored query resumes there.

The received watermarks are part of the query's state in the same way. Laws, from P25:

1. No record lies below the watermark that the query received for its channel with an earlier batch.
2. The watermark of a channel never falls, even across a restart.
3. After a checkpoint each channel's watermark is at least its producer's output watermark at the
   barrier; a producer whose records had ended holds nothing back. The law does not cover a channel
   in which an unaligned checkpoint overtook records: their watermarks arrive after the barrier.

Laws 1 and 2 do not hold of a channel that may be idle: it counts as far as others then, and stands
where it is in a new attempt. As Spark does, the query keeps the highest watermark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from weir.core.messages.channel import Admission, Segment
from weir.core.types import InFlightSegment, VertexId

#: The checkpoint from which an attempt resumes, or its empty beginning.
BEGIN = 0


class BrokenWatermarkError(Exception):
    """A query received a wrong watermark.

    No code catches this: the auditor looks for it in task failures.
    """


class ChannelOffsets:
    """The channels of one query, on Spark's side."""

    def __init__(self, inputs: Sequence[VertexId]) -> None:
        self._inputs = tuple(inputs)
        #: The channels that may be idle.
        self.idle: frozenset[VertexId] = frozenset()
        #: Channel -> the last position that a complete batch has read; absent before the first.
        self._committed: dict[VertexId, int] = {}
        self._watermarks_ms: dict[VertexId, int] = {}
        #: The watermarks in force during the current batch: those received before it.
        self._holding_ms: dict[VertexId, int] = {}
        #: The watermark in force during the last complete batch; None before the attempt's first.
        self.applied_ms: int | None = None
        #: The last checkpoint in which the query took part, and the channels in which its barrier
        #: overtook records: watermarks from before it may arrive after it (PROTOCOL P27).
        self.barrier = BEGIN
        self._overtaken: frozenset[VertexId] = frozenset()

    @property
    def committed(self) -> dict[VertexId, int]:
        """The position up to which complete batches have read each channel."""
        return dict(self._committed)

    @property
    def watermark_ms(self) -> int | None:
        """The least watermark over the channels; None until each has one."""
        if len(self._watermarks_ms) < len(self._inputs):
            return None
        return min(self._watermarks_ms.values(), default=None)

    @property
    def takes_effect(self) -> bool:
        """Whether the watermark has not been in force in a batch yet: Spark runs one for it."""
        return self.watermark_ms != self.applied_ms

    @property
    def aligned(self) -> list[VertexId]:
        """The channels in which the last checkpoint overtook nothing."""
        return [name for name in self._inputs if name not in self._overtaken]

    def pass_barrier(self, checkpoint_id: int, in_flight: Sequence[InFlightSegment]) -> None:
        """The query takes part in a checkpoint, or resumes from one (``BEGIN``)."""
        self.barrier = checkpoint_id
        self._overtaken = frozenset(one.channel for one in in_flight)

    def dump(self) -> str:
        """Its part of a snapshot; the core keeps the segments that a barrier overtook."""
        return msgspec.json.encode([self._committed, self._watermarks_ms]).decode()

    def load(self, dumped: str) -> None:
        """Restore from a snapshot. Spark plans the last committed batch again, reading nothing."""
        self._committed, self._watermarks_ms = msgspec.json.decode(
            dumped, type=tuple[dict[VertexId, int], dict[VertexId, int]]
        )
        self._holding_ms = dict(self._watermarks_ms)

    def between(self, admitted: Sequence[Admission]) -> dict[VertexId, list[Segment]]:
        """The admitted segments after each channel's last offset: what the next batch reads."""
        return {
            one.channel: [
                segment
                for segment in one.segments
                if segment.position > self._committed.get(one.channel, -1)
            ]
            for one in admitted
        }

    def commit(self, admitted: Sequence[Admission]) -> None:
        """Advance the offsets: the batch that read up to them is complete."""
        held = [self._holding_ms.get(name) for name in self._inputs]
        known = [one for one in held if one is not None]
        self.applied_ms = min(known) if len(known) == len(held) else None
        for one in admitted:
            self._committed[one.channel] = one.segments[-1].position

    def tell(
        self, watermarks_ms: Mapping[VertexId, int], at_barrier: Mapping[VertexId, int]
    ) -> bool:
        """Receive the watermarks of a planning answer; return whether one has risen.

        ``at_barrier``: the producers' output watermarks at the last checkpoint, for the channels in
        which that checkpoint overtook nothing. Raises ``BrokenWatermarkError`` if law 2 or 3 is
        broken.
        """
        for name, before in self._watermarks_ms.items():
            if watermarks_ms.get(name, before) < before and name not in self.idle:
                raise BrokenWatermarkError(
                    f"the watermark of {name} falls from {before} to {watermarks_ms[name]}"
                )
        for name, least in at_barrier.items():
            if watermarks_ms.get(name, -1) < least:
                raise BrokenWatermarkError(
                    f"{name} was at {least} at the barrier, but {watermarks_ms.get(name)} is"
                    " reported after it"
                )
        self._holding_ms = dict(self._watermarks_ms)
        known = self._watermarks_ms
        risen = {name: ms for name, ms in watermarks_ms.items() if ms > known.get(name, -1)}
        known |= risen
        return bool(risen)

    def check(self, channel: VertexId, rows: Sequence[int]) -> None:
        """Check law 1 for rows that the query reads from a channel."""
        watermark_ms = self._holding_ms.get(channel)
        if channel in self.idle or watermark_ms is None or not rows:
            return
        if min(rows) < watermark_ms:
            raise BrokenWatermarkError(
                f"{min(rows)} of {channel} is read below the watermark {watermark_ms}"
            )
