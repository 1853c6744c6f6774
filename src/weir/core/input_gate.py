"""``InputGate``: what a task may read of its channels, and how far it has come (Flink's ``InputGate`` with its processor).

A channel's entries wait in the gate until the task's query has come to them. Segments are *admitted* in a planning call,
several at once up to a bound that keeps the batch short (``batch_bound``), and never past a control entry. What was admitted
is a wish; what a committed batch has read, the query says at its next planning call (PROTOCOL P7). A control entry is acted
on once every segment before it is in a committed batch. Until then, and while the ``BarrierHandler`` holds the channel, it
stays where it is, and everything behind it too. A watermark counts once every segment before it is in a committed batch, and
is told to the query with its next step; it holds nothing up. So the query never knows a watermark of rows that it has not
read (P25).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from weir.core.barrier_handler import AlignmentOutcome, BarrierHandler, Misaligned
from weir.core.batch_bound import BatchBound
from weir.core.channel import (
    MAX_WATERMARK_MS,
    CancelCheckpointMarker,
    ChannelEntry,
    CheckpointBarrier,
    EndOfPartition,
    EndOfUserRecords,
    Segment,
    Watermark,
)
from weir.core.types import VertexId
from weir.errors import InvariantError, invariant


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Segments of one channel that the next batch may read."""

    channel: VertexId
    segments: tuple[Segment, ...]


@dataclass
class _Channel:
    #: Not admitted yet. The first may be a control entry that waits.
    entries: deque[ChannelEntry] = field(default_factory=deque)
    #: What was admitted and is in no committed batch, with the watermarks between, in order.
    reading: deque[Segment | Watermark] = field(default_factory=deque)
    #: The last position that is in a committed batch.
    consumed: int = -1
    #: Of what was consumed; and what the query was told of it.
    watermark_ms: int | None = None
    told_ms: int | None = None
    records_ended: bool = False
    ended: bool = False

    def settle(self) -> None:
        """Watermarks with no unread segment before them count."""
        while self.reading and isinstance(self.reading[0], Watermark):
            self.watermark_ms = self.reading[0].timestamp_ms
            self.reading.popleft()


class InputGate:
    """The channels of one task."""

    def __init__(self, channels: Iterable[VertexId]) -> None:
        #: What one batch may read of a channel; one segment is always admitted.
        self.batch = BatchBound()
        self._channels = {name: _Channel() for name in channels}
        self.barriers = BarrierHandler(self._channels)

    @property
    def channels(self) -> tuple[VertexId, ...]:
        """Names of the channels, in the order of the task's inputs."""
        return tuple(self._channels)

    @property
    def records_ended(self) -> bool:
        """Whether every channel's records have ended and are processed (PROTOCOL P28). False without channels."""
        return bool(self._channels) and all(c.records_ended for c in self._channels.values())

    @property
    def wants_step(self) -> bool:
        """Whether a step has something to do: read a segment, or one that was admitted before, or take a new watermark."""
        return any(
            channel.reading
            or channel.watermark_ms != channel.told_ms
            or (channel.entries and isinstance(channel.entries[0], Segment) and not self.barriers.holds(name))
            for name, channel in self._channels.items()
        )

    def append(self, channel: VertexId, entry: ChannelEntry) -> None:
        """A producer appended an entry."""
        known = self._channels[channel]
        invariant(not known.ended, f"channel {channel!r} goes on after its end")
        known.entries.append(entry)

    def consumed(self, positions: Mapping[VertexId, int]) -> list[tuple[VertexId, int]]:
        """Committed batches have read each channel up to these positions. The channels that moved, with the position."""
        moved = []
        for name, position in positions.items():
            channel = self._channels[name]
            if position <= channel.consumed:
                continue
            channel.settle()
            while channel.reading and self._is_read(channel.reading[0], position):
                channel.reading.popleft()
                channel.settle()
            invariant(
                not channel.entries
                or not isinstance(channel.entries[0], Segment)
                or channel.entries[0].position > position,
                f"segment {position} of {name!r} was read, but not admitted",
            )
            channel.consumed = position
            moved.append((name, position))
        return moved

    def process(self, now_ms: int) -> list[AlignmentOutcome]:
        """Act on every control entry that the task has come to. Call it again after each snapshot, since what was held
        behind a barrier may be read then."""
        outcomes: list[AlignmentOutcome] = []
        moved = True
        while moved and not any(not isinstance(one, Misaligned) for one in outcomes):
            moved = False
            for name, channel in self._channels.items():
                if channel.reading or not channel.entries or self.barriers.holds(name):
                    continue
                if isinstance(channel.entries[0], Segment):
                    continue
                outcomes += self._control(name, channel, channel.entries.popleft(), now_ms)
                moved = True
        return outcomes

    def admit(self, now_ms: int) -> tuple[Admission, ...]:
        """Let the next batch read what may be read."""
        admitted = []
        largest = 0
        for name, channel in self._channels.items():
            segments: list[Segment] = []
            size = 0
            while not self.barriers.holds(name) and channel.entries:
                head = channel.entries[0]
                if isinstance(head, Segment):
                    if segments and size + head.size > self.batch.size:
                        break
                    segments.append(head)
                    size += head.size
                elif not isinstance(head, Watermark):
                    break
                channel.reading.append(head)
                channel.entries.popleft()
            if segments:
                admitted.append(Admission(channel=name, segments=tuple(segments)))
                largest = max(largest, size)
        self.batch.begun(largest, now_ms)
        return tuple(admitted)

    def tell_watermarks(self) -> dict[VertexId, int]:
        """The watermarks that the next step takes to the query."""
        told = {}
        for name, channel in self._channels.items():
            channel.told_ms = channel.watermark_ms
            if channel.watermark_ms is not None:
                told[name] = channel.watermark_ms
        return told

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        self.barriers.validate()
        for name, channel in self._channels.items():
            positions = [one.position for one in channel.reading if isinstance(one, Segment)]
            invariant(positions == sorted(positions), f"{name!r} is read out of order")
            invariant(
                not channel.reading or isinstance(channel.reading[0], Segment),
                f"a watermark of {name!r} waits for nothing",
            )
            invariant(
                not (self.barriers.holds(name) and channel.reading), f"{name!r} is held while it is read"
            )
            invariant(
                not channel.ended or not (channel.entries or channel.reading),
                f"{name!r} has an entry after its end",
            )

    @staticmethod
    def _is_read(entry: Segment | Watermark, position: int) -> bool:
        return isinstance(entry, Segment) and entry.position <= position

    def _control(
        self, name: VertexId, channel: _Channel, entry: ChannelEntry, now_ms: int
    ) -> list[AlignmentOutcome]:
        match entry:
            case CheckpointBarrier():
                return self.barriers.barrier(name, entry, now_ms)
            case CancelCheckpointMarker(checkpoint_id=n):
                return self.barriers.cancelled(n)
            case Watermark(timestamp_ms=timestamp_ms):
                channel.watermark_ms = timestamp_ms
                return []
            case EndOfUserRecords():
                channel.records_ended = True
                channel.watermark_ms = MAX_WATERMARK_MS
                return []
            case EndOfPartition():
                channel.ended = True
                return self.barriers.ended(name, now_ms)
            case Segment():
                raise InvariantError("a segment is no control entry")
