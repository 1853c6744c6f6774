"""The checkpoint id under which a sink commits what it staged (PROTOCOL P5, P12, P14, P19).

A committable is marked with the first barrier that comes after it. If the checkpoint of that
barrier is aborted, or is a savepoint that commits nothing, the next to complete commits it.
So its epoch is the smallest completed, committing checkpoint whose id is at least its barrier.
The task now and a restored job later must commit it under the same id: it is the transaction id by
which the target recognises a repeated commit::

    barrier of checkpoint 5 passes    committable (barrier 5)
    checkpoint 5 completes            sinks commit it as epoch 5, which takes long
    barrier of checkpoint 6 passes    the snapshot still holds it; the task may not know of 5 yet
    checkpoint 6 is recorded          its metadata must say epoch 5, not 6
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import replace

from weir.core.types import SnapshotKind, TaskState
from weir.errors import invariant


class CommitEpochs:
    """The completed checkpoints that let sinks commit."""

    def __init__(self) -> None:
        #: Law: ascending. Goes back only as far as a committable can still refer.
        self._completed: list[int] = []

    def restart(self, restored_id: int | None) -> None:
        """Begin an attempt: only ``restored_id`` counts; its pending output has been committed."""
        self._completed = [] if restored_id is None else [restored_id]

    def completed(self, checkpoint_id: int) -> None:
        """A checkpoint that commits side effects has completed."""
        invariant(
            not self._completed or self._completed[-1] < checkpoint_id,
            f"epoch {checkpoint_id} completed after a newer one",
        )
        self._completed.append(checkpoint_id)

    def resolve(self, state: TaskState, *, checkpoint_id: int, kind: SnapshotKind) -> TaskState:
        """``state`` as stored in the metadata of ``checkpoint_id``, with every known epoch set."""
        if not state.committables:
            return state
        own = checkpoint_id if kind.commits_side_effects else None
        committables = []
        for committable in state.committables:
            if committable.epoch is not None:
                committables.append(committable)
                continue
            barrier = checkpoint_id if committable.barrier is None else committable.barrier
            invariant(
                barrier <= checkpoint_id,
                f"snapshot {checkpoint_id} holds output of the later barrier {barrier}",
            )
            place = bisect.bisect_left(self._completed, barrier)
            epoch = self._completed[place] if place < len(self._completed) else own
            committables.append(replace(committable, epoch=epoch))
        return replace(state, committables=tuple(committables))

    def forget(self, tasks: Iterable[TaskState], *, checkpoint_id: int) -> None:
        """Drop the ids that no later snapshot can refer to.

        ``tasks`` are those of the newest completed checkpoint. Must only be called when no older
        snapshot is pending.
        """
        epochs = (c.epoch for task in tasks for c in task.committables if c.epoch is not None)
        floor = min(epochs, default=checkpoint_id)
        del self._completed[: bisect.bisect_left(self._completed, min(floor, checkpoint_id))]

    def validate(self) -> None:
        """Check the law of the field; raises ``InvariantError``."""
        invariant(self._completed == sorted(set(self._completed)), "epochs are out of order")
