"""Which checkpoint request runs, waits or is dropped (Flink's ``CheckpointRequestDecider``).

The decision is pure: it depends on the queue, on how many checkpoints are pending or being cleaned
up, on whether a trigger is in progress and on when the last checkpoint completed. The coordinator
acts on it.

Rules (MISSION A4, A5, PROTOCOL P38):

1. User requests go before periodic requests, savepoints before checkpoints, and older requests
   before newer requests of the same priority (``RequestOrigin``).
2. Every request waits while a trigger is in progress, while a task is about to finish, which would
   decline it, and while more than
   ``max_concurrent_checkpoints`` deletions are in progress: storage that cannot delete as fast as
   it fills must not be filled further.
3. A forced request waits for nothing else. Any other waits while ``max_concurrent_checkpoints`` are
   pending.
4. A periodic request inside the minimum pause is dropped, and the timer is set for the exact
   remainder.
5. One periodic request may wait; a second is declined. Others queue up to ``MAX_QUEUED_REQUESTS``;
   beyond that the request with the lowest priority is dropped.
"""

from __future__ import annotations

import bisect
import enum
from dataclasses import dataclass

from weir.core.types import CheckpointType, SnapshotKind
from weir.errors import invariant

MAX_QUEUED_REQUESTS = 1_000


class RequestOrigin(enum.Enum):
    """Who asks for a checkpoint; values are (priority, kind, forced), the lowest priority first."""

    #: Stop with savepoint.
    STOP = (0, SnapshotKind.SYNC_SAVEPOINT, True)
    #: Stop with checkpoint.
    STOP_WITH_CHECKPOINT = (0, SnapshotKind.SYNC_CHECKPOINT, True)
    SAVEPOINT = (1, SnapshotKind.SAVEPOINT, True)
    #: Tasks have reached the end of their input and are waiting (MISSION E3).
    FINAL = (2, SnapshotKind.CHECKPOINT, False)
    USER_CHECKPOINT = (3, SnapshotKind.CHECKPOINT, False)
    PERIODIC = (4, SnapshotKind.CHECKPOINT, False)

    @property
    def priority(self) -> int:
        """Its priority in the queue; 0 goes first."""
        return self.value[0]

    @property
    def kind(self) -> SnapshotKind:
        """The kind of snapshot to take."""
        return self.value[1]

    @property
    def forced(self) -> bool:
        """Whether it skips the limits on concurrency and pause."""
        return self.value[2]

    @property
    def ends_job(self) -> bool:
        """Whether the job ends with the snapshot."""
        return self.kind.is_synchronous


@dataclass(frozen=True, kw_only=True)
class CheckpointRequest:
    """One request for a checkpoint or savepoint."""

    origin: RequestOrigin
    #: Parent directory of a savepoint.
    target: str | None = None
    #: The user's request to answer with the outcome; None if no user is to be answered.
    request: str | None = None
    #: For a stop: every window and timer fires first.
    drain: bool = False
    #: For a checkpoint; a savepoint is always full.
    checkpoint_type: CheckpointType = CheckpointType.CONFIGURED

    @property
    def kind(self) -> SnapshotKind:
        """The kind of snapshot to take."""
        return self.origin.kind

    def asks_for_full(self, *, incremental: bool) -> bool:
        """Whether it must refer to no earlier checkpoint; ``incremental`` is the job's setting."""
        if self.kind.is_savepoint or self.checkpoint_type is CheckpointType.FULL:
            return True
        return self.checkpoint_type is CheckpointType.CONFIGURED and not incremental


class Verdict(enum.Enum):
    """What to do with the first request in the queue."""

    RUN = "RUN"
    NOTHING_QUEUED = "NOTHING_QUEUED"
    TRIGGER_IN_PROGRESS = "TRIGGER_IN_PROGRESS"
    TASKS_ARE_CLOSING = "TASKS_ARE_CLOSING"
    TOO_MANY_CHECKPOINTS_BEING_CLEANED = "TOO_MANY_CHECKPOINTS_BEING_CLEANED"
    TOO_MANY_CONCURRENT_CHECKPOINTS = "TOO_MANY_CONCURRENT_CHECKPOINTS"
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = "MINIMUM_TIME_BETWEEN_CHECKPOINTS"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A verdict, and the request that left the queue.

    A request leaves it for RUN and for MINIMUM_TIME_BETWEEN_CHECKPOINTS.
    """

    verdict: Verdict
    request: CheckpointRequest | None = None
    #: When a periodic request that came too early may be submitted again, in monotonic ms.
    retry_ms: int | None = None


class CheckpointRequestDecider:
    """The queue of requests and the rules by which they leave it."""

    def __init__(self, *, max_concurrent_checkpoints: int, min_pause_ms: int) -> None:
        self._max_concurrent_checkpoints = max_concurrent_checkpoints
        self._min_pause_ms = min_pause_ms
        #: (priority, number, request). Law: sorted; at most ``MAX_QUEUED_REQUESTS``; at most one is
        #: periodic.
        self._queue: list[tuple[int, int, CheckpointRequest]] = []
        self._numbers = 0

    def waits(self, origin: RequestOrigin) -> bool:
        """Whether a request of this origin is in the queue."""
        return any(request.origin is origin for _, _, request in self._queue)

    def enqueue(self, request: CheckpointRequest) -> CheckpointRequest | None:
        """Add a request; returns a request dropped for lack of room, which may be another."""
        if request.origin is RequestOrigin.PERIODIC and self.waits(RequestOrigin.PERIODIC):
            return request
        self._numbers += 1
        # The number is unique, so requests themselves are never compared.
        bisect.insort(self._queue, (request.origin.priority, self._numbers, request))
        return self._queue.pop()[2] if len(self._queue) > MAX_QUEUED_REQUESTS else None

    def too_early_until(
        self, request: CheckpointRequest, now_ms: int, last_end_ms: int | None
    ) -> int | None:
        """When a periodic request inside the minimum pause may run; None if it may run now."""
        if request.origin is not RequestOrigin.PERIODIC or last_end_ms is None:
            return None
        allowed_ms = last_end_ms + self._min_pause_ms
        return allowed_ms if now_ms < allowed_ms else None

    def choose(
        self,
        *,
        now_ms: int,
        triggering: bool,
        closing: bool,
        pending: int,
        cleaning: int,
        last_end_ms: int | None,
    ) -> Decision:
        """Decide what to do now.

        ``closing``: a task is about to finish. ``cleaning`` is the number of deletions in progress;
        ``last_end_ms`` is when the last checkpoint completed, or None.
        """
        if not self._queue:
            return Decision(verdict=Verdict.NOTHING_QUEUED)
        if triggering or closing:
            verdict = Verdict.TRIGGER_IN_PROGRESS if triggering else Verdict.TASKS_ARE_CLOSING
            return Decision(verdict=verdict)
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
        """Remove and return all requests, in queue order."""
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
