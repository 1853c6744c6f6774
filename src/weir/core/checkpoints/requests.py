"""Which checkpoint request runs now, waits or is dropped (Flink's ``CheckpointRequestDecider``),
and what came of it.

The decision is pure: it depends on the queue, on how many checkpoints are pending or being cleaned
up, on whether one is being triggered and on when the last one completed. The coordinator acts on
it.

Rules (MISSION A4, A5, PROTOCOL P38):

1. A request that the user made goes before a periodic one, a savepoint before a checkpoint, an
   older before a newer.
2. Every request waits for a trigger in progress, and while more than ``max_concurrent_checkpoints``
   checkpoints are being cleaned up: storage that cannot delete as fast as it is filled must not be
   filled further.
3. A forced request waits for nothing else. Any other waits while ``max_concurrent_checkpoints`` are
   pending.
4. A periodic one inside the minimum pause is dropped, and the timer is set for the exact remainder.
5. One periodic request may wait; a second is declined. Others queue up to ``MAX_QUEUED_REQUESTS``;
   beyond that the one with the lowest priority is dropped.

The coordinator's calls return one list (``CoordinatorOutput``): the effects in it are passed on,
and the facts at the end of this file stay inside the job master, which acts on them.
"""

from __future__ import annotations

import bisect
import enum
from dataclasses import dataclass
from typing import TypeAlias

from weir.core.checkpoints.failures import CheckpointFailureReason
from weir.core.messages.job import JobMasterEffect
from weir.core.messages.operators import FailJob, FailSubtask
from weir.core.types import CheckpointType, CompletedCheckpoint, SnapshotKind, VertexId
from weir.errors import invariant

MAX_QUEUED_REQUESTS = 1_000


class RequestOrigin(enum.Enum):
    """Who asks for a checkpoint. The value is (priority, kind, forced); the lowest priority number
    goes first."""

    #: Stop with savepoint.
    STOP = (0, SnapshotKind.SYNC_SAVEPOINT, True)
    SAVEPOINT = (1, SnapshotKind.SAVEPOINT, True)
    #: Tasks have reached the end of their input and wait (MISSION E3).
    FINAL = (2, SnapshotKind.CHECKPOINT, True)
    USER_CHECKPOINT = (3, SnapshotKind.CHECKPOINT, False)
    PERIODIC = (4, SnapshotKind.CHECKPOINT, False)

    @property
    def priority(self) -> int:
        """Its place in the queue; 0 goes first."""
        return self.value[0]

    @property
    def kind(self) -> SnapshotKind:
        """What is taken for it."""
        return self.value[1]

    @property
    def forced(self) -> bool:
        """Whether it skips the limits on concurrency and pause."""
        return self.value[2]


@dataclass(frozen=True, kw_only=True)
class CheckpointRequest:
    """One wish for a checkpoint or savepoint."""

    origin: RequestOrigin
    #: Parent directory of a savepoint.
    target: str | None = None
    #: The user's request that is answered with its outcome.
    request: str | None = None
    #: Of a stop: every window and timer fires first.
    drain: bool = False
    #: Of a checkpoint; a savepoint is always full.
    checkpoint_type: CheckpointType = CheckpointType.CONFIGURED

    @property
    def kind(self) -> SnapshotKind:
        """What is taken for it."""
        return self.origin.kind

    def asks_for_full(self, *, incremental: bool) -> bool:
        """Whether it must refer to no earlier checkpoint; ``incremental`` is how the job is
        configured."""
        if self.kind.is_savepoint or self.checkpoint_type is CheckpointType.FULL:
            return True
        return self.checkpoint_type is CheckpointType.CONFIGURED and not incremental


class EnqueueOutcome(enum.Enum):
    """Whether a request was let into the queue."""

    QUEUED = "QUEUED"
    ALREADY_QUEUED = "ALREADY_QUEUED"
    TOO_MANY_CHECKPOINT_REQUESTS = "TOO_MANY_CHECKPOINT_REQUESTS"


@dataclass(frozen=True, kw_only=True)
class Enqueued:
    """What came of ``enqueue``: ``dropped`` is the request that has no place, which may be another
    than the new one."""

    outcome: EnqueueOutcome
    dropped: CheckpointRequest | None = None


class Verdict(enum.Enum):
    """What is to be done with the first request of the queue."""

    RUN = "RUN"
    NOTHING_QUEUED = "NOTHING_QUEUED"
    TRIGGER_IN_PROGRESS = "TRIGGER_IN_PROGRESS"
    TOO_MANY_CHECKPOINTS_BEING_CLEANED = "TOO_MANY_CHECKPOINTS_BEING_CLEANED"
    TOO_MANY_CONCURRENT_CHECKPOINTS = "TOO_MANY_CONCURRENT_CHECKPOINTS"
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = "MINIMUM_TIME_BETWEEN_CHECKPOINTS"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A verdict: ``request`` has left the queue for RUN and for
    MINIMUM_TIME_BETWEEN_CHECKPOINTS."""

    verdict: Verdict
    request: CheckpointRequest | None = None
    #: When a periodic request that came too early may be made again.
    retry_ms: int | None = None


class CheckpointRequestDecider:
    """The queue of requests and the rules by which they leave it."""

    def __init__(self, *, max_concurrent_checkpoints: int, min_pause_ms: int) -> None:
        self._max_concurrent_checkpoints = max_concurrent_checkpoints
        self._min_pause_ms = min_pause_ms
        #: (priority, number, request), sorted. Law: at most ``MAX_QUEUED_REQUESTS``, at most one of
        #: them periodic.
        self._queue: list[tuple[int, int, CheckpointRequest]] = []
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._queue)

    def waits(self, origin: RequestOrigin) -> bool:
        """Whether a request of this origin is in the queue."""
        return any(request.origin is origin for _, _, request in self._queue)

    def enqueue(self, request: CheckpointRequest) -> Enqueued:
        """Let a request in, or say which one is dropped for lack of place."""
        if request.origin is RequestOrigin.PERIODIC and self.waits(RequestOrigin.PERIODIC):
            return Enqueued(outcome=EnqueueOutcome.ALREADY_QUEUED, dropped=request)
        self._numbers += 1
        # The number is unique, so requests themselves are never compared.
        bisect.insort(self._queue, (request.origin.priority, self._numbers, request))
        if len(self._queue) <= MAX_QUEUED_REQUESTS:
            return Enqueued(outcome=EnqueueOutcome.QUEUED)
        dropped = self._queue.pop()[2]
        return Enqueued(outcome=EnqueueOutcome.TOO_MANY_CHECKPOINT_REQUESTS, dropped=dropped)

    def too_early_until(
        self, request: CheckpointRequest, now_ms: int, last_end_ms: int | None
    ) -> int | None:
        """When a periodic request inside the minimum pause may run; None if it may run now."""
        if request.origin is not RequestOrigin.PERIODIC or last_end_ms is None:
            return None
        allowed_ms = last_end_ms + self._min_pause_ms
        return allowed_ms if now_ms < allowed_ms else None

    def choose(
        self, *, now_ms: int, triggering: bool, pending: int, cleaning: int, last_end_ms: int | None
    ) -> Decision:
        """What to do now.

        ``cleaning`` is the number of deletions under way, ``last_end_ms`` when the last checkpoint
        completed, or None.
        """
        if not self._queue:
            return Decision(verdict=Verdict.NOTHING_QUEUED)
        if triggering:
            return Decision(verdict=Verdict.TRIGGER_IN_PROGRESS)
        if cleaning > self._max_concurrent_checkpoints:
            return Decision(verdict=Verdict.TOO_MANY_CHECKPOINTS_BEING_CLEANED)
        first = self._queue[0][2]
        if not first.origin.forced and pending >= self._max_concurrent_checkpoints:
            return Decision(verdict=Verdict.TOO_MANY_CONCURRENT_CHECKPOINTS)
        self._queue.pop(0)
        retry_ms = self.too_early_until(first, now_ms, last_end_ms)
        if retry_ms is not None:
            early = Verdict.MINIMUM_TIME_BETWEEN_CHECKPOINTS
            return Decision(verdict=early, request=first, retry_ms=retry_ms)
        return Decision(verdict=Verdict.RUN, request=first)

    def clear(self) -> tuple[CheckpointRequest, ...]:
        """Forget all requests and say which they were, first first."""
        requests = tuple(request for _, _, request in self._queue)
        self._queue.clear()
        return requests

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        periodic = sum(request.origin is RequestOrigin.PERIODIC for _, _, request in self._queue)
        invariant(periodic <= 1, "two periodic requests are queued")
        invariant(len(self._queue) <= MAX_QUEUED_REQUESTS, "too many requests are queued")
        keys = [entry[:2] for entry in self._queue]
        invariant(keys == sorted(keys), "the queue of checkpoint requests is out of order")


@dataclass(frozen=True, kw_only=True)
class SnapshotCompleted:
    """A checkpoint or savepoint is durable; ``waiting_tasks`` were waiting when it was
    triggered."""

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
    SnapshotCompleted
    | RequestFailed
    | TolerableFailuresExceeded
    | AttemptFenced
    | FailSubtask
    | FailJob
)
CoordinatorOutput: TypeAlias = JobMasterEffect | CoordinatorFact
