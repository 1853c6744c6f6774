"""Why a checkpoint did not complete: Flink's ``CheckpointFailureReason``, with its policy beside each value.

Whether it counts against ``tolerable-failed-checkpoints`` (``counts``) is an attribute of the member, so that no switch
elsewhere can forget one. The texts are those that Flink's users know from logs and from the web page.
"""

from __future__ import annotations

import enum


class CheckpointFailureReason(enum.Enum):
    """A reason for a checkpoint's failure. The value is (counts, message)."""

    PERIODIC_SCHEDULER_SHUTDOWN = (False, "Periodic checkpoint scheduler is shut down.")
    TOO_MANY_CHECKPOINT_REQUESTS = (False, "The maximum number of queued checkpoint requests exceeded.")
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = (
        False,
        "The minimum time between checkpoints is still pending."
        " Checkpoint will be triggered after the minimum time.",
    )
    NOT_ALL_REQUIRED_TASKS_RUNNING = (False, "Not all required tasks are currently running.")
    IO_EXCEPTION = (True, "An Exception occurred while triggering the checkpoint. IO-problem detected.")
    BLOCKING_OUTPUT_EXIST = (False, "Blocking output edge exists in running tasks.")
    CHECKPOINT_ASYNC_EXCEPTION = (True, "Asynchronous task checkpoint failed.")
    CHANNEL_STATE_SHARED_STREAM_EXCEPTION = (
        False,
        "The checkpoint was aborted due to exception of other subtasks sharing the ChannelState file.",
    )
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
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = (
        False,
        "Checkpoint was declined because one input stream is finished.",
    )
    CHECKPOINT_COORDINATOR_SHUTDOWN = (False, "CheckpointCoordinator shutdown.")
    CHECKPOINT_COORDINATOR_SUSPEND = (False, "Checkpoint Coordinator is suspending.")
    JOB_FAILOVER_REGION = (False, "FailoverRegion is restarting.")
    TASK_FAILURE = (False, "Task has failed.")
    TASK_CHECKPOINT_FAILURE = (False, "Task local checkpoint failure.")
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE = (
        False,
        "Unknown task for the checkpoint to notify.",
    )
    FINALIZE_CHECKPOINT_FAILURE = (True, "Failure to finalize checkpoint.")
    TRIGGER_CHECKPOINT_FAILURE = (False, "Trigger checkpoint failure.")

    @property
    def counts(self) -> bool:
        """Whether it counts against ``execution.checkpointing.tolerable-failed-checkpoints``."""
        return self.value[0]

    @property
    def counts_when_final(self) -> bool:
        """As ``counts``, of a final checkpoint: the job asks for one until it has one, so a failed trigger counts too."""
        return self.counts or self is CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE

    @property
    def message(self) -> str:
        """The sentence that users see."""
        return self.value[1]

    def describe(self, detail: str = "") -> str:
        """The sentence, followed by ``detail`` where there is one."""
        return f"{self.message} {detail}".rstrip()
