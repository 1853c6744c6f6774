"""``OpenSnapshots``: the unfinished snapshots of one task.

A snapshot runs its synchronous part, then its asynchronous part, and is then kept as acknowledged
until its checkpoint completes or is aborted. If it is aborted while a part is running, it is marked
and kept until that part ends: only then is it safe to delete what it wrote (PROTOCOL P43).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from weir.core.messages.task import TakeSnapshot
from weir.core.types import SentEvent, TaskState, VertexId
from weir.errors import InvariantError, invariant


class SnapshotPart(enum.Enum):
    """The part of a snapshot that is running, if any."""

    SYNC = "SYNC"
    ASYNC = "ASYNC"
    #: No part is running: the snapshot is acknowledged, and its checkpoint is still pending.
    ACKNOWLEDGED = "ACKNOWLEDGED"


@dataclass(frozen=True, kw_only=True)
class TaskSnapshot:
    """One snapshot of the task."""

    #: What started it.
    effect: TakeSnapshot
    #: Time from the first barrier on the task's channels to the last, in milliseconds.
    alignment_ms: int = 0
    #: Events that its operators have sent and coordinators have not acknowledged.
    sent_events: tuple[SentEvent, ...] = ()
    part: SnapshotPart = SnapshotPart.SYNC
    #: Its checkpoint was aborted; the snapshot is dropped when its running part ends.
    aborted: bool = False

    @property
    def is_under_way(self) -> bool:
        """Whether it is still to be acknowledged or declined."""
        return self.part is not SnapshotPart.ACKNOWLEDGED and not self.aborted

    def check(self, state: TaskState) -> None:
        """Raise ``InvariantError`` unless ``state`` is what this snapshot was to write."""
        n, vertex = self.effect.checkpoint_id, self.effect.vertex
        invariant(
            (state.vertex, state.position) == (vertex, self.effect.position),
            f"snapshot {n} of {vertex} holds the state of {state.vertex} at {state.position}",
        )
        invariant(
            [(segment.channel, segment.position) for segment in state.in_flight]
            == [(segment.channel, segment.position) for segment in self.effect.in_flight],
            f"snapshot {n} of {vertex} lacks the segments in flight",
        )


class OpenSnapshots:
    """Snapshots by checkpoint id. At most one synchronous part runs at a time."""

    def __init__(self) -> None:
        self._snapshots: dict[int, TaskSnapshot] = {}

    @property
    def is_syncing(self) -> bool:
        """Whether a synchronous part is running, so that no batch may start."""
        return any(snapshot.part is SnapshotPart.SYNC for snapshot in self._snapshots.values())

    @property
    def any_under_way(self) -> bool:
        """Whether the task still owes an acknowledgement or a decline."""
        return any(snapshot.is_under_way for snapshot in self._snapshots.values())

    @property
    def any_part_running(self) -> bool:
        """Whether a part of any snapshot is running, aborted snapshots included."""
        return any(
            snapshot.part is not SnapshotPart.ACKNOWLEDGED for snapshot in self._snapshots.values()
        )

    @property
    def channels_in_use(self) -> frozenset[VertexId]:
        """The channels with segments that a running part still needs (PROTOCOL P27).

        Aborted snapshots are included.
        """
        running = (s for s in self._snapshots.values() if s.part is not SnapshotPart.ACKNOWLEDGED)
        return frozenset(segment.channel for s in running for segment in s.effect.in_flight)

    def get(self, checkpoint_id: int) -> TaskSnapshot | None:
        """The snapshot, or None if it was never started or is finished."""
        return self._snapshots.get(checkpoint_id)

    def begin(self, snapshot: TaskSnapshot) -> None:
        """The snapshot's synchronous part starts."""
        invariant(not self.is_syncing, "a synchronous part starts while another is running")
        self._snapshots[snapshot.effect.checkpoint_id] = snapshot

    def running(self, checkpoint_id: int, *parts: SnapshotPart) -> TaskSnapshot:
        """The snapshot; raises ``InvariantError`` unless one of ``parts`` is running."""
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
        """The checkpoint was aborted while a part of the snapshot runs: mark it to be dropped."""
        self._snapshots[checkpoint_id] = replace(self._snapshots[checkpoint_id], aborted=True)

    def forget(self, checkpoint_id: int) -> None:
        """Remove the snapshot: the task is done with it."""
        del self._snapshots[checkpoint_id]

    def abort_all(self) -> None:
        """The task ends: forget acknowledged snapshots, and mark the rest as aborted.

        Those are dropped when their running part ends.
        """
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
                f"aborted snapshot {checkpoint_id} is kept after its last part",
            )
            invariant(
                snapshot.part is not SnapshotPart.ACKNOWLEDGED
                or snapshot.effect.kind.commits_side_effects,
                f"intermediate savepoint {checkpoint_id} is kept after its acknowledgement",
            )
