"""Checkpoints no longer pending: those remembered, and those whose files are being deleted.

``RecentCheckpoints`` recognises late messages. ``CheckpointsCleaner`` (Flink's) counts the
deletions in progress, since no checkpoint starts while there are too many (``request_decider.py``,
rule 2).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection

from weir.core.checkpoints.pending import TaskAcknowledgeResult
from weir.core.messages.job import DiscardCheckpoint
from weir.errors import invariant

#: How many ids of each kind are remembered (Flink: ``NUM_GHOST_CHECKPOINT_IDS``).
NUM_RECENT_CHECKPOINT_IDS = 16


class RecentCheckpoints:
    """The newest checkpoints that were aborted, and the newest that completed."""

    def __init__(self) -> None:
        #: Aborted checkpoints, oldest first, with the directory of a savepoint. Law: bounded, none
        #: is pending or retained.
        self._aborted: dict[int, str | None] = {}
        #: Completed checkpoints, oldest first. Law: bounded, none is pending.
        self._completed: deque[int] = deque(maxlen=NUM_RECENT_CHECKPOINT_IDS)

    @property
    def newest_aborted(self) -> int:
        """The newest id of an aborted checkpoint; 0 if none is known."""
        return max(self._aborted, default=0)

    def aborted(self, checkpoint_id: int, target: str | None) -> None:
        """A checkpoint was aborted; ``target`` is the directory of a savepoint."""
        self._aborted[checkpoint_id] = target
        if len(self._aborted) > NUM_RECENT_CHECKPOINT_IDS:
            del self._aborted[next(iter(self._aborted))]

    def restored(self, checkpoint_id: int) -> None:
        """An attempt starts from it. It was aborted if its record landed late."""
        self._aborted.pop(checkpoint_id, None)

    def completed(self, checkpoint_id: int) -> None:
        """A checkpoint completed."""
        self._completed.append(checkpoint_id)

    def acknowledge(self, checkpoint_id: int) -> TaskAcknowledgeResult:
        """The result of an acknowledgement for a checkpoint that is not pending."""
        if checkpoint_id in self._aborted:
            return TaskAcknowledgeResult.DISCARDED
        if checkpoint_id in self._completed:
            return TaskAcknowledgeResult.DUPLICATE
        return TaskAcknowledgeResult.UNKNOWN

    def target_of(self, checkpoint_id: int) -> str | None:
        """The directory of an aborted savepoint; None for a checkpoint."""
        return self._aborted[checkpoint_id]

    def validate(self, *, pending: Collection[int], retained: Collection[int]) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        invariant(len(self._aborted) <= NUM_RECENT_CHECKPOINT_IDS, "too many recent ids")
        invariant(self._aborted.keys().isdisjoint(pending), "an aborted checkpoint is pending")
        invariant(self._aborted.keys().isdisjoint(retained), "an aborted checkpoint is retained")
        invariant(set(self._completed).isdisjoint(pending), "a completed checkpoint is pending")


class CheckpointsCleaner:
    """Counts the deletions in progress, including those that wait for tasks to stop."""

    def __init__(self) -> None:
        #: By checkpoint id. Counts effects, not checkpoints: an aborted checkpoint is deleted again
        #: for each late acknowledgement. Law: no count is 0.
        self._under_way: Counter[int] = Counter()

    @property
    def under_way(self) -> int:
        """How many deletions are in progress."""
        return self._under_way.total()

    def aborted(self, checkpoint_id: int, target: str | None) -> DiscardCheckpoint:
        """Delete what an aborted checkpoint wrote."""
        return self._delete(
            DiscardCheckpoint(checkpoint_id=checkpoint_id, target=target, files=(), subsumed=False)
        )

    def subsumed(self, checkpoint_id: int, files: tuple[str, ...]) -> DiscardCheckpoint:
        """Delete a subsumed checkpoint and the given files."""
        return self._delete(
            DiscardCheckpoint(checkpoint_id=checkpoint_id, target=None, files=files, subsumed=True)
        )

    def over(self, checkpoint_id: int) -> None:
        """One deletion is done, or will not be carried out."""
        invariant(
            self._under_way[checkpoint_id] > 0,
            f"checkpoint {checkpoint_id} was deleted more often than requested",
        )
        self._under_way[checkpoint_id] -= 1
        if not self._under_way[checkpoint_id]:
            del self._under_way[checkpoint_id]

    def validate(self) -> None:
        """Check the law of the field; raises ``InvariantError``."""
        invariant(all(count > 0 for count in self._under_way.values()), "deletion counts are wrong")

    def _delete(self, effect: DiscardCheckpoint) -> DiscardCheckpoint:
        self._under_way[effect.checkpoint_id] += 1
        return effect
