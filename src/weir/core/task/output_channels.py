"""``OutputChannels``: what a task has put out, for each of its consumers, and whether they keep up.

A segment is appended once its step is complete: a query that fails before that takes the whole job
with it, so no consumer ever reads rows that are staged anew. The same entries go to every consumer,
each at its own pace.

The channel has a bound: while a consumer is that many segments or bytes behind, the producer rests
in its planning call (backpressure); barriers pass all the same. And it has a pace: a barrier waits
for all that is before it, so the producer also rests while a consumer has a step's worth to read
and another one waiting, by what the consumer says of its steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from weir.core.messages.channel import ChannelAppended, ChannelEntry, Segment, Watermark
from weir.core.task.batch_bound import FIRST
from weir.core.types import VertexId
from weir.errors import invariant


@dataclass(frozen=True, kw_only=True)
class ChannelBound:
    """How far a consumer may be behind."""

    segments: int = 8
    #: Bytes.
    size: int = 1 << 30


DEFAULT_BOUND = ChannelBound()

#: Of a consumer's steps: the one that it takes, and one that waits.
_STEPS_AHEAD = 2


class OutputChannels:
    """The channels from one task to its consumers."""

    def __init__(
        self, vertex: VertexId, consumers: Iterable[VertexId], bound: ChannelBound
    ) -> None:
        consumers = tuple(consumers)
        self._vertex = vertex
        self._bound = bound
        #: Staged, of steps that are not complete, ascending.
        self._staged: deque[Segment] = deque()
        #: The last position that was appended, and that up to which nobody needs anything.
        self._appended = -1
        #: The last watermark that was appended.
        self._watermark_ms: int | None = None
        self._released = -1
        #: Bytes that one step of a consumer may read, as it said last.
        self._batch_sizes = dict.fromkeys(consumers, FIRST)
        #: For each consumer what it has not processed: (position, bytes), ascending.
        self._behind: dict[VertexId, deque[tuple[int, int]]] = {name: deque() for name in consumers}

    @property
    def is_full(self) -> bool:
        """Whether a consumer is so far behind that no further step may begin."""
        return any(self._is_behind(consumer, behind) for consumer, behind in self._behind.items())

    @property
    def all_consumed(self) -> bool:
        """Whether every consumer has processed all that was appended (PROTOCOL P30)."""
        return not self._staged and not any(self._behind.values())

    def staged(self, segment: Segment) -> None:
        """A step staged what it puts out."""
        invariant(self._behind, f"{self._vertex} stages a segment for nobody")
        self._staged.append(segment)

    def completed(self, position: int, watermark_ms: int | None = None) -> list[ChannelAppended]:
        """All steps up to ``position`` are complete: their segments go to every consumer, and
        behind them the watermark, if that has risen (PROTOCOL P25)."""
        entries: list[ChannelEntry] = []
        while self._staged and self._staged[0].position <= position:
            segment = self._staged.popleft()
            self._appended = segment.position
            for behind in self._behind.values():
                behind.append((segment.position, segment.size))
            entries.append(segment)
        if watermark_ms is not None and (
            self._watermark_ms is None or watermark_ms > self._watermark_ms
        ):
            self._watermark_ms = watermark_ms
            entries.append(Watermark(timestamp_ms=watermark_ms))
        return self.broadcast(*entries) if entries else []

    def broadcast(self, *entries: ChannelEntry) -> list[ChannelAppended]:
        """Append entries to every channel."""
        return [
            ChannelAppended(vertex=consumer, channel=self._vertex, entries=entries)
            for consumer in self._behind
        ]

    def consumed(self, consumer: VertexId, position: int, batch_size: int) -> int | None:
        """A consumer has processed every segment up to ``position``, and reads ``batch_size`` bytes
        a step. The position up to which nobody needs a segment any more, if that has moved: not for
        one that the consumer was restored with, which is no segment of this attempt."""
        self._batch_sizes[consumer] = batch_size
        behind = self._behind[consumer]
        if not behind or behind[0][0] > position:
            return None
        while behind and behind[0][0] <= position:
            behind.popleft()
        oldest_needed = min((one[0][0] for one in self._behind.values() if one), default=None)
        free = self._appended if oldest_needed is None else oldest_needed - 1
        if free <= self._released:
            return None
        self._released = free
        return free

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        for consumer, behind in self._behind.items():
            positions = [position for position, _ in behind]
            invariant(
                positions == sorted(set(positions)), f"the channel to {consumer} is out of order"
            )

    def _is_behind(self, consumer: VertexId, behind: deque[tuple[int, int]]) -> bool:
        if (
            len(behind) >= self._bound.segments
            or sum(size for _, size in behind) >= self._bound.size
        ):
            return True
        # As the consumer will admit them: a step takes what fits, and one segment at least.
        steps, room = 0, 0
        for _, size in behind:
            if size > room:
                steps, room = steps + 1, self._batch_sizes[consumer]
            room -= size
        return steps >= _STEPS_AHEAD
