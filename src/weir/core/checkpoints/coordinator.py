"""The checkpoint coordinator: triggers checkpoints, collects acknowledgements, completes or aborts (Flink's
``CheckpointCoordinator``).

It is a part of ``JobMaster``: every method takes the time and returns a list of effects and facts
(``CoordinatorOutput``). The course of one checkpoint:

1. A request (of the timer, a user, or the job master) enters the queue; ``CheckpointRequestDecider`` says when it runs.
2. Its id and location are allocated outside, since that blocks; one at a time. All pre-checks are repeated afterwards.
3. The operator coordinators are asked, then the master hooks are triggered (MISSION C2, A8). When all have answered, the
   tasks of the ``CheckpointPlan`` are; each acknowledges or declines. Whatever does not answer lets the checkpoint expire.
4. When all have acknowledged, the record is written. Records are written one at a time, since the outcome of one decides
   under which epoch the next says that its output is committed (``epochs``). Until the outcome is known nothing aborts it.
5. Completed: older pending checkpoints are subsumed (never savepoints), tasks are notified, what nobody needs is
   deleted. Aborted: tasks are notified, its own files are deleted, and it may count towards the job's failure.

In either case the next queued request gets its turn (MISSION A5). None gets it while too many deletions are under way.
"""

from __future__ import annotations

from weir.core.checkpoints.failures import CheckpointFailureReason as Reason
from weir.core.checkpoints.ledger import NUM_RECENT_CHECKPOINT_IDS, CheckpointLedger
from weir.core.checkpoints.pending import Party, PendingState, TaskAcknowledgeResult
from weir.core.checkpoints.requests import (
    AttemptFenced,
    CheckpointRequest,
    CoordinatorOutput,
    RequestOrigin,
)
from weir.core.checkpoints.stats import CheckpointStatsTracker
from weir.core.checkpoints.trigger import CheckpointTrigger, Rejected, Started
from weir.core.config import CheckpointConfig
from weir.core.job.execution import Execution
from weir.core.messages.job import CheckpointRecorded, HookFailed, HookTriggered, LocationAllocated
from weir.core.messages.operators import CoordinatorEvent, TaskOperatorEvent
from weir.core.messages.protocol import AcknowledgeCheckpoint, DeclineCheckpoint
from weir.core.operators.coordinators import OperatorCoordinators
from weir.core.types import (
    CompletedCheckpoint,
    Recorded,
    SnapshotKind,
    TaskStatus,
    VertexId,
)
from weir.errors import invariant

_CAN_EXPIRE = (PendingState.TRIGGERING, PendingState.WAITING)


class CheckpointCoordinator(CheckpointLedger):
    """All checkpoints of one job."""

    def __init__(
        self,
        *,
        job_id: str,
        config: CheckpointConfig,
        execution: Execution,
        stats: CheckpointStatsTracker,
        hooks: tuple[str, ...] = (),
        coordinators: OperatorCoordinators,
    ) -> None:
        super().__init__(
            config=config, execution=execution, stats=stats, hooks=hooks, coordinators=coordinators
        )
        self._job_id = job_id
        self._shutdown = False

    # -- what others may know -------------------------------------------------------------------------------

    @property
    def trigger(self) -> CheckpointTrigger:
        """The timer and the queue; for reading only."""
        return self._trigger

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The newest completed checkpoint of this job."""
        return self._store.latest

    def covers(self, vertex: VertexId) -> bool:
        """Whether a checkpoint is under way whose tasks are triggered after ``vertex`` has ended its records."""
        if self._trigger.will_commit:
            return True
        pending = (p for p in self._pending.values() if p.kind.commits_side_effects)
        return any(p.state is PendingState.TRIGGERING or vertex in p.plan.waiting_tasks for p in pending)

    def next_deadline(self) -> int | None:
        """When ``on_deadline`` is due: the periodic timer or the timeout of a checkpoint, in monotonic ms."""
        deadlines = [p.deadline_ms for p in self._pending.values() if p.state in _CAN_EXPIRE]
        if self._trigger.next_trigger_ms is not None:
            deadlines.append(self._trigger.next_trigger_ms)
        return min(deadlines, default=None)

    # -- attempts and the scheduler -------------------------------------------------------------------------

    def begin_attempt(
        self,
        restored: CompletedCheckpoint | None,
        timestamp_ms: int,
        now_ms: int,
        older: tuple[CompletedCheckpoint, ...] = (),
    ) -> list[CoordinatorOutput]:
        """A new attempt goes on from ``restored``. A checkpoint of another job is read only, and never deleted.

        ``older`` are this job's retained checkpoints before it, as a driver finds them when it starts.
        """
        invariant(not self._pending, "an attempt begins while checkpoints of the last one are pending")
        self._clocks = (timestamp_ms, now_ms)
        own = restored if restored is not None and restored.job_id == self._job_id else None
        self._store.seed(own, older)
        self._full.begin_attempt(own)
        self._epochs.restart(own.checkpoint_id if own and own.kind.commits_side_effects else None)
        self._failures.reset()
        if restored is not None:
            self._stats.report_restored(restored, timestamp_ms)
        self._release()
        return self._drain()

    def start_scheduler(self, now_ms: int, chance: float) -> list[CoordinatorOutput]:
        """Start periodic checkpoints; a running scheduler is stopped first (MISSION A2).

        Raises ``InvariantError`` after ``shutdown``.
        """
        invariant(not self._shutdown, "the checkpoint scheduler is started after its shutdown")
        stopped = self.stop_scheduler(now_ms) if self._trigger.scheduling else []
        self._trigger.start(now_ms, chance)
        return stopped

    def stop_scheduler(self, now_ms: int, cause: str = "") -> list[CoordinatorOutput]:
        """Stop periodic checkpoints, forget what is queued, abort what is pending (MISSION A3, PROTOCOL P34).

        A checkpoint in FINALIZING stays. ``cause`` is added to the message that waiting users get.
        """
        self._stop(Reason.CHECKPOINT_COORDINATOR_SUSPEND, now_ms, cause)
        return self._drain()

    def shut_down(self, now_ms: int) -> list[CoordinatorOutput]:
        """The job has ended: as ``stop_scheduler``, and nothing starts again."""
        self._shutdown = True
        self._stop(Reason.CHECKPOINT_COORDINATOR_SHUTDOWN, now_ms, "")
        return self._drain()

    def on_deadline(self, now_ms: int) -> list[CoordinatorOutput]:
        """Expire what is due, and make the periodic request if it is due."""
        for pending in self.pending:
            if pending.state in _CAN_EXPIRE and pending.deadline_ms <= now_ms:
                detail = f"Waited {self._config.timeout_ms} ms; {pending.describe_missing()}."
                self._abort(pending, Reason.CHECKPOINT_EXPIRED, detail, now_ms)
        request = self._trigger.periodic_request(now_ms)
        if request is not None:
            self._submit(request, now_ms)
        self._settle(now_ms)
        return self._drain()

    # -- triggering -----------------------------------------------------------------------------------------

    def submit(self, request: CheckpointRequest, now_ms: int) -> list[CoordinatorOutput]:
        """A request for a checkpoint or savepoint: it runs, waits, or fails (``RequestFailed``) at once."""
        self._submit(request, now_ms)
        return self._drain()

    def location_allocated(self, event: LocationAllocated, now_ms: int) -> list[CoordinatorOutput]:
        """Id and location are there: the pre-checks are repeated, then hooks and tasks are triggered (MISSION A6)."""
        self._clocks = (event.timestamp_ms, now_ms)
        outcome = self._trigger.allocated(event.allocation, now_ms, pending=len(self._pending))
        if isinstance(outcome, Started):
            self._begin(outcome, event, now_ms)
        else:
            self._discard(event.checkpoint_id, event.target)
            if isinstance(outcome, Rejected):
                self._reject(outcome)
        self._settle(now_ms)
        return self._drain()

    def location_failed(
        self, allocation: int, message: str, timestamp_ms: int, now_ms: int
    ) -> list[CoordinatorOutput]:
        """No id or location could be had: the request fails, and counts (MISSION A9)."""
        self._clocks = (timestamp_ms, now_ms)
        request = self._trigger.allocation_failed(allocation)
        if request is not None:
            self._no_location(request, message)
        self._settle(now_ms)
        return self._drain()

    # -- answers of coordinators, hooks and tasks -------------------------------------------------------------------------

    def operator_event(
        self, event: CoordinatorEvent | TaskOperatorEvent, now_ms: int
    ) -> list[CoordinatorOutput]:
        """An operator coordinator or a task says something of operator events, or of the coordinator's snapshot."""
        if isinstance(event, TaskOperatorEvent):
            outputs = self._coordinators.from_task(event)
        else:
            outputs = self._coordinators.from_coordinator(event)
        self._heard(outputs, now_ms)
        self._settle(now_ms)
        return self._drain()

    def hook_triggered(self, event: HookTriggered, now_ms: int) -> list[CoordinatorOutput]:
        """A master hook has done its part; one that answers for a checkpoint that is over comes too late to matter."""
        pending = self._pending.get(event.checkpoint_id)
        if pending is None:
            return []
        if pending.answered(Party.MASTER_HOOK, event.identifier, event.state):
            self._ask(pending, now_ms)
            self._settle(now_ms)
        return self._drain()

    def hook_failed(self, event: HookFailed, now_ms: int) -> list[CoordinatorOutput]:
        """A master hook could not do its part: the checkpoint is aborted, and counts as unsuccessful (MISSION A9)."""
        pending = self._pending.get(event.checkpoint_id)
        if pending is None:
            return []
        detail = f"Master hook {event.identifier!r}: {event.message}"
        self._abort(pending, Reason.TRIGGER_CHECKPOINT_FAILURE, detail, now_ms)
        self._settle(now_ms)
        return self._drain()

    def acknowledge(
        self, event: AcknowledgeCheckpoint, now_ms: int
    ) -> tuple[TaskAcknowledgeResult, list[CoordinatorOutput]]:
        """A task's snapshot is durable. One for an aborted checkpoint is thrown away, with what it wrote.

        Figures that come late land in the history as long as that knows the checkpoint.
        """
        checkpoint_id = event.checkpoint_id
        pending = self._pending.get(checkpoint_id)
        if pending is not None:
            result = pending.acknowledge(event)
        elif checkpoint_id in self._recent:
            result = TaskAcknowledgeResult.DISCARDED
        elif checkpoint_id in self._recently_completed:
            result = TaskAcknowledgeResult.DUPLICATE
        else:
            result = TaskAcknowledgeResult.UNKNOWN
        if result is not TaskAcknowledgeResult.DUPLICATE:
            size, at_ms = event.state.state_size, self._wall_ms(now_ms)
            self._stats.report_acknowledged(checkpoint_id, event.vertex, size, event.metrics, at_ms)
        if result is TaskAcknowledgeResult.DISCARDED:
            self._discard(checkpoint_id, self._recent[checkpoint_id])
        elif pending is not None and result is TaskAcknowledgeResult.SUCCESS:
            if pending.kind is SnapshotKind.CHECKPOINT:
                self._store.acknowledged(checkpoint_id, (handle.path for handle in event.state.files))
            if pending.fully_acknowledged:
                self._finalize_next()
        return result, self._drain()

    def decline(self, event: DeclineCheckpoint, now_ms: int) -> list[CoordinatorOutput]:
        """A task takes no snapshot: the checkpoint is aborted. Repeated and late declines change nothing."""
        pending = self._pending.get(event.checkpoint_id)
        if pending is not None and pending.awaits(Party.TASK, event.vertex):
            detail = f"Task {event.vertex!r}: {event.message}"
            self._abort(pending, Reason[event.reason], detail, now_ms)
            self._settle(now_ms)
        return self._drain()

    def task_ended(self, vertex: VertexId, now_ms: int) -> list[CoordinatorOutput]:
        """A task is FINISHED, FAILED or CANCELED: checkpoints that still wait for it are aborted (PROTOCOL P32)."""
        status = self._execution.statuses[vertex]
        finished = status is TaskStatus.FINISHED
        if finished:
            self._heard(self._coordinators.finished(vertex), now_ms)
        reason = Reason.CHECKPOINT_DECLINED_TASK_CLOSING if finished else Reason.TASK_FAILURE
        for pending in self.pending:
            if pending.awaits(Party.TASK, vertex):
                self._abort(
                    pending, reason, f"Task {vertex!r} is {status.name} and did not acknowledge.", now_ms
                )
        self._settle(now_ms)
        return self._drain()

    # -- completion -----------------------------------------------------------------------------------------

    def recorded(self, event: CheckpointRecorded, now_ms: int) -> list[CoordinatorOutput]:
        """The outcome of a checkpoint's record, which alone decides about it (PROTOCOL P11)."""
        pending = self._pending.get(event.checkpoint_id)
        invariant(
            pending is not None and pending is self.finalizing,
            f"checkpoint {event.checkpoint_id} was recorded, but is not finalizing",
        )
        if pending is None:
            return self._drain()
        if event.outcome is Recorded.WON:
            invariant(
                event.checkpoint is not None, f"checkpoint {event.checkpoint_id} was won without itself"
            )
            if event.checkpoint is not None:
                self._complete(pending, event.checkpoint, now_ms)
        elif event.outcome is Recorded.FAILED:
            pending.record_lost()
            self._over(pending, Reason.FINALIZE_CHECKPOINT_FAILURE, event.message, now_ms)
        else:
            pending.record_lost()
            del self._pending[event.checkpoint_id]
            self._store.aborted(event.checkpoint_id)
            # The attempt is at its end: what was held behind the checkpoint goes nowhere.
            self._coordinators.over(event.checkpoint_id, completed=False)
            self._stats.report_failed(event.checkpoint_id, event.message, self._wall_ms(now_ms), now_ms)
            message = f"Checkpoint {event.checkpoint_id} was not recorded: {event.message}"
            self._answer_failure(pending.request, message)
            self._out.append(AttemptFenced(message=message))
            return self._drain()
        self._settle(now_ms)
        return self._drain()

    # -- cleaning up ----------------------------------------------------------------------------------------

    def discarded(self, checkpoint_id: int, now_ms: int) -> list[CoordinatorOutput]:
        """One deletion is over, so the next request may get its turn."""
        self._cleaned(checkpoint_id)
        self._run_queue(now_ms)
        return self._drain()

    def discard_dropped(self, checkpoint_id: int) -> None:
        """A deletion that was emitted will not be carried out, since a newer attempt holds the job."""
        self._cleaned(checkpoint_id)

    def validate(self) -> None:
        """Check the laws of the fields and of the parts; raises ``InvariantError``."""
        invariant(list(self._pending) == sorted(self._pending), "pending checkpoints are out of order")
        finalizing = [p for p in self.pending if p.state is PendingState.FINALIZING]
        invariant(len(finalizing) <= 1, "two checkpoints are being recorded at once")
        under_way = (*_CAN_EXPIRE, PendingState.FINALIZING)
        triggering = [p for p in self.pending if p.state is PendingState.TRIGGERING]
        newest = [] if self.triggering is None else [self.triggering]
        invariant(triggering == newest, "a checkpoint was triggered during another one's trigger")
        invariant(
            self.triggering is None or self._trigger.in_progress is None, "two triggers are in progress"
        )
        invariant(all(count > 0 for count in self._cleaning.values()), "deletions are miscounted")
        for checkpoint_id, pending in self._pending.items():
            invariant(pending.checkpoint_id == checkpoint_id, "a pending checkpoint is under another's id")
            invariant(pending.state in under_way, f"{pending} is over but still known")
            pending.validate()
        invariant(len(self._recent) <= NUM_RECENT_CHECKPOINT_IDS, "too many recent ids")
        invariant(not self._recent.keys() & self._pending.keys(), "an aborted checkpoint is pending")
        invariant(self._pending.keys().isdisjoint(self._recently_completed), "a completed one is pending")
        invariant(not self._recent.keys() & set(self._store.ids), "an aborted checkpoint is retained")
        invariant(not self._out, "an effect was not handed over")
        for part in (self._trigger, self._store, self._epochs, self._failures, self._stats):
            part.validate()
        self._coordinators.validate(self._pending)

    # -- inside ---------------------------------------------------------------------------------------------

    def _submit(self, request: CheckpointRequest, now_ms: int) -> None:
        if self._shutdown:
            reason = Reason.CHECKPOINT_COORDINATOR_SHUTDOWN
            self._reject(Rejected(request=request, reason=reason))
            return
        rejected = self._trigger.enqueue(request)
        if rejected is not None:
            self._reject(rejected)
        self._run_queue(now_ms)

    def _run_queue(self, now_ms: int) -> None:
        started, rejected = self._trigger.run_queue(
            now_ms,
            triggering=self.triggering is not None,
            pending=len(self._pending),
            cleaning=self.cleaning,
        )
        for item in rejected:
            self._reject(item)
        if started is not None:
            self._out.append(started)

    def _settle(self, now_ms: int) -> None:
        """After something was over: delete what is free, record what is ready, run what is queued."""
        self._release()
        self._finalize_next()
        self._run_queue(now_ms)

    def _stop(self, reason: Reason, now_ms: int, cause: str) -> None:
        for request in self._trigger.stop():
            if request.origin is not RequestOrigin.PERIODIC:
                self._fail(request, reason, reason.describe(cause), None)
        for pending in self.pending:
            if pending.state is not PendingState.FINALIZING:
                self._abort(pending, reason, cause, now_ms)
        self._trigger.reset_unsuccessful()
        self._release()
