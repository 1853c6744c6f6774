"""``JobMaster``: the whole job as one state machine (Flink's ``JobMaster`` and its scheduler).

It combines the attempt's tasks (``Execution``), the checkpoints (``CheckpointCoordinator``), the
restart strategy and a stop with savepoint. It handles each event, then ``_progress`` does whatever
has become possible.

Where the job is and where it is heading is its ``Course``, a status and a goal. A goal is reached
only after waiting:

1. A goal other than RUN is set at once; the scheduler stops and pending checkpoints are aborted
   (MISSION A1).
2. If an attempt is being started, its outcome is awaited. If tasks are running, they are stopped,
   and the job master waits until they have stopped.
3. If a checkpoint is in FINALIZING, its outcome is awaited (PROTOCOL P11): until then it is unknown
   whether the job restarts from it.
4. Only then is the goal acted on: the restart is scheduled, or the end is recorded.

Periodic checkpoints start once the job and every unfinished task are RUNNING, not when the attempt
begins: queries take seconds to start, and until then every trigger would be declined (MISSION A1,
A4).

Files of checkpoints that are aborted while tasks are being stopped are deleted after the tasks have
stopped, since until then a snapshot may still be writing.

The core has no random numbers: code that needs one uses the ``chance`` that came with an event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeAlias, get_args

from weir.core.checkpoints.coordinator import CheckpointCoordinator
from weir.core.checkpoints.outputs import (
    AttemptFenced,
    CheckpointFact,
    CheckpointOutput,
    RequestFailed,
    SnapshotCompleted,
    TolerableFailuresExceeded,
)
from weir.core.checkpoints.request_decider import CheckpointRequest, RequestOrigin
from weir.core.checkpoints.stats import CheckpointStatsSnapshot
from weir.core.coordination.coordinators import CoordinatedOperator, OperatorCoordinators
from weir.core.execution import AttemptPhase, Execution
from weir.core.job.course import Course, Goal
from weir.core.job.restart import FinalCheckpointRetry, RestartPolicy
from weir.core.job.stop_with_savepoint import (
    NO_SAVEPOINT_DIRECTORY,
    StopState,
    StopWithSavepoint,
    overdue,
)
from weir.core.messages.coordination import (
    CoordinatorEvent,
    FailJob,
    FailSubtask,
    TaskOperatorEvent,
)
from weir.core.messages.job import (
    AbandonAttempt,
    AnswerRequest,
    AttemptBegan,
    AttemptFailed,
    BeginAttempt,
    CancelRequested,
    CheckpointDiscarded,
    CheckpointRecorded,
    DiscardCheckpoint,
    EndRecorded,
    HookFailed,
    HookTriggered,
    JobEnded,
    JobMasterEffect,
    JobMasterEvent,
    JobStatusChanged,
    JobSubmitted,
    LocationAllocated,
    LocationFailed,
    RecordEnd,
    RequestKind,
    SnapshotRequested,
    StopTasks,
    SuspendRequested,
    TasksStopped,
)
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    CaughtUp,
    DeclineCheckpoint,
    TaskClosing,
    TaskFailed,
    TaskStatusChanged,
)
from weir.core.settings import CheckpointConfig, RestartConfig, UntilIdle
from weir.core.status import JobStatus, has_ended
from weir.core.types import (
    UNKNOWN,
    Cause,
    OperatorId,
    OperatorState,
    Recorded,
    TaskStatus,
    VertexId,
)
from weir.errors import invariant

Handler: TypeAlias = Callable[[Any, int], None]


class JobMaster:
    """One job in one driver; called on the main thread, with a ``now_ms`` that never decreases."""

    def __init__(
        self,
        *,
        job_id: str,
        vertices: Mapping[VertexId, tuple[OperatorState, ...]],
        config: CheckpointConfig,
        restart: RestartConfig,
        savepoint_directory: str | None,
        hooks: tuple[str, ...] = (),
        producers: Mapping[VertexId, tuple[VertexId, ...]] | None = None,
        coordinated: Mapping[OperatorId, CoordinatedOperator] | None = None,
        until_idle: UntilIdle | None = None,
    ) -> None:
        """``hooks`` are the identifiers of the master hooks, all triggered at once (P44).

        ``producers`` maps a task to the tasks whose channels it reads; ``coordinated`` are the
        operators that have a coordinator. ``until_idle``: the job's sources read what is available
        now.
        """
        self._job_id = job_id
        self._config = config
        self._savepoint_directory = savepoint_directory
        self._until_idle = until_idle
        self._execution = Execution(vertices, producers or {})
        self._operator_coordinators = OperatorCoordinators(coordinated or {})
        self._coordinator = CheckpointCoordinator(
            job_id=job_id,
            config=config,
            execution=self._execution,
            hooks=hooks,
            coordinators=self._operator_coordinators,
        )
        #: Others only read it. Law: a restart is scheduled only in RESTARTING.
        self.restarts = RestartPolicy(restart)
        self._final_retry = FinalCheckpointRetry()
        self._course = Course()
        #: The newest random number that came with an event; 0.5 (no jitter) before the first.
        self._chance = 0.5
        #: Deletions that wait for tasks to stop.
        self._deferred_discards: list[DiscardCheckpoint] = []
        self._effects: list[JobMasterEffect] = []

    # -- queries

    @property
    def status(self) -> JobStatus:
        """The status of the job."""
        return self._course.status

    @property
    def attempt(self) -> int:
        """The number of the running attempt, or of the last one that ran; 0 before the first."""
        return self._execution.attempt

    @property
    def failure(self) -> str | None:
        """Why the job failed last; None if it never failed."""
        return self._course.failure

    @property
    def coordinator(self) -> CheckpointCoordinator:
        """The checkpoints of the job; read-only."""
        return self._coordinator

    @property
    def has_periodic_checkpoints(self) -> bool:
        """Whether checkpoints are taken at an interval."""
        return self._config.interval_ms is not None

    def task_status(self, vertex: VertexId) -> TaskStatus:
        """The status of a task in the newest attempt."""
        return self._execution.statuses[vertex]

    def stats(self, now_ms: int) -> CheckpointStatsSnapshot:
        """All checkpoint figures; durations of those in progress run to ``now_ms``."""
        return self._coordinator.stats(now_ms)

    def next_deadline(self) -> int | None:
        """When to call ``on_deadline``, in monotonic ms; None if nothing is scheduled."""
        if self._course.status.is_terminal:
            return None
        deadlines = (
            self.restarts.at_ms,
            self._coordinator.next_deadline(),
            self._final_retry.at_ms,
            self._end_deadline_ms,
        )
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # -- entry points

    def on_deadline(self, now_ms: int) -> list[JobMasterEffect]:
        """Do what is due; call it at the time that ``next_deadline`` returned."""
        if not self._course.status.is_terminal:
            self._take(self._coordinator.on_deadline(now_ms), now_ms)
            if self.restarts.is_due(now_ms):
                self._begin_attempt()
            self._final_retry.on_deadline(now_ms)
            if self._end_deadline_ms is not None and self._end_deadline_ms <= now_ms:
                self._end_is_overdue(now_ms)
            self._progress(now_ms)
        return self._drain()

    def handle(self, event: JobMasterEvent, now_ms: int) -> list[JobMasterEffect]:
        """Handle one event; the returned effects must be carried out in order."""
        if self._course.status.is_terminal:
            self._after_the_end(event)
        elif isinstance(event, AcknowledgeCheckpoint):
            self._acknowledged(event, now_ms)
        else:
            self._handlers[type(event)](event, now_ms)
            self._progress(now_ms)
        return self._drain()

    @cached_property
    def _handlers(self) -> dict[type[Any], Handler]:
        coordinator = self._coordinator
        operator_events = (*get_args(CoordinatorEvent), *get_args(TaskOperatorEvent))
        return {
            JobSubmitted: self._submitted,
            AttemptBegan: self._attempt_began,
            AttemptFailed: self._attempt_failed,
            TasksStopped: self._tasks_stopped,
            SnapshotRequested: self._snapshot_requested,
            CancelRequested: self._cancel_requested,
            SuspendRequested: self._suspend_requested,
            DeclineCheckpoint: self._declined,
            TaskStatusChanged: self._task_status_changed,
            TaskClosing: self._task_closing,
            CaughtUp: self._caught_up,
            TaskFailed: self._task_failed,
            EndRecorded: self._end_recorded,
            LocationAllocated: self._passed_to(coordinator.location_allocated),
            LocationFailed: self._passed_to(coordinator.location_failed),
            HookTriggered: self._passed_to(coordinator.hook_triggered),
            HookFailed: self._passed_to(coordinator.hook_failed),
            CheckpointRecorded: self._passed_to(coordinator.recorded),
            CheckpointDiscarded: self._passed_to(coordinator.discarded),
            **dict.fromkeys(operator_events, self._operator_event),
        }

    def _passed_to(self, call: Callable[[Any, int], list[CheckpointOutput]]) -> Handler:
        """The handler of an event for the checkpoint coordinator alone."""
        return lambda event, now_ms: self._take(call(event, now_ms), now_ms)

    def _drain(self) -> list[JobMasterEffect]:
        effects, self._effects = self._effects, []
        return effects

    def _after_the_end(self, event: JobMasterEvent) -> None:
        if isinstance(event, SnapshotRequested | CancelRequested):
            self._refuse(event.request, f"The job has ended: it is {self.status.name}.")

    # -- events of tasks, and outputs of the checkpoint coordinator

    def _is_current(self, attempt: int) -> bool:
        """Whether to handle a task's event: not if its attempt is over or being stopped."""
        return attempt == self._execution.attempt and self._execution.live

    def _acknowledged(self, event: AcknowledgeCheckpoint, now_ms: int) -> None:
        """Called for every task of every checkpoint; only the last task has consequences."""
        if not self._is_current(event.attempt):
            return
        _, outputs = self._coordinator.acknowledge(event, now_ms)
        if outputs:
            self._take(outputs, now_ms)
            self._progress(now_ms)

    def _declined(self, event: DeclineCheckpoint, now_ms: int) -> None:
        if self._is_current(event.attempt):
            self._take(self._coordinator.decline(event, now_ms), now_ms)

    def _operator_event(self, event: CoordinatorEvent | TaskOperatorEvent, now_ms: int) -> None:
        if self._is_current(event.attempt):
            self._take(self._coordinator.operator_event(event, now_ms), now_ms)

    def _task_status_changed(self, event: TaskStatusChanged, now_ms: int) -> None:
        if not self._is_current(event.attempt):
            return
        self._execution.set_status(event.vertex, event.status)
        if event.status is TaskStatus.RUNNING:
            self._effects.extend(self._operator_coordinators.ready(event.vertex))
        if has_ended(event.status):
            self._take(self._coordinator.task_ended(event.vertex, now_ms), now_ms)

    def _task_closing(self, event: TaskClosing, now_ms: int) -> None:
        del now_ms
        if self._is_current(event.attempt):
            self._execution.closing(event.vertex)

    def _caught_up(self, event: CaughtUp, now_ms: int) -> None:
        del now_ms
        if self._is_current(event.attempt):
            self._execution.caught_up(event.vertex)

    def _task_failed(self, event: TaskFailed, now_ms: int) -> None:
        if not self._is_current(event.attempt):
            return
        self._execution.set_status(event.vertex, TaskStatus.FAILED)
        goal = Goal.FAIL if event.fatal else Goal.RESTART
        message = f"Task {event.vertex!r} failed: {event.message}"
        self._fail(message, now_ms, goal=goal, cause=event.cause, vertex=event.vertex)

    def _take(self, outputs: list[CheckpointOutput], now_ms: int) -> None:
        """Pass effects on in their order, then act on the facts among them."""
        facts: list[CheckpointFact] = []
        for output in outputs:
            if isinstance(output, CheckpointFact):
                facts.append(output)
            elif isinstance(output, DiscardCheckpoint) and self._course.goal is Goal.FENCED:
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
                    # A job that has processed and committed its records needs no more checkpoints.
                    if self._course.goal is Goal.RUN:
                        self._fail(fact.message, now_ms)
                case AttemptFenced():
                    self._fenced(fact.message, now_ms)
                case FailSubtask() | FailJob():
                    fatal = isinstance(fact, FailJob) and fact.fatal
                    cause = fact.cause if isinstance(fact, FailJob) else UNKNOWN
                    goal = Goal.FAIL if fatal else Goal.RESTART
                    self._fail(fact.message, now_ms, goal=goal, cause=cause)

    @property
    def _tasks_are_leaving(self) -> bool:
        """Whether tasks are being stopped, so that a snapshot may still be writing."""
        return self._execution.tasks_up and not self._course.keeps_tasks

    def _snapshot_completed(self, fact: SnapshotCompleted, now_ms: int) -> None:
        if fact.checkpoint.kind.commits_side_effects:
            self._final_retry.reset()
            self.restarts.notify_checkpoint()
        stop = self._course.stop
        if fact.request.origin.ends_job and stop is not None:
            deadline_ms = now_ms + self._config.timeout_ms
            stop = stop.savepoint_created(fact.checkpoint, deadline_ms)
            self._course = self._course.with_stop(stop)
            if self._course.goal is not Goal.RUN:
                self._fail_stop(
                    "Another request or a failure stopped the job before its tasks finished."
                )

    def _request_failed(self, fact: RequestFailed, now_ms: int) -> None:
        if fact.request.origin is RequestOrigin.FINAL:
            self._final_retry.failed(now_ms)
        if not fact.request.origin.ends_job or self._course.stop is None:
            return
        self._fail_stop(fact.message)
        # If no task knows of it, the job and its periodic checkpoints continue.
        if fact.tasks_know:
            what = "savepoint" if fact.request.kind.is_savepoint else "checkpoint"
            self._fail(f"The stop's {what} failed: {fact.message}", now_ms)
        elif fact.request.origin is RequestOrigin.STOP_WITH_CHECKPOINT:
            self._final_retry.failed(now_ms)

    # -- attempts

    def _submitted(self, event: JobSubmitted, now_ms: int) -> None:
        del event, now_ms
        new = self.status is JobStatus.CREATED and self._execution.phase is AttemptPhase.NONE
        invariant(new, "the job was submitted twice")
        self._begin_attempt()

    def _attempt_began(self, event: AttemptBegan, now_ms: int) -> None:
        self._chance = event.chance
        self._execution.begin(event.attempt, event.states)
        self._final_retry.reset()
        begin = self._coordinator.begin_attempt
        self._take(begin(event.restored, event.timestamp_ms, now_ms, event.older), now_ms)
        own = event.restored is not None and event.restored.job_id == self._job_id
        self._effects.extend(
            self._operator_coordinators.begin_attempt(
                event.attempt, event.restored, event.states, own=own
            )
        )
        if self._course.goal is Goal.RUN:
            self._turn(self._course.running())
        else:
            self._execution.stop()

    def _attempt_failed(self, event: AttemptFailed, now_ms: int) -> None:
        beginning = self._execution.phase is AttemptPhase.BEGINNING
        invariant(beginning, "an attempt failed that was not starting")
        self._execution.phase = AttemptPhase.NONE
        if self._course.goal is Goal.RUN:
            goal = Goal.FAIL if event.fatal else Goal.RESTART
            self._fail(event.message, now_ms, goal=goal, cause=event.cause)

    def _tasks_stopped(self, event: TasksStopped, now_ms: int) -> None:
        del now_ms
        stopping = self._execution.phase is AttemptPhase.STOPPING
        if not stopping or event.attempt != self._execution.attempt:
            return
        self._execution.phase = AttemptPhase.NONE
        self._chance = event.chance
        if event.left_running and self._course.goal is Goal.RESTART:
            self._course = self._course.giving_up(
                " (not restarted in this process, where a query may still be running; did not"
                f" stop: {event.left_running}; run the same command to resume the job)"
            )
        deferred, self._deferred_discards = self._deferred_discards, []
        if self._course.goal is not Goal.FENCED:
            self._effects.extend(deferred)
            return
        for discard in deferred:
            self._coordinator.discard_dropped(discard.checkpoint_id)

    def _begin_attempt(self) -> None:
        self._execution.phase = AttemptPhase.BEGINNING
        self._effects.append(BeginAttempt())

    # -- user requests

    def _snapshot_requested(self, event: SnapshotRequested, now_ms: int) -> None:
        stop = self._course.stop
        refusal = self._course.refuse_snapshot(self._config.retention)
        if refusal is None and stop is not None:
            refusal = stop.refuse(event)
        if refusal is not None:
            self._refuse(event.request, refusal)
            return
        if stop is not None:
            self._course = self._course.with_stop(stop.joined_by(event.request))
            return
        if event.kind is RequestKind.CHECKPOINT:
            origin, kind = RequestOrigin.USER_CHECKPOINT, event.checkpoint_type
            request = CheckpointRequest(origin=origin, request=event.request, checkpoint_type=kind)
            self._take(self._coordinator.submit(request, now_ms), now_ms)
            return
        with_checkpoint = event.kind is RequestKind.STOP_WITH_CHECKPOINT
        target = None if with_checkpoint else event.target or self._savepoint_directory
        if target is None and not with_checkpoint:
            self._refuse(event.request, NO_SAVEPOINT_DIRECTORY)
        elif event.kind is RequestKind.SAVEPOINT:
            origin = RequestOrigin.SAVEPOINT
            request = CheckpointRequest(origin=origin, target=target, request=event.request)
            self._take(self._coordinator.submit(request, now_ms), now_ms)
        else:
            stop = StopWithSavepoint(requests=(event.request,), target=target, drain=event.drain)
            self._begin_stop(stop, now_ms)

    def _begin_stop(self, stop: StopWithSavepoint, now_ms: int) -> None:
        self._course = self._course.with_stop(stop)
        what = "checkpoint" if stop.target is None else "savepoint"
        cause = f"The job is being stopped with a {what}."
        self._take(self._coordinator.stop_scheduler(now_ms, cause), now_ms)

    def _cancel_requested(self, event: CancelRequested, now_ms: int) -> None:
        refusal = self._course.refuse_cancel()
        if refusal is not None:
            self._refuse(event.request, refusal)
            return
        known = self._course.goal is Goal.CANCEL
        self._turn(self._course.cancelling(event.request))
        if not known:
            self._leave("The job is being cancelled.", now_ms)

    def _suspend_requested(self, event: SuspendRequested, now_ms: int) -> None:
        del event
        if self._course.can_suspend:
            self._course = self._course.suspending()
            self._leave("The job is being suspended.", now_ms)

    def _refuse(self, request: str, message: str) -> None:
        self._effects.append(AnswerRequest(request=request, failure=message))

    def _fail_stop(self, message: str) -> None:
        stop, self._course = self._course.stop, self._course.with_stop(None)
        if stop is not None:
            self._effects.extend(stop.failed().answers(message))

    # -- progress

    def _progress(self, now_ms: int) -> None:
        """Do whatever has become possible."""
        if self._course.status.is_terminal:
            return
        if self._course.is_running:
            self._progress_running(now_ms)
            if self._may_schedule and not self._coordinator.trigger.scheduling:
                self._take(self._coordinator.start_scheduler(now_ms, self._chance), now_ms)
        beginning = self._execution.phase is AttemptPhase.BEGINNING
        if self._course.goal is not Goal.RUN and not beginning and not self._course.is_recording:
            self._progress_leaving(now_ms)

    @property
    def _may_schedule(self) -> bool:
        """Whether periodic checkpoints can start: all tasks run, no stop is in progress (A1)."""
        course = self._course
        return course.is_running and course.stop is None and self._execution.can_be_checkpointed

    def _progress_running(self, now_ms: int) -> None:
        due = self._own_stop
        if due is not None:
            self._begin_stop(due, now_ms)
        stop = self._course.stop
        if self._execution.all_finished:
            finalizing = self._coordinator.finalizing
            if finalizing is not None and finalizing.request.origin.ends_job:
                return
            if stop is not None and stop.state is not StopState.SAVEPOINT_CREATED:
                self._fail_stop("The job finished first.")
            self._course = self._course.finishing()
            self._leave("The job has finished.", now_ms)
        elif stop is not None:
            if stop.state is StopState.WAITING_FOR_RECORD and self._coordinator.finalizing is None:
                self._course = self._course.with_stop(stop.savepoint_requested())
                self._take(self._coordinator.submit(stop.request, now_ms), now_ms)
        elif self._final_checkpoint_is_due():
            self._take(
                self._coordinator.submit(CheckpointRequest(origin=RequestOrigin.FINAL), now_ms),
                now_ms,
            )

    @property
    def _own_stop(self) -> StopWithSavepoint | None:
        """The stop that is due, since the sources are read as far as they are to be; else None."""
        execution, waits = self._execution, self._final_retry.at_ms is not None
        if self._until_idle is None or self._course.stop is not None or waits:
            return None
        if not (execution.has_caught_up and execution.can_be_checkpointed):
            return None
        return StopWithSavepoint(requests=(), target=None, drain=self._until_idle.drain)

    def _final_checkpoint_is_due(self) -> bool:
        """Whether to trigger a checkpoint at once for waiting tasks (MISSION E3, PROTOCOL P29)."""
        vertex = self._execution.last_to_wait
        if self._final_retry.at_ms is not None:
            return False
        if vertex is None or not (
            self._execution.all_ended_records or self._config.interval_ms is None
        ):
            return False
        return self._execution.can_be_checkpointed and not self._coordinator.covers(vertex)

    @property
    def _end_deadline_ms(self) -> int | None:
        """When the tasks must have finished after the savepoint of a stop; None without a stop."""
        stop = self._course.stop
        return stop.deadline_ms if stop is not None and self._course.goal is Goal.RUN else None

    def _end_is_overdue(self, now_ms: int) -> None:
        """Fail the job, so that hung sinks do not keep the stop waiting for ever (PROTOCOL P34)."""
        statuses = self._execution.statuses.items()
        late = (vertex for vertex, status in statuses if status is not TaskStatus.FINISHED)
        self._fail(overdue(self._config.timeout_ms, late), now_ms)

    # -- failures and the end

    def _fail(
        self,
        message: str,
        now_ms: int,
        *,
        goal: Goal = Goal.RESTART,
        cause: Cause = UNKNOWN,
        vertex: VertexId | None = None,
    ) -> None:
        """Fail the attempt, unless it is already being left; ``vertex`` is the task that failed."""
        if not self._course.keeps_tasks:
            return
        restart = goal is Goal.RESTART
        message = self.restarts.notify_failure(message, cause, now_ms, passing=restart)
        self._course = self._course.failing(goal, message)
        failing = JobStatusChanged(
            status=self.status, message=message, trace=cause.trace, vertex=vertex
        )
        self._effects.append(failing)
        if self._execution.tasks_up:
            self._effects.extend(self._operator_coordinators.failed(message))
        self._leave(message, now_ms)

    def _fenced(self, message: str, now_ms: int) -> None:
        failure = f"{message} A newer attempt holds the job, so this driver stops."
        self._course = self._course.fenced(failure)
        self._leave(failure, now_ms)

    def _leave(self, message: str, now_ms: int) -> None:
        """The goal is no longer RUN: stop the scheduler and abort pending checkpoints."""
        self.restarts.cancel()
        self._execution.stop()
        finalizing = self._coordinator.finalizing
        recording_stop = finalizing is not None and finalizing.request.origin.ends_job
        if self._course.goal is not Goal.FINISH and not recording_stop:
            self._fail_stop(message)
        self._take(self._coordinator.stop_scheduler(now_ms, message), now_ms)
        if self._execution.phase is AttemptPhase.BEGINNING:
            self._effects.append(AbandonAttempt())

    def _progress_leaving(self, now_ms: int) -> None:
        if self._execution.tasks_up and self._course.goal is not Goal.FINISH:
            if self._execution.phase is AttemptPhase.UP:
                self._execution.phase = AttemptPhase.STOPPING
                self._effects.append(StopTasks(attempt=self._execution.attempt))
            return
        if self._coordinator.finalizing is not None:
            return
        match self._course.goal:
            case Goal.RESTART:
                self._schedule_restart(now_ms)
            case Goal.SUSPEND | Goal.FENCED:
                self._end(JobStatus.SUSPENDED, now_ms)
            case _:
                self._record_end()

    def _schedule_restart(self, now_ms: int) -> None:
        if self.restarts.can_restart():
            self._turn(self._course.restarting())
            self.restarts.schedule(now_ms, self._chance)
        else:
            self._course = self._course.giving_up(self.restarts.why_not())
            self._record_end()

    def _record_end(self) -> None:
        self._course = course = self._course.recording()
        stop = course.stop if course.end is JobStatus.FINISHED else None
        canceled = course.end is JobStatus.CANCELED
        self._effects.append(
            RecordEnd(
                status=course.end,
                savepoint=None if stop is None else stop.savepoint_path,
                failure=course.failure if course.end is JobStatus.FAILED else None,
                delete_checkpoints=canceled and self._config.retention.deletes_on_cancellation,
            )
        )

    def _end_recorded(self, event: EndRecorded, now_ms: int) -> None:
        self._course = course = self._course.recorded()
        if event.outcome is Recorded.FENCED:
            self._fenced(f"The job's end was not recorded: {event.message}", now_ms)
        elif event.outcome is Recorded.WON:
            self._end(course.end, now_ms)
        elif course.goal is Goal.FINISH:
            self._fail(f"Cannot record the job's end: {event.message}", now_ms)
        else:
            self._course = course.not_recorded(event.message)
            self._end(JobStatus.FAILED, now_ms)

    def _end(self, status: JobStatus, now_ms: int) -> None:
        """Emit the job's last effects."""
        self._take(self._coordinator.shut_down(now_ms), now_ms)
        course, stop = self._course, self._course.stop
        self._turn(course.ended(status))
        if stop is not None:
            self._effects.extend(stop.ended().answers())
        for request in course.cancels:
            why = course.failure or f"The job is {status.name}."
            failure = None if status is JobStatus.CANCELED else why
            self._effects.append(AnswerRequest(request=request, failure=failure))
        fenced = course.goal is Goal.FENCED
        failed = status is JobStatus.FAILED or fenced
        self._effects.append(
            JobEnded(
                status=status,
                failure=course.failure if failed else None,
                savepoint=None if stop is None else stop.savepoint_path,
                drained=stop is not None and stop.savepoint is not None and stop.drain,
                checkpoint_id=None if stop is None else stop.resumes_at,
                fenced=fenced,
            )
        )

    def _turn(self, course: Course) -> None:
        """Take a course whose status may be new, and report it."""
        before, self._course = self._course.status, course
        if course.status is not before:
            failed = course.status is JobStatus.FAILED
            message = (course.failure or "") if failed else ""
            self._effects.append(JobStatusChanged(status=course.status, message=message))

    def validate(self) -> None:
        """Check the laws of the fields and of all parts; raises ``InvariantError``."""
        self._course.validate()
        self._execution.validate()
        self._coordinator.validate()
        self._final_retry.validate()
        invariant(not self._effects, "an effect was not returned")
        invariant(
            self.restarts.at_ms is None or self.status is JobStatus.RESTARTING,
            "a restart is scheduled in the wrong status",
        )
        running = self._course.is_running
        scheduling = self._coordinator.trigger.scheduling
        invariant(not scheduling or running, "the scheduler runs, but the job is not RUNNING")
        started = self._execution.all_started
        invariant(not scheduling or started, "the scheduler runs before all tasks do")
        invariant(scheduling or not self._may_schedule, "all tasks run, but the scheduler does not")
        invariant(
            self._execution.live == running, "messages go to tasks exactly while the job runs"
        )
