"""What the methods of ``CheckpointCoordinator`` return, in one list (``CheckpointOutput``).

The job master passes the effects among them on, and acts on the facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from weir.core.checkpoints.request_decider import CheckpointRequest
from weir.core.messages.coordination import FailJob, FailSubtask
from weir.core.messages.job import JobMasterEffect
from weir.core.types import CheckpointFailureReason, CompletedCheckpoint


@dataclass(frozen=True, kw_only=True)
class SnapshotCompleted:
    """A checkpoint or savepoint is durable."""

    request: CheckpointRequest
    checkpoint: CompletedCheckpoint


@dataclass(frozen=True, kw_only=True)
class RequestFailed:
    """A request ended without a checkpoint."""

    request: CheckpointRequest
    reason: CheckpointFailureReason
    message: str
    #: Whether tasks were triggered for it.
    tasks_know: bool


@dataclass(frozen=True, kw_only=True)
class TolerableFailuresExceeded:
    """More consecutive checkpoints failed than tolerated: the job must fail."""

    message: str


@dataclass(frozen=True, kw_only=True)
class AttemptFenced:
    """A newer attempt holds the job: stop and touch no file (PROTOCOL P17)."""

    message: str


#: What the job master itself acts on.
CheckpointFact: TypeAlias = (
    SnapshotCompleted
    | RequestFailed
    | TolerableFailuresExceeded
    | AttemptFenced
    | FailSubtask
    | FailJob
)
CheckpointOutput: TypeAlias = JobMasterEffect | CheckpointFact
