"""How the outside (REST, signals, progress display, tests) talks to a running job: ``JobGateway``.

Named after Flink's ``JobMasterGateway``. Each call posts an event to the job's main thread and
returns at once; the future is done when the job master answers the request.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from weir.core.checkpoints.stats import JobView
from weir.core.types import CheckpointType, CompletedCheckpoint, OperatorId, Payload
from weir.runtime.ports import CoordinatorAnswer


class JobGateway(Protocol):
    """A running job. Futures fail with ``JobError``, whose message says why and what to do."""

    def view(self) -> JobView:
        """The newest view. Waits at most briefly for a newer one, also while the job or its JVM
        hangs."""
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
        """Stop at a clean point between two steps; done when the savepoint is complete and its rows
        are committed.

        With ``drain`` every window and timer fires first, and the job is at its end: it cannot go
        on from the savepoint.
        """
        ...

    def send_to_coordinator(
        self, operator: OperatorId, request: Payload
    ) -> Future[CoordinatorAnswer]:
        """Ask an operator coordinator for something; done when a completed checkpoint has what that
        has changed. Raises ``CoordinatorError`` if the operator has none."""
        ...

    def cancel(self) -> Future[None]:
        """Cancel the job; done when it is cancelled."""
        ...

    def suspend(self) -> None:
        """Stop the tasks and leave the job resumable (SIGINT, SIGTERM)."""
        ...
