"""Deliberately broken variants of the ends of tasks and jobs; see ``mutants.py``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tests.sim.mutants import Mutant, _faults, _jobs_with, _with, closed_at_once

from weir.core.execution import Execution
from weir.core.job.course import Goal
from weir.core.job.master import JobMaster
from weir.core.job.restart import FinalCheckpointRetry
from weir.core.messages.channel import CheckpointBarrier
from weir.core.messages.protocol import NotifyCheckpointComplete, TriggerCheckpoint
from weir.core.task.commits import PendingCommits
from weir.core.task.input_gate import InputGate
from weir.core.task.next_step import Situation
from weir.core.task.stream_task import StreamTask
from weir.core.types import TaskState
from weir.durable.sink_port import SinkPort
from weir.sim.engine import faults as faults_module
from weir.sim.engine import job as sim_job_module
from weir.sim.engine.faults import Fault


def a_savepoint_taken_before_the_drain() -> AbstractContextManager[None]:
    """The savepoint of a stop with drain does not wait for the last window (E1, E4)."""
    return _with(patch.object(Situation, "drains_before", property(lambda self: False)))


def a_drain_that_nobody_downstream_hears_of() -> AbstractContextManager[None]:
    """A task that has finished its records does not notify its consumers (P28)."""
    return _with(patch.object(StreamTask, "_announce_end", lambda self, finished: []))


def a_task_that_finishes_though_one_channel_did_not() -> AbstractContextManager[None]:
    """EndOfUserRecords(finished=False) is taken as the end of the input (P28)."""
    return _with(
        patch.object(InputGate, "all_finished", property(lambda self: True)),
        # Stops are frequent.
        patch.object(faults_module, "_TIMED_RATES_MS", (60.0, 300.0)),
    )


def a_stop_with_drain_taken_for_one_without() -> AbstractContextManager[None]:
    """The trigger's drain flag is lost on its way (E1)."""
    real = StreamTask._on_trigger

    def undrained(self: StreamTask, event: TriggerCheckpoint) -> Any:
        return real(self, replace(event, drain=False))

    return _with(patch.object(StreamTask, "_on_trigger", undrained))


def operators_closed_before_their_last_commit() -> AbstractContextManager[None]:
    """A task ends when its final checkpoint completes, while its sinks still commit (E5, P16)."""
    real = StreamTask._on_complete

    def ends_at_once(self: StreamTask, event: NotifyCheckpointComplete) -> Any:
        effects = real(self, event)
        if self._ending._final is None or self._ending.closing:
            return effects
        return [*effects, *closed_at_once(self), *self._finish()]

    return _with(
        patch.object(StreamTask, "_on_complete", ends_at_once),
        patch.object(PendingCommits, "is_idle", property(lambda self: True)),
    )


def a_final_checkpoint_that_sinks_leave_out() -> AbstractContextManager[None]:
    """A sink that commits at intervals leaves out the last checkpoint, too (P16)."""
    real = PendingCommits.barrier

    def never_last(
        self: PendingCommits, barrier: CheckpointBarrier, position: int, *, last: bool
    ) -> None:
        del last
        real(self, barrier, position, last=False)

    return _with(patch.object(PendingCommits, "barrier", never_last))


def a_checkpoint_that_a_sink_leaves_out_committed_without_rows() -> AbstractContextManager[None]:
    """A restored job could not commit its rows under that id any more (P15)."""
    real = PendingCommits.completed

    def for_all(self: PendingCommits, checkpoint_id: int) -> None:
        real(self, checkpoint_id)
        self._queue[-1] = (checkpoint_id, self._sinks)

    return _with(patch.object(PendingCommits, "completed", for_all))


def sinks_that_are_not_finished() -> AbstractContextManager[None]:
    """What sinks have held back until the end of the records is not staged (E2)."""
    return _with(patch.object(SinkPort, "finish", lambda *_: ()))


def a_finished_task_recorded_without_its_channels() -> AbstractContextManager[None]:
    """A restore does not recognize the task, so nothing resumes from the checkpoint (D4, D5)."""
    real = Execution.finished_state

    def unlinked(self: Execution, vertex: str) -> TaskState:
        return replace(real(self, vertex), inputs=())

    return _with(
        patch.object(Execution, "finished_state", unlinked),
        # Drivers die while some of many tasks have finished and others have not.
        _faults({Fault.DRIVER_KILLED: 300.0}),
        _jobs_with(interval_ms=20, min_pause_ms=0),
        patch.object(sim_job_module, "_LARGE", 1.0),
    )


def a_failed_final_checkpoint_tried_again_at_once() -> AbstractContextManager[None]:
    """A failed final checkpoint is tried again without a delay (P29)."""
    return _with(patch.object(FinalCheckpointRetry, "failed", lambda self, now_ms: None))


def a_cancel_recorded_before_the_tasks_have_stopped() -> AbstractContextManager[None]:
    """A job counts as cancelled at once, while its tasks still commit (P34)."""
    real = JobMaster._progress_leaving

    def end_at_once(self: JobMaster, now_ms: int) -> None:
        if self._course.goal is Goal.CANCEL:
            self._record_end()
        else:
            real(self, now_ms)

    return _with(
        patch.object(JobMaster, "_progress_leaving", end_at_once),
        patch.object(faults_module, "_CANCELED", 1.0),
    )


ENDING_MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=variant.__name__, variant=variant, says=tuple(says), known_seed=known_seed)
    for variant, known_seed, *says in (
        (a_savepoint_taken_before_the_drain, 135, "not drained"),
        (a_final_checkpoint_that_sinks_leave_out, 22, "missing"),
        (a_checkpoint_that_a_sink_leaves_out_committed_without_rows, 146, "without rows"),
        (a_drain_that_nobody_downstream_hears_of, 44, "not drained", "did not finish", "missing"),
        (a_task_that_finishes_though_one_channel_did_not, 6, "did not finish", "missing"),
        (a_stop_with_drain_taken_for_one_without, 135, "not drained"),
        (a_finished_task_recorded_without_its_channels, 6, "did not finish"),
        (a_failed_final_checkpoint_tried_again_at_once, 0, "requested again"),
        (a_cancel_recorded_before_the_tasks_have_stopped, 5, "after the job was cancelled"),
        (sinks_that_are_not_finished, 0, "totals"),
        (operators_closed_before_their_last_commit, 1, "closed", "Invariant", "missing", "totals"),
    )
)
