"""``JobGateway``: the interface of a running job for REST, signals, progress display and tests.

Named after Flink's ``JobMasterGateway``. Each request posts an event to the job's main thread and
returns at once; its future is done when the job master answers.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from weir.core.types import CheckpointType, CompletedCheckpoint, OperatorId, Payload, VertexId
from weir.monitoring.recorder import Recorder
from weir.monitoring.views import JobView
from weir.runtime.ports import CoordinatorAnswer, SubtaskView


class JobGateway(Protocol):
    """A running job. Futures fail with ``JobError``, whose message says why and what to do."""

    def view(self) -> JobView:
        """The newest view. Waits only briefly for an update, even if the job or its JVM hangs."""
        ...

    def silent_ms(self) -> int:
        """For how long the job's main thread has not answered, in milliseconds; 0 if it does.

        Waits only briefly for an answer.
        """
        ...

    @property
    def recorder(self) -> Recorder:
        """What happened in the job over the last hour."""
        ...

    @property
    def saves_on_sigterm(self) -> bool:
        """Whether SIGTERM stops the job with a savepoint (``weir.on-sigterm``)."""
        ...

    @property
    def engine_log(self) -> str | None:
        """The path of Spark's own log on this machine; None if it writes no log here."""
        ...

    def subtasks(self, vertex: VertexId) -> tuple[SubtaskView, ...]:
        """How the newest batch of a vertex was spread over its subtasks; asks the JVM, and waits.

        Empty if the vertex does not run.
        """
        ...

    def trigger_checkpoint(
        self, checkpoint_type: CheckpointType = CheckpointType.CONFIGURED
    ) -> Future[CompletedCheckpoint]:
        """Take a checkpoint now; done when it is complete."""
        ...

    def trigger_savepoint(self, target: str | None) -> Future[CompletedCheckpoint]:
        """Take a savepoint below ``target`` (None: ``execution.checkpointing.savepoint-dir``)."""
        ...

    def stop_with_savepoint(
        self, target: str | None, *, drain: bool = False
    ) -> Future[CompletedCheckpoint]:
        """Stop between two batches; done when the savepoint is complete and its rows are committed.

        With ``drain``, every window and timer fires first, and the job is finished: it cannot be
        resumed from the savepoint.
        """
        ...

    def stop_with_checkpoint(self) -> Future[CompletedCheckpoint]:
        """Stop between two batches with a checkpoint of the job in place of a savepoint.

        Done when the checkpoint is complete and all rows before it are committed. The job is then
        suspended: running its command again resumes it.
        """
        ...

    def send_to_coordinator(
        self, operator: OperatorId, request: Payload
    ) -> Future[CoordinatorAnswer]:
        """Send a request to an operator's coordinator.

        Done when a completed checkpoint contains the changes that the request made. Raises
        ``CoordinatorError`` if the operator has no coordinator.
        """
        ...

    def cancel(self) -> Future[None]:
        """Cancel the job; done when it is cancelled."""
        ...

    def suspend(self) -> None:
        """Stop the tasks and leave the job resumable (SIGINT, SIGTERM)."""
        ...
