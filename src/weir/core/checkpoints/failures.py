"""When failed checkpoints must fail the job (Flink's ``CheckpointFailureManager``).

It counts *consecutive* failures: a success resets the count; a reason that does not count neither
adds to it nor breaks the streak. A checkpoint counts once, since its first failure ends it. A
failure of a checkpoint that is not newer than the newest completed checkpoint is ignored.
"""

from __future__ import annotations

from weir.core.types import CheckpointFailureReason
from weir.errors import invariant

#: The value of ``tolerable-failed-checkpoints`` with which failed checkpoints never fail the job
#: (Flink: Integer.MAX_VALUE).
UNLIMITED_TOLERABLE_FAILURES = 2**31 - 1

EXCEEDED_MESSAGE = "Exceeded checkpoint tolerable failure threshold."


class CheckpointFailureManager:
    """The count of consecutive failed checkpoints and its limit (PROTOCOL P9)."""

    def __init__(self, *, tolerable_failures: int) -> None:
        self._tolerable_failures = tolerable_failures
        #: Consecutive counted failures. Law: at most ``_tolerable_failures`` between two calls.
        self._continuous_failures = 0
        #: The newest checkpoint that completed; 0 before the first.
        self._last_succeeded_id = 0

    def handle_failure(
        self, reason: CheckpointFailureReason, checkpoint_id: int | None, *, final: bool = False
    ) -> bool:
        """Record a failure; if True is returned, the job must fail and the count starts over.

        ``checkpoint_id`` is None if the checkpoint failed before it had an id. ``final``: it is a
        final checkpoint, which tasks wait for in order to finish.
        """
        counts = reason.counts_when_final if final else reason.counts
        if not counts or self._tolerable_failures >= UNLIMITED_TOLERABLE_FAILURES:
            return False
        if checkpoint_id is not None and checkpoint_id <= self._last_succeeded_id:
            return False
        self._continuous_failures += 1
        if self._continuous_failures <= self._tolerable_failures:
            return False
        self.reset()
        return True

    def handle_success(self, checkpoint_id: int) -> None:
        """A checkpoint completed: the count starts over."""
        self._last_succeeded_id = max(self._last_succeeded_id, checkpoint_id)
        self.reset()

    def reset(self) -> None:
        """Start a new count, as each attempt does."""
        self._continuous_failures = 0

    def validate(self) -> None:
        """Check the law of the count; raises ``InvariantError``."""
        invariant(
            self._continuous_failures <= self._tolerable_failures,
            "counted more failures than tolerated",
        )
