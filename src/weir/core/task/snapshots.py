"""``OpenSnapshots``: the snapshots of one task that were begun and are not over.

A snapshot runs its synchronous part, then its asynchronous part, and is then held as acknowledged
until its checkpoint completed or was aborted. One that is aborted while a part runs is kept,
marked, until that part ends: only then is it safe to delete what it wrote (PROTOCOL P43).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from weir.core.messages.channel import CheckpointBarrier
from weir.core.messages.protocol import TriggerCheckpoint
from weir.core.messages.task import TakeSnapshot
from weir.core.types import Committable, InFlightSegment, SentEvent, VertexId
from weir.errors import InvariantError, invariant


class SnapshotPart(enum.Enum):
    """The part of a snapshot that is running."""

    SYNC = "SYNC"
    ASYNC = "ASYNC"
    #: None: it is acknowledged, and its checkpoint is not over.
    ACKNOWLEDGED = "ACKNOWLEDGED"


@dataclass(frozen=True, kw_only=True)
class TaskSnapshot:
    """One snapshot of the task."""

    trigger: TriggerCheckpoint
    position: int
    #: Every operator of the task is fully finished.
    finished: bool
    #: As ``TakeSnapshot`` named them.
    committables: tuple[Committable, ...]
    #: From the first barrier on the task's channels to the last.
    alignment_ms: int = 0
    #: What the barrier has overtaken in the task's channels.
    in_flight: tuple[InFlightSegment, ...] = ()
    #: What its operators have sent and coordinators have not acknowledged.
    sent_events: tuple[SentEvent, ...] = ()
    part: SnapshotPart = SnapshotPart.SYNC
    #: Its checkpoint is over; it is dropped when its part ends.
    aborted: bool = False

    @property
    def is_under_way(self) -> bool:
        """Whether it is still to be acknowledged or declined."""
        return self.part is not SnapshotPart.ACKNOWLEDGED and not self.aborted

    @property
    def effect(self) -> TakeSnapshot:
        """The effect that begins it."""
        return TakeSnapshot(
            vertex=self.trigger.vertex,
            checkpoint_id=self.trigger.checkpoint_id,
            kind=self.trigger.kind,
            timestamp_ms=self.trigger.timestamp_ms,
            target=self.trigger.target,
            position=self.position,
            finished=self.finished,
            committables=self.committables,
            full=self.trigger.full,
            in_flight=self.in_flight,
        )


class OpenSnapshots:
    """Snapshots by checkpoint id. At most one synchronous part runs at a time."""

    def __init__(self) -> None:
        self._snapshots: dict[int, TaskSnapshot] = {}

    @property
    def is_syncing(self) -> bool:
        """Whether a synchronous part is running, so that no step may begin."""
        return any(snapshot.part is SnapshotPart.SYNC for snapshot in self._snapshots.values())

    @property
    def any_under_way(self) -> bool:
        """Whether the task still owes an acknowledgement or a decline."""
        return any(snapshot.is_under_way for snapshot in self._snapshots.values())

    @property
    def any_part_running(self) -> bool:
        """Whether a part of a snapshot is running, be it of one that is aborted."""
        return any(
            snapshot.part is not SnapshotPart.ACKNOWLEDGED for snapshot in self._snapshots.values()
        )

    @property
    def channels_in_use(self) -> frozenset[VertexId]:
        """The channels that hold segments which a running part still needs, be it of an aborted
        snapshot (PROTOCOL P27)."""
        running = (
            one for one in self._snapshots.values() if one.part is not SnapshotPart.ACKNOWLEDGED
        )
        return frozenset(segment.channel for snapshot in running for segment in snapshot.in_flight)

    def get(self, checkpoint_id: int) -> TaskSnapshot | None:
        """The snapshot, or None if it was never begun or is over."""
        return self._snapshots.get(checkpoint_id)

    def begin(self, snapshot: TaskSnapshot) -> None:
        """A synchronous part begins."""
        invariant(not self.is_syncing, "two synchronous parts would run at once")
        self._snapshots[snapshot.trigger.checkpoint_id] = snapshot

    def running(self, checkpoint_id: int, *parts: SnapshotPart) -> TaskSnapshot:
        """The snapshot, of which one of ``parts`` must be running."""
        snapshot = self._snapshots.get(checkpoint_id)
        if snapshot is None or snapshot.part not in parts:
            raise InvariantError(
                f"snapshot {checkpoint_id} reports the end of a part that is not running"
            )
        return snapshot

    def go_on(self, checkpoint_id: int, part: SnapshotPart) -> None:
        """The snapshot is now in ``part``."""
        self._snapshots[checkpoint_id] = replace(self._snapshots[checkpoint_id], part=part)

    def abort(self, checkpoint_id: int) -> None:
        """The checkpoint is over, but a part of the snapshot is running: drop it later."""
        self._snapshots[checkpoint_id] = replace(self._snapshots[checkpoint_id], aborted=True)

    def forget(self, checkpoint_id: int) -> None:
        """The snapshot is over for the task."""
        del self._snapshots[checkpoint_id]

    def abort_all(self) -> None:
        """The task ends: forget what is acknowledged, and keep the rest only to drop it when its
        part ends."""
        self._snapshots = {
            checkpoint_id: replace(snapshot, aborted=True)
            for checkpoint_id, snapshot in self._snapshots.items()
            if snapshot.part is not SnapshotPart.ACKNOWLEDGED
        }

    def validate(self) -> None:
        """Check the laws of this collection; raises ``InvariantError``."""
        syncing = [s for s in self._snapshots.values() if s.part is SnapshotPart.SYNC]
        invariant(len(syncing) <= 1, "two synchronous parts are running")
        for checkpoint_id, snapshot in self._snapshots.items():
            invariant(
                not (snapshot.aborted and snapshot.part is SnapshotPart.ACKNOWLEDGED),
                f"the aborted snapshot {checkpoint_id} is kept after its last part",
            )
            invariant(
                snapshot.part is not SnapshotPart.ACKNOWLEDGED
                or snapshot.trigger.kind.commits_side_effects,
                f"the intermediate savepoint {checkpoint_id} is kept after its acknowledgement",
            )


def barrier_of(trigger: TriggerCheckpoint) -> CheckpointBarrier:
    """What goes downstream for a trigger."""
    return CheckpointBarrier(
        checkpoint_id=trigger.checkpoint_id,
        kind=trigger.kind,
        timestamp_ms=trigger.timestamp_ms,
        target=trigger.target,
        full=trigger.full,
    )


def trigger_of(barrier: CheckpointBarrier, vertex: VertexId) -> TriggerCheckpoint:
    """What a barrier asks of the task that it has come to."""
    return TriggerCheckpoint(
        vertex=vertex,
        checkpoint_id=barrier.checkpoint_id,
        kind=barrier.kind,
        timestamp_ms=barrier.timestamp_ms,
        target=barrier.target,
        full=barrier.full,
    )
