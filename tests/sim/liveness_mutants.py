"""Deliberately broken variants that lose nothing, but never get through; see ``mutants.py``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tests.sim.mutants import Mutant, _faults, _jobs_with, _with

from weir.core.checkpoints.coordinator import CheckpointCoordinator
from weir.core.checkpoints.outputs import RequestFailed
from weir.core.checkpoints.trigger import CheckpointTrigger
from weir.core.job.master import JobMaster
from weir.core.job.restart import FinalCheckpointRetry
from weir.core.job.stop_with_savepoint import StopState, StopWithSavepoint
from weir.core.messages.task import SinkCommitFailed, SinksCommitted, SnapshotFailed
from weir.core.task.input_gate import InputGate
from weir.core.task.stream_task import StreamTask
from weir.sim.engine import job as sim_job_module
from weir.sim.engine.faults import Fault
from weir.sim.own import resting as resting_module


def a_failed_snapshot_that_is_not_declined() -> AbstractContextManager[None]:
    """A task drops a snapshot that has failed, and its checkpoint waits for the timeout (P9)."""

    def dropped(self: StreamTask, event: SnapshotFailed) -> Any:
        return self._drop(event.checkpoint_id) + self._advance()

    return _with(
        patch.object(StreamTask, "_on_snapshot_failed", dropped), _jobs_with(timeout_ms=500)
    )


def a_decline_that_changes_nothing() -> AbstractContextManager[None]:
    """The coordinator waits for the other tasks of a checkpoint that one has declined (P9)."""
    return _with(
        patch.object(CheckpointCoordinator, "decline", lambda self, *_: self._drain()),
        _jobs_with(timeout_ms=500),
    )


def a_failed_stop_that_nobody_answers() -> AbstractContextManager[None]:
    """A stop whose savepoint fails leaves its user waiting (P34)."""
    answers = StopWithSavepoint.answers

    def of_success(self: StopWithSavepoint, failure: str = "") -> Any:
        return answers(self, failure) if self.state is StopState.ENDED else []

    return _with(patch.object(StopWithSavepoint, "answers", of_success))


def a_failed_savepoint_that_nobody_answers() -> AbstractContextManager[None]:
    """A savepoint that is aborted leaves its user waiting (P12)."""
    return _with(patch.object(CheckpointCoordinator, "_answer_failure", lambda self, *_: None))


def a_refused_request_that_nobody_answers() -> AbstractContextManager[None]:
    """A request that the job cannot take leaves its user waiting."""
    return _with(patch.object(JobMaster, "_refuse", lambda self, *_: None))


def a_stop_that_others_join_and_only_the_first_hears_of() -> AbstractContextManager[None]:
    """Users who ask for a stop that is in progress are never answered (P34)."""
    return _with(
        patch.object(StopWithSavepoint, "joined_by", lambda self, request: self),
        _faults({Fault.STOP_REQUESTED: 30.0, Fault.STORAGE_SLOW: 0.1}),
    )


def a_failed_stop_whose_tasks_stay_stopped() -> AbstractContextManager[None]:
    """A stop whose savepoint fails is no failover, though tasks have ended their records (P34)."""
    request_failed = JobMaster._request_failed

    def goes_on(self: JobMaster, fact: RequestFailed, now_ms: int) -> None:
        request_failed(self, replace(fact, tasks_know=False), now_ms)

    return _with(
        patch.object(JobMaster, "_request_failed", goes_on),
        _faults({Fault.STOP_REQUESTED: 100.0, Fault.STORAGE_ERROR: 0.02}),
    )


def an_epoch_that_waits_for_the_next_checkpoint() -> AbstractContextManager[None]:
    """A commit that ends does not start the one that waits for it (P13)."""

    def only_advance(self: StreamTask, event: SinksCommitted) -> Any:
        self._commits.confirmed(event.checkpoint_id)
        self._ending.committed(event.checkpoint_id)
        return self._advance()

    return _with(
        patch.object(StreamTask, "_on_sinks_committed", only_advance),
        patch.object(StreamTask, "validate", lambda self: None),
        # Commits take longer than checkpoints.
        _faults({Fault.COMMIT_FAILED: 0.5}),
        _jobs_with(interval_ms=20, min_pause_ms=0, max_concurrent_checkpoints=3),
    )


def a_failed_commit_that_is_not_tried_again() -> AbstractContextManager[None]:
    """A task whose commit has failed for now neither fails nor tries again (P13)."""
    fail = StreamTask._fail

    def ignored(self: StreamTask, error: Any) -> Any:
        return [] if isinstance(error, SinkCommitFailed) else fail(self, error)

    return _with(patch.object(StreamTask, "_fail", ignored), _faults({Fault.COMMIT_FAILED: 0.7}))


def a_final_checkpoint_that_is_tried_once() -> AbstractContextManager[None]:
    """After a final checkpoint has failed, the tasks that wait for one wait for ever (P29)."""
    return _with(
        patch.object(FinalCheckpointRetry, "on_deadline", lambda self, now_ms: None),
        _faults({Fault.STORAGE_ERROR: 0.02, Fault.END_HOOK_FAILED: 0.8}),
        _jobs_with(interval_ms=None, tolerable_failed_checkpoints=100),
    )


def a_failed_allocation_that_blocks_all_others() -> AbstractContextManager[None]:
    """A checkpoint that got no id counts as on its way, and none is triggered beside it (A9)."""
    failed = CheckpointCoordinator.location_failed

    def still_under_way(self: CheckpointCoordinator, *given: Any) -> Any:
        with patch.object(CheckpointTrigger, "allocation_over", lambda *_: None):
            return failed(self, *given)

    return _with(
        patch.object(CheckpointCoordinator, "location_failed", still_under_way),
        _faults({Fault.STORAGE_ERROR: 0.02}),
        _jobs_with(tolerable_failed_checkpoints=100),
    )


def idleness_that_nobody_hears_of() -> AbstractContextManager[None]:
    """A task does not say that its source, or all its channels, are idle (P25)."""
    return _with(patch.object(StreamTask, "_pass_on_status", lambda self: []), _sources_rest())


def idleness_that_only_the_next_task_hears_of() -> AbstractContextManager[None]:
    """A task all of whose channels are idle does not say so itself (P25)."""
    return _with(
        patch.object(InputGate, "is_idle", False),
        _sources_rest(),
        # A task that the source's reader reads, too, is in large graphs only.
        patch.object(sim_job_module, "_LARGE", 1.0),
    )


def an_idle_channel_that_holds_the_others_back() -> AbstractContextManager[None]:
    """The watermark of a task is the least of all its channels, idle or not (P25)."""
    return _with(patch.object(InputGate, "_idle_ms", None), _sources_rest())


def _sources_rest() -> AbstractContextManager[None]:
    return _with(patch.object(resting_module, "_SHARE", 1.0))


LIVENESS_MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=variant.__name__, variant=variant, says=tuple(says), known_seed=known_seed)
    for variant, known_seed, *says in (
        (a_failed_snapshot_that_is_not_declined, 22, "waits for its timeout"),
        (a_decline_that_changes_nothing, 22, "waits for its timeout"),
        (a_failed_stop_that_nobody_answers, 0, "nobody answers"),
        (a_failed_savepoint_that_nobody_answers, 3, "nobody answers"),
        (a_refused_request_that_nobody_answers, 3, "nobody answers"),
        (a_stop_that_others_join_and_only_the_first_hears_of, 1, "nobody answers"),
        (a_failed_stop_whose_tasks_stay_stopped, 4, "missing", "did not finish"),
        (an_epoch_that_waits_for_the_next_checkpoint, 12, "did not finish"),
        (a_failed_commit_that_is_not_tried_again, 4, "did not finish"),
        (a_final_checkpoint_that_is_tried_once, 1, "did not finish"),
        (a_failed_allocation_that_blocks_all_others, 8, "did not finish"),
        (idleness_that_nobody_hears_of, 5, "did not finish"),
        (idleness_that_only_the_next_task_hears_of, 6, "did not finish"),
        (an_idle_channel_that_holds_the_others_back, 5, "did not finish"),
    )
)
