"""Which checkpoints must be full: refer to no file of any earlier checkpoint (PROTOCOL P40).

An attempt that was restored from a savepoint, or from a snapshot of another job, stands on files that are not this job's
to keep; and one that was restored from nothing has no files to refer to. Its first checkpoint must therefore be full,
whatever a user asks for. Rules:

1. The duty begins with the attempt and follows from what that was restored from. So it needs no record of its own, and
   holds again in a new attempt and in a new driver.
2. It ends when a full *checkpoint* completed. A savepoint is full too, but no checkpoint may be based on it.
3. While a full checkpoint is pending, a newer one is full too: it may complete first, and then the older is subsumed.
4. Savepoints are always full: they are self-contained.
5. A job that is configured not to be incremental takes every checkpoint full, unless a user asks for an incremental one.
"""

from __future__ import annotations

from collections.abc import Iterable

from weir.core.pending import PendingCheckpoint
from weir.core.request_decider import CheckpointRequest
from weir.core.types import CompletedCheckpoint, SnapshotKind


class FullCheckpoints:
    """Whether the first full checkpoint of the attempt is still owed."""

    def __init__(self, *, incremental: bool) -> None:
        """``incremental``: ``execution.checkpointing.incremental``."""
        self._incremental = incremental
        #: Whether every checkpoint is full, until one of them completed.
        self._owed = True

    def begin_attempt(self, own: CompletedCheckpoint | None) -> None:
        """An attempt was restored from ``own``, a snapshot of this job, or from none of this job."""
        self._owed = own is None or own.kind.is_savepoint

    def applies_to(self, request: CheckpointRequest, pending: Iterable[PendingCheckpoint]) -> bool:
        """Whether the checkpoint of ``request`` must be full, given those that are under way."""
        if self._owed or request.asks_for_full(incremental=self._incremental):
            return True
        return any(p.full and p.kind is SnapshotKind.CHECKPOINT for p in pending)

    def completed(self, checkpoint: PendingCheckpoint) -> None:
        """A checkpoint, that is no savepoint, completed."""
        if checkpoint.full:
            self._owed = False
