"""The whole job as one machine (Flink's ``JobMaster`` with its scheduler): events in, effects out.

It puts together the attempt's tasks (``Execution``), the checkpoints (``CheckpointCoordinator``), the restart
strategy and a stop with savepoint. Each event is handled here; then ``JobLifecycle`` does what has become
possible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from weir.core.checkpoints.coordinator import CheckpointCoordinator
from weir.core.checkpoints.requests import CheckpointRequest, RequestOrigin
from weir.core.checkpoints.stats import CheckpointStatsSnapshot
from weir.core.config import CheckpointConfig, RestartConfig
from weir.core.job.lifecycle import Goal, JobLifecycle
from weir.core.job.stop_with_savepoint import StopState, StopWithSavepoint
from weir.core.messages.job import (
    AttemptBegan,
    AttemptFailed,
    CancelRequested,
    CheckpointDiscarded,
    CheckpointRecorded,
    EndRecorded,
    HookFailed,
    HookTriggered,
    JobMasterEffect,
    JobMasterEvent,
    JobSubmitted,
    LocationAllocated,
    LocationFailed,
    RequestKind,
    SnapshotRequested,
    SuspendRequested,
    TasksStopped,
)
from weir.core.messages.operators import CoordinatorEvent, TaskOperatorEvent
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    TaskFailed,
    TaskStatusChanged,
)
from weir.core.operators.coordinators import CoordinatedOperator
from weir.core.status import JobStatus
from weir.core.types import OperatorId, OperatorState, Recorded, TaskStatus, VertexId
from weir.errors import invariant

#: How an effect of the checkpoint coordinator ended.
CheckpointOutcome: TypeAlias = (
    LocationAllocated | LocationFailed | HookTriggered | HookFailed | CheckpointRecorded | CheckpointDiscarded
)

#: Entries of the story: enough to see how a job came to where it is.
STORY_LENGTH = 200


@dataclass(frozen=True, kw_only=True)
class StoryEntry:
    """One event that the job master handled."""

    now_ms: int
    event: str
    before: JobStatus
    after: JobStatus


class JobMaster(JobLifecycle):
    """One job in one driver. All methods are called on the main thread, with a ``now_ms`` that never decreases."""

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
    ) -> None:
        """``hooks`` are the identifiers of the master hooks, which are asked all at once (P44); ``producers`` are the tasks
        whose channels a task reads; ``coordinated`` are the operators that have a coordinator."""
        super().__init__(
            job_id=job_id,
            vertices=vertices,
            config=config,
            restart=restart,
            hooks=hooks,
            producers=producers or {},
            coordinated=coordinated or {},
        )
        self._job_id = job_id
        self._savepoint_directory = savepoint_directory
        #: (time, event, status before, status after): made into entries when somebody reads them.
        self._story: deque[tuple[int, str, JobStatus, JobStatus]] = deque(maxlen=STORY_LENGTH)

    # -- what others may know -------------------------------------------------------------------------------

    @property
    def status(self) -> JobStatus:
        """Where the job stands."""
        return self._status

    @property
    def attempt(self) -> int:
        """The number of the running attempt, or of the last one that ran; 0 before the first."""
        return self._execution.attempt

    @property
    def failure(self) -> str | None:
        """Why the job failed last; None if it never did."""
        return self._failure

    @property
    def coordinator(self) -> CheckpointCoordinator:
        """The checkpoints of the job; for reading only."""
        return self._coordinator

    @property
    def story(self) -> tuple[StoryEntry, ...]:
        """The newest events with the status before and after, oldest first."""
        return tuple(
            StoryEntry(now_ms=now_ms, event=event, before=before, after=after)
            for now_ms, event, before, after in self._story
        )

    @property
    def has_periodic_checkpoints(self) -> bool:
        """Whether checkpoints are taken without being asked for."""
        return self._config.interval_ms is not None

    def task_status(self, vertex: VertexId) -> TaskStatus:
        """Where a task of the newest attempt stands."""
        return self._execution.statuses[vertex]

    def stats(self, now_ms: int) -> CheckpointStatsSnapshot:
        """All figures about checkpoints; those in progress show their duration up to ``now_ms``."""
        return self._stats.snapshot(now_ms)

    def next_deadline(self) -> int | None:
        """When ``on_deadline`` is to be called, in monotonic ms; None if nothing is due by itself."""
        if self._status.is_terminal:
            return None
        deadlines = (
            self._restart_at_ms,
            self._coordinator.next_deadline(),
            self._final_retry.at_ms,
            self._end_deadline_ms,
        )
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # -- entries --------------------------------------------------------------------------------------------

    def on_deadline(self, now_ms: int) -> list[JobMasterEffect]:
        """The time that ``next_deadline`` named has come."""
        before = self._status
        if not before.is_terminal:
            self._take(self._coordinator.on_deadline(now_ms), now_ms)
            if self._restart_at_ms is not None and self._restart_at_ms <= now_ms:
                self._restart_at_ms = None
                self._begin_attempt()
            self._final_retry.on_deadline(now_ms)
            if self._end_deadline_ms is not None and self._end_deadline_ms <= now_ms:
                self._end_is_overdue(now_ms)
            self._progress(now_ms)
        return self._finish("deadline", before, now_ms)

    def handle(self, event: JobMasterEvent, now_ms: int) -> list[JobMasterEffect]:
        """Take one event; the effects are to be carried out in their order."""
        before = self._status
        if before.is_terminal:
            self._after_the_end(event)
        elif isinstance(event, AcknowledgeCheckpoint):
            self._acknowledged(event, now_ms)
        elif isinstance(event, CoordinatorEvent | TaskOperatorEvent):
            if self._hears(event.attempt):
                self._take(self._coordinator.operator_event(event, now_ms), now_ms)
                self._progress(now_ms)
        else:
            self._dispatch(event, now_ms)
            self._progress(now_ms)
        return self._finish(type(event).__name__, before, now_ms)

    def validate(self) -> None:
        """Check the laws of the fields and of all parts; raises ``InvariantError``."""
        self._execution.validate()
        self._coordinator.validate()
        self._final_retry.validate()
        invariant(not self._effects, "an effect was not handed over")
        invariant(not self._stopping or self._tasks_up, "tasks are being stopped that are not up")
        invariant(not (self._beginning and self._tasks_up), "an attempt begins while the last one is up")
        invariant(
            self._restart_at_ms is None or self._status is JobStatus.RESTARTING,
            "a restart waits in the wrong status",
        )
        running = self._status is JobStatus.RUNNING and self._goal is Goal.RUN
        invariant(
            not self._coordinator.trigger.scheduling or running,
            "the scheduler is on, but the job is not RUNNING",
        )
        invariant(
            not self._coordinator.trigger.scheduling or self._execution.all_started,
            "the scheduler is on before all tasks run",
        )
        invariant(
            self._coordinator.trigger.scheduling or not self._may_schedule,
            "all tasks run, but the scheduler is off",
        )
        invariant(self._execution.live == running, "messages go to tasks exactly while the job runs")
        if self._stop is not None:
            self._stop.validate()
            over = self._stop.state in (StopState.ENDED, StopState.FAILED)
            invariant(not over, "a stop that is over is still known")
        if self._status.is_terminal:
            invariant(self._stop is None and not self._cancels, "the job ended with a request unanswered")

    # -- events ---------------------------------------------------------------------------------------------

    def _dispatch(self, event: JobMasterEvent, now_ms: int) -> None:
        match event:
            case JobSubmitted():
                invariant(
                    self._status is JobStatus.CREATED and not self._beginning, "a job is submitted twice"
                )
                self._begin_attempt()
            case AttemptBegan():
                self._attempt_began(event, now_ms)
            case AttemptFailed():
                self._attempt_failed(event, now_ms)
            case TasksStopped():
                self._tasks_stopped(event)
            case SnapshotRequested():
                self._snapshot_requested(event, now_ms)
            case CancelRequested():
                self._cancel_requested(event, now_ms)
            case SuspendRequested():
                if self._goal in (Goal.RUN, Goal.RESTART) and self._recording_end is None:
                    self._leave(Goal.SUSPEND, "The job is being suspended.", now_ms)
            case DeclineCheckpoint() | TaskStatusChanged() | TaskFailed():
                if self._hears(event.attempt):
                    self._task_event(event, now_ms)
            case EndRecorded():
                self._end_recorded(event, now_ms)
            case (
                LocationAllocated()
                | LocationFailed()
                | HookTriggered()
                | HookFailed()
                | CheckpointRecorded()
                | CheckpointDiscarded()
            ):
                self._outcome(event, now_ms)

    def _hears(self, attempt: int) -> bool:
        """Whether a task's word counts: an older attempt's, or one's that is being stopped, changes nothing any more."""
        return attempt == self._execution.attempt and self._execution.live

    def _acknowledged(self, event: AcknowledgeCheckpoint, now_ms: int) -> None:
        """Kept short, since every task of every checkpoint comes here: only the last one has consequences."""
        if not self._hears(event.attempt):
            return
        _, outputs = self._coordinator.acknowledge(event, now_ms)
        if outputs:
            self._take(outputs, now_ms)
            self._progress(now_ms)

    def _outcome(self, event: CheckpointOutcome, now_ms: int) -> None:
        """An effect of the checkpoint coordinator was carried out, or failed."""
        match event:
            case LocationAllocated():
                self._take(self._coordinator.location_allocated(event, now_ms), now_ms)
            case LocationFailed():
                failed = self._coordinator.location_failed
                self._take(failed(event.allocation, event.message, event.timestamp_ms, now_ms), now_ms)
            case HookTriggered():
                self._take(self._coordinator.hook_triggered(event, now_ms), now_ms)
            case HookFailed():
                self._take(self._coordinator.hook_failed(event, now_ms), now_ms)
            case CheckpointRecorded():
                self._take(self._coordinator.recorded(event, now_ms), now_ms)
            case CheckpointDiscarded():
                self._take(self._coordinator.discarded(event.checkpoint_id, now_ms), now_ms)

    def _task_event(self, event: DeclineCheckpoint | TaskStatusChanged | TaskFailed, now_ms: int) -> None:
        match event:
            case DeclineCheckpoint():
                self._take(self._coordinator.decline(event, now_ms), now_ms)
            case TaskStatusChanged():
                self._execution.set_status(event.vertex, event.status)
                if event.status is TaskStatus.RUNNING:
                    self._effects.extend(self._operator_coordinators.ready(event.vertex))
                if event.status in (TaskStatus.FINISHED, TaskStatus.FAILED, TaskStatus.CANCELED):
                    self._take(self._coordinator.task_ended(event.vertex, now_ms), now_ms)
            case TaskFailed():
                self._execution.set_status(event.vertex, TaskStatus.FAILED)
                goal = Goal.FAIL if event.fatal else Goal.RESTART
                message = f"Task {event.vertex!r} failed: {event.message}"
                self._fail(message, now_ms, goal=goal, cause=event.cause, vertex=event.vertex)

    def _attempt_began(self, event: AttemptBegan, now_ms: int) -> None:
        invariant(self._beginning, f"attempt {event.attempt} began unasked")
        self._beginning = False
        self._tasks_up = True
        self._chance = event.chance
        self._execution.begin(event.attempt, event.restored)
        self._final_retry.reset()
        begin = self._coordinator.begin_attempt
        self._take(begin(event.restored, event.timestamp_ms, now_ms, event.older), now_ms)
        own = event.restored is not None and event.restored.job_id == self._job_id
        begun = self._operator_coordinators.begin_attempt(event.attempt, event.restored, own=own)
        self._effects.extend(begun)
        if self._goal is Goal.RUN:
            self._move(JobStatus.RUNNING)
        else:
            self._execution.stop()

    def _attempt_failed(self, event: AttemptFailed, now_ms: int) -> None:
        invariant(self._beginning, "an attempt failed that was not to begin")
        self._beginning = False
        if self._goal is Goal.RUN:
            goal = Goal.FAIL if event.fatal else Goal.RESTART
            self._fail(event.message, now_ms, goal=goal, cause=event.cause)

    def _tasks_stopped(self, event: TasksStopped) -> None:
        if not self._stopping or event.attempt != self._execution.attempt:
            return
        self._stopping = False
        self._tasks_up = False
        self._chance = event.chance
        if event.left_running and self._goal is Goal.RESTART:
            self._goal = Goal.FAIL
            self._failure = (
                f"{self._failure} (not restarted in this process, where a query may still run, since this does not stop:"
                f" {event.left_running}; the same command resumes the job)"
            )
        deferred, self._deferred_discards = self._deferred_discards, []
        if self._goal is not Goal.FENCED:
            self._effects.extend(deferred)
            return
        for discard in deferred:
            self._coordinator.discard_dropped(discard.checkpoint_id)

    def _snapshot_requested(self, event: SnapshotRequested, now_ms: int) -> None:
        if self._status is not JobStatus.RUNNING or self._goal is not Goal.RUN:
            self._refuse(event.request, self._what_works_instead())
            return
        if self._stop is not None:
            if event.kind is RequestKind.STOP and event.drain == self._stop.drain:
                self._stop.join(event.request)
            elif event.kind is RequestKind.STOP:
                how = "with" if self._stop.drain else "without"
                self._refuse(event.request, f"The job is being stopped {how} a drain already: wait for that.")
            else:
                self._refuse(event.request, "The job is being stopped with a savepoint: wait for that one.")
            return
        if event.kind is RequestKind.CHECKPOINT:
            request = CheckpointRequest(
                origin=RequestOrigin.USER_CHECKPOINT,
                request=event.request,
                checkpoint_type=event.checkpoint_type,
            )
            self._take(self._coordinator.submit(request, now_ms), now_ms)
            return
        target = event.target or self._savepoint_directory
        if target is None:
            self._refuse(
                event.request,
                "No savepoint was taken, since there is no directory for it: give one with the request"
                " or set execution.checkpointing.savepoint-dir.",
            )
        elif event.kind is RequestKind.SAVEPOINT:
            request = CheckpointRequest(origin=RequestOrigin.SAVEPOINT, target=target, request=event.request)
            self._take(self._coordinator.submit(request, now_ms), now_ms)
        else:
            self._stop = StopWithSavepoint(request=event.request, target=target, drain=event.drain)
            cause = "The job is being stopped with a savepoint."
            self._take(self._coordinator.stop_scheduler(now_ms, cause), now_ms)

    def _what_works_instead(self) -> str:
        """To whoever asks for a checkpoint or savepoint of a job that does not run."""
        if self._goal not in (Goal.RUN, Goal.RESTART):
            return f"The job is {self._status.name} and about to end, so nothing more can be taken of it."
        if self._status is JobStatus.CREATED:
            return "The job is CREATED and has done nothing yet: ask again when it is RUNNING."
        deletes = self._config.retention.deletes_on_cancellation
        return (
            f"The job is {self._status.name}, so nothing can be taken of it: ask again when it is RUNNING, or end it with"
            f" 'weir cancel', which {'deletes' if deletes else 'keeps'} its completed checkpoints; it failed because:"
            f" {self._failure}"
        )

    def _cancel_requested(self, event: CancelRequested, now_ms: int) -> None:
        if self._recording_end is not None and self._goal is not Goal.CANCEL:
            self._refuse(
                event.request, f"The job is not cancelled: it is already {self._recording_end.name}."
            )
        elif self._goal in (Goal.FINISH, Goal.FENCED):
            self._refuse(event.request, "The job is not cancelled: it is already ending.")
        else:
            self._cancels.append(event.request)
            if self._goal is not Goal.CANCEL:
                self._move(JobStatus.CANCELLING)
                self._leave(Goal.CANCEL, "The job is being cancelled.", now_ms)

    def _end_recorded(self, event: EndRecorded, now_ms: int) -> None:
        status, self._recording_end = self._recording_end, None
        invariant(status is not None, "an end was recorded unasked")
        if event.outcome is Recorded.FENCED:
            self._fenced(f"The job's end was not recorded: {event.message}", now_ms)
        elif status is None or event.outcome is Recorded.WON:
            self._end(status or self._status, now_ms)
        elif status is JobStatus.FINISHED:
            self._fail(f"The job's end could not be recorded: {event.message}", now_ms)
        else:
            how = "was cancelled" if status is JobStatus.CANCELED else f"failed ({self._failure})"
            self._failure = f"The job {how}, but that could not be recorded: {event.message}"
            self._end(JobStatus.FAILED, now_ms)

    def _after_the_end(self, event: JobMasterEvent) -> None:
        if isinstance(event, SnapshotRequested | CancelRequested):
            self._refuse(event.request, f"The job has ended: it is {self._status.name}.")

    def _finish(self, event: str, before: JobStatus, now_ms: int) -> list[JobMasterEffect]:
        """Hand the effects over, and note the event in the story."""
        self._story.append((now_ms, event, before, self._status))
        effects, self._effects = self._effects, []
        return effects
