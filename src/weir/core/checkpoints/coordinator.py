"""Triggers, completes and aborts the job's checkpoints (Flink's ``CheckpointCoordinator``).

It is a part of ``JobMaster``: its methods take the time and return lists of effects and facts
(``CheckpointOutput``). The course of one checkpoint:

1. A request (from the timer, a user, or the job master) enters the queue;
   ``CheckpointRequestDecider`` decides when it runs.
2. Its id and location are allocated outside the machine, since that blocks, one at a time. All
   pre-checks are repeated afterwards.
3. The operator coordinators are asked, then the master hooks are triggered (MISSION C2, A8). When
   all have answered, the tasks of the ``CheckpointPlan`` are triggered; each acknowledges or
   declines. If any party does not answer, the checkpoint expires.
4. When all have acknowledged, the record is written. Records are written one at a time, since the
   outcome of each decides which epoch the next records for its committables (``epochs``). Until the
   outcome is known, nothing aborts the checkpoint.
5. Completed: older pending checkpoints are subsumed (never savepoints), tasks are notified, and
   files that nothing needs are deleted. Aborted: tasks are notified, the checkpoint's own files are
   deleted, and it may count towards failing the job.

In either case the next queued request gets its turn (MISSION A5), unless too many deletions are in
progress.
"""

from __future__ import annotations

from dataclasses import replace

from weir.core.checkpoints.epochs import CommitEpochs
from weir.core.checkpoints.failures import EXCEEDED_MESSAGE, CheckpointFailureManager
from weir.core.checkpoints.outputs import (
    AttemptFenced,
    CheckpointOutput,
    RequestFailed,
    SnapshotCompleted,
    TolerableFailuresExceeded,
)
from weir.core.checkpoints.past import CheckpointsCleaner, RecentCheckpoints
from weir.core.checkpoints.pending import (
    Party,
    PendingCheckpoint,
    PendingCheckpoints,
    PendingState,
    TaskAcknowledgeResult,
)
from weir.core.checkpoints.plan import calculate_plan
from weir.core.checkpoints.request_decider import CheckpointRequest, RequestOrigin
from weir.core.checkpoints.stats import (
    CheckpointStats,
    CheckpointStatsSnapshot,
    CheckpointStatsTracker,
)
from weir.core.checkpoints.store import CompletedCheckpointStore, FullCheckpoints
from weir.core.checkpoints.trigger import CheckpointTrigger, Rejected, Started
from weir.core.coordination.coordinators import OperatorCoordinators
from weir.core.execution import Execution
from weir.core.messages.coordination import (
    CoordinatorAcknowledged,
    CoordinatorDeclined,
    CoordinatorEvent,
    HolderOutput,
    TaskOperatorEvent,
)
from weir.core.messages.job import (
    AnswerRequest,
    CheckpointDiscarded,
    CheckpointRecorded,
    HookFailed,
    HookTriggered,
    LocationAllocated,
    LocationFailed,
    TriggerHook,
)
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
)
from weir.core.settings import CheckpointConfig
from weir.core.types import CheckpointFailureReason as Reason
from weir.core.types import (
    CompletedCheckpoint,
    Recorded,
    TaskStatus,
    VertexId,
)
from weir.errors import invariant


class CheckpointCoordinator:
    """All checkpoints of one job."""

    def __init__(
        self,
        *,
        job_id: str,
        config: CheckpointConfig,
        execution: Execution,
        hooks: tuple[str, ...] = (),
        coordinators: OperatorCoordinators,
    ) -> None:
        invariant(len(set(hooks)) == len(hooks), f"duplicate master hook identifiers: {hooks}")
        self._job_id = job_id
        self._config = config
        self._execution = execution
        self._stats = CheckpointStatsTracker(config.history_size)
        #: Identifiers of the master hooks, which are all triggered at once.
        self._hooks = hooks
        self._coordinators = coordinators
        self._trigger = CheckpointTrigger(config=config, execution=execution)
        self._store = CompletedCheckpointStore(num_retained=config.num_retained)
        self._epochs = CommitEpochs()
        self._full = FullCheckpoints(incremental=config.incremental)
        self._failures = CheckpointFailureManager(
            tolerable_failures=config.tolerable_failed_checkpoints
        )
        self._pending = PendingCheckpoints()
        self._recent = RecentCheckpoints()
        self._cleaner = CheckpointsCleaner()
        #: (wall clock, monotonic clock) at the same moment, both in milliseconds.
        self._clocks = (0, 0)
        self._shutdown = False
        self._out: list[CheckpointOutput] = []

    # -- queries

    @property
    def pending(self) -> tuple[PendingCheckpoint, ...]:
        """The pending checkpoints, oldest first."""
        return tuple(self._pending.values())

    @property
    def finalizing(self) -> PendingCheckpoint | None:
        """The checkpoint being recorded; stop and restart wait for its outcome (PROTOCOL P11)."""
        return self._pending.finalizing

    @property
    def triggering(self) -> PendingCheckpoint | None:
        """The checkpoint whose tasks are not triggered yet; no other is triggered meanwhile."""
        return self._pending.triggering

    @property
    def cleaning(self) -> int:
        """How many deletions are in progress, including those that wait for tasks to stop."""
        return self._cleaner.under_way

    @property
    def store(self) -> CompletedCheckpointStore:
        """The completed checkpoints; read-only."""
        return self._store

    @property
    def trigger(self) -> CheckpointTrigger:
        """The timer and the queue; read-only."""
        return self._trigger

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """This job's newest completed checkpoint."""
        return self._store.latest

    def stats(self, now_ms: int) -> CheckpointStatsSnapshot:
        """All checkpoint figures; durations of those in progress run to ``now_ms``."""
        return replace(
            self._stats.snapshot(now_ms),
            waits_because=self._trigger.waits_because,
            unsuccessful_triggers=self._trigger.unsuccessful_triggers,
        )

    def take_ended(self) -> list[CheckpointStats]:
        """The checkpoints that have ended since the last call, oldest first."""
        return self._stats.take_ended()

    def covers(self, vertex: VertexId) -> bool:
        """Whether a queued or pending checkpoint covers the end of ``vertex``'s records."""
        return self._trigger.will_commit or self._pending.covers(vertex)

    def next_deadline(self) -> int | None:
        """When the periodic timer or the timeout of a checkpoint is due next, in monotonic ms."""
        deadlines = (self._pending.next_deadline(), self._trigger.next_trigger_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # -- attempts and the scheduler

    def begin_attempt(
        self,
        restored: CompletedCheckpoint | None,
        timestamp_ms: int,
        now_ms: int,
        older: tuple[CompletedCheckpoint, ...] = (),
    ) -> list[CheckpointOutput]:
        """Begin an attempt from ``restored``; a checkpoint of another job is never deleted.

        ``older`` are this job's retained checkpoints before it, as found by a starting driver.
        """
        invariant(
            not self._pending, "an attempt starts while checkpoints of the previous one are pending"
        )
        self._clocks = (timestamp_ms, now_ms)
        own = restored if restored is not None and restored.job_id == self._job_id else None
        self._store.seed(own, older)
        if own is not None:
            self._recent.restored(own.checkpoint_id)
        self._full.begin_attempt(own)
        self._epochs.restart(own.checkpoint_id if own and own.kind.commits_side_effects else None)
        self._failures.reset()
        if restored is not None:
            self._stats.report_restored(restored, timestamp_ms)
        self._release()
        return self._drain()

    def start_scheduler(self, now_ms: int, chance: float) -> list[CheckpointOutput]:
        """Start periodic checkpoints; a running scheduler is stopped first (MISSION A2).

        Raises ``InvariantError`` after ``shut_down``.
        """
        invariant(not self._shutdown, "the checkpoint scheduler was started after its shutdown")
        stopped = self.stop_scheduler(now_ms) if self._trigger.scheduling else []
        self._trigger.start(now_ms, chance)
        return stopped

    def stop_scheduler(self, now_ms: int, cause: str = "") -> list[CheckpointOutput]:
        """Stop periodic checkpoints, drop queued requests, abort pending checkpoints (A3, P34).

        A checkpoint in FINALIZING stays. ``cause`` is added to the message that waiting users get.
        """
        self._stop(Reason.CHECKPOINT_COORDINATOR_SUSPEND, now_ms, cause)
        return self._drain()

    def shut_down(self, now_ms: int) -> list[CheckpointOutput]:
        """Do as ``stop_scheduler`` and start nothing again: the job has ended."""
        self._shutdown = True
        self._stop(Reason.CHECKPOINT_COORDINATOR_SHUTDOWN, now_ms, "")
        return self._drain()

    def _stop(self, reason: Reason, now_ms: int, cause: str) -> None:
        for request in self._trigger.stop():
            if request.origin is not RequestOrigin.PERIODIC:
                self._fail(request, reason, reason.describe(cause), None)
        for pending in self.pending:
            if pending.state is not PendingState.FINALIZING:
                self._abort(pending, reason, cause, now_ms)
        self._trigger.reset_unsuccessful()
        self._release()

    def on_deadline(self, now_ms: int) -> list[CheckpointOutput]:
        """Expire the checkpoints that are due, and submit the periodic request if it is due."""
        for pending in self.pending:
            if pending.expires_at(now_ms):
                detail = f"Waited {self._config.timeout_ms} ms; {pending.describe_missing()}."
                self._abort(pending, Reason.CHECKPOINT_EXPIRED, detail, now_ms)
        request = self._trigger.periodic_request(now_ms)
        if request is not None:
            self._submit(request, now_ms)
        self._settle(now_ms)
        return self._drain()

    # -- from a request to its tasks

    def submit(self, request: CheckpointRequest, now_ms: int) -> list[CheckpointOutput]:
        """Submit a request: it runs, waits, or fails at once (``RequestFailed``)."""
        self._submit(request, now_ms)
        return self._drain()

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

    def location_allocated(self, event: LocationAllocated, now_ms: int) -> list[CheckpointOutput]:
        """Repeat the pre-checks, then ask the parties of the checkpoint (MISSION A6)."""
        self._clocks = (event.timestamp_ms, now_ms)
        outcome = self._trigger.allocated(event.allocation, now_ms, pending=len(self._pending))
        if isinstance(outcome, Started):
            self._begin(outcome, event, now_ms)
        else:
            self._out.append(self._cleaner.aborted(event.checkpoint_id, event.target))
            if isinstance(outcome, Rejected):
                self._reject(outcome)
        self._settle(now_ms)
        return self._drain()

    def location_failed(self, event: LocationFailed, now_ms: int) -> list[CheckpointOutput]:
        """No id or location could be allocated: the request fails, and counts (MISSION A9)."""
        self._clocks = (event.timestamp_ms, now_ms)
        request = self._trigger.allocation_over(event.allocation)
        if request is not None:
            reason = Reason.IO_EXCEPTION
            message = reason.describe(event.message)
            self._trigger.count_unsuccessful()
            self._stats.report_failed_without_in_progress(message)
            self._fail(request, reason, message, None)
        self._settle(now_ms)
        return self._drain()

    def _begin(self, started: Started, event: LocationAllocated, now_ms: int) -> None:
        """Create the pending checkpoint and ask its first party."""
        request = started.request
        pending = PendingCheckpoint(
            checkpoint_id=event.checkpoint_id,
            request=request,
            plan=started.plan,
            target=event.target,
            timestamp_ms=event.timestamp_ms,
            deadline_ms=now_ms + self._config.timeout_ms,
            full=self._full.applies_to(request, self._pending.values()),
            hooks=self._hooks,
            coordinators=self._coordinators.names,
        )
        newest = max((*self._pending, self._recent.newest_aborted, *self._store.ids))
        invariant(
            event.checkpoint_id > newest,
            f"checkpoint id {event.checkpoint_id} is not above {newest}",
        )
        self._pending[event.checkpoint_id] = pending
        self._stats.report_pending(
            event.checkpoint_id,
            pending.kind,
            event.timestamp_ms,
            pending.plan.tasks_to_wait_for,
            now_ms,
        )
        self._ask(pending, now_ms)

    def _ask(self, pending: PendingCheckpoint, now_ms: int) -> None:
        """Ask the next party; all earlier parties have answered."""
        match pending.next_party:
            case Party.OPERATOR_COORDINATOR:
                self._act_on(self._coordinators.checkpoint(pending.checkpoint_id), now_ms)
            case Party.MASTER_HOOK:
                self._out.extend(
                    TriggerHook(
                        identifier=identifier,
                        checkpoint_id=pending.checkpoint_id,
                        timestamp_ms=pending.timestamp_ms,
                    )
                    for identifier in pending.not_yet_acknowledged_hooks
                )
            case _:
                self._trigger_tasks(pending, now_ms)

    def hook_triggered(self, event: HookTriggered, now_ms: int) -> list[CheckpointOutput]:
        """A master hook has done its part; an answer for a checkpoint not pending is ignored."""
        pending = self._pending.get(event.checkpoint_id)
        if pending is None:
            return []
        if pending.answered(Party.MASTER_HOOK, event.identifier, event.state):
            self._ask(pending, now_ms)
            self._settle(now_ms)
        return self._drain()

    def hook_failed(self, event: HookFailed, now_ms: int) -> list[CheckpointOutput]:
        """A master hook failed: abort the checkpoint and count it as unsuccessful (MISSION A9)."""
        pending = self._pending.get(event.checkpoint_id)
        if pending is None:
            return []
        detail = f"Master hook {event.identifier!r}: {event.message}"
        self._abort(pending, Reason.TRIGGER_CHECKPOINT_FAILURE, detail, now_ms)
        self._settle(now_ms)
        return self._drain()

    def operator_event(
        self, event: CoordinatorEvent | TaskOperatorEvent, now_ms: int
    ) -> list[CheckpointOutput]:
        """An operator coordinator or a task reports on operator events or snapshots."""
        if isinstance(event, TaskOperatorEvent):
            outputs = self._coordinators.from_task(event)
        else:
            outputs = self._coordinators.from_coordinator(event)
        self._act_on(outputs, now_ms)
        self._settle(now_ms)
        return self._drain()

    def _act_on(self, outputs: list[HolderOutput], now_ms: int) -> None:
        """Act on coordinators' parts of checkpoints that completed or failed; pass on the rest."""
        for output in outputs:
            match output:
                case CoordinatorAcknowledged():
                    invariant(output.checkpoint_id in self._pending, f"unexpected {output}")
                    pending = self._pending[output.checkpoint_id]
                    party = Party.OPERATOR_COORDINATOR
                    if pending.answered(party, output.operator, output.state):
                        self._ask(pending, now_ms)
                case CoordinatorDeclined():
                    declined = self._pending.get(output.checkpoint_id)
                    detail = f"The coordinator of {output.operator!r}: {output.message}"
                    if declined is not None:
                        self._abort(declined, Reason.CHECKPOINT_DECLINED, detail, now_ms)
                case _:
                    self._out.append(output)

    def _trigger_tasks(self, pending: PendingCheckpoint, now_ms: int) -> None:
        """Trigger the tasks after repeating the plan's pre-check, since hooks take time."""
        plan = calculate_plan(self._execution)
        if plan is None or not plan.has_tasks_of(pending.plan):
            detail = "Their statuses changed while master hooks were triggered."
            self._abort(pending, Reason.NOT_ALL_REQUIRED_TASKS_RUNNING, detail, now_ms)
            return
        pending.tasks_triggered(plan)
        self._trigger.reset_unsuccessful()
        self._out.extend(pending.triggers())

    # -- from acknowledgements to the record

    def acknowledge(
        self, event: AcknowledgeCheckpoint, now_ms: int
    ) -> tuple[TaskAcknowledgeResult, list[CheckpointOutput]]:
        """A task's snapshot is durable; if its checkpoint was aborted, delete what it wrote.

        Late metrics are added to the history as long as the checkpoint is in it.
        """
        checkpoint_id = event.checkpoint_id
        pending = self._pending.get(checkpoint_id)
        if pending is not None:
            result = pending.acknowledge(event)
        else:
            result = self._recent.acknowledge(checkpoint_id)
        if result is not TaskAcknowledgeResult.DUPLICATE:
            size, at_ms = event.state.state_size, self._wall_ms(now_ms)
            self._stats.report_acknowledged(checkpoint_id, event.vertex, size, event.metrics, at_ms)
        if result is TaskAcknowledgeResult.DISCARDED:
            self._out.append(
                self._cleaner.aborted(checkpoint_id, self._recent.target_of(checkpoint_id))
            )
        elif pending is not None and pending.fully_acknowledged:
            self._finalize_next()
        return result, self._drain()

    def decline(self, event: DeclineCheckpoint, now_ms: int) -> list[CheckpointOutput]:
        """A task declined: abort the checkpoint. Repeated and late declines change nothing."""
        pending = self._pending.get(event.checkpoint_id)
        if pending is not None and pending.awaits(Party.TASK, event.vertex):
            detail = f"Task {event.vertex!r}: {event.message}"
            self._abort(pending, event.reason, detail, now_ms)
            self._settle(now_ms)
        return self._drain()

    def task_ended(self, vertex: VertexId, now_ms: int) -> list[CheckpointOutput]:
        """A task is FINISHED or FAILED: abort checkpoints that wait for it (P32)."""
        status = self._execution.statuses[vertex]
        finished = status is TaskStatus.FINISHED
        if finished:
            self._act_on(self._coordinators.finished(vertex), now_ms)
        reason = Reason.CHECKPOINT_DECLINED_TASK_CLOSING if finished else Reason.TASK_FAILURE
        for pending in self.pending:
            if pending.awaits(Party.TASK, vertex):
                self._abort(
                    pending,
                    reason,
                    f"Task {vertex!r} is {status.name} and did not acknowledge.",
                    now_ms,
                )
        self._settle(now_ms)
        return self._drain()

    def _finalize_next(self) -> None:
        """Record the oldest fully acknowledged checkpoint, unless a record is being written."""
        pending = self._pending.ready
        if pending is None:
            return
        pending.begin_finalizing()
        checkpoint_id, kind = pending.checkpoint_id, pending.kind
        acknowledged = (
            self._epochs.resolve(state, checkpoint_id=checkpoint_id, kind=kind)
            for state in pending.acknowledged_states
        )
        finished = (self._execution.finished_state(v) for v in pending.plan.finished_tasks)
        retained = self._store.ids if kind.is_savepoint else self._store.ids_with(checkpoint_id)
        self._out.append(
            pending.record(
                attempt=self._execution.attempt,
                tasks=(*acknowledged, *finished),
                retained=retained,
            )
        )

    def recorded(self, event: CheckpointRecorded, now_ms: int) -> list[CheckpointOutput]:
        """Act on the outcome of a checkpoint's record, which alone decides its fate (P11)."""
        pending = self._pending.get(event.checkpoint_id)
        invariant(
            pending is not None and pending is self.finalizing,
            f"checkpoint {event.checkpoint_id} was recorded without being finalized",
        )
        if pending is None:
            return self._drain()
        if event.outcome is Recorded.WON:
            invariant(
                event.checkpoint is not None,
                f"checkpoint {event.checkpoint_id} was recorded, but is missing from the event",
            )
            if event.checkpoint is not None:
                self._complete(pending, event.checkpoint, now_ms)
        elif event.outcome is Recorded.FAILED:
            pending.record_lost()
            self._over(pending, Reason.FINALIZE_CHECKPOINT_FAILURE, event.message, now_ms)
        else:
            pending.record_lost()
            # The attempt has ended, so the events that the checkpoint held back are dropped.
            self._forget(pending, Reason.FINALIZE_CHECKPOINT_FAILURE, event.message, now_ms)
            message = f"Checkpoint {event.checkpoint_id} was not recorded: {event.message}"
            self._answer_failure(pending.request, message)
            self._out.append(AttemptFenced(message=message))
            return self._drain()
        self._settle(now_ms)
        return self._drain()

    # -- the end of a checkpoint

    def _complete(
        self, pending: PendingCheckpoint, checkpoint: CompletedCheckpoint, now_ms: int
    ) -> None:
        checkpoint_id, kind = pending.checkpoint_id, pending.kind
        pending.record_won()
        del self._pending[checkpoint_id]
        self._recent.completed(checkpoint_id)
        self._execution.completed(checkpoint)
        if kind.commits_side_effects:
            # A task may have ended its records between the trigger and its barrier.
            self._execution.released(pending.plan.waiting_tasks | pending.finished_in_it)
        self._trigger.completed(now_ms)
        self._failures.handle_success(checkpoint_id)
        self._stats.report_completed(checkpoint, now_ms)
        if not kind.is_savepoint:
            for older in self.pending:
                if older.checkpoint_id < checkpoint_id and not older.kind.is_savepoint:
                    detail = f"Checkpoint {checkpoint_id} completed first."
                    self._abort(older, Reason.CHECKPOINT_SUBSUMED, detail, now_ms)
            self._store.add(checkpoint, pending=self._pending.keys())
            self._full.completed(pending)
        if kind.commits_side_effects:
            self._epochs.completed(checkpoint_id)
            if min(self._pending, default=checkpoint_id) >= checkpoint_id:
                self._epochs.forget(checkpoint.tasks, checkpoint_id=checkpoint_id)
            self._out.extend(
                NotifyCheckpointComplete(vertex=vertex, checkpoint_id=checkpoint_id)
                for vertex in self._execution.receivers(pending.plan.tasks_to_wait_for)
            )
        over = self._coordinators.over(
            checkpoint_id, completed=True, notifies=kind.commits_side_effects
        )
        self._act_on(over, now_ms)
        if pending.request.request is not None:
            self._out.append(AnswerRequest(request=pending.request.request, checkpoint=checkpoint))
        self._out.append(SnapshotCompleted(request=pending.request, checkpoint=checkpoint))

    def _abort(self, pending: PendingCheckpoint, reason: Reason, detail: str, now_ms: int) -> None:
        triggered = pending.state is not PendingState.TRIGGERING
        pending.abort()
        if not triggered and not reason.is_of_ending_tasks:
            self._trigger.count_unsuccessful()
        self._over(pending, reason, detail, now_ms, notify_tasks=triggered)

    def _over(
        self,
        pending: PendingCheckpoint,
        reason: Reason,
        detail: str,
        now_ms: int,
        *,
        notify_tasks: bool = True,
    ) -> None:
        """Do everything that is due once a checkpoint is ABORTED (PROTOCOL P12)."""
        checkpoint_id = pending.checkpoint_id
        message = reason.describe(detail)
        held_back = self._forget(pending, reason, message, now_ms)
        self._recent.aborted(checkpoint_id, pending.target)
        self._out.extend(
            NotifyCheckpointAborted(vertex=vertex, checkpoint_id=checkpoint_id)
            for vertex in self._execution.receivers(
                pending.plan.tasks_to_wait_for if notify_tasks else self._coordinators.inducing
            )
        )
        self._act_on(held_back, now_ms)
        self._out.append(self._cleaner.aborted(checkpoint_id, pending.target))
        what = "Savepoint" if pending.kind.is_savepoint else "Checkpoint"
        message = f"{what} {checkpoint_id} failed: {message}"
        self._fail(pending.request, reason, message, checkpoint_id, tasks_know=notify_tasks)

    def _forget(
        self, pending: PendingCheckpoint, reason: Reason, message: str, now_ms: int
    ) -> list[HolderOutput]:
        """Remove a checkpoint that is ABORTED; returns the events that it held back."""
        checkpoint_id = pending.checkpoint_id
        del self._pending[checkpoint_id]
        self._stats.report_failed(
            checkpoint_id,
            message,
            self._wall_ms(now_ms),
            now_ms,
            met_ending_tasks=reason.is_of_ending_tasks,
        )
        return self._coordinators.over(checkpoint_id, completed=False)

    def _reject(self, rejected: Rejected) -> None:
        """Fail a request that a pre-check declined; it never enters the statistics (MISSION A4)."""
        message = rejected.reason.describe(rejected.detail)
        self._fail(rejected.request, rejected.reason, message, None)

    def _fail(
        self,
        request: CheckpointRequest,
        reason: Reason,
        message: str,
        checkpoint_id: int | None,
        *,
        tasks_know: bool = False,
    ) -> None:
        self._answer_failure(request, message)
        self._out.append(
            RequestFailed(request=request, reason=reason, message=message, tasks_know=tasks_know)
        )
        # Only checkpoints count: the user who asked for a savepoint learns that it failed.
        final = request.origin in (RequestOrigin.FINAL, RequestOrigin.STOP_WITH_CHECKPOINT)
        if not request.kind.is_savepoint and self._failures.handle_failure(
            reason, checkpoint_id, final=final
        ):
            self._out.append(TolerableFailuresExceeded(message=f"{EXCEEDED_MESSAGE} {message}"))

    def _answer_failure(self, request: CheckpointRequest, message: str) -> None:
        if request.request is not None:
            self._out.append(AnswerRequest(request=request.request, failure=message))

    # -- cleaning up

    def discarded(self, event: CheckpointDiscarded, now_ms: int) -> list[CheckpointOutput]:
        """A deletion is done, so the next request may get its turn."""
        self._cleaner.over(event.checkpoint_id)
        self._run_queue(now_ms)
        return self._drain()

    def discard_dropped(self, checkpoint_id: int) -> None:
        """An emitted deletion will not be carried out, since a newer attempt holds the job."""
        self._cleaner.over(checkpoint_id)

    def _release(self) -> None:
        for subsumed in self._store.release(self._pending.keys()):
            self._stats.report_subsumed(subsumed.checkpoint_id)
            self._out.append(self._cleaner.subsumed(subsumed.checkpoint_id, subsumed.files))

    def _settle(self, now_ms: int) -> None:
        """Delete what is free, record what is ready, run what is queued."""
        self._release()
        self._finalize_next()
        self._run_queue(now_ms)

    def _wall_ms(self, now_ms: int) -> int:
        """The wall clock time: as last received, plus the time elapsed since."""
        timestamp_ms, at_ms = self._clocks
        return timestamp_ms + now_ms - at_ms

    def _drain(self) -> list[CheckpointOutput]:
        out, self._out = self._out, []
        return out

    def validate(self) -> None:
        """Check the laws of the fields and of the parts; raises ``InvariantError``."""
        self._pending.validate()
        invariant(
            self.triggering is None or self._trigger.in_progress is None,
            "two triggers are in progress",
        )
        self._recent.validate(pending=self._pending, retained=self._store.ids)
        invariant(not self._out, "an effect was not returned")
        for part in (
            self._trigger,
            self._store,
            self._epochs,
            self._failures,
            self._stats,
            self._cleaner,
        ):
            part.validate()
        self._coordinators.validate(self._pending)
