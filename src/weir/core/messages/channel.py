"""What travels between tasks: the entries of a channel, and the messages about them.

A channel leads from one task (the producer) to one consumer and is named after the producer. Its
entries are strictly ordered; none overtakes another (MISSION C6). Spark writes a segment once for
all consumers, each of which has its own channel::

    Segment(3) Watermark Segment(4) Barrier(7) Segment(5) Watermark
        EndOfUserRecords Barrier(8) EndOfPartition

A consumer reads a channel up to a barrier and no further until it has that barrier on every
channel. With aligned checkpoints a channel is therefore empty at its barrier: what the producer
restores is all that the consumer needs, and no entry is part of the checkpoint. The barrier of an
unaligned checkpoint may overtake segments that the consumer has not read. These then become part of
the consumer's state, and nothing else does: a restored producer sends its watermark again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from weir.core.types import Payload, SnapshotKind, VertexId


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The rows that one batch of the producer emitted."""

    #: The producer's batch. Increases along the channel.
    position: int
    #: Bytes of its files.
    size: int
    #: What the port needs so that a consumer can read it: JSON values.
    payload: Payload


#: The watermark of a channel whose records have ended (Flink: ``Long.MAX_VALUE``).
MAX_WATERMARK_MS = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Watermark:
    """The producer's output watermark: it would call no row of a later segment late (P25)."""

    #: Event time in milliseconds since the Unix epoch. Increases along the channel.
    timestamp_ms: int


@dataclass(frozen=True, kw_only=True)
class WatermarkStatus:
    """Whether the producer's sources are idle (Flink has the same name; P25).

    The watermark of an idle channel holds back no other channel's. A channel begins active.
    """

    idle: bool


@dataclass(frozen=True, kw_only=True)
class CheckpointBarrier:
    """Separates the entries that belong to the checkpoint (before it) from those that do not."""

    checkpoint_id: int
    kind: SnapshotKind
    #: When the checkpoint was triggered, in milliseconds since the Unix epoch.
    timestamp_ms: int
    #: Directory of a savepoint; None for a checkpoint.
    target: str | None = None
    #: The snapshot must not refer to a file of any earlier checkpoint (PROTOCOL P40).
    full: bool = False


@dataclass(frozen=True, kw_only=True)
class CancelCheckpointMarker:
    """No barrier of this checkpoint will come: do not wait for it (MISSION B3)."""

    checkpoint_id: int


@dataclass(frozen=True, kw_only=True)
class EndOfUserRecords:
    """No more segments follow (PROTOCOL P28)."""

    #: The producer's windows and timers have fired. False: the job is being stopped without a
    #: drain, and they stay in its state.
    finished: bool = True
    #: The savepoint or checkpoint with which the job stops; its barrier comes next. None: the input
    #: has ended.
    savepoint: int | None = None
    #: What the job stops with, if it does.
    kind: SnapshotKind = SnapshotKind.SYNC_SAVEPOINT


@dataclass(frozen=True, kw_only=True)
class EndOfPartition:
    """Nothing more follows: the producer is FINISHED, and the channel counts as aligned."""


ChannelEntry: TypeAlias = (
    Segment
    | Watermark
    | WatermarkStatus
    | CheckpointBarrier
    | CancelCheckpointMarker
    | EndOfUserRecords
    | EndOfPartition
)


@dataclass(frozen=True, kw_only=True)
class ChannelAppended:
    """S -> S: the producer ``channel`` appended entries to its channel to ``vertex``.

    A batch's output and the watermark after it come together, so that one batch of the consumer can
    take both.
    """

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
    """S -> S: ``consumer`` has processed ``vertex``'s segments up to ``position`` for good."""

    vertex: VertexId
    consumer: VertexId
    position: int
    #: Bytes of the channel that one batch of the consumer may read now, so that the batch takes
    #: about as long as wanted.
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class ReleaseSegments:
    """Effect: delete the segments of ``vertex`` up to ``position``; no consumer needs them."""

    vertex: VertexId
    position: int
