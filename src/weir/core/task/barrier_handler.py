"""``BarrierHandler``: aligns the barriers of a task's input channels (MISSION D, seed of B2).

It answers a question for the input of a task: may this channel be read? A channel is *held* from
its barrier until the checkpoint's alignment ends. Rules:

1. Alignment of checkpoint n starts with its first barrier. It is complete when every channel has
   delivered barrier n or has ended; then the task takes its snapshot, and all channels are read
   again.
2. A barrier of a newer checkpoint ends the alignment of an older one: the older checkpoint is
   declined (CHECKPOINT_DECLINED_SUBSUMED), and its channels are read again, up to the newer
   barrier.
3. A ``CancelCheckpointMarker`` or an abort by the coordinator ends the checkpoint's alignment. Its
   barriers that arrive later on other channels are ignored.
4. A channel that has ended counts as aligned. Once all have ended, the task is a root, and the
   coordinator triggers it (PROTOCOL P31).

Worked timeline of a task with channels a and b::

    a: barrier 7          a is held, b is read             alignment of 7 starts
    b: segment, segment   read
    b: barrier 7          Aligned(7)                       both are read again
    b: barrier 8          b is held
    a: cancel 8           Misaligned(8, on cancellation)   b is read again
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from weir.core.messages.channel import CheckpointBarrier
from weir.core.types import CheckpointFailureReason as Reason
from weir.core.types import InFlightSegment, VertexId
from weir.errors import invariant


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """Every channel has delivered the barrier or has ended: take the snapshot now."""

    barrier: CheckpointBarrier
    #: Time from the first barrier to the last, in milliseconds; 0 with one channel.
    alignment_ms: int
    #: Segments that the barrier overtook; empty unless the checkpoint is unaligned
    #: (``InputGate.overtake``).
    in_flight: tuple[InFlightSegment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Misaligned:
    """The task will not take this checkpoint.

    It must decline it to the coordinator and send a ``CancelCheckpointMarker`` downstream.
    """

    checkpoint_id: int
    reason: Reason


AlignmentOutcome: TypeAlias = Aligned | Misaligned


class BarrierHandler:
    """The alignment of one task's channels. At most one checkpoint is being aligned."""

    def __init__(self, channels: Iterable[VertexId]) -> None:
        #: Channels that have not ended, in the order of the task's inputs.
        self._open: dict[VertexId, None] = dict.fromkeys(channels)
        #: The barrier being aligned.
        self._barrier: CheckpointBarrier | None = None
        #: Channels that delivered it. Law: all are open; empty without a barrier.
        self._held: dict[VertexId, None] = {}
        self._since_ms = 0
        #: The newest checkpoint whose alignment has ended, completed or not.
        self._newest_over = 0
        #: Newer checkpoints given up before their first barrier arrived.
        self._given_up: set[int] = set()

    @property
    def aligning(self) -> int | None:
        """The checkpoint being aligned; None otherwise."""
        return None if self._barrier is None else self._barrier.checkpoint_id

    def holds(self, channel: VertexId) -> bool:
        """Whether the channel must not be read now."""
        return channel in self._held

    def is_over(self, checkpoint_id: int) -> bool:
        """Whether this checkpoint's alignment ended or was given up; its barriers are ignored."""
        return checkpoint_id <= self._newest_over or checkpoint_id in self._given_up

    def barrier(
        self, channel: VertexId, barrier: CheckpointBarrier, now_ms: int
    ) -> list[AlignmentOutcome]:
        """A channel delivered a barrier."""
        invariant(channel in self._open, f"barrier from ended channel {channel!r}")
        invariant(channel not in self._held, f"held channel {channel!r} was read")
        n = barrier.checkpoint_id
        if self.is_over(n):
            return []
        outcomes: list[AlignmentOutcome] = []
        if self.aligning is not None and n > self.aligning:
            outcomes.append(self._give_up(self.aligning, Reason.CHECKPOINT_DECLINED_SUBSUMED))
        if self._barrier is None:
            self._barrier, self._since_ms = barrier, now_ms
        if n < self._barrier.checkpoint_id:
            return outcomes
        self._held[channel] = None
        return outcomes + self._complete(now_ms)

    def cancelled(self, checkpoint_id: int) -> list[AlignmentOutcome]:
        """A channel delivered a cancel marker: no barrier of this checkpoint will come."""
        if self.is_over(checkpoint_id):
            return []
        return [self._give_up(checkpoint_id, Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER)]

    def aborted(self, checkpoint_id: int) -> None:
        """The coordinator aborted the checkpoint: end its alignment, without a decline."""
        if self._open and checkpoint_id > self._newest_over:
            self._give_up(checkpoint_id, Reason.CHECKPOINT_DECLINED)

    def ended(self, channel: VertexId, now_ms: int) -> list[AlignmentOutcome]:
        """A channel ended: from now on it counts as aligned."""
        invariant(channel not in self._held, f"held channel {channel!r} was read")
        del self._open[channel]
        return self._complete(now_ms)

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        invariant(self._held.keys() <= self._open.keys(), "an ended channel is held")
        invariant(
            self._barrier is not None or not self._held, "a channel is held without an alignment"
        )
        invariant(
            self._barrier is None or self._held.keys() < self._open.keys(),
            "a complete alignment is still open",
        )
        invariant(
            all(n > self._newest_over for n in self._given_up), "an id is both given up and over"
        )

    def _complete(self, now_ms: int) -> list[AlignmentOutcome]:
        """The outcome if every open channel has delivered the barrier; empty otherwise."""
        barrier = self._barrier
        if barrier is None or self._held.keys() != self._open.keys():
            return []
        self._over(barrier.checkpoint_id)
        return [Aligned(barrier=barrier, alignment_ms=now_ms - self._since_ms)]

    def _give_up(self, checkpoint_id: int, reason: Reason) -> Misaligned:
        if checkpoint_id == self.aligning:
            self._over(checkpoint_id)
        else:
            self._given_up.add(checkpoint_id)
        return Misaligned(checkpoint_id=checkpoint_id, reason=reason)

    def _over(self, checkpoint_id: int) -> None:
        self._barrier = None
        self._held.clear()
        self._newest_over = max(self._newest_over, checkpoint_id)
        self._given_up = {n for n in self._given_up if n > self._newest_over}
