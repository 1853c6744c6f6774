"""What the checkpoint coordinator tells the job master beside its effects.

The coordinator is a part of the job master, with the same shape: calls in, a list out. Effects in that list
are passed on; the facts here stay inside, and the job master acts on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from weir.core.failure_reason import CheckpointFailureReason
from weir.core.master_messages import JobMasterEffect
from weir.core.operator_events import FailJob, FailSubtask
from weir.core.request_decider import CheckpointRequest
from weir.core.types import CompletedCheckpoint, VertexId


@dataclass(frozen=True, kw_only=True)
class SnapshotCompleted:
    """A checkpoint or savepoint is durable; ``waiting_tasks`` were waiting when it was triggered."""

    request: CheckpointRequest
    checkpoint: CompletedCheckpoint
    waiting_tasks: frozenset[VertexId]


@dataclass(frozen=True, kw_only=True)
class RequestFailed:
    """A request is over without a checkpoint."""

    request: CheckpointRequest
    reason: CheckpointFailureReason
    message: str
    #: Whether tasks were triggered for it.
    tasks_know: bool


@dataclass(frozen=True, kw_only=True)
class TolerableFailuresExceeded:
    """More consecutive checkpoints failed than are tolerated: the job must fail."""

    message: str


@dataclass(frozen=True, kw_only=True)
class AttemptFenced:
    """A newer attempt holds the job: stop and touch no file (PROTOCOL P17)."""

    message: str


#: What the job master acts on itself.
CoordinatorFact: TypeAlias = (
    SnapshotCompleted | RequestFailed | TolerableFailuresExceeded | AttemptFenced | FailSubtask | FailJob
)
CoordinatorOutput: TypeAlias = JobMasterEffect | CoordinatorFact
