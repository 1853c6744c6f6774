"""Deliberately broken variants that lose nothing, but never get through; see ``mutants.py``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from tests.sim.mutants import Mutant, _jobs_with, _with

from weir.core.checkpoints.coordinator import CheckpointCoordinator
from weir.core.job.master import JobMaster
from weir.core.job.stop_with_savepoint import StopState, StopWithSavepoint
from weir.core.messages.task import SnapshotFailed
from weir.core.task.stream_task import StreamTask


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


LIVENESS_MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=variant.__name__, variant=variant, says=tuple(says), known_seed=known_seed)
    for variant, known_seed, *says in (
        (a_failed_snapshot_that_is_not_declined, 22, "waits for its timeout"),
        (a_decline_that_changes_nothing, 22, "waits for its timeout"),
        (a_failed_stop_that_nobody_answers, 0, "nobody answers"),
        (a_failed_savepoint_that_nobody_answers, 3, "nobody answers"),
        (a_refused_request_that_nobody_answers, 3, "nobody answers"),
    )
)
