"""Why a checkpoint did not complete: Flink's ``CheckpointFailureReason``, with its policy beside each value.

Whether a failure came before any task was triggered (``pre_flight``) and whether it counts against
``tolerable-failed-checkpoints`` (``counts``) are attributes of the member, so that no switch elsewhere can
forget one. The texts are those that Flink's users know from logs and from the web page.
"""

from __future__ import annotations

import enum


class CheckpointFailureReason(enum.Enum):
    """A reason for a checkpoint's failure. The value is (pre_flight, counts, message)."""

    PERIODIC_SCHEDULER_SHUTDOWN = (True, False, "Periodic checkpoint scheduler is shut down.")
    TOO_MANY_CHECKPOINT_REQUESTS = (True, False, "The maximum number of queued checkpoint requests exceeded.")
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = (
        True,
        False,
        "The minimum time between checkpoints is still pending."
        " Checkpoint will be triggered after the minimum time.",
    )
    NOT_ALL_REQUIRED_TASKS_RUNNING = (True, False, "Not all required tasks are currently running.")
    IO_EXCEPTION = (True, True, "An Exception occurred while triggering the checkpoint. IO-problem detected.")
    BLOCKING_OUTPUT_EXIST = (True, False, "Blocking output edge exists in running tasks.")
    CHECKPOINT_ASYNC_EXCEPTION = (False, True, "Asynchronous task checkpoint failed.")
    CHANNEL_STATE_SHARED_STREAM_EXCEPTION = (
        False,
        False,
        "The checkpoint was aborted due to exception of other subtasks sharing the ChannelState file.",
    )
    CHECKPOINT_EXPIRED = (False, True, "Checkpoint expired before completing.")
    CHECKPOINT_SUBSUMED = (False, False, "Checkpoint has been subsumed.")
    CHECKPOINT_DECLINED = (False, True, "Checkpoint was declined.")
    CHECKPOINT_DECLINED_TASK_NOT_READY = (False, False, "Checkpoint was declined (tasks not ready).")
    CHECKPOINT_DECLINED_TASK_CLOSING = (False, False, "Checkpoint was declined (task is closing).")
    CHECKPOINT_DECLINED_SUBSUMED = (
        False,
        False,
        "Checkpoint was canceled because a barrier from newer checkpoint was received.",
    )
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = (
        False,
        False,
        "Task received cancellation from one of its inputs.",
    )
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = (
        False,
        False,
        "Checkpoint was declined because one input stream is finished.",
    )
    CHECKPOINT_COORDINATOR_SHUTDOWN = (False, False, "CheckpointCoordinator shutdown.")
    CHECKPOINT_COORDINATOR_SUSPEND = (False, False, "Checkpoint Coordinator is suspending.")
    JOB_FAILOVER_REGION = (False, False, "FailoverRegion is restarting.")
    TASK_FAILURE = (False, False, "Task has failed.")
    TASK_CHECKPOINT_FAILURE = (False, False, "Task local checkpoint failure.")
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE = (
        False,
        False,
        "Unknown task for the checkpoint to notify.",
    )
    FINALIZE_CHECKPOINT_FAILURE = (False, True, "Failure to finalize checkpoint.")
    TRIGGER_CHECKPOINT_FAILURE = (False, False, "Trigger checkpoint failure.")

    @property
    def pre_flight(self) -> bool:
        """Whether the failure came before any task was triggered."""
        return self.value[0]

    @property
    def counts(self) -> bool:
        """Whether it counts against ``execution.checkpointing.tolerable-failed-checkpoints``."""
        return self.value[1]

    @property
    def message(self) -> str:
        """The sentence that users see."""
        return self.value[2]

    def describe(self, detail: str = "") -> str:
        """The sentence, followed by ``detail`` where there is one."""
        return f"{self.message} {detail}".rstrip()
