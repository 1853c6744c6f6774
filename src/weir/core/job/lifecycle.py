"""Where a job goes, and what it has to wait for on the way: the part of ``JobMaster`` below its events.

The status moves by the table in ``core/status.py``. Beside it there is a *goal*, since the way to most states
leads through waiting:

1. A goal other than RUN is set at once, and with it the scheduler stops and pending checkpoints are aborted (MISSION A1).
2. If an attempt is being begun, its outcome is awaited. If tasks run, they are stopped, and that is awaited.
3. If a checkpoint is in FINALIZING, its outcome is awaited (PROTOCOL P11): nobody can know yet whether it is the
   one to restart from.
4. Only then the goal is acted upon: the restart is scheduled, or the end is recorded.

Periodic checkpoints begin when the job is RUNNING and so is every task that has not finished, not with the attempt: queries
take seconds to start, and until then every trigger would be declined (MISSION A1, A4).

The files of checkpoints that are aborted while tasks are being stopped are deleted after these have stopped,
since until then a snapshot may still be writing.

The core has no random numbers: each place that needs one uses the ``chance`` that came with an event.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from weir.core.checkpoints.coordinator import CheckpointCoordinator
from weir.core.checkpoints.requests import (
    AttemptFenced,
    CheckpointRequest,
    CoordinatorFact,
    CoordinatorOutput,
    RequestFailed,
    RequestOrigin,
    SnapshotCompleted,
    TolerableFailuresExceeded,
)
from weir.core.checkpoints.stats import CheckpointStatsTracker
from weir.core.config import CheckpointConfig, RestartConfig
from weir.core.job.execution import Execution
from weir.core.job.restart import FinalCheckpointRetry, RepeatedFailures, make_restart_strategy
from weir.core.job.stop_with_savepoint import StopState, StopWithSavepoint
from weir.core.messages.job import (
    AbandonAttempt,
    AnswerRequest,
    BeginAttempt,
    DiscardCheckpoint,
    JobEnded,
    JobMasterEffect,
    JobStatusChanged,
    RecordEnd,
    StopTasks,
)
from weir.core.messages.operators import FailJob, FailSubtask
from weir.core.operators.coordinators import CoordinatedOperator, OperatorCoordinators
from weir.core.status import JobStatus, next_status
from weir.core.types import UNKNOWN, Cause, OperatorId, OperatorState, TaskStatus, VertexId


class Goal(enum.Enum):
    """Where the job is going."""

    RUN = "RUN"
    FINISH = "FINISH"
    RESTART = "RESTART"
    FAIL = "FAIL"
    CANCEL = "CANCEL"
    SUSPEND = "SUSPEND"
    #: A newer attempt holds the job (PROTOCOL P17).
    FENCED = "FENCED"


class JobLifecycle:
    """Status, goal and what is under way; its methods are called by ``JobMaster`` only."""

    def __init__(
        self,
        *,
        job_id: str,
        vertices: Mapping[VertexId, tuple[OperatorState, ...]],
        config: CheckpointConfig,
        restart: RestartConfig,
        hooks: tuple[str, ...],
        producers: Mapping[VertexId, tuple[VertexId, ...]],
        coordinated: Mapping[OperatorId, CoordinatedOperator],
    ) -> None:
        self._config = config
        self._execution = Execution(vertices, producers)
        self._stats = CheckpointStatsTracker(config.history_size)
        self._operator_coordinators = OperatorCoordinators(coordinated)
        self._coordinator = CheckpointCoordinator(
            job_id=job_id,
            config=config,
            execution=self._execution,
            stats=self._stats,
            hooks=hooks,
            coordinators=self._operator_coordinators,
        )
        self._restart_strategy = make_restart_strategy(restart)
        self._repeated = RepeatedFailures(restart.give_up_after_ms)
        self._final_retry = FinalCheckpointRetry()
        self._status = JobStatus.CREATED
        self._goal = Goal.RUN
        #: ``BeginAttempt`` is under way.
        self._beginning = False
        #: The attempt's tasks exist: from ``AttemptBegan`` to ``TasksStopped``.
        self._tasks_up = False
        #: ``StopTasks`` is under way. Law: only while tasks are up.
        self._stopping = False
        #: The status whose ``RecordEnd`` is under way.
        self._recording_end: JobStatus | None = None
        #: When the next attempt begins, in monotonic ms. Law: set only in RESTARTING.
        self._restart_at_ms: int | None = None
        self._stop: StopWithSavepoint | None = None
        #: Cancel requests to be answered at the end.
        self._cancels: list[str] = []
        self._failure: str | None = None
        #: The newest random number that an event brought; 0.5 (no jitter) before the first.
        self._chance = 0.5
        #: Deletions that wait for tasks to stop.
        self._deferred_discards: list[DiscardCheckpoint] = []
        self._effects: list[JobMasterEffect] = []

    def _take(self, outputs: list[CoordinatorOutput], now_ms: int) -> None:
        """Pass effects on in their order, then act on the facts among them."""
        facts: list[CoordinatorFact] = []
        for output in outputs:
            if isinstance(output, CoordinatorFact):
                facts.append(output)
            elif isinstance(output, DiscardCheckpoint) and self._goal is Goal.FENCED:
                self._coordinator.discard_dropped(output.checkpoint_id)
            elif isinstance(output, DiscardCheckpoint) and self._tasks_are_leaving:
                self._deferred_discards.append(output)
            else:
                self._effects.append(output)
        for fact in facts:
            match fact:
                case SnapshotCompleted():
                    self._snapshot_completed(fact, now_ms)
                case RequestFailed():
                    self._request_failed(fact, now_ms)
                case TolerableFailuresExceeded():
                    # A job that has finished its records, and committed them, needs no further checkpoint.
                    if self._goal is Goal.RUN:
                        self._fail(fact.message, now_ms)
                case AttemptFenced():
                    self._fenced(fact.message, now_ms)
                case FailSubtask() | FailJob():
                    fatal = isinstance(fact, FailJob) and fact.fatal
                    cause = fact.cause if isinstance(fact, FailJob) else UNKNOWN
                    self._fail(fact.message, now_ms, goal=Goal.FAIL if fatal else Goal.RESTART, cause=cause)

    @property
    def _tasks_are_leaving(self) -> bool:
        """Whether tasks are up that are being stopped, so that a snapshot may still be writing."""
        return self._tasks_up and self._goal not in (Goal.RUN, Goal.FINISH)

    def _snapshot_completed(self, fact: SnapshotCompleted, now_ms: int) -> None:
        if fact.checkpoint.kind.commits_side_effects:
            self._final_retry.reset()
            self._execution.released(fact.waiting_tasks)
            self._repeated.notify_checkpoint()
        if fact.request.origin is RequestOrigin.STOP and self._stop is not None:
            self._stop.savepoint_created(fact.checkpoint, now_ms + self._config.timeout_ms)
            if self._goal is not Goal.RUN:
                self._fail_stop("The job was stopped by other means before its tasks had finished.")

    def _request_failed(self, fact: RequestFailed, now_ms: int) -> None:
        if fact.request.origin is RequestOrigin.FINAL:
            self._final_retry.failed(now_ms)
        if fact.request.origin is not RequestOrigin.STOP or self._stop is None:
            return
        self._fail_stop(fact.message)
        # If no task knows of it the job simply goes on, and so do its periodic checkpoints.
        if self._goal is not Goal.RUN or fact.tasks_know:
            self._fail(f"The savepoint for stopping the job failed: {fact.message}", now_ms)

    @property
    def _end_deadline_ms(self) -> int | None:
        """Until when every task has to be FINISHED, once the savepoint of a stop is complete; None if there is none."""
        return self._stop.deadline_ms if self._stop is not None and self._goal is Goal.RUN else None

    def _end_is_overdue(self, now_ms: int) -> None:
        """Sinks that do not come back must not hold up for ever whoever asked for the stop (PROTOCOL P34)."""
        late = ", ".join(
            repr(v) for v, status in self._execution.statuses.items() if status is not TaskStatus.FINISHED
        )
        self._fail(
            f"The job did not end within {self._config.timeout_ms} ms after the savepoint of its stop was complete: these"
            f" tasks have not committed and closed their sinks: {late}.",
            now_ms,
        )

    def _fenced(self, message: str, now_ms: int) -> None:
        self._failure = f"{message} A newer attempt holds the job, so this driver stops."
        self._leave(Goal.FENCED, self._failure, now_ms)

    def _progress(self, now_ms: int) -> None:
        """Do what has become possible."""
        if self._status.is_terminal:
            return
        if self._goal is Goal.RUN and self._status is JobStatus.RUNNING:
            self._progress_running(now_ms)
            if self._may_schedule and not self._coordinator.trigger.scheduling:
                self._take(self._coordinator.start_scheduler(now_ms, self._chance), now_ms)
        if self._goal is not Goal.RUN and not self._beginning and self._recording_end is None:
            self._progress_leaving(now_ms)

    @property
    def _may_schedule(self) -> bool:
        """Whether periodic checkpoints can begin: all tasks run, and the job is not being stopped (MISSION A1)."""
        running = self._goal is Goal.RUN and self._status is JobStatus.RUNNING
        return running and self._stop is None and self._execution.can_be_checkpointed

    def _progress_running(self, now_ms: int) -> None:
        stop = self._stop
        if self._execution.all_finished:
            finalizing = self._coordinator.finalizing
            if finalizing is not None and finalizing.request.origin is RequestOrigin.STOP:
                return
            if stop is not None and stop.state is not StopState.SAVEPOINT_CREATED:
                self._fail_stop("The job finished by itself first.")
            self._leave(Goal.FINISH, "The job has finished.", now_ms)
        elif stop is not None:
            if stop.state is StopState.WAITING_FOR_RECORD and self._coordinator.finalizing is None:
                stop.savepoint_requested()
                request = CheckpointRequest(origin=RequestOrigin.STOP, target=stop.target, drain=stop.drain)
                self._take(self._coordinator.submit(request, now_ms), now_ms)
        elif self._final_checkpoint_is_due():
            self._take(
                self._coordinator.submit(CheckpointRequest(origin=RequestOrigin.FINAL), now_ms), now_ms
            )

    def _final_checkpoint_is_due(self) -> bool:
        """Whether a checkpoint is to be triggered at once for tasks that wait (MISSION E3, PROTOCOL P29)."""
        vertex = self._execution.last_to_wait
        if self._final_retry.at_ms is not None:
            return False
        if vertex is None or not (self._execution.all_ended_records or self._config.interval_ms is None):
            return False
        return self._execution.can_be_checkpointed and not self._coordinator.covers(vertex)

    def _progress_leaving(self, now_ms: int) -> None:
        if self._tasks_up and self._goal is not Goal.FINISH:
            if not self._stopping:
                self._stopping = True
                self._effects.append(StopTasks(attempt=self._execution.attempt))
            return
        if self._coordinator.finalizing is not None:
            return
        match self._goal:
            case Goal.FINISH:
                if self._stop is not None:
                    self._stop.tasks_finished()
                self._record_end(JobStatus.FINISHED)
            case Goal.RESTART:
                self._schedule_restart(now_ms)
            case Goal.CANCEL:
                self._record_end(JobStatus.CANCELED)
            case Goal.SUSPEND | Goal.FENCED:
                self._end(JobStatus.SUSPENDED, now_ms)
            case _:
                self._record_end(JobStatus.FAILED)

    def _schedule_restart(self, now_ms: int) -> None:
        if self._repeated.gives_up:
            # The failure says so itself.
            self._goal = Goal.FAIL
            self._record_end(JobStatus.FAILED)
        elif self._restart_strategy.can_restart():
            self._move(JobStatus.RESTARTING)
            self._goal = Goal.RUN
            self._restart_at_ms = now_ms + self._restart_strategy.delay_ms(self._chance)
        else:
            self._goal = Goal.FAIL
            self._failure = f"{self._failure} (not restarted: {self._restart_strategy.describe()})"
            self._record_end(JobStatus.FAILED)

    def _begin_attempt(self) -> None:
        self._beginning = True
        self._effects.append(BeginAttempt())

    def _fail(
        self,
        message: str,
        now_ms: int,
        *,
        goal: Goal = Goal.RESTART,
        cause: Cause = UNKNOWN,
        vertex: VertexId | None = None,
    ) -> None:
        """The running attempt failed; one that is being left already is not failed again. ``vertex``: whose task failed."""
        if self._goal not in (Goal.RUN, Goal.FINISH):
            return
        self._restart_strategy.notify_failure(now_ms)
        self._repeated.notify_failure(cause.key, now_ms)
        if goal is Goal.RESTART and self._repeated.is_worth_telling:
            message = f"{message} ({self._repeated.describe()})"
        self._failure = message
        self._status = next_status(self._status, JobStatus.FAILING)
        failing = JobStatusChanged(status=self._status, message=message, trace=cause.trace, vertex=vertex)
        self._effects.append(failing)
        self._effects.extend(self._operator_coordinators.failed(message))
        self._leave(goal, message, now_ms)

    def _leave(self, goal: Goal, message: str, now_ms: int) -> None:
        """Set a goal other than RUN: the scheduler stops, what is pending is aborted."""
        self._goal = goal
        self._restart_at_ms = None
        self._execution.stop()
        finalizing = self._coordinator.finalizing
        recording_stop = finalizing is not None and finalizing.request.origin is RequestOrigin.STOP
        if goal is not Goal.FINISH and not recording_stop:
            self._fail_stop(message)
        self._take(self._coordinator.stop_scheduler(now_ms, message), now_ms)
        if self._beginning:
            self._effects.append(AbandonAttempt())

    def _fail_stop(self, message: str) -> None:
        stop, self._stop = self._stop, None
        if stop is not None:
            self._effects.extend(stop.fail(message))

    def _record_end(self, status: JobStatus) -> None:
        canceled = status is JobStatus.CANCELED
        self._recording_end = status
        self._effects.append(
            RecordEnd(
                status=status,
                savepoint=self._savepoint_path if status is JobStatus.FINISHED else None,
                failure=self._failure if status is JobStatus.FAILED else None,
                delete_checkpoints=canceled and self._config.retention.deletes_on_cancellation,
            )
        )

    @property
    def _savepoint_path(self) -> str | None:
        savepoint = None if self._stop is None else self._stop.savepoint
        return None if savepoint is None else savepoint.external_path

    def _end(self, status: JobStatus, now_ms: int) -> None:
        """The last effects of the job."""
        savepoint = self._savepoint_path
        drained = savepoint is not None and self._stop is not None and self._stop.drain
        fenced = self._goal is Goal.FENCED
        self._take(self._coordinator.shut_down(now_ms), now_ms)
        self._move(status)
        if self._stop is not None:
            self._effects.extend(self._stop.end())
            self._stop = None
        for request in self._cancels:
            failure = None if status is JobStatus.CANCELED else self._failure or f"The job is {status.name}."
            self._effects.append(AnswerRequest(request=request, failure=failure))
        self._cancels.clear()
        failed = status is JobStatus.FAILED or fenced
        self._effects.append(
            JobEnded(
                status=status,
                failure=self._failure if failed else None,
                savepoint=savepoint,
                drained=drained,
                fenced=fenced,
            )
        )

    def _move(self, status: JobStatus) -> None:
        self._status = next_status(self._status, status)
        message = self._failure if status is JobStatus.FAILED else None
        self._effects.append(JobStatusChanged(status=status, message=message or ""))

    def _refuse(self, request: str, message: str) -> None:
        self._effects.append(AnswerRequest(request=request, failure=message))
