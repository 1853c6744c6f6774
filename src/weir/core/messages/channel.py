"""What travels from one task to another: the entries of a channel, and the two messages that carry
it.

A channel leads from one task (the producer) to one consumer and is named after the producer. Its
entries are strictly ordered; none overtakes another (MISSION C6). Spark writes a segment once for
all consumers of a step, each of whom has a channel of its own::

    Segment(3) Watermark Segment(4) Barrier(7) Segment(5) Watermark EndOfUserRecords Barrier(8) EndOfPartition

A consumer reads a channel up to a barrier and no further until it has that barrier on every
channel. With aligned checkpoints a channel is therefore empty at its barrier: what the producer
restores is all that the consumer needs, and no entry is part of the checkpoint. The barrier of an
unaligned checkpoint may overtake segments that the consumer has not read; these are part of the
consumer's state then, and nothing else is: a restored producer tells its watermark anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from weir.core.types import Payload, SnapshotKind, VertexId


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The rows that one step of the producer put out."""

    #: The producer's step. Grows along the channel.
    position: int
    #: Bytes of its files.
    size: int
    #: What the port needs to let a consumer read it: JSON values.
    payload: Payload


#: The watermark of a channel whose records have ended (Flink: ``Long.MAX_VALUE``).
MAX_WATERMARK_MS = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Watermark:
    """No segment behind it has a row that the producer would call late: its output watermark
    (PROTOCOL P25)."""

    #: Event time in milliseconds since the Unix epoch. Grows along the channel.
    timestamp_ms: int


@dataclass(frozen=True, kw_only=True)
class CheckpointBarrier:
    """What was put out before it belongs to the checkpoint, what comes after it does not."""

    checkpoint_id: int
    kind: SnapshotKind
    #: When the checkpoint was triggered, in milliseconds since the Unix epoch.
    timestamp_ms: int
    #: Directory of a savepoint; None for a checkpoint.
    target: str | None
    full: bool


@dataclass(frozen=True, kw_only=True)
class CancelCheckpointMarker:
    """No barrier of this checkpoint will come: nobody may wait for it (MISSION B3)."""

    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class EndOfUserRecords:
    """No segment comes any more (PROTOCOL P28)."""

    #: The producer's windows and timers have fired. False: the job is stopped without a drain, and
    #: they stay in its state.
    finished: bool = True
    #: The savepoint with which the job stops, whose barrier comes next; None: the input has ended.
    savepoint: int | None = None


@dataclass(frozen=True, kw_only=True)
class EndOfPartition:
    """Nothing comes any more: the producer is FINISHED. The channel counts as aligned from here
    on."""


ChannelEntry: TypeAlias = (
    Segment
    | Watermark
    | CheckpointBarrier
    | CancelCheckpointMarker
    | EndOfUserRecords
    | EndOfPartition
)


@dataclass(frozen=True, kw_only=True)
class ChannelAppended:
    """S -> S: the producer ``channel`` appended entries to its channel to ``vertex``: what a step
    put out and the watermark behind it come together, so that one step of the consumer can take
    both."""

    vertex: VertexId
    channel: VertexId
    entries: tuple[ChannelEntry, ...]


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Segments of one channel that the next batch may read."""

    channel: VertexId
    segments: tuple[Segment, ...]


@dataclass(frozen=True, kw_only=True)
class SegmentsConsumed:
    """S -> S: ``consumer`` has processed every segment of ``vertex`` up to ``position``, for
    good."""

    vertex: VertexId
    consumer: VertexId
    position: int
    #: Bytes of the channel that one step of the consumer may read now, so that it takes about as
    #: long as wanted.
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class ReleaseSegments:
    """Effect: no consumer needs the segments of ``vertex`` up to ``position`` any more; delete
    their files."""

    vertex: VertexId
    position: int
