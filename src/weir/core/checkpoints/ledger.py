"""What is under way and what is kept: the bookkeeping below ``CheckpointCoordinator``.

The coordinator decides *when* a checkpoint is triggered, recorded or aborted; this class does *all* that such
a step owes: to the pending checkpoint's state, the store, the epochs, the count of failures, the statistics,
the tasks and the user who asked. The order of the effects in each step is part of the contract.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from weir.core.checkpoints.epochs import CommitEpochs
from weir.core.checkpoints.failures import EXCEEDED_MESSAGE, CheckpointFailureManager
from weir.core.checkpoints.failures import CheckpointFailureReason as Reason
from weir.core.checkpoints.pending import Party, PendingCheckpoint, PendingState
from weir.core.checkpoints.plan import calculate_plan
from weir.core.checkpoints.requests import (
    CheckpointRequest,
    CoordinatorOutput,
    RequestFailed,
    RequestOrigin,
    SnapshotCompleted,
    TolerableFailuresExceeded,
)
from weir.core.checkpoints.stats import CheckpointStatsTracker
from weir.core.checkpoints.store import CompletedCheckpointStore, FullCheckpoints
from weir.core.checkpoints.trigger import CheckpointTrigger, Rejected, Started
from weir.core.config import CheckpointConfig
from weir.core.job.execution import Execution
from weir.core.messages.job import (
    AnswerRequest,
    DiscardCheckpoint,
    LocationAllocated,
    RecordCheckpoint,
    TriggerHook,
)
from weir.core.messages.operators import CoordinatorAcknowledged, CoordinatorDeclined, HolderOutput
from weir.core.messages.protocol import NotifyCheckpointAborted, NotifyCheckpointComplete, TriggerCheckpoint
from weir.core.operators.coordinators import OperatorCoordinators
from weir.core.types import (
    CompletedCheckpoint,
    OperatorState,
    SnapshotKind,
    TaskState,
    VertexId,
)
from weir.errors import invariant

#: Ids of aborted checkpoints that are remembered, so that late messages are recognised (Flink: NUM_GHOST_...).
NUM_RECENT_CHECKPOINT_IDS = 16


class CheckpointLedger:
    """Pending and completed checkpoints of one job, and everything that hangs on them."""

    def __init__(
        self,
        *,
        config: CheckpointConfig,
        execution: Execution,
        stats: CheckpointStatsTracker,
        hooks: tuple[str, ...],
        coordinators: OperatorCoordinators,
    ) -> None:
        invariant(len(set(hooks)) == len(hooks), f"two master hooks have one identifier: {hooks}")
        self._config = config
        self._execution = execution
        self._stats = stats
        #: Identifiers of the master hooks, which are asked all at once.
        self._hooks = hooks
        self._coordinators = coordinators
        self._trigger = CheckpointTrigger(config=config, execution=execution)
        self._store = CompletedCheckpointStore(num_retained=config.num_retained)
        self._epochs = CommitEpochs()
        self._full = FullCheckpoints(incremental=config.incremental)
        self._failures = CheckpointFailureManager(tolerable_failures=config.tolerable_failed_checkpoints)
        #: Checkpoints under way by id. Law: ids ascend; at most one is FINALIZING; none is over; only the last one may be
        #: TRIGGERING.
        self._pending: dict[int, PendingCheckpoint] = {}
        #: Aborted ones, oldest first, with the directory of a savepoint. Law: at most 16, none pending.
        self._recent: dict[int, str | None] = {}
        #: Completed ones, oldest first. Law: at most 16, none pending.
        self._recently_completed: deque[int] = deque(maxlen=NUM_RECENT_CHECKPOINT_IDS)
        #: Deletions that were emitted and are not over. Effects are counted, not ids: an aborted checkpoint is deleted
        #: again for each acknowledgement that comes late. Law: no count is 0.
        self._cleaning: Counter[int] = Counter()
        #: (wall clock, monotonic clock) of one moment, both in milliseconds.
        self._clocks = (0, 0)
        self._out: list[CoordinatorOutput] = []

    @property
    def pending(self) -> tuple[PendingCheckpoint, ...]:
        """The checkpoints under way, oldest first."""
        return tuple(self._pending.values())

    @property
    def finalizing(self) -> PendingCheckpoint | None:
        """The checkpoint whose record is being written; stop and restart wait for its outcome (PROTOCOL P11)."""
        return next((p for p in self._pending.values() if p.state is PendingState.FINALIZING), None)

    @property
    def triggering(self) -> PendingCheckpoint | None:
        """The checkpoint whose tasks are not triggered yet; no other one is triggered meanwhile."""
        newest = next(reversed(self._pending.values()), None)
        return newest if newest is not None and newest.state is PendingState.TRIGGERING else None

    @property
    def cleaning(self) -> int:
        """How many deletions are under way, those included that wait for tasks to stop."""
        return self._cleaning.total()

    @property
    def store(self) -> CompletedCheckpointStore:
        """The completed checkpoints; for reading only."""
        return self._store

    def _drain(self) -> list[CoordinatorOutput]:
        out, self._out = self._out, []
        return out

    def _wall_ms(self, now_ms: int) -> int:
        """The wall clock's time: the last one that was told, plus what has passed since."""
        timestamp_ms, at_ms = self._clocks
        return timestamp_ms + now_ms - at_ms

    def _begin(self, started: Started, event: LocationAllocated, now_ms: int) -> None:
        """Make the pending checkpoint, and ask the first of those who take part in it."""
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
        newest = max((*self._pending, *self._recent, *self._store.ids), default=0)
        invariant(event.checkpoint_id > newest, f"checkpoint id {event.checkpoint_id} follows {newest}")
        self._pending[event.checkpoint_id] = pending
        self._stats.report_pending(
            event.checkpoint_id, pending.kind, event.timestamp_ms, pending.plan.tasks_to_wait_for, now_ms
        )
        self._ask(pending, now_ms)

    def _ask(self, pending: PendingCheckpoint, now_ms: int) -> None:
        """Ask the next party, now that all before it have answered."""
        match pending.next_party:
            case Party.OPERATOR_COORDINATOR:
                self._heard(self._coordinators.checkpoint(pending.checkpoint_id), now_ms)
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

    def _heard(self, outputs: list[HolderOutput], now_ms: int) -> None:
        """What the holders of operator coordinators make known: parts of checkpoints are complete, or have failed."""
        for output in outputs:
            pending = self._pending.get(getattr(output, "checkpoint_id", 0))
            match output:
                case CoordinatorAcknowledged():
                    invariant(pending is not None, f"nobody waits for {output}")
                    party = Party.OPERATOR_COORDINATOR
                    if pending is not None and pending.answered(party, output.operator, output.state):
                        self._ask(pending, now_ms)
                case CoordinatorDeclined():
                    detail = f"The coordinator of {output.operator!r}: {output.message}"
                    if pending is not None:
                        self._abort(pending, Reason.TRIGGER_CHECKPOINT_FAILURE, detail, now_ms)
                case _:
                    self._out.append(output)

    def _trigger_tasks(self, pending: PendingCheckpoint, now_ms: int) -> None:
        """The last step of triggering; the pre-check of the plan is repeated, since hooks took their time."""
        plan = calculate_plan(self._execution.statuses, self._execution.producers)
        if plan is None or not plan.has_tasks_of(pending.plan):
            detail = "They changed while master hooks were triggered."
            self._abort(pending, Reason.NOT_ALL_REQUIRED_TASKS_RUNNING, detail, now_ms)
            return
        pending.tasks_triggered(plan)
        self._trigger.reset_unsuccessful()
        self._out.extend(
            TriggerCheckpoint(
                vertex=vertex,
                checkpoint_id=pending.checkpoint_id,
                kind=pending.kind,
                timestamp_ms=pending.timestamp_ms,
                target=pending.target,
                full=pending.full,
                drain=pending.request.drain,
            )
            for vertex in plan.tasks_to_trigger
        )

    def _finalize_next(self) -> None:
        """Begin the record of the oldest checkpoint that all have acknowledged, unless one is being written."""
        ready = (p for p in self._pending.values() if p.fully_acknowledged)
        pending = next(ready, None) if self.finalizing is None else None
        if pending is None:
            return
        pending.begin_finalizing()
        checkpoint_id, kind = pending.checkpoint_id, pending.kind
        latest = self._store.latest
        last = {} if latest is None else {task.vertex: task.position for task in latest.tasks}
        acknowledged = (
            self._epochs.resolve(state, checkpoint_id=checkpoint_id, kind=kind)
            for state in pending.acknowledged_states
        )
        self._out.append(
            RecordCheckpoint(
                checkpoint_id=checkpoint_id,
                kind=kind,
                target=pending.target,
                timestamp_ms=pending.timestamp_ms,
                attempt=self._execution.attempt,
                tasks=(*acknowledged, *(self._finished_state(v, last) for v in pending.plan.finished_tasks)),
                retained=self._store.ids if kind.is_savepoint else self._store.ids_with(checkpoint_id),
                hook_states=pending.states(Party.MASTER_HOOK),
                coordinator_states=pending.states(Party.OPERATOR_COORDINATOR),
            )
        )

    def _finished_state(self, vertex: VertexId, last: Mapping[VertexId, int]) -> TaskState:
        """What the metadata says of a task that was FINISHED when the checkpoint was triggered (MISSION D4).

        ``last`` are the positions in the newest completed checkpoint.
        """
        operators = tuple(
            OperatorState(operator_id=o.operator_id, name=o.name, fully_finished=True)
            for o in self._execution.operators(vertex)
        )
        inputs = self._execution.producers.get(vertex, ())
        return TaskState(vertex=vertex, position=last.get(vertex, -1), operators=operators, inputs=inputs)

    def _complete(self, pending: PendingCheckpoint, checkpoint: CompletedCheckpoint, now_ms: int) -> None:
        checkpoint_id, kind = pending.checkpoint_id, pending.kind
        pending.record_won()
        del self._pending[checkpoint_id]
        self._recently_completed.append(checkpoint_id)
        self._trigger.completed(now_ms)
        self._failures.handle_success(checkpoint_id)
        self._stats.report_completed(checkpoint, now_ms)
        if kind is SnapshotKind.CHECKPOINT:
            for older in self.pending:
                if older.checkpoint_id < checkpoint_id and older.kind is SnapshotKind.CHECKPOINT:
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
                for vertex in self._execution.receivers(pending.plan.tasks_to_commit_to)
            )
        told = kind.commits_side_effects
        self._heard(self._coordinators.over(checkpoint_id, completed=True, notifies=told), now_ms)
        if pending.request.request is not None:
            self._out.append(AnswerRequest(request=pending.request.request, checkpoint=checkpoint))
        self._out.append(
            SnapshotCompleted(
                request=pending.request,
                checkpoint=checkpoint,
                # A task may have come to its end between the trigger and its barrier.
                waiting_tasks=pending.plan.waiting_tasks | pending.finished_in_it,
            )
        )

    def _abort(self, pending: PendingCheckpoint, reason: Reason, detail: str, now_ms: int) -> None:
        triggered = pending.state is not PendingState.TRIGGERING
        pending.abort()
        if not triggered:
            self._trigger.count_unsuccessful()
        self._over(pending, reason, detail, now_ms, tell_tasks=triggered)

    def _over(
        self, pending: PendingCheckpoint, reason: Reason, detail: str, now_ms: int, *, tell_tasks: bool = True
    ) -> None:
        """Everything that is owed when a checkpoint has become ABORTED (PROTOCOL P12)."""
        checkpoint_id = pending.checkpoint_id
        del self._pending[checkpoint_id]
        self._store.aborted(checkpoint_id)
        self._recent[checkpoint_id] = pending.target
        if len(self._recent) > NUM_RECENT_CHECKPOINT_IDS:
            del self._recent[next(iter(self._recent))]
        message = reason.describe(detail)
        self._stats.report_failed(checkpoint_id, message, self._wall_ms(now_ms), now_ms)
        self._out.extend(
            NotifyCheckpointAborted(vertex=vertex, checkpoint_id=checkpoint_id)
            for vertex in self._execution.receivers(pending.plan.tasks_to_wait_for if tell_tasks else ())
        )
        self._heard(self._coordinators.over(checkpoint_id, completed=False), now_ms)
        self._discard(checkpoint_id, pending.target)
        what = "Savepoint" if pending.kind.is_savepoint else "Checkpoint"
        message = f"{what} {checkpoint_id} failed: {message}"
        self._fail(pending.request, reason, message, checkpoint_id, tasks_know=tell_tasks)

    def _reject(self, rejected: Rejected) -> None:
        """A pre-check has declined a request. Nothing was tried, so the statistics do not show it as failed (MISSION A4)."""
        if rejected.is_unsuccessful:
            self._trigger.count_unsuccessful()
        message = rejected.reason.describe(rejected.detail)
        self._fail(rejected.request, rejected.reason, message, None)

    def _no_location(self, request: CheckpointRequest, detail: str) -> None:
        """A checkpoint failed before it had an id (MISSION A9)."""
        reason = Reason.IO_EXCEPTION
        message = reason.describe(detail)
        self._trigger.count_unsuccessful()
        self._stats.report_failed_without_in_progress(message)
        self._fail(request, reason, message, None)

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
        # Only checkpoints count: a failed savepoint is answered to the user who asked for it.
        final = request.origin is RequestOrigin.FINAL
        if request.kind is SnapshotKind.CHECKPOINT and self._failures.handle_failure(
            reason, checkpoint_id, final=final
        ):
            self._out.append(TolerableFailuresExceeded(message=f"{EXCEEDED_MESSAGE} {message}"))

    def _answer_failure(self, request: CheckpointRequest, message: str) -> None:
        if request.request is not None:
            self._out.append(AnswerRequest(request=request.request, failure=message))

    def _discard(self, checkpoint_id: int, target: str | None) -> None:
        self._delete(DiscardCheckpoint(checkpoint_id=checkpoint_id, target=target, files=(), subsumed=False))

    def _release(self) -> None:
        for subsumed in self._store.release(self._pending.keys()):
            self._stats.report_subsumed(subsumed.checkpoint_id)
            self._delete(
                DiscardCheckpoint(
                    checkpoint_id=subsumed.checkpoint_id, target=None, files=subsumed.files, subsumed=True
                )
            )

    def _delete(self, effect: DiscardCheckpoint) -> None:
        self._cleaning[effect.checkpoint_id] += 1
        self._out.append(effect)

    def _cleaned(self, checkpoint_id: int) -> None:
        invariant(
            self._cleaning[checkpoint_id] > 0,
            f"checkpoint {checkpoint_id} was deleted more often than asked for",
        )
        self._cleaning[checkpoint_id] -= 1
        if not self._cleaning[checkpoint_id]:
            del self._cleaning[checkpoint_id]
