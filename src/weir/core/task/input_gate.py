"""``InputGate``: what a task may read of its channels, and how far it has come (Flink's
``InputGate`` with its processor).

A channel's entries wait in the gate until the task's query has come to them. Segments are
*admitted* in a planning call, several at once up to a bound that keeps the batch short
(``batch_bound``), and never past a control entry. One batch reads exactly what was admitted, since
the answer to the planning call decides its offsets. At its next call the query says how far it has
come, from its own committed offsets; if that is anything else, the task fails by name (``misread``,
PROTOCOL P7). So while the query rests, nothing is admitted that is not read.

A control entry is acted on once every segment before it is in a committed batch. Until then, and
while the ``BarrierHandler`` holds the channel, it stays where it is, and everything behind it too.
A watermark holds nothing up: it is told to the query with the step that reads the last segment
before it, and holds there from the step after that one. So the query never goes by a watermark of
rows that it has not read, and is no step behind (P25).

*Unaligned checkpoints* (``overtake``). While the query rests, a barrier that stands in every
channel need not wait until what is before it has been read: it leaves the entries, and the segments
that it passes are part of the snapshot (P27). They stay where they are and are read on afterwards.
A barrier passes segments, watermarks and ends of records, but no barrier of another checkpoint that
still counts; and one of a savepoint passes nothing. A channel that has its end among its entries
needs no barrier of its own.

*Restored segments.* After a restore from an unaligned checkpoint a channel may hold segments of a
producer that had finished by then. So the task can be a root, which the coordinator triggers itself
(P31), and yet have something to read. Its trigger becomes a barrier in each channel (``trigger``),
and all that is said of barriers holds for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from weir.core.messages.channel import (
    MAX_WATERMARK_MS,
    Admission,
    CancelCheckpointMarker,
    ChannelEntry,
    CheckpointBarrier,
    EndOfPartition,
    EndOfUserRecords,
    Segment,
    Watermark,
)
from weir.core.task.barrier_handler import Aligned, AlignmentOutcome, BarrierHandler, Misaligned
from weir.core.task.batch_bound import BatchBound
from weir.core.types import InFlightSegment, VertexId
from weir.errors import InvariantError, invariant


@dataclass
class _Channel:
    #: Not admitted yet. The first may be a control entry that waits.
    entries: deque[ChannelEntry] = field(default_factory=deque)
    #: The last position that the batch under way reads; None if it reads nothing of the channel.
    reading: int | None = None
    #: The last position that is in a committed batch, -1 before the first; None until the query has
    #: said it, since a restored one has read segments of earlier attempts.
    consumed: int | None = None
    #: Behind what was admitted; and what the query was told of it.
    watermark_ms: int | None = None
    told_ms: int | None = None
    records_ended: EndOfUserRecords | None = None
    ended: bool = False

    @property
    def next_segment(self) -> int | None:
        """The position of the first entry, if that is a segment."""
        head = self.entries[0] if self.entries else None
        return head.position if isinstance(head, Segment) else None


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where in a channel's entries a barrier is to be taken out; without one it is the end of the
    channel."""

    index: int
    barrier: CheckpointBarrier | None


class InputGate:
    """The channels of one task."""

    def __init__(self, channels: Iterable[VertexId]) -> None:
        #: What one batch may read of a channel; one segment is always admitted.
        self.batch = BatchBound()
        self._channels = {name: _Channel() for name in channels}
        self.barriers = BarrierHandler(self._channels)
        #: When the first barrier of each checkpoint arrived that may still be waited for, wherever
        #: it stands.
        self._arrived_ms: dict[int, int] = {}

    @property
    def channels(self) -> tuple[VertexId, ...]:
        """Names of the channels, in the order of the task's inputs."""
        return tuple(self._channels)

    @property
    def records_ended(self) -> bool:
        """Whether every channel's records have ended and are processed (PROTOCOL P28). False
        without channels."""
        return bool(self._channels) and all(c.records_ended for c in self._channels.values())

    @property
    def all_finished(self) -> bool:
        """Of channels whose records have ended: whether every producer has finished its own. If one
        has not, since the job is stopped without a drain, the task does not finish either
        (PROTOCOL P28)."""
        ends = [channel.records_ended for channel in self._channels.values()]
        return all(end is not None and end.finished for end in ends)

    @property
    def stops_with(self) -> int | None:
        """The savepoint with which the job stops, as channels have said; None if it does not."""
        ends = (channel.records_ended for channel in self._channels.values())
        return max(
            (end.savepoint for end in ends if end and end.savepoint is not None), default=None
        )

    @property
    def wants_step(self) -> bool:
        """Whether a step has something to do: read a segment, or take a new watermark."""
        return any(
            channel.watermark_ms != channel.told_ms
            or (channel.next_segment is not None and not self.barriers.holds(name))
            for name, channel in self._channels.items()
        )

    @property
    def has_open_channel(self) -> bool:
        """Whether the end of a channel is still to be acted on."""
        return any(not channel.ended for channel in self._channels.values())

    def append(self, channel: VertexId, entry: ChannelEntry, now_ms: int) -> None:
        """A producer appended an entry."""
        invariant(
            channel in self._channels,
            f"there is no channel {channel!r} for what it was restored with",
        )
        known = self._channels[channel]
        invariant(not known.ended, f"channel {channel!r} goes on after its end")
        known.entries.append(entry)
        if isinstance(entry, CheckpointBarrier):
            self._arrived(entry, now_ms)

    def trigger(self, barrier: CheckpointBarrier, now_ms: int) -> None:
        """The coordinator triggers the task, since its producers have finished: put the barrier at
        the end of each channel that is not read to its end (PROTOCOL P31)."""
        for channel in self._channels.values():
            if not channel.ended:
                has_end = bool(channel.entries) and isinstance(channel.entries[-1], EndOfPartition)
                channel.entries.insert(len(channel.entries) - has_end, barrier)
        self._arrived(barrier, now_ms)

    def misread(self, positions: Mapping[VertexId, int]) -> str | None:
        """What is wrong with batches that have read each channel up to these positions; None if
        that is what they were let read, no more and no less (PROTOCOL P7)."""
        for name, channel in self._channels.items():
            position = positions.get(name, -1)
            due = channel.consumed if channel.reading is None else channel.reading
            if due is None:
                first = channel.next_segment
                if first is not None and first <= position:
                    return (
                        f"segment {first} of channel {name!r} was read up to {position}, but not"
                        " admitted"
                    )
            elif position != due:
                return (
                    f"channel {name!r} was read up to segment {position}, though admitted up to"
                    f" {due}"
                )
        return None

    def consumed(self, positions: Mapping[VertexId, int]) -> list[tuple[VertexId, int]]:
        """Committed batches have read each channel up to these positions, as they should. The
        channels that moved, with the position."""
        moved = []
        for name, channel in self._channels.items():
            position = positions.get(name, -1)
            if position > (-1 if channel.consumed is None else channel.consumed):
                moved.append((name, position))
            channel.consumed = position
            channel.reading = None
        return moved

    def process(self, now_ms: int) -> list[AlignmentOutcome]:
        """Act on every control entry that the task has come to. Call it again after each snapshot,
        since what was held behind a barrier may be read then."""
        outcomes: list[AlignmentOutcome] = []
        moved = True
        while moved and not any(not isinstance(one, Misaligned) for one in outcomes):
            moved = False
            for name, channel in self._channels.items():
                if channel.reading is not None or not channel.entries or self.barriers.holds(name):
                    continue
                if channel.next_segment is not None:
                    continue
                outcomes += self._control(name, channel, channel.entries.popleft(), now_ms)
                moved = True
        return outcomes

    def may_overtake(self, now_ms: int, timeout_ms: int) -> int | None:
        """The checkpoint whose barrier may pass what was not read: it stands in every channel, and
        ``timeout_ms`` have passed since the first one arrived. None if there is none."""
        standing = self._standing()
        if standing is None:
            return None
        n = standing[0].checkpoint_id
        return n if now_ms >= self._arrived_ms[n] + timeout_ms else None

    def overtake(self, now_ms: int) -> Aligned:
        """Let the barrier that may pass what was not read. Only while the query rests and with a
        snapshot to follow at once, since what is in flight is what is unread at this point."""
        standing = self._standing()
        if standing is None:
            raise InvariantError("a barrier overtakes that stands nowhere")
        barrier, places = standing
        in_flight: list[InFlightSegment] = []
        outcomes: list[AlignmentOutcome] = []
        for name, place in places.items():
            in_flight += self._pass(name, place)
            outcomes += self.barriers.barrier(name, barrier, now_ms)
        [aligned] = outcomes
        if not isinstance(aligned, Aligned):
            raise InvariantError(f"{barrier} stands in every channel, but gave {aligned}")
        return replace(aligned, in_flight=tuple(in_flight))

    def overtakes_at(self, timeout_ms: int) -> int | None:
        """When a barrier may pass what was not read; None if there is none that may."""
        standing = self._standing()
        return (
            None if standing is None else self._arrived_ms[standing[0].checkpoint_id] + timeout_ms
        )

    def admit(self, now_ms: int) -> tuple[Admission, ...]:
        """Let the next batch read what may be read. Only while the query rests."""
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
                elif isinstance(head, Watermark) and segments:
                    channel.watermark_ms = head.timestamp_ms
                else:
                    break
                channel.entries.popleft()
            if segments:
                channel.reading = segments[-1].position
                admitted.append(Admission(channel=name, segments=tuple(segments)))
                largest = max(largest, size)
        self.batch.begun(largest, now_ms)
        return tuple(admitted)

    def tell_watermarks(self) -> dict[VertexId, int]:
        """The watermarks that the next step takes to the query: behind all that it was let read
        (``admit`` comes first)."""
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
            is_read = channel.reading is not None
            order = (channel.consumed, channel.reading, channel.next_segment)
            positions = [position for position in order if position is not None]
            invariant(
                positions == sorted(set(positions)), f"{name!r} is read out of order: {order}"
            )
            invariant(
                not (self.barriers.holds(name) and is_read), f"{name!r} is held while it is read"
            )
            invariant(
                not channel.ended or not (channel.entries or is_read),
                f"{name!r} has an entry after its end",
            )

    def _arrived(self, barrier: CheckpointBarrier, now_ms: int) -> None:
        self._arrived_ms = {
            n: ms for n, ms in self._arrived_ms.items() if not self.barriers.is_over(n)
        }
        self._arrived_ms.setdefault(barrier.checkpoint_id, now_ms)

    def _standing(self) -> tuple[CheckpointBarrier, dict[VertexId, _Place]] | None:
        """The barrier of the next checkpoint, and its place in every channel that is open, if it
        stands in each."""
        places: dict[VertexId, _Place] = {}
        for name, channel in self._channels.items():
            if not channel.ended and not self.barriers.holds(name):
                place = self._place(channel)
                if place is None:
                    return None
                places[name] = place
        found = {one.barrier.checkpoint_id: one.barrier for one in places.values() if one.barrier}
        if len(found) != 1:
            return None
        [(n, barrier)] = found.items()
        may = self.barriers.aligning in (None, n) and not barrier.kind.is_savepoint
        return (barrier, places) if may else None

    def _place(self, channel: _Channel) -> _Place | None:
        """The first barrier among the entries that counts, or the end of the channel, if that comes
        first."""
        for index, entry in enumerate(channel.entries):
            if isinstance(entry, CheckpointBarrier) and not self.barriers.is_over(
                entry.checkpoint_id
            ):
                return _Place(index=index, barrier=entry)
            if isinstance(entry, EndOfPartition):
                return _Place(index=index, barrier=None)
        return None

    def _pass(self, name: VertexId, place: _Place) -> list[InFlightSegment]:
        """Take the barrier out of the channel; what it passes."""
        channel = self._channels[name]
        invariant(channel.reading is None, f"a barrier overtakes what a batch reads of {name!r}")
        passed = list(islice(channel.entries, place.index))
        if place.barrier is not None:
            del channel.entries[place.index]
        return [
            InFlightSegment(channel=name, position=one.position, size=one.size, payload=one.payload)
            for one in passed
            if isinstance(one, Segment)
        ]

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
                channel.records_ended = entry
                if entry.finished:
                    channel.watermark_ms = MAX_WATERMARK_MS
                return []
            case EndOfPartition():
                channel.ended = True
                return self.barriers.ended(name, now_ms)
            case Segment():
                raise InvariantError("a segment is no control entry")
