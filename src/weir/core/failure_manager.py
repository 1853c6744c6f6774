"""Counts failed checkpoints and says when the job must fail for them (Flink's ``CheckpointFailureManager``).

Only *consecutive* failures count: a success resets the count, an uncounted reason neither adds to the count
nor breaks the streak. One checkpoint counts once, however many of its tasks report a failure, and a failure
of a checkpoint at or below the newest completed one is old news and ignored.
"""

from __future__ import annotations

from weir.core.failure_reason import CheckpointFailureReason
from weir.errors import invariant

#: ``tolerable-failed-checkpoints`` of a job that no failed checkpoint fails (Flink: Integer.MAX_VALUE).
UNLIMITED_TOLERABLE_FAILURES = 2**31 - 1

EXCEEDED_MESSAGE = "Exceeded checkpoint tolerable failure threshold."


class CheckpointFailureManager:
    """The count of consecutive failed checkpoints and its limit (PROTOCOL P9)."""

    def __init__(self, *, tolerable_failures: int) -> None:
        self._tolerable_failures = tolerable_failures
        #: Consecutive counted failures. Law: at most ``_tolerable_failures`` between two calls.
        self._continuous_failures = 0
        #: Ids that are part of the count. Law: no more of them than the count.
        self._counted_ids: set[int] = set()
        #: The newest checkpoint that completed; 0 before the first.
        self._last_succeeded_id = 0

    @property
    def continuous_failures(self) -> int:
        """Counted failures since the last success."""
        return self._continuous_failures

    def handle_failure(
        self, reason: CheckpointFailureReason, checkpoint_id: int | None, *, final: bool = False
    ) -> bool:
        """Take note of one failure; True means that the job must fail, and begins a new count.

        ``checkpoint_id`` is None for a checkpoint that failed before it had an id; ``final``: tasks wait for it to end.
        """
        counts = reason.counts_when_final if final else reason.counts
        if not counts or self._tolerable_failures >= UNLIMITED_TOLERABLE_FAILURES:
            return False
        if checkpoint_id is not None:
            if checkpoint_id <= self._last_succeeded_id or checkpoint_id in self._counted_ids:
                return False
            self._counted_ids.add(checkpoint_id)
        self._continuous_failures += 1
        if self._continuous_failures <= self._tolerable_failures:
            return False
        self.reset()
        return True

    def handle_success(self, checkpoint_id: int) -> None:
        """A checkpoint completed: the count begins anew."""
        self._last_succeeded_id = max(self._last_succeeded_id, checkpoint_id)
        self.reset()

    def reset(self) -> None:
        """Begin a new count, as each attempt does."""
        self._continuous_failures = 0
        self._counted_ids.clear()

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        invariant(
            self._continuous_failures <= self._tolerable_failures, "more failures counted than are tolerated"
        )
        invariant(len(self._counted_ids) <= self._continuous_failures, "an id was counted without a failure")
