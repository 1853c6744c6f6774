"""A checkpoint listener of every simulated vertex, which checks how it is notified."""

from __future__ import annotations

from weir.durable.hooks import CheckpointListener
from weir.errors import invariant


class OrderedListener(CheckpointListener):
    """A checkpoint listener that checks its calls: no repeats, none for an ended checkpoint."""

    def __init__(self) -> None:
        self._completed = 0
        self._aborted: set[int] = set()

    @property
    def has_heard(self) -> bool:
        """Whether it was notified of a completed checkpoint."""
        return self._completed > 0

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Check that ids grow, and that this checkpoint was not aborted."""
        invariant(
            checkpoint_id > self._completed and checkpoint_id not in self._aborted,
            f"a listener is notified that checkpoint {checkpoint_id} completed after"
            f" {self._completed}",
        )
        self._completed = checkpoint_id

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Check that it is the first abort of this checkpoint, which did not complete."""
        invariant(
            checkpoint_id != self._completed and checkpoint_id not in self._aborted,
            f"a listener is notified that checkpoint {checkpoint_id} was aborted, which it"
            " already knew",
        )
        self._aborted.add(checkpoint_id)
