"""From a request to the point where its checkpoint can be created.

That is the timer, the queue, the allocation of the location, and the pre-checks.

The timer is a time, not a handle: ``next_trigger_ms``. It is None while the scheduler is off, if
there is no interval, and while a periodic request waits in the queue (it is set again when that
request runs or is dropped, PROTOCOL P38), so two timers cannot exist (MISSION A2).

A user's request before all tasks run is declined with the names of the tasks that do not run yet. A
declined request is not a failed checkpoint: nothing was tried.
"""

from __future__ import annotations

from dataclasses import dataclass

from weir.core.checkpoints.plan import CheckpointPlan, calculate_plan
from weir.core.checkpoints.request_decider import (
    CheckpointRequest,
    CheckpointRequestDecider,
    RequestOrigin,
    Verdict,
)
from weir.core.execution import Execution
from weir.core.messages.job import AllocateLocation
from weir.core.settings import CheckpointConfig
from weir.core.types import CheckpointFailureReason as Reason
from weir.errors import invariant


@dataclass(frozen=True, kw_only=True)
class Started:
    """All pre-checks hold: a checkpoint with the tasks of ``plan`` can be created."""

    request: CheckpointRequest
    plan: CheckpointPlan


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A pre-check declined a request.

    Nothing was tried yet, so it is neither a failed checkpoint (MISSION A4) nor an unsuccessful
    trigger (A9).
    """

    request: CheckpointRequest
    reason: Reason
    detail: str = ""


class CheckpointTrigger:
    """The periodic timer, the queued requests and the request whose location is allocated."""

    def __init__(self, *, config: CheckpointConfig, execution: Execution) -> None:
        self._config = config
        self._execution = execution
        self._decider = CheckpointRequestDecider(
            max_concurrent_checkpoints=config.max_concurrent_checkpoints,
            min_pause_ms=config.min_pause_ms,
        )
        self._scheduling = False
        #: Monotonic ms. Law: set exactly while scheduling with an interval and no periodic request
        #: waits.
        self._next_trigger_ms: int | None = None
        #: The request whose location is being allocated; None otherwise.
        self._in_progress: CheckpointRequest | None = None
        #: The number of the newest allocation; an answer to an older allocation comes too late.
        self._allocation = 0
        #: When the last checkpoint completed, in monotonic ms.
        self._last_completion_ms: int | None = None
        self._unsuccessful = 0
        self._waits_because: Verdict | None = None

    @property
    def scheduling(self) -> bool:
        """Whether the periodic scheduler is on."""
        return self._scheduling

    @property
    def next_trigger_ms(self) -> int | None:
        """When the next periodic request is due, in monotonic ms."""
        return self._next_trigger_ms

    @property
    def in_progress(self) -> CheckpointRequest | None:
        """The request whose location is being allocated."""
        return self._in_progress

    @property
    def unsuccessful_triggers(self) -> int:
        """Consecutive triggers that failed on the way to their tasks (MISSION A9)."""
        return self._unsuccessful

    @property
    def waits_because(self) -> Verdict | None:
        """Why the queue does not move; None if it is empty."""
        return self._waits_because

    @property
    def final_waits(self) -> bool:
        """Whether a final checkpoint is queued."""
        return self._decider.waits(RequestOrigin.FINAL)

    @property
    def will_commit(self) -> bool:
        """Whether a committing checkpoint is certain to be triggered next.

        That is, its location is being allocated, or a final checkpoint is queued.
        """
        in_progress = self._in_progress is not None and self._in_progress.kind.commits_side_effects
        return in_progress or self.final_waits

    def start(self, now_ms: int, chance: float) -> None:
        """Set the timer: first uniformly in [min pause, interval], then at a fixed rate (A2)."""
        invariant(0.0 <= chance < 1.0, f"chance is {chance}, but must be in [0, 1)")
        self._scheduling = True
        interval_ms = self._config.effective_interval_ms
        if interval_ms is not None:
            pause_ms = self._config.min_pause_ms
            self._next_trigger_ms = now_ms + pause_ms + int(chance * (interval_ms - pause_ms + 1))

    def stop(self) -> tuple[CheckpointRequest, ...]:
        """Cancel the timer; remove and return all requests, with the one in progress (A3)."""
        self._scheduling = False
        self._next_trigger_ms = None
        self._waits_because = None
        in_progress, self._in_progress = self._in_progress, None
        queued = self._decider.clear()
        return queued if in_progress is None else (in_progress, *queued)

    def periodic_request(self, now_ms: int) -> CheckpointRequest | None:
        """The periodic request if due; the timer keeps its fixed rate and skips missed turns."""
        due_ms, interval_ms = self._next_trigger_ms, self._config.effective_interval_ms
        if due_ms is None or interval_ms is None or now_ms < due_ms:
            return None
        self._next_trigger_ms = due_ms + interval_ms * (1 + (now_ms - due_ms) // interval_ms)
        return CheckpointRequest(origin=RequestOrigin.PERIODIC)

    def enqueue(self, request: CheckpointRequest) -> Rejected | None:
        """Add a request, before ``run_queue``; returns the rejected request, if any."""
        if request.origin is RequestOrigin.PERIODIC and not self._scheduling:
            return Rejected(request=request, reason=Reason.PERIODIC_SCHEDULER_SHUTDOWN)
        dropped = self._decider.enqueue(request)
        if dropped is None:
            return None
        return Rejected(request=dropped, reason=Reason.TOO_MANY_CHECKPOINT_REQUESTS)

    def run_queue(
        self, now_ms: int, *, triggering: bool, pending: int, cleaning: int
    ) -> tuple[AllocateLocation | None, list[Rejected]]:
        """Take requests from the queue until one runs or none can; also returns those rejected.

        ``triggering``: a pending checkpoint has not triggered its tasks yet.
        """
        rejected: list[Rejected] = []
        while True:
            decision = self._decider.choose(
                now_ms=now_ms,
                triggering=triggering or self._in_progress is not None,
                closing=self._execution.is_closing,
                pending=pending,
                cleaning=cleaning,
                last_end_ms=self._last_completion_ms,
            )
            request = decision.request
            if request is None:
                nothing = decision.verdict is Verdict.NOTHING_QUEUED
                self._waits_because = None if nothing else decision.verdict
                self._set_timer(now_ms)
                return None, rejected
            if decision.retry_ms is not None:
                rejected.append(self._too_early(request, decision.retry_ms))
                continue
            if self._is_needless(request):
                continue
            if not self._execution.can_be_checkpointed:
                rejected.append(self._not_ready(request))
                continue
            self._in_progress = request
            self._allocation += 1
            self._waits_because = None
            self._set_timer(now_ms)
            return (
                AllocateLocation(
                    allocation=self._allocation, kind=request.kind, target=request.target
                ),
                rejected,
            )

    def allocated(self, allocation: int, now_ms: int, *, pending: int) -> Started | Rejected | None:
        """Repeat the pre-checks after an allocation (A6); None if no request needs it."""
        request = self.allocation_over(allocation)
        if request is None or self._is_needless(request):
            return None
        if self._execution.is_closing:
            # It waits, and gets another location.
            return self.enqueue(request)
        retry_ms = self._decider.too_early_until(request, now_ms, self._last_completion_ms)
        if retry_ms is not None:
            return self._too_early(request, retry_ms)
        invariant(
            request.origin.forced or pending < self._config.max_concurrent_checkpoints,
            "a checkpoint was triggered while another one was being triggered",
        )
        plan = calculate_plan(self._execution)
        if plan is None:
            return self._not_ready(request)
        return Started(request=request, plan=plan)

    def allocation_over(self, allocation: int) -> CheckpointRequest | None:
        """The request that waited for this allocation; None if it is over."""
        if allocation != self._allocation:
            return None
        request, self._in_progress = self._in_progress, None
        return request

    def completed(self, now_ms: int) -> None:
        """A checkpoint completed: the minimum pause begins."""
        self._last_completion_ms = now_ms

    def count_unsuccessful(self) -> None:
        """A trigger failed on the way to its tasks (MISSION A9)."""
        self._unsuccessful += 1

    def reset_unsuccessful(self) -> None:
        """Restart the count: tasks were triggered or the scheduler stopped (MISSION A3, A9)."""
        self._unsuccessful = 0

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        self._decider.validate()
        waits = self._decider.waits(RequestOrigin.PERIODIC)
        armed = self._next_trigger_ms is not None
        invariant(self._scheduling or not armed, "the timer is set while the scheduler is off")
        invariant(not (armed and waits), "the timer is set while a periodic request waits")
        if self._scheduling and self._config.effective_interval_ms is not None:
            invariant(armed or waits, "no periodic checkpoint will ever be triggered again")

    def _set_timer(self, now_ms: int) -> None:
        """Keep the timer off while a periodic request waits, and set it again afterwards."""
        interval_ms = self._config.effective_interval_ms
        if self._decider.waits(RequestOrigin.PERIODIC):
            self._next_trigger_ms = None
        elif self._next_trigger_ms is None and self._scheduling and interval_ms is not None:
            self._next_trigger_ms = now_ms + interval_ms

    def _too_early(self, request: CheckpointRequest, retry_ms: int) -> Rejected:
        """Drop a periodic request inside the minimum pause; set the timer to the pause's end."""
        self._next_trigger_ms = retry_ms
        return Rejected(request=request, reason=Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS)

    def _is_needless(self, request: CheckpointRequest) -> bool:
        """Whether it is for waiting tasks that another checkpoint has released meanwhile (P29)."""
        return request.origin is RequestOrigin.FINAL and self._execution.last_to_wait is None

    def _not_ready(self, request: CheckpointRequest) -> Rejected:
        statuses, tasks = self._execution.statuses, self._execution.not_ready
        detail = " ".join(f"Task {vertex!r} is {statuses[vertex].name}." for vertex in tasks)
        return Rejected(
            request=request, reason=Reason.NOT_ALL_REQUIRED_TASKS_RUNNING, detail=detail
        )
