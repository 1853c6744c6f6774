"""Deliberately broken variants of the product, to prove that the simulator's auditor catches them.

Each variant is what a careless change of a few lines would do. A context manager puts it in place
and removes it. Where the machines check themselves (``validate``, ``invariant``), a variant leaves
that check out too, as the same careless change would: the auditor has to notice, and it sees only
the disk, the tables and the effects.

``MUTANTS`` lists them all, with the words that the violation must contain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from unittest.mock import patch

from weir.core.checkpoints import pending as pending_module
from weir.core.checkpoints.coordinator import CheckpointCoordinator
from weir.core.checkpoints.pending import Party, PendingCheckpoint, PendingState
from weir.core.checkpoints.plan import CheckpointPlan, calculate_plan
from weir.core.checkpoints.request_decider import CheckpointRequestDecider
from weir.core.checkpoints.store import CompletedCheckpointStore, SharedStateRegistry
from weir.core.checkpoints.trigger import CheckpointTrigger, Started
from weir.core.execution import Execution
from weir.core.job.restart import RepeatedFailures
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    NotifyCheckpointComplete,
)
from weir.core.messages.task import ReportCompleted
from weir.core.task.commits import PendingCommits
from weir.core.task.snapshots import OpenSnapshots
from weir.core.task.stream_task import StreamTask
from weir.core.types import Committable, CompletedCheckpoint, Recorded, SnapshotKind, TaskStatus
from weir.durable import recovery as recovery_module
from weir.durable.hooks import CheckpointListeners, MasterHooks
from weir.durable.job import DurableJob
from weir.durable.sink_port import SinkPort
from weir.durable.task_snapshots import TaskSnapshots
from weir.errors import StorageError
from weir.sim import world as world_module
from weir.sim.engine import faults as faults_module
from weir.sim.engine import job as sim_job_module
from weir.sim.engine.faults import Fault, FaultPlan
from weir.sim.engine.job import SimJob
from weir.sim.engine.table import SimTable
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.filesystem import CreateResult
from weir.storage.job_log import JobLogWriter, JobRecord, RecordStatus
from weir.storage.numbered_log import NumberedLog, Recorder

Variant = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One broken variant."""

    name: str
    variant: Variant
    #: The violation must contain one of these texts.
    says: tuple[str, ...]
    #: A seed that is known to catch the variant; tried first.
    known_seed: int


@contextmanager
def _with(*patches: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        yield


def _jobs_with(
    *,
    upload_us: int | None = None,
    reader_us: int | None = None,
    **config: Any,
) -> AbstractContextManager[None]:
    """Jobs with these settings, in which what a variant needs is common."""
    draw_job = world_module.draw_job

    def drawn(random: Random, stream: Callable[[str], Random]) -> SimJob:
        job = draw_job(random, stream)
        return replace(
            job,
            upload_us=job.upload_us if upload_us is None else upload_us,
            reader_us=job.reader_us if reader_us is None else reader_us,
            config=replace(job.config, **config),
        )

    return _with(patch.object(world_module, "draw_job", drawn))


def _faults(rates: dict[Fault, float]) -> AbstractContextManager[None]:
    """Runs of small graphs with these faults and no others."""

    def drawn(random: Random, *, seconds: float, **_: Random) -> FaultPlan:
        return FaultPlan(rates=rates, until_us=round(seconds * 1e6 * random.uniform(0.3, 1.0)))

    return _with(
        patch.object(world_module, "draw_plan", drawn), patch.object(sim_job_module, "_LARGE", 0.0)
    )


def closed_at_once(task: StreamTask) -> list[Any]:
    """The effects of a task that accepts no more triggers, even if some are waiting."""
    task._ending.closing = True
    waiting = list(task._triggers._waiting)
    task._triggers.clear()
    return task._decline(*map(task._report.closing, waiting))


def no_pre_checks_after_the_allocation() -> AbstractContextManager[None]:
    """The plan of a request is not made again after its id and hooks are ready (MISSION A6)."""
    run_queue = CheckpointTrigger.run_queue
    plans: dict[CheckpointTrigger, CheckpointPlan | None] = {}

    def planned_run_queue(self: CheckpointTrigger, now_ms: int, **state: Any) -> Any:
        started, rejected = run_queue(self, now_ms, **state)
        if started is not None:
            plans[self] = calculate_plan(self._execution)
        return started, rejected

    def allocated(
        self: CheckpointTrigger, allocation: int, now_ms: int, *, pending: int
    ) -> Started | None:
        del now_ms, pending
        request, plan = self.allocation_over(allocation), plans.get(self)
        return None if request is None or plan is None else Started(request=request, plan=plan)

    return _with(
        patch.object(CheckpointTrigger, "run_queue", planned_run_queue),
        patch.object(CheckpointTrigger, "allocated", allocated),
        no_pre_checks_after_hooks(),
    )


def no_pre_checks_after_hooks() -> AbstractContextManager[None]:
    """Tasks are triggered by the plan from before the master hooks ran (MISSION A6).

    A task that ends meanwhile would abort the checkpoint, so the variant restricts that check to
    checkpoints whose tasks are triggered.
    """
    awaits = PendingCheckpoint.awaits

    def awaits_once_triggered(self: PendingCheckpoint, party: Party, name: str) -> bool:
        return self.state is PendingState.WAITING and awaits(self, party, name)

    def trigger_tasks(self: CheckpointCoordinator, pending: PendingCheckpoint, now_ms: int) -> None:
        del now_ms
        pending.tasks_triggered(pending.plan)
        self._trigger.reset_unsuccessful()
        self._out.extend(replace(trigger, drain=False) for trigger in pending.triggers())

    return _with(
        patch.object(CheckpointCoordinator, "_trigger_tasks", trigger_tasks),
        patch.object(PendingCheckpoint, "awaits", awaits_once_triggered),
    )


def notify_before_the_record() -> AbstractContextManager[None]:
    """Tasks are notified of a completion while its record is still being written (P13)."""
    finalize_next = CheckpointCoordinator._finalize_next

    def finalize_and_notify(self: CheckpointCoordinator) -> None:
        before = self.finalizing
        finalize_next(self)
        pending = self.finalizing
        if pending is not None and pending is not before and pending.kind.commits_side_effects:
            self._out.extend(
                NotifyCheckpointComplete(vertex=vertex, checkpoint_id=pending.checkpoint_id)
                for vertex in self._execution.receivers(pending.plan.tasks_to_wait_for)
            )

    return _with(patch.object(CheckpointCoordinator, "_finalize_next", finalize_and_notify))


def delete_on_an_in_doubt_create() -> AbstractContextManager[None]:
    """A create that raised counts as not done, so the checkpoint is aborted and deleted (P17)."""

    def record(self: Recorder, number: int, data: bytes) -> Recorded:
        try:
            created = self._log.append(number, data) is CreateResult.CREATED
        except StorageError as error:
            self.failure = str(error)
            return Recorded.FAILED
        return Recorded.WON if created else Recorded.FENCED

    return _with(patch.object(Recorder, "record", record))


def abort_in_finalizing() -> AbstractContextManager[None]:
    """The timeout aborts a checkpoint whose record is being written, whatever the outcome (P11)."""
    recorded = CheckpointCoordinator.recorded

    def recorded_unless_over(self: CheckpointCoordinator, event: Any, now_ms: int) -> Any:
        return recorded(self, event, now_ms) if event.checkpoint_id in self._pending else []

    def abort(self: PendingCheckpoint) -> None:
        self._state = PendingState.ABORTED

    can_expire = (PendingState.TRIGGERING, PendingState.WAITING, PendingState.FINALIZING)
    return _with(
        patch.object(pending_module, "_CAN_EXPIRE", can_expire),
        patch.object(CheckpointCoordinator, "recorded", recorded_unless_over),
        patch.object(PendingCheckpoint, "abort", abort),
    )


def pending_base_for_an_increment() -> AbstractContextManager[None]:
    """A snapshot becomes the base of the next one when acknowledged, not when completed (P4)."""
    on_async_part_done = StreamTask._on_async_part_done

    def confirm_at_once(self: StreamTask, event: Any) -> Any:
        snapshot = self._snapshots.get(event.checkpoint_id)
        effects = on_async_part_done(self, event)
        acknowledged = any(isinstance(effect, AcknowledgeCheckpoint) for effect in effects)
        if (
            acknowledged
            and snapshot is not None
            and snapshot.effect.kind is SnapshotKind.CHECKPOINT
        ):
            effects = [
                ReportCompleted(vertex=self._vertex, checkpoint_id=event.checkpoint_id),
                *effects,
            ]
        return effects

    return _with(patch.object(StreamTask, "_on_async_part_done", confirm_at_once))


def staged_data_dropped_on_abort() -> AbstractContextManager[None]:
    """Committables of an aborted checkpoint are forgotten with it (P12)."""
    on_aborted = StreamTask._on_aborted

    def forget(self: StreamTask, event: Any) -> Any:
        kept = self._commits._committables
        self._commits._committables = {
            key: item
            for key, item in kept.items()
            if item.epoch is not None or item.barrier != event.checkpoint_id
        }
        return on_aborted(self, event)

    return _with(patch.object(StreamTask, "_on_aborted", forget))


def earlier_pending_commits_left_out() -> AbstractContextManager[None]:
    """A snapshot holds only the committables staged since the last barrier (P5)."""
    taken = PendingCommits.taken

    def newly_taken(self: PendingCommits, position: int) -> tuple[Committable, ...]:
        newest = max(self._due, default=0)
        return tuple(item for item in taken(self, position) if item.barrier in (None, newest))

    return _with(patch.object(PendingCommits, "taken", newly_taken))


def newest_epoch_committed_first() -> AbstractContextManager[None]:
    """A task commits the newest of its waiting epochs first (P13)."""
    next_commit = PendingCommits.next_commit

    def newest_first(self: PendingCommits) -> Any:
        self._queue.reverse()
        commit = next_commit(self)
        self._queue.reverse()
        return commit

    return _with(
        patch.object(PendingCommits, "next_commit", newest_first),
        patch.object(PendingCommits, "validate", lambda self: None),
    )


def newest_epoch_recommitted_first() -> AbstractContextManager[None]:
    """A restored job commits its pending epochs from the newest to the oldest (P13)."""

    def backwards(
        self: SinkPort,
        checkpoint: CompletedCheckpoint,
        put_back: Any,
        *,
        foreign: bool = False,
        **_: bool,
    ) -> tuple[str, ...]:
        items = [item for task in checkpoint.tasks for item in task.committables]
        groups = {(item.sink, item.epoch or checkpoint.checkpoint_id) for item in items}
        for sink, epoch in sorted(groups, reverse=True):
            group = [
                item
                for item in items
                if (item.sink, item.epoch or checkpoint.checkpoint_id) == (sink, epoch)
            ]
            self._complete(sink, epoch, group, put_back, foreign=foreign)
            self._commit_one(sink, epoch, [item.payload for item in group], self._stopping)
        return ()

    return _with(patch.object(SinkPort, "commit_again", backwards))


def clean_before_the_recommit() -> AbstractContextManager[None]:
    """Files that dead attempts staged are deleted before the recommit of the checkpoint (P22)."""
    commit_again = DurableJob._commit_again

    def clean_first(self: DurableJob, checkpoint: CompletedCheckpoint, record: Any) -> None:
        self._sinks.clean(record.attempt)
        commit_again(self, checkpoint, record)

    return _with(patch.object(DurableJob, "_commit_again", clean_first))


def clean_by_an_old_log() -> AbstractContextManager[None]:
    """Cleanup uses the table's log from when the sink was opened, before the recommit (P22)."""
    opened, clean, newest = SimTable.open, SimTable.clean, SimTable._newest
    seen: dict[SimTable, Any] = {}

    def open_and_look(self: SimTable, context: Any) -> None:
        opened(self, context)
        seen[self] = newest(self)

    def clean_by_it(self: SimTable, attempt: int) -> None:
        with patch.object(self, "_newest", lambda: seen[self]):
            clean(self, attempt)

    return _with(
        patch.object(SimTable, "open", open_and_look), patch.object(SimTable, "clean", clean_by_it)
    )


def an_id_reused() -> AbstractContextManager[None]:
    """A driver takes the next checkpoint id without checking that no other took it (P19)."""

    def next_checkpoint_id(self: CheckpointStorage, above: int = 0) -> int:
        log = NumberedLog(self.fs(self.job_directory), f"{self.job_directory}/ids")
        checkpoint_id = max(log.newest_number() or 0, above) + 1
        log.append(checkpoint_id, b"")
        log.prune(32)
        return checkpoint_id

    return _with(patch.object(CheckpointStorage, "next_checkpoint_id", next_checkpoint_id))


def a_savepoint_that_notifies() -> AbstractContextManager[None]:
    """An intermediate savepoint lets sinks commit, as a checkpoint does (P14)."""
    return _with(patch.object(SnapshotKind, "commits_side_effects", property(lambda self: True)))


def finished_before_the_commits() -> AbstractContextManager[None]:
    """A task is FINISHED when its final checkpoint completes, while sinks still commit (P16)."""
    on_complete = StreamTask._on_complete

    def finish_at_once(self: StreamTask, event: Any) -> Any:
        effects = on_complete(self, event)
        if self._ending._final == event.checkpoint_id and not self._snapshots.any_under_way:
            effects = [*effects, *closed_at_once(self), *self._end(TaskStatus.FINISHED)]
        return effects

    return _with(patch.object(StreamTask, "_on_complete", finish_at_once))


def a_shared_file_deleted_before_the_pending_are_over() -> AbstractContextManager[None]:
    """A subsumed checkpoint is deleted at once, though pending ones may be based on it (A11)."""
    add = CompletedCheckpointStore.add

    def add_at_once(
        self: CompletedCheckpointStore, checkpoint: CompletedCheckpoint, *, pending: Any
    ) -> None:
        del pending
        add(self, checkpoint, pending=())

    return _with(
        patch.object(CompletedCheckpointStore, "add", add_at_once),
        _jobs_with(
            interval_ms=20,
            min_pause_ms=0,
            max_concurrent_checkpoints=3,
            num_retained=1,
            incremental=True,
            aligned_timeout_ms=None,
        ),
    )


def a_shared_file_deleted_with_its_first_user() -> AbstractContextManager[None]:
    """A subsumed checkpoint is deleted with all its files, even those of later ones (A11)."""
    unregister = SharedStateRegistry.unregister

    def unregister_all(self: SharedStateRegistry, checkpoint_id: int) -> tuple[str, ...]:
        files = tuple(self._files.get(checkpoint_id, ()))
        unregister(self, checkpoint_id)
        return files

    return _with(patch.object(SharedStateRegistry, "unregister", unregister_all))


def a_fenced_driver_that_still_commits() -> AbstractContextManager[None]:
    """A driver counts a record as won although its number is taken (P17)."""
    append = DurableJob._append

    def append_and_go_on(self: DurableJob, writer: JobLogWriter, record: JobRecord) -> Recorded:
        outcome = append(self, writer, record)
        return Recorded.WON if outcome is Recorded.FENCED else outcome

    return _with(patch.object(DurableJob, "_append", append_and_go_on))


def orphans_of_newer_attempts_deleted() -> AbstractContextManager[None]:
    """A starting driver takes every checkpoint that it does not know for an orphan (P17)."""
    discard_orphans = CheckpointStorage.discard_orphans

    def discard_all(
        self: CheckpointStorage, retained: Sequence[CompletedCheckpoint], *, up_to: int
    ) -> None:
        del up_to
        discard_orphans(self, retained, up_to=10**9)

    return _with(patch.object(CheckpointStorage, "discard_orphans", discard_all))


def an_unread_checkpoint_counts_as_damaged() -> AbstractContextManager[None]:
    """A failed read counts as a damaged checkpoint: its staged files are cleaned up (P22).

    The cleanup follows the restore of an older checkpoint.
    """
    commit_again = DurableJob._commit_again

    def commit_and_clean(self: DurableJob, checkpoint: CompletedCheckpoint, record: Any) -> None:
        commit_again(self, checkpoint, record)
        self._sinks.clean(record.attempt)

    return _with(
        patch.object(recovery_module, "CheckpointDamagedError", StorageError),
        # Reads fail often, and there is an older checkpoint.
        _faults({Fault.STORAGE_ERROR: 0.03, Fault.DRIVER_KILLED: 200.0}),
        _jobs_with(num_retained=3, interval_ms=20, min_pause_ms=0),
        patch.object(DurableJob, "_commit_again", commit_and_clean),
    )


def a_late_drop_that_deletes_nothing() -> AbstractContextManager[None]:
    """A snapshot whose last part ended just before its abort keeps its files (P43)."""
    proceed = TaskSnapshots.proceed

    def proceed_and_forget(self: TaskSnapshots, checkpoint_id: int) -> Any:
        result = proceed(self, checkpoint_id)
        self._written.pop(checkpoint_id)
        return result

    return _with(
        patch.object(TaskSnapshots, "proceed", proceed_and_forget),
        # Snapshots often take longer than their checkpoint may, and than the next one.
        _jobs_with(timeout_ms=200, upload_us=300_000, max_concurrent_checkpoints=3),
    )


def finished_before_an_aborted_part_has_ended() -> AbstractContextManager[None]:
    """A task finishes while an aborted snapshot still writes files, which then remain (P43)."""
    any_under_way = property(lambda self: self.any_under_way)
    return _with(
        patch.object(OpenSnapshots, "any_part_running", any_under_way),
        # Snapshots often take longer than their checkpoint may, and than the next one.
        _jobs_with(timeout_ms=200, upload_us=300_000, max_concurrent_checkpoints=3),
    )


def an_attempt_of_a_job_that_was_stopped() -> AbstractContextManager[None]:
    """A driver that started before the job's end begins an attempt after it (P20)."""
    attempt_began, win_attempt = JobRecord.attempt_began, DurableJob._win_attempt

    def began_again(self: JobRecord, **known: Any) -> JobRecord:
        running = replace(self, status=RecordStatus.RUNNING, savepoint=None)
        return attempt_began(running, **known)

    def win_late(self: DurableJob, committed: Any) -> Any:
        # The job is stopped while the driver starts.
        self._kernel.sleep(0.3)
        return win_attempt(self, committed)

    return _with(
        patch.object(JobRecord, "attempt_began", began_again),
        patch.object(DurableJob, "_win_attempt", win_late),
        patch.object(faults_module, "_TIMED_RATES_MS", (100.0, 400.0)),
        # A drained job has nothing left to write twice.
        patch.object(world_module, "_DRAINS", 0.0),
    )


def a_hook_restored_with_what_another_checkpoint_has() -> AbstractContextManager[None]:
    """A hook gets its state with the id of another checkpoint (MISSION A8)."""
    restore = MasterHooks.restore

    def restore_wrongly(self: MasterHooks, checkpoint: CompletedCheckpoint | None) -> None:
        other = checkpoint and replace(checkpoint, checkpoint_id=checkpoint.checkpoint_id + 1)
        restore(self, other)

    return _with(patch.object(MasterHooks, "restore", restore_wrongly))


def failures_counted_over_checkpoints() -> AbstractContextManager[None]:
    """A completed checkpoint does not reset the count of failures of one cause (P39)."""
    return _with(patch.object(RepeatedFailures, "notify_checkpoint", lambda self: None))


def attempts_that_stage_in_one_directory() -> AbstractContextManager[None]:
    """Sinks open every attempt under one number, whose executors may write late (P22)."""
    open_sinks = SinkPort.open

    def open_first(self: SinkPort, job_id: str, attempt: int, *written: Any, **known: Any) -> None:
        del attempt
        open_sinks(self, job_id, 1, *written, **known)

    return _with(patch.object(SinkPort, "open", open_first))


def tasks_of_a_new_attempt_that_count_as_running() -> AbstractContextManager[None]:
    """A driver's second attempt starts with the statuses that the first one left (MISSION A4)."""
    begin = Execution.begin

    def begin_as_before(self: Execution, attempt: int, restored: Any) -> None:
        again = self.attempt > 0
        begin(self, attempt, restored)
        if again:
            for vertex, status in self.statuses.items():
                if status is TaskStatus.INITIALIZING:
                    self.set_status(vertex, TaskStatus.RUNNING)

    return _with(patch.object(Execution, "begin", begin_as_before))


def listeners_that_hear_nothing() -> AbstractContextManager[None]:
    """No listener is notified of a completed checkpoint (P14)."""
    return _with(patch.object(CheckpointListeners, "complete", lambda self, *_: None))


def no_minimum_pause() -> AbstractContextManager[None]:
    """A periodic checkpoint begins when it is due, however recently the last completed (A4)."""
    return _with(patch.object(CheckpointRequestDecider, "too_early_until", lambda self, *_: None))


MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=variant.__name__, variant=variant, says=tuple(says), known_seed=known_seed)
    for variant, known_seed, *says in (
        (no_pre_checks_after_the_allocation, 3, "while it is"),
        (no_pre_checks_after_hooks, 3, "while it is"),
        (notify_before_the_record, 0, "tasks are notified"),
        (delete_on_an_in_doubt_create, 15, "needs it"),
        (abort_in_finalizing, 43, "needs it", "without its metadata"),
        (pending_base_for_an_increment, 22, "is not there", "needs it"),
        (staged_data_dropped_on_abort, 8, "missing"),
        (earlier_pending_commits_left_out, 2, "missing", "not flushed"),
        (newest_epoch_committed_first, 90, "missing", "completed after"),
        (newest_epoch_recommitted_first, 285, "missing"),
        (clean_before_the_recommit, 7, "staged"),
        (clean_by_an_old_log, 0, "a table shows"),
        (an_id_reused, 734, "is triggered by"),
        (a_savepoint_that_notifies, 3, "tasks are notified"),
        (finished_before_the_commits, 0, "missing"),
        (a_shared_file_deleted_before_the_pending_are_over, 1, "is not there", "needs it"),
        (a_shared_file_deleted_with_its_first_user, 1, "needs it"),
        (a_fenced_driver_that_still_commits, 25, "tasks are notified", "not recorded"),
        (orphans_of_newer_attempts_deleted, 227, "needs it", "is not there"),
        (an_unread_checkpoint_counts_as_damaged, 18, "not committed, is deleted"),
        (a_late_drop_that_deletes_nothing, 132, "is orphaned"),
        (finished_before_an_aborted_part_has_ended, 132, "is orphaned"),
        (an_attempt_of_a_job_that_was_stopped, 427, "there too often"),
        (attempts_that_stage_in_one_directory, 163, "such as [-1]"),
        (tasks_of_a_new_attempt_that_count_as_running, 182, "while it is unknown"),
        (listeners_that_hear_nothing, 47, "heard of no checkpoint"),
        (no_minimum_pause, 2, "after the last one completed"),
        (a_hook_restored_with_what_another_checkpoint_has, 3, "is restored with"),
        (failures_counted_over_checkpoints, 60, "is given up after"),
    )
)
