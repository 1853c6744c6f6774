"""``InputGate``: the input channels of a task (Flink's ``InputGate`` with its processor).

A channel's entries wait in the gate until the task's query reaches them. Segments are *admitted* in
a planning call, several at once up to a bound that keeps the batch short (``batch_bound``), and
never past a control entry. One batch reads exactly what was admitted, since the answer to the
planning call decides its offsets. At its next call the query reports its position in each channel,
from its own committed offsets; if that differs from what was admitted, the task fails with the
channel's name (``misread``, PROTOCOL P7). So while the query is held in a planning call, every
admitted segment has been read.

A control entry is processed once every segment before it is in a committed batch. Until then, and
while the ``BarrierHandler`` holds the channel, it and all entries after it stay queued. A watermark
blocks nothing: the query gets it with the batch that reads the last segment before it, and it takes
effect there from the next batch on. So the query never applies the watermark of rows that it has
not read, and it does not lag by a batch (P25).

*Idle channels.* A channel whose producer says that its sources are idle holds back no other: the
query gets for it the least watermark of the channels that are active, or the greatest of all if
none is. Once it is active again, it stands there until its own watermark has come as far, since no
watermark falls, and its rows below are late. An ended channel does not count. (Flink:
``StatusWatermarkValve``, where a channel that comes back holds back nothing until it has caught
up.)

*Unaligned checkpoints* (``overtake``). While the query is held in a planning call, a barrier that
is queued in every channel need not wait until the entries before it have been read: it is taken out
of the queues, and the segments that it passes become part of the snapshot (P27). They stay queued
and are read afterwards. A barrier passes segments, watermarks and ends of records, but no barrier
of another checkpoint that is still alive; a savepoint's barrier passes nothing. A channel with its
end among its entries needs no barrier of its own.

*Restored segments.* After a restore from an unaligned checkpoint, a channel may hold segments of a
producer that had finished by then. So the task can be a root, which the coordinator triggers itself
(P31), and still have segments to read. Its trigger becomes a barrier in each channel (``trigger``),
and is processed like any other barrier.

A batch that read less or more than was admitted fails its task, since going on would lose records,
or put records of the next checkpoint into this checkpoint. If a watermark were sent one batch
later, each window would close a batch later, and a consumer that has caught up would need an extra
batch for every watermark.
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
    WatermarkStatus,
)
from weir.core.task.barrier_handler import Aligned, AlignmentOutcome, BarrierHandler
from weir.core.task.batch_bound import BatchBound
from weir.core.types import InFlightSegment, SnapshotKind, VertexId
from weir.errors import InvariantError, invariant


@dataclass
class _Channel:
    #: Not admitted yet. The first may be a waiting control entry.
    entries: deque[ChannelEntry] = field(default_factory=deque)
    #: The last position that the running batch reads; None if it reads nothing of the channel.
    reading: int | None = None
    #: The last position in a committed batch, -1 before the first; None until the query has
    #: reported it, since a restored query has read segments of earlier attempts.
    consumed: int | None = None
    #: The watermark after the admitted segments, and the watermark last sent to the query.
    watermark_ms: int | None = None
    sent_ms: int | None = None
    #: Whether the producer's sources are idle.
    idle: bool = False
    records_ended: EndOfUserRecords | None = None
    ended: bool = False

    def due_ms(self, idle_ms: int | None) -> int | None:
        """The watermark that the query is to have; None if there is none yet."""
        marks = (self.watermark_ms, self.sent_ms, idle_ms if self.idle else None)
        return max((ms for ms in marks if ms is not None), default=None)

    @property
    def next_segment(self) -> int | None:
        """The position of the first entry if it is a segment; None otherwise."""
        head = self.entries[0] if self.entries else None
        return head.position if isinstance(head, Segment) else None


@dataclass(frozen=True, kw_only=True)
class _Place:
    """The place of a barrier among a channel's entries; without a barrier, of the channel's end."""

    index: int
    barrier: CheckpointBarrier | None


class InputGate:
    """The channels of one task."""

    def __init__(self, channels: Iterable[VertexId]) -> None:
        #: Limits what one batch may read of a channel; one segment is always admitted.
        self.batch = BatchBound()
        self._channels = {name: _Channel() for name in channels}
        self.barriers = BarrierHandler(self._channels)
        #: When the first barrier of each checkpoint arrived, at any place in a channel. Checkpoints
        #: whose alignment has ended are dropped when the next barrier arrives.
        self._arrived_ms: dict[int, int] = {}
        #: Whether the last batch was the first with some watermark, which takes effect in the next.
        self._has_sent_watermark = False

    @property
    def channels(self) -> tuple[VertexId, ...]:
        """Names of the channels, in the order of the task's inputs."""
        return tuple(self._channels)

    @property
    def records_ended(self) -> bool:
        """Whether all channels' records have ended and are processed (PROTOCOL P28).

        False for a task without channels.
        """
        return bool(self._channels) and all(c.records_ended for c in self._channels.values())

    @property
    def all_finished(self) -> bool:
        """Whether every producer finished its records, rather than being stopped without a drain.

        If a producer was stopped, this task does not finish either (PROTOCOL P28).
        """
        ends = [channel.records_ended for channel in self._channels.values()]
        return all(end is not None and end.finished for end in ends)

    @property
    def stops_with(self) -> int | None:
        """The snapshot of a stop, if a channel's end of records named one; None otherwise."""
        ends = (channel.records_ended for channel in self._channels.values())
        return max(
            (end.savepoint for end in ends if end and end.savepoint is not None), default=None
        )

    @property
    def stop_kind(self) -> SnapshotKind:
        """What the job stops with, if a channel's end of records named it."""
        ends = (channel.records_ended for channel in self._channels.values())
        kinds = (end.kind for end in ends if end and end.savepoint is not None)
        return next(kinds, SnapshotKind.SYNC_SAVEPOINT)

    @property
    def wants_batch(self) -> bool:
        """Whether a batch has something to do: read a segment, or take a new watermark."""
        return self.has_unsent_watermark or any(
            channel.next_segment is not None and not self.barriers.holds(name)
            for name, channel in self._channels.items()
        )

    @property
    def watermark_takes_effect(self) -> bool:
        """Whether a watermark takes effect in a batch to come, though no segment is read."""
        return self._has_sent_watermark or self.has_unsent_watermark

    @property
    def has_unsent_watermark(self) -> bool:
        """Whether a watermark reached without a segment is still to be sent to the query."""
        idle_ms = self._idle_ms
        return any(c.due_ms(idle_ms) != c.sent_ms for c in self._channels.values())

    @property
    def is_idle(self) -> bool:
        """Whether there are channels, and the producers of all that go on are idle."""
        going_on = [c for c in self._channels.values() if not c.records_ended]
        return bool(going_on) and all(channel.idle for channel in going_on)

    @property
    def _idle_ms(self) -> int | None:
        """The watermark for idle channels: the least of those that are active.

        If all that go on are idle, the greatest. None if an active channel has none yet.
        """
        going_on = [c for c in self._channels.values() if not c.records_ended]
        active = [channel.due_ms(None) for channel in going_on if not channel.idle]
        if None in active:
            return None
        marks = active or [channel.due_ms(None) for channel in going_on]
        known = [ms for ms in marks if ms is not None]
        return (min if active else max)(known, default=None)

    @property
    def awaits_barrier(self) -> bool:
        """Whether a checkpoint is being aligned, or its barrier still waits in a channel."""
        places = map(self._place, self._channels.values())
        return self.barriers.aligning is not None or any(
            place is not None and place.barrier is not None for place in places
        )

    @property
    def has_open_channel(self) -> bool:
        """Whether some channel's end has not been processed yet."""
        return any(not channel.ended for channel in self._channels.values())

    def append(self, channel: VertexId, entry: ChannelEntry, now_ms: int) -> None:
        """A producer appended an entry."""
        invariant(channel in self._channels, f"entry for the unknown channel {channel!r}")
        known = self._channels[channel]
        invariant(not known.ended, f"entry for channel {channel!r} after its end")
        known.entries.append(entry)
        if isinstance(entry, CheckpointBarrier):
            self._arrived(entry, now_ms)

    def trigger(self, barrier: CheckpointBarrier, now_ms: int) -> None:
        """The coordinator triggers the task, since its producers have finished (PROTOCOL P31).

        Put the barrier at the end of each channel that has not ended, before its
        ``EndOfPartition``.
        """
        for channel in self._channels.values():
            if not channel.ended:
                has_end = bool(channel.entries) and isinstance(channel.entries[-1], EndOfPartition)
                channel.entries.insert(len(channel.entries) - has_end, barrier)
        self._arrived(barrier, now_ms)

    def misread(self, positions: Mapping[VertexId, int]) -> str | None:
        """How these read positions differ from what was admitted; None if they are equal.

        A batch must read exactly the admitted segments (PROTOCOL P7).
        """
        for name, channel in self._channels.items():
            position = positions.get(name, -1)
            due = channel.consumed if channel.reading is None else channel.reading
            if due is None:
                first = channel.next_segment
                if first is not None and first <= position:
                    return (
                        f"read channel {name!r} up to segment {position}, but segment {first} was"
                        " not admitted"
                    )
            elif position != due:
                return f"read channel {name!r} up to segment {position} instead of {due}"
        return None

    def consumed(self, positions: Mapping[VertexId, int]) -> list[tuple[VertexId, int]]:
        """Committed batches have read each channel up to these positions (checked by ``misread``).

        Returns the channels that moved, with their positions.
        """
        moved = []
        for name, channel in self._channels.items():
            position = positions.get(name, -1)
            if position > (-1 if channel.consumed is None else channel.consumed):
                moved.append((name, position))
            channel.consumed = position
            channel.reading = None
        return moved

    def process(self, now_ms: int) -> list[AlignmentOutcome]:
        """Process every control entry that the task has reached, until a checkpoint is aligned.

        Call it again after each snapshot, since entries after its barrier may then be read.
        """
        outcomes: list[AlignmentOutcome] = []
        moved = True
        while moved:
            moved = False
            for name, channel in self._channels.items():
                if channel.reading is not None or not channel.entries or self.barriers.holds(name):
                    continue
                if channel.next_segment is not None:
                    continue
                outcomes += self._control(name, channel, channel.entries.popleft(), now_ms)
                if outcomes and isinstance(outcomes[-1], Aligned):
                    return outcomes
                moved = True
        return outcomes

    def may_overtake(self, now_ms: int, timeout_ms: int) -> int | None:
        """The checkpoint whose barrier may overtake unread entries; None otherwise.

        Its barrier is queued in every channel, and ``timeout_ms`` have passed since the first
        barrier arrived.
        """
        standing = self._standing()
        if standing is None or not self.has_waited(standing[0], now_ms, timeout_ms):
            return None
        return standing[0].checkpoint_id

    def has_waited(self, barrier: CheckpointBarrier, now_ms: int, timeout_ms: int | None) -> bool:
        """Whether ``timeout_ms`` have passed since a checkpoint's first barrier arrived.

        None never passes; a savepoint and the checkpoint of a stop wait as long as it takes.
        """
        if timeout_ms is None or not barrier.kind.may_overtake:
            return False
        arrived_ms = self._arrived_ms.get(barrier.checkpoint_id)
        # Forgotten once the next barrier has arrived: then it has waited long enough.
        return arrived_ms is None or now_ms >= arrived_ms + timeout_ms

    def overtake(self, now_ms: int) -> Aligned:
        """Let the barrier that may overtake unread entries do so.

        Only while the query is held in a planning call, and with the snapshot to follow at once:
        the segments in flight are those unread at this moment. Raises ``InvariantError`` if no
        barrier may overtake.
        """
        standing = self._standing()
        if standing is None:
            raise InvariantError("no barrier can overtake: none is queued in every channel")
        barrier, places = standing
        in_flight: list[InFlightSegment] = []
        outcomes: list[AlignmentOutcome] = []
        for name, place in places.items():
            in_flight += self._pass(name, place)
            outcomes += self.barriers.barrier(name, barrier, now_ms)
        [aligned] = outcomes
        if not isinstance(aligned, Aligned):
            raise InvariantError(
                f"{barrier} is queued in every channel, but its alignment gave {aligned}"
            )
        return replace(aligned, in_flight=tuple(in_flight))

    def overtakes_at(self, timeout_ms: int) -> int | None:
        """When a barrier may overtake unread entries; None if none is queued in every channel."""
        standing = self._standing()
        return (
            None if standing is None else self._arrived_ms[standing[0].checkpoint_id] + timeout_ms
        )

    def admit(self, now_ms: int) -> tuple[Admission, ...]:
        """Admit segments for the next batch. Only while the query is held in a planning call."""
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

    def send_watermarks(self) -> dict[VertexId, int]:
        """The watermark of each channel for the next batch, after all admitted segments.

        Call ``admit`` first.
        """
        watermarks_ms = {}
        self._has_sent_watermark = self.has_unsent_watermark
        idle_ms = self._idle_ms
        for name, channel in self._channels.items():
            channel.sent_ms = channel.due_ms(idle_ms)
            if channel.sent_ms is not None:
                watermarks_ms[name] = channel.sent_ms
        return watermarks_ms

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        self.barriers.validate()
        for name, channel in self._channels.items():
            is_read = channel.reading is not None
            order = (channel.consumed, channel.reading, channel.next_segment)
            positions = [position for position in order if position is not None]
            invariant(
                positions == sorted(set(positions)),
                f"positions of {name!r} are out of order: {order}",
            )
            invariant(
                not (self.barriers.holds(name) and is_read),
                f"{name!r} is held while a batch reads it",
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
        """The next checkpoint's barrier with its places, if it is queued in every unheld channel.

        A channel that has ended, or has its end queued first, needs no barrier. None if another
        checkpoint is being aligned, or if the kind of snapshot does not allow it.
        """
        places: dict[VertexId, _Place] = {}
        for name, channel in self._channels.items():
            if not channel.ended and not self.barriers.holds(name):
                place = self._place(channel)
                if place is None:
                    return None
                places[name] = place
        barriers = (place.barrier for place in places.values() if place.barrier)
        found = {barrier.checkpoint_id: barrier for barrier in barriers}
        if len(found) != 1:
            return None
        [(n, barrier)] = found.items()
        may = self.barriers.aligning in (None, n) and barrier.kind.may_overtake
        return (barrier, places) if may else None

    def _place(self, channel: _Channel) -> _Place | None:
        """The first barrier of a live checkpoint, or the channel's end if that comes first."""
        for index, entry in enumerate(channel.entries):
            if isinstance(entry, CheckpointBarrier) and not self.barriers.is_over(
                entry.checkpoint_id
            ):
                return _Place(index=index, barrier=entry)
            if isinstance(entry, EndOfPartition):
                return _Place(index=index, barrier=None)
        return None

    def _pass(self, name: VertexId, place: _Place) -> list[InFlightSegment]:
        """Take the barrier out of the channel; return the segments that it passes."""
        channel = self._channels[name]
        invariant(
            channel.reading is None,
            f"barrier overtakes segments of {name!r} that a batch is reading",
        )
        passed = list(islice(channel.entries, place.index))
        if place.barrier is not None:
            del channel.entries[place.index]
        return [
            InFlightSegment(
                channel=name, position=entry.position, size=entry.size, payload=entry.payload
            )
            for entry in passed
            if isinstance(entry, Segment)
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
            case WatermarkStatus(idle=idle):
                channel.idle = idle
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
                raise InvariantError("a segment is not a control entry")
