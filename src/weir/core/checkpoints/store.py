"""The completed checkpoints that a job keeps, and which files may be deleted (MISSION A11).

An incremental checkpoint refers to files of older checkpoints, so subsuming a checkpoint does not
mean that its files can be deleted. The rule: a file is deleted only if no retained and no pending
checkpoint needs it. ``SharedStateRegistry`` (Flink's) counts the users of each file: a completed
checkpoint from its completion until it is released. A call costs time proportional to the files of
the checkpoint it concerns; file sets are never compared with each other::

    register(1, {x, y})        x: 1    y: 1
    register(2, {y, z})        x: 1    y: 1, 2    z: 2
    unregister(1) -> x                 y: 2       z: 2

What a *pending* checkpoint needs is unknown until its tasks have acknowledged: a task bases its
snapshot on the newest checkpoint whose completion it was notified of (PROTOCOL P4), which may be
the checkpoint that was just subsumed::

    checkpoint 1 completes        retained: 1
    checkpoint 2, 3 triggered     both are based on 1
    checkpoint 2 completes        retained: 2; 1 is subsumed, but 3 may still refer to its files
    checkpoint 3 completes        retained: 3; the files of 1 that 3 does not use are deleted. 2 is
                                  deleted at once unless a checkpoint is pending at this moment

So a subsumed checkpoint is *deferred*: it remains a user of its files until every checkpoint that
was pending when it was subsumed has completed or aborted. A checkpoint triggered later is based on
a retained checkpoint, since triggers and completions reach a task in order. A pending checkpoint
therefore registers nothing: each of its files is its own or belongs to a retained or deferred
checkpoint. If it aborts, what only it used is in its own directories. Savepoints are
self-contained, belong to the user and never enter the store.

``FullCheckpoints`` decides which checkpoints must not refer to files of earlier checkpoints
(PROTOCOL P40). An attempt restored from a savepoint or from another job's snapshot builds on files
that this job does not own, and an attempt restored from nothing has no files to refer to. So its
first checkpoint must be full, whatever a user asks for:

1. The duty begins with the attempt and follows from what it was restored from. It therefore needs
   no record of its own and applies again in a new attempt and in a new driver.
2. It ends when a full *checkpoint* completes. A savepoint is full too, but no checkpoint may be
   based on it.
3. While a full checkpoint is pending, newer checkpoints are full too: a newer checkpoint may
   complete first, which subsumes the older.
4. Savepoints are always full.
5. With incremental checkpoints disabled every checkpoint is full, unless a user asks for an
   incremental checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from weir.core.checkpoints.pending import PendingCheckpoint
from weir.core.checkpoints.request_decider import CheckpointRequest
from weir.core.types import CompletedCheckpoint
from weir.errors import invariant


@dataclass(frozen=True, kw_only=True)
class Subsumed:
    """A checkpoint that is no longer needed, and those of its files that nothing needs."""

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
        #: Law: ids ascend, none is a savepoint, at most ``num_retained``.
        self._retained: list[CompletedCheckpoint] = []
        #: Subsumed checkpoints whose deletion waits. Law: none is retained.
        self._deferred: list[_Deferred] = []
        #: Its users are the retained and deferred checkpoints.
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
        """The ids that would be retained if ``checkpoint_id`` were added."""
        return (*self.ids, checkpoint_id)[-self._num_retained :]

    def seed(
        self, restored: CompletedCheckpoint | None, older: tuple[CompletedCheckpoint, ...] = ()
    ) -> None:
        """Reset the store to ``restored``, this job's snapshot that an attempt was restored from.

        None: it was restored from no snapshot of this job. Newer checkpoints were not usable; they
        leave the store but are not deleted. ``older`` are earlier retained checkpoints that the
        store may not know yet.
        """
        if restored is None:
            self._retained.clear()
            self._deferred.clear()
            self._registry.clear()
            return
        restored_id = restored.checkpoint_id
        known = {c.checkpoint_id: c for c in (*older, *self._retained)}
        retained = [
            known[n] for n in sorted(known) if n < restored_id and not known[n].kind.is_savepoint
        ]
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

    def add(self, checkpoint: CompletedCheckpoint, *, pending: Collection[int]) -> None:
        """Add a completed checkpoint and subsume the oldest beyond the limit.

        ``pending`` are the checkpoints in progress at this moment.
        """
        invariant(not checkpoint.kind.is_savepoint, "savepoints are not added to the store")
        latest = self.latest
        invariant(
            latest is None or latest.checkpoint_id < checkpoint.checkpoint_id,
            f"checkpoint {checkpoint.checkpoint_id} completed out of order",
        )
        self._registry.register(checkpoint.checkpoint_id, checkpoint.files)
        self._retained.append(checkpoint)
        self._trim(frozenset(pending))

    def release(self, pending: Collection[int]) -> list[Subsumed]:
        """The subsumed checkpoints that can be deleted now; each is returned once.

        ``pending`` are the checkpoints in progress.
        """
        released: list[Subsumed] = []
        deferred: list[_Deferred] = []
        for item in self._deferred:
            if item.waits_for.isdisjoint(pending):
                files = self._registry.unregister(item.checkpoint.checkpoint_id)
                subsumed = Subsumed(
                    checkpoint_id=item.checkpoint.checkpoint_id, files=tuple(sorted(files))
                )
                released.append(subsumed)
            else:
                deferred.append(item)
        self._deferred = deferred
        return released

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        ids = list(self.ids)
        invariant(ids == sorted(set(ids)), f"retained checkpoints {ids} are out of order")
        invariant(
            len(ids) <= self._num_retained,
            f"{len(ids)} checkpoints are retained instead of at most {self._num_retained}",
        )
        invariant(
            not any(c.kind.is_savepoint for c in self._retained), "a savepoint is in the store"
        )
        deferred = {d.checkpoint.checkpoint_id for d in self._deferred}
        invariant(deferred.isdisjoint(ids), "a retained checkpoint is scheduled for deletion")
        invariant(len(deferred) == len(self._deferred), "a subsumed checkpoint is deferred twice")
        self._registry.validate()

    def _trim(self, pending: frozenset[int]) -> None:
        while len(self._retained) > self._num_retained:
            self._deferred.append(_Deferred(checkpoint=self._retained.pop(0), waits_for=pending))


class SharedStateRegistry:
    """Counts the users of each file path."""

    def __init__(self) -> None:
        #: The files of each user, in the order in which they were registered.
        self._files: dict[int, dict[str, None]] = {}
        #: The number of users of each file. Law: equals the number of entries in ``_files`` that
        #: name it, hence never 0.
        self._users: dict[str, int] = {}

    def register(self, checkpoint_id: int, paths: Iterable[str]) -> None:
        """Add ``checkpoint_id`` as a user of these files; idempotent."""
        files = self._files.setdefault(checkpoint_id, {})
        for path in paths:
            if path not in files:
                files[path] = None
                self._users[path] = self._users.get(path, 0) + 1

    def unregister(self, checkpoint_id: int) -> tuple[str, ...]:
        """Remove ``checkpoint_id`` and return those of its files that now have no user."""
        unused = []
        for path in self._files.pop(checkpoint_id):
            self._users[path] -= 1
            if not self._users[path]:
                del self._users[path]
                unused.append(path)
        return tuple(unused)

    def clear(self) -> None:
        """Forget everything without reporting unused files, which now belong to others."""
        self._files.clear()
        self._users.clear()

    def validate(self) -> None:
        """Check the law of the fields; raises ``InvariantError``."""
        counted: dict[str, int] = {}
        for files in self._files.values():
            for path in files:
                counted[path] = counted.get(path, 0) + 1
        invariant(counted == self._users, "user counts of state files are wrong")


class FullCheckpoints:
    """Tracks whether the attempt still owes its first full checkpoint."""

    def __init__(self, *, incremental: bool) -> None:
        """``incremental``: ``execution.checkpointing.incremental``."""
        self._incremental = incremental
        #: Whether every checkpoint must be full, until a full checkpoint has completed.
        self._owed = True

    def begin_attempt(self, own: CompletedCheckpoint | None) -> None:
        """An attempt was restored from ``own``; None if from no snapshot of this job."""
        self._owed = own is None or own.kind.is_savepoint

    def applies_to(self, request: CheckpointRequest, pending: Iterable[PendingCheckpoint]) -> bool:
        """Whether the checkpoint of ``request`` must be full, given those pending."""
        if self._owed or request.asks_for_full(incremental=self._incremental):
            return True
        return any(p.full and not p.kind.is_savepoint for p in pending)

    def completed(self, checkpoint: PendingCheckpoint) -> None:
        """A checkpoint (not a savepoint) completed."""
        if checkpoint.full:
            self._owed = False
