"""``PendingCommits``: a task's staged committables, from the batch to the confirmed commit.

This is the bookkeeping for exactly-once output. One committable goes through::

    staged in batch 4 ..... barrier None, epoch None
    barrier 7 is taken .... barrier 7    the first barrier after it; kept if 7 is aborted (P12)
    8 completes ........... epoch 8      the first completed checkpoint at or after its barrier
    epoch 8 is confirmed .. gone

A sink may leave out checkpoints, so that it commits at intervals. Their barriers do not mark its
output, so it gets the epoch of a later checkpoint. The metadata of a checkpoint that was left out
holds the output all the same, under the checkpoint's own id: a job restored from it commits that
first. Nothing else has committed it, since the later checkpoint never completed.

The epoch is assigned once and is part of the transaction id at the sink, so nothing can be
committed under two ids. A restored job derives the same epoch from the barrier mark and the ids of
the completed checkpoints. Epochs are committed in ascending order, one at a time (PROTOCOL P13),
including epochs without committables (P15).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from weir.core.messages.channel import CheckpointBarrier
from weir.core.types import Committable, OperatorId, Payload
from weir.errors import invariant


class PendingCommits:
    """The unconfirmed committables of one task, and the order of its commits."""

    def __init__(
        self, sinks: tuple[OperatorId, ...], intervals_ms: Mapping[OperatorId, int] | None = None
    ) -> None:
        """``intervals_ms``: see ``TaskPlan.commit_intervals_ms``."""
        self._sinks = sinks
        self._intervals_ms = {} if intervals_ms is None else intervals_ms
        #: When the newest completed checkpoint that a sink did not leave out was triggered.
        self._committed_ms: dict[OperatorId, int] = {}
        #: The same by checkpoint, for those that may complete.
        self._due: dict[int, dict[OperatorId, int]] = {}
        #: Staged but not confirmed, by sink and position, in staging order (PROTOCOL P5).
        self._committables: dict[tuple[OperatorId, int], Committable] = {}
        #: The epoch that the sinks are committing.
        self._committing: int | None = None
        #: Completed checkpoints whose epochs are committed after it, each with its sinks.
        self._queue: deque[tuple[int, tuple[OperatorId, ...]]] = deque()
        #: The newest completed checkpoint. Checkpoints complete in ascending order.
        self._newest_completed = 0

    @property
    def is_idle(self) -> bool:
        """Whether no commit is under way or queued."""
        return self._committing is None and not self._queue

    def stage(self, position: int, committables: Iterable[Committable]) -> None:
        """Add the committables that batch ``position`` staged."""
        staged = list(committables)
        keys = {(committable.sink, committable.position) for committable in staged}
        invariant(
            len(keys) == len(staged) and self._committables.keys().isdisjoint(keys),
            f"a sink staged batch {position} twice",
        )
        for sink, of_batch in keys:
            invariant(
                sink in self._sinks and of_batch == position,
                f"sink {sink} staged for batch {of_batch} in batch {position}",
            )
        self._committables.update({(c.sink, c.position): c for c in staged})

    def taken(self, position: int) -> tuple[Committable, ...]:
        """The committables of a snapshot at ``position``.

        Committables of later batches belong to a later snapshot (the drain's batch may be running).
        """
        return tuple(c for c in self._committables.values() if c.position <= position)

    def barrier(self, barrier: CheckpointBarrier, position: int, *, last: bool) -> None:
        """A checkpoint's barrier comes after batch ``position``: mark what is before it.

        ``last``: no records come after it, so no sink leaves the checkpoint out.
        """
        checkpoint_id, triggered_ms = barrier.checkpoint_id, barrier.timestamp_ms
        due = {sink for sink in self._sinks if last or self._is_due(sink, triggered_ms)}
        self._due[checkpoint_id] = dict.fromkeys(due, triggered_ms)
        for key, committable in self._committables.items():
            if committable.position > position:
                continue
            if committable.sink in due and committable.barrier is None:
                self._committables[key] = replace(committable, barrier=checkpoint_id)
            elif committable.sink not in due and committable.left_out is None:
                self._committables[key] = replace(committable, left_out=checkpoint_id)

    def _is_due(self, sink: OperatorId, triggered_ms: int) -> bool:
        """Whether a sink does not leave out a checkpoint that was triggered then.

        It leaves out no checkpoint that would commit output of an aborted one: marked output has
        the epoch of the first completed checkpoint from its barrier on (``CommitEpochs``).
        """
        marked = any(
            c.sink == sink and c.barrier is not None and c.epoch is None
            for c in self._committables.values()
        )
        before_ms, interval_ms = self._committed_ms.get(sink), self._intervals_ms.get(sink)
        if marked or before_ms is None or interval_ms is None:
            return True
        # Spans do not begin with the last commit: sinks of one interval commit at the same
        # checkpoints, so that a reader of several tables can show them as of one of those.
        return triggered_ms // interval_ms != before_ms // interval_ms

    def flushed(
        self, taken: tuple[Committable, ...], flushed: tuple[Committable, ...]
    ) -> tuple[Committable, ...]:
        """Adopt the payloads of ``flushed``; return ``taken`` with its payloads and files.

        Barrier and epoch marks are unchanged. What was committed in between is left out.
        """
        by_key = {(c.sink, c.position): c for c in flushed}
        left_out = {(c.sink, c.position) for c in taken} - by_key.keys()
        invariant(
            len(by_key) + len(left_out) == len(taken)
            and all(
                key not in self._committables or self._committables[key].epoch is not None
                for key in left_out
            ),
            "flushing staged output lost or added a committable",
        )
        for key, done in by_key.items():
            if key in self._committables:
                self._committables[key] = replace(self._committables[key], payload=done.payload)
        kept = [(c, by_key[c.sink, c.position]) for c in taken if (c.sink, c.position) in by_key]
        return tuple(replace(c, payload=done.payload, files=done.files) for c, done in kept)

    def completed(self, checkpoint_id: int) -> None:
        """Assign the epoch of a completed checkpoint to all its barrier covers, and queue it."""
        invariant(
            checkpoint_id > self._newest_completed,
            f"checkpoint {checkpoint_id} completed after checkpoint {self._newest_completed}",
        )
        self._newest_completed = checkpoint_id
        due = self._due[checkpoint_id]
        self._committed_ms.update(due)
        self._due = {taken: due for taken, due in self._due.items() if taken > checkpoint_id}
        for key, c in self._committables.items():
            if c.epoch is None and c.barrier is not None and c.barrier <= checkpoint_id:
                self._committables[key] = replace(c, epoch=checkpoint_id)
        self._queue.append((checkpoint_id, tuple(sink for sink in self._sinks if sink in due)))

    def next_commit(self) -> tuple[int, dict[OperatorId, tuple[Payload, ...]]] | None:
        """Start the next commit: its epoch, and the payloads of every sink that commits it.

        None while a commit is in progress, or if none is queued.
        """
        if self._committing is not None or not self._queue:
            return None
        epoch, sinks = self._queue.popleft()
        self._committing = epoch
        payloads = {
            sink: tuple(
                c.payload for c in self._committables.values() if (c.sink, c.epoch) == (sink, epoch)
            )
            for sink in sinks
        }
        return epoch, payloads

    def confirmed(self, checkpoint_id: int) -> None:
        """Every sink has committed the epoch: forget its committables."""
        invariant(
            self._committing == checkpoint_id,
            f"epoch {checkpoint_id} committed while epoch {self._committing} was committing",
        )
        self._committing = None
        self._committables = {
            k: c for k, c in self._committables.items() if c.epoch != checkpoint_id
        }

    def validate(self) -> None:
        """Check the laws of this ledger; raises ``InvariantError``."""
        epochs = [] if self._committing is None else [self._committing]
        epochs += [epoch for epoch, _ in self._queue]
        invariant(epochs == sorted(set(epochs)), "epochs are committed out of order")
        invariant(
            self._committing is not None or not self._queue,
            "a queued commit waits although none is running",
        )
        for (sink, position), committable in self._committables.items():
            what = f"output of {sink} in batch {position}"
            invariant(
                (committable.sink, committable.position) == (sink, position), f"{what} is misplaced"
            )
            invariant(
                committable.epoch is None
                or (committable.barrier is not None and committable.barrier <= committable.epoch),
                f"{what} has an epoch before its barrier",
            )
            invariant(
                committable.epoch is None or committable.epoch in epochs,
                f"{what} has an epoch that is already committed",
            )
