"""The completed checkpoints that a job keeps, and which files of the others may be deleted (MISSION A11).

An incremental checkpoint names files that older ones wrote, so subsuming a checkpoint does not mean that its
files can go. The rule: a file is deleted only if no retained and no pending checkpoint needs it. The users of each file
are counted in a ``SharedStateRegistry``: a pending checkpoint from its first acknowledgement on, a completed one until
it is released.

What a *pending* checkpoint needs is not known before its tasks have acknowledged: a task bases its snapshot on the
newest checkpoint of whose completion it was told (PROTOCOL P4), and that may be the one that was just subsumed::

    checkpoint 1 completes        retained: 1
    checkpoint 2, 3 triggered     both are based on 1
    checkpoint 2 completes        retained: 2; 1 is subsumed, but 3 may still name its files
    checkpoint 3 completes        retained: 3; now what 3 does not name of 1 is deleted. 2 goes at once, if nothing is
                                  pending that was triggered before this moment

So a subsumed checkpoint is *deferred* until every checkpoint that was pending when it was subsumed is over. A
checkpoint triggered later is based on a retained one, since triggers and completions reach a task in order.

So a file of a deferred checkpoint keeps that user, and no pending checkpoint can name a file that has none any more. A
pending checkpoint that is aborted leaves nothing to delete by name: what only it used lies in its own directories.

Savepoints are self-contained, belong to the user and never enter the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from weir.core.shared_state_registry import SharedStateRegistry
from weir.core.types import CompletedCheckpoint
from weir.errors import invariant


@dataclass(frozen=True, kw_only=True)
class Subsumed:
    """A checkpoint that nobody needs any more, with those of its files that nobody needs."""

    checkpoint_id: int
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Deferred:
    checkpoint: CompletedCheckpoint
    #: Checkpoints that were pending when it was subsumed and may be based on it.
    waits_for: frozenset[int]


class CompletedCheckpointStore:
    """The newest ``num_retained`` completed checkpoints, oldest first."""

    def __init__(self, *, num_retained: int) -> None:
        self._num_retained = num_retained
        #: Law: ids ascend, no savepoint among them, at most ``num_retained``.
        self._retained: list[CompletedCheckpoint] = []
        #: Subsumed ones whose deletion waits. Law: none is also retained.
        self._deferred: list[_Deferred] = []
        #: Users are the retained, the deferred and the pending checkpoints; savepoints are self-contained.
        self._registry = SharedStateRegistry()

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The newest completed checkpoint."""
        return self._retained[-1] if self._retained else None

    @property
    def ids(self) -> tuple[int, ...]:
        """Ids of the retained checkpoints, oldest first."""
        return tuple(checkpoint.checkpoint_id for checkpoint in self._retained)

    def ids_with(self, checkpoint_id: int) -> tuple[int, ...]:
        """The ids that would be retained after ``checkpoint_id`` is added."""
        return (*self.ids, checkpoint_id)[-self._num_retained :]

    @property
    def files(self) -> frozenset[str]:
        """Paths of all files that a retained checkpoint needs."""
        return frozenset(path for checkpoint in self._retained for path in checkpoint.files)

    def seed(self, restored: CompletedCheckpoint | None, older: tuple[CompletedCheckpoint, ...] = ()) -> None:
        """An attempt was restored from a checkpoint or savepoint of this job, or from nothing of this job (None).

        What is newer than it was not usable and leaves the store, without being deleted. ``older`` are retained
        checkpoints before it that the store may not know yet.
        """
        if restored is None:
            self._retained.clear()
            self._deferred.clear()
            self._registry.clear()
            return
        restored_id = restored.checkpoint_id
        known = {c.checkpoint_id: c for c in (*older, *self._retained)}
        retained = [known[n] for n in sorted(known) if n < restored_id and not known[n].kind.is_savepoint]
        if not restored.kind.is_savepoint:
            retained.append(restored)
        ids = {checkpoint.checkpoint_id for checkpoint in retained}
        self._deferred = [d for d in self._deferred if d.checkpoint.checkpoint_id not in ids]
        for checkpoint in self._retained:
            if checkpoint.checkpoint_id not in ids:
                self._registry.unregister(checkpoint.checkpoint_id)
        for checkpoint in retained:
            self._registry.register(checkpoint.checkpoint_id, checkpoint.files)
        self._retained = retained
        self._trim(frozenset())

    def acknowledged(self, checkpoint_id: int, paths: Iterable[str]) -> None:
        """A task of a pending checkpoint acknowledged these files: they stay until it is over."""
        self._registry.register(checkpoint_id, paths)

    def aborted(self, checkpoint_id: int) -> None:
        """A pending checkpoint is over, and needs no file any more."""
        self._registry.unregister(checkpoint_id)

    def add(self, checkpoint: CompletedCheckpoint, *, pending: Collection[int]) -> None:
        """A checkpoint completed while ``pending`` ones were under way; the oldest beyond the limit is subsumed."""
        invariant(not checkpoint.kind.is_savepoint, "a savepoint is never added to the store")
        latest = self.latest
        invariant(
            latest is None or latest.checkpoint_id < checkpoint.checkpoint_id,
            f"checkpoint {checkpoint.checkpoint_id} completes out of order",
        )
        self._registry.register(checkpoint.checkpoint_id, checkpoint.files)
        self._retained.append(checkpoint)
        self._trim(frozenset(pending))

    def release(self, pending: Collection[int]) -> list[Subsumed]:
        """The subsumed checkpoints that can be deleted now; each is named once. ``pending`` are those under way."""
        released: list[Subsumed] = []
        deferred: list[_Deferred] = []
        for item in self._deferred:
            if item.waits_for.isdisjoint(pending):
                files = self._registry.unregister(item.checkpoint.checkpoint_id)
                subsumed = Subsumed(checkpoint_id=item.checkpoint.checkpoint_id, files=tuple(sorted(files)))
                released.append(subsumed)
            else:
                deferred.append(item)
        self._deferred = deferred
        return released

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        ids = list(self.ids)
        invariant(ids == sorted(set(ids)), f"retained checkpoints {ids} are out of order")
        invariant(len(ids) <= self._num_retained, f"{len(ids)} checkpoints are retained")
        invariant(not any(c.kind.is_savepoint for c in self._retained), "a savepoint is in the store")
        deferred = {d.checkpoint.checkpoint_id for d in self._deferred}
        invariant(deferred.isdisjoint(ids), "a retained checkpoint is about to be deleted")
        invariant(len(deferred) == len(self._deferred), "a subsumed checkpoint is deferred twice")
        self._registry.validate()

    def _trim(self, pending: frozenset[int]) -> None:
        while len(self._retained) > self._num_retained:
            self._deferred.append(_Deferred(checkpoint=self._retained.pop(0), waits_for=pending))
