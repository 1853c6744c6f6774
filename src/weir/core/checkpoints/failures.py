"""Why checkpoints fail (``CheckpointFailureReason``), and when that must fail the job.

Each reason carries whether it counts against ``tolerable-failed-checkpoints``, so that no switch
elsewhere can miss one. The texts are Flink's, known to its users from the logs and the web UI.

``CheckpointFailureManager`` counts *consecutive* failures: a success resets the count; a reason
that does not count neither adds to it nor breaks the streak. A checkpoint counts once, since its
first failure ends it. A failure of a checkpoint at or below the newest completed one is ignored.
Both classes are Flink's.
"""

from __future__ import annotations

import enum

from weir.errors import invariant


class CheckpointFailureReason(enum.Enum):
    """Why a checkpoint failed. The value is (counts, message)."""

    PERIODIC_SCHEDULER_SHUTDOWN = (False, "Periodic checkpoint scheduler is shut down.")
    TOO_MANY_CHECKPOINT_REQUESTS = (
        False,
        "The maximum number of queued checkpoint requests exceeded.",
    )
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = (
        False,
        (
            "The minimum time between checkpoints is still pending."
            " Checkpoint will be triggered after the minimum time."
        ),
    )
    NOT_ALL_REQUIRED_TASKS_RUNNING = (False, "Not all required tasks are currently running.")
    IO_EXCEPTION = (
        True,
        "An Exception occurred while triggering the checkpoint. IO-problem detected.",
    )
    CHECKPOINT_ASYNC_EXCEPTION = (True, "Asynchronous task checkpoint failed.")
    CHECKPOINT_EXPIRED = (True, "Checkpoint expired before completing.")
    CHECKPOINT_SUBSUMED = (False, "Checkpoint has been subsumed.")
    CHECKPOINT_DECLINED = (True, "Checkpoint was declined.")
    CHECKPOINT_DECLINED_TASK_NOT_READY = (False, "Checkpoint was declined (tasks not ready).")
    CHECKPOINT_DECLINED_TASK_CLOSING = (False, "Checkpoint was declined (task is closing).")
    CHECKPOINT_DECLINED_SUBSUMED = (
        False,
        "Checkpoint was canceled because a barrier from newer checkpoint was received.",
    )
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = (
        False,
        "Task received cancellation from one of its inputs.",
    )
    CHECKPOINT_COORDINATOR_SHUTDOWN = (False, "CheckpointCoordinator shutdown.")
    CHECKPOINT_COORDINATOR_SUSPEND = (False, "Checkpoint Coordinator is suspending.")
    TASK_FAILURE = (False, "Task has failed.")
    FINALIZE_CHECKPOINT_FAILURE = (True, "Failure to finalize checkpoint.")
    TRIGGER_CHECKPOINT_FAILURE = (False, "Trigger checkpoint failure.")

    @property
    def counts(self) -> bool:
        """Whether it counts against ``execution.checkpointing.tolerable-failed-checkpoints``."""
        return self.value[0]

    @property
    def counts_when_final(self) -> bool:
        """``counts`` for a final checkpoint.

        The job requests one until it has one, so a failed trigger counts too.
        """
        return self.counts or self is CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE

    @property
    def message(self) -> str:
        """The sentence that users see."""
        return self.value[1]

    def describe(self, detail: str = "") -> str:
        """The sentence, followed by ``detail`` if given."""
        return f"{self.message} {detail}".rstrip()


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
        """Record one failure; if True is returned, the job must fail and the count starts over.

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
