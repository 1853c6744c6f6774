"""``OutputChannels``: a task's output to each of its consumers, and how far they lag.

A segment is appended once its batch is complete: a query that fails before that fails the whole
job, so no consumer ever reads rows that will be staged again. The same entries go to every
consumer, each at its own pace.

Two limits apply backpressure, that is, the producer's planning call is held:

- The bound: a consumer is that many segments or bytes behind.
- The pace: a consumer has one batch to read and another waiting, by the batch size that it
  reports. A barrier waits for all segments before it, so more output would only delay it. Before
  its first report it has one segment: the first batches of a job take seconds, and all of its
  queries run theirs at once, so a producer that went on would only slow them down.

Barriers pass in either case. So do operator events, in a batch that reads nothing. Where Spark
reads the source, no batch can do without reading: for events, such a task may be as far again
beyond both limits, so that neither they nor the checkpoint that waits for them wait for the slowest
consumer.

The bound is meant for bursts of small segments; with large segments it would make every barrier
wait for all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from weir.core.messages.channel import (
    ChannelAppended,
    ChannelEntry,
    Segment,
    Watermark,
    WatermarkStatus,
)
from weir.core.types import VertexId
from weir.errors import invariant


@dataclass(frozen=True, kw_only=True)
class ChannelBound:
    """How far a consumer may lag."""

    segments: int = 8
    #: Bytes.
    size: int = 1 << 30


DEFAULT_BOUND = ChannelBound()

#: A consumer may have two batches of segments, one being read and one waiting; before its
#: first report, only the first.
_BATCHES_AHEAD = 2
_BATCHES_AHEAD_AT_FIRST = 1
#: How many times the limits are for a batch that carries events.
_FOR_EVENTS = 2


class OutputChannels:
    """The channels from one task to its consumers."""

    def __init__(
        self, vertex: VertexId, consumers: Iterable[VertexId], bound: ChannelBound
    ) -> None:
        consumers = tuple(consumers)
        self._vertex = vertex
        self._bound = bound
        #: Segments staged by batches that are not complete, ascending.
        self._staged: deque[Segment] = deque()
        #: The last appended position.
        self._appended = -1
        #: The last appended watermark, and whether the task is idle by the last appended status.
        self._watermark_ms: int | None = None
        self._idle = False
        #: The position up to which no consumer needs a segment any more.
        self._released = -1
        #: Bytes that one batch of each consumer may read, as it last reported; 0 before its first
        #: report.
        self._batch_sizes = dict.fromkeys(consumers, 0)
        #: For each consumer, the segments it has not processed: (position, bytes), ascending.
        self._behind: dict[VertexId, deque[tuple[int, int]]] = {name: deque() for name in consumers}

    @property
    def is_full(self) -> bool:
        """Whether a consumer lags so far that no further batch may start."""
        return any(self._is_behind(consumer, behind) for consumer, behind in self._behind.items())

    @property
    def has_room_for_events(self) -> bool:
        """Whether a batch that reads may start because events wait for it."""
        return not any(
            self._is_behind(consumer, behind, times=_FOR_EVENTS)
            for consumer, behind in self._behind.items()
        )

    @property
    def all_consumed(self) -> bool:
        """Whether every consumer has processed all staged and appended segments (PROTOCOL P30)."""
        return not self._staged and not any(self._behind.values())

    @property
    def fill(self) -> dict[VertexId, tuple[int, int]]:
        """For each consumer, how many segments and bytes it has not processed yet."""
        return {
            name: (len(behind), sum(size for _, size in behind))
            for name, behind in self._behind.items()
        }

    def staged(self, segment: Segment) -> None:
        """A batch staged its output."""
        invariant(self._behind, f"{self._vertex} stages a segment without a consumer")
        self._staged.append(segment)

    def completed(self, position: int, watermark_ms: int | None = None) -> list[ChannelAppended]:
        """All batches up to ``position`` are complete: append their segments to every channel.

        The watermark follows them if it has risen (PROTOCOL P25).
        """
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

    def status(self, *, idle: bool) -> list[ChannelAppended]:
        """The task's sources are idle, or active again: notify the consumers if that is new."""
        if idle == self._idle:
            return []
        self._idle = idle
        return self.broadcast(WatermarkStatus(idle=idle))

    def broadcast(self, *entries: ChannelEntry) -> list[ChannelAppended]:
        """Append entries to every channel."""
        return [
            ChannelAppended(vertex=consumer, channel=self._vertex, entries=entries)
            for consumer in self._behind
        ]

    def consumed(self, consumer: VertexId, position: int, batch_size: int) -> int | None:
        """A consumer has processed every segment up to ``position``.

        ``batch_size`` is the number of bytes that one of its batches may now read.

        Returns the position up to which no consumer needs a segment any more, or None if that has
        not moved. It does not move for a segment that the consumer was restored with, since that is
        not a segment of this attempt.
        """
        self._batch_sizes[consumer] = batch_size
        behind = self._behind[consumer]
        if not behind or behind[0][0] > position:
            return None
        while behind and behind[0][0] <= position:
            behind.popleft()
        oldest_needed = min((lag[0][0] for lag in self._behind.values() if lag), default=None)
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
                positions == sorted(set(positions)), f"segments for {consumer} are out of order"
            )

    def _is_behind(
        self, consumer: VertexId, behind: deque[tuple[int, int]], *, times: int = 1
    ) -> bool:
        """Whether a consumer has reached the limits, each taken so many times."""
        if (
            len(behind) >= times * self._bound.segments
            or sum(size for _, size in behind) >= times * self._bound.size
        ):
            return True
        # Count batches as the consumer will admit them: what fits, and at least one segment.
        batch_size = self._batch_sizes[consumer]
        batches, left = 0, 0
        for _, size in behind:
            if size > left:
                batches, left = batches + 1, batch_size
            left -= size
        return batches >= times * (_BATCHES_AHEAD if batch_size else _BATCHES_AHEAD_AT_FIRST)
