"""Subtasks that fail alone: the laws hold, and each broken variant is caught by a law it breaks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any
from unittest.mock import patch

import pytest
from tests.sim import coordinator_mutants
from tests.sim.mutants import _with
from tests.sim.single_subtasks import run_subtasks

from weir.core.coordination.coordinator_holder import OperatorCoordinatorHolder, SubtaskGateway

SEEDS = 2_000

_UNCHECKED = patch.object(OperatorCoordinatorHolder, "validate", lambda self, pending: None)

Variant = Callable[[], AbstractContextManager[None]]


def held_events_outlive_the_subtask() -> AbstractContextManager[None]:
    """A restarted subtask gets the events that were held for its failed attempt (C5)."""
    return _with(patch.object(SubtaskGateway, "reset", lambda self: None))


def a_lost_event_is_no_failure() -> AbstractContextManager[None]:
    """The loss of an event does not fail its subtask (C5)."""
    return _with(patch.object(OperatorCoordinatorHolder, "lost", lambda self, number, message: []))


def closed_for_a_subtask_that_failed_meanwhile() -> AbstractContextManager[None]:
    """A late coordinator snapshot closes a reset gateway, and the checkpoint continues (C5)."""

    def close(self: SubtaskGateway, checkpoint_id: int) -> bool:
        self._queue.append(checkpoint_id)
        return True

    return _with(patch.object(SubtaskGateway, "close", close))


def opened_for_all_by_one() -> AbstractContextManager[None]:
    """The first subtask that has taken its snapshot opens the gateways of all subtasks (C4)."""

    def opened(self: OperatorCoordinatorHolder, subtask: int, checkpoint_id: int) -> Any:
        return self._opened(checkpoint_id, range(self.parallelism))

    return _with(patch.object(OperatorCoordinatorHolder, "acknowledged", opened))


def events_of_the_failed_stay_unconfirmed() -> AbstractContextManager[None]:
    """Confirmations of events sent to a failed subtask are awaited for ever (C5)."""

    def failed(self: OperatorCoordinatorHolder, subtask: int) -> Any:
        self._gateways[subtask].reset()
        return []

    return _with(_UNCHECKED, patch.object(OperatorCoordinatorHolder, "subtask_failed", failed))


def declined_only_for_its_own_events() -> AbstractContextManager[None]:
    """A failed subtask declines only checkpoints that wait for its own events (C5)."""

    def failed(self: OperatorCoordinatorHolder, subtask: int) -> Any:
        self._gateways[subtask].reset()
        gone = {number for number, receiver in self._unconfirmed.items() if receiver == subtask}
        for number in gone:
            del self._unconfirmed[number]
        declined = [n for n, snapshot in self._snapshots.items() if snapshot.awaited & gone]
        return [output for n in declined for output in self._decline(n, "")]

    return _with(patch.object(OperatorCoordinatorHolder, "subtask_failed", failed))


def a_failed_snapshot_is_awaited() -> AbstractContextManager[None]:
    """A checkpoint goes on waiting for the snapshot that its coordinator has failed (P9)."""

    def failed(self: OperatorCoordinatorHolder, checkpoint_id: int, message: str) -> Any:
        return []

    return _with(patch.object(OperatorCoordinatorHolder, "snapshot_failed", failed))


#: (variant, a seed that is known to catch it, texts that the violation may contain).
VARIANTS: tuple[tuple[Variant, int, tuple[str, ...]], ...] = (
    (held_events_outlive_the_subtask, 2, ("receives", "in checkpoint", "still closes the gateway")),
    (a_lost_event_is_no_failure, 0, ("receives", "wait forever", "do not end")),
    (closed_for_a_subtask_that_failed_meanwhile, 2, ("in checkpoint", "still closes the gateway")),
    (opened_for_all_by_one, 26, ("in checkpoint",)),
    (declined_only_for_its_own_events, 474, ("in checkpoint",)),
    (events_of_the_failed_stay_unconfirmed, 0, ("wait forever", "do not end")),
    (a_failed_snapshot_is_awaited, 17, ("wait forever", "do not end")),
    (coordinator_mutants.closed_by_a_late_snapshot, 0, ("still closes the gateway",)),
    (coordinator_mutants.never_closed, 2, ("in checkpoint",)),
    (coordinator_mutants.closed_before_the_snapshot, 2, ("in checkpoint", "wait forever")),
    (coordinator_mutants.complete_before_events_are_confirmed, 4, ("in checkpoint",)),
    (coordinator_mutants.reopened_by_another_checkpoint, 23, ("in checkpoint",)),
    (coordinator_mutants.an_acknowledgement_past_the_gateway, 0, ("in checkpoint",)),
    (coordinator_mutants.unacknowledged_events_not_in_the_snapshot, 2, ("in checkpoint",)),
    (coordinator_mutants.unacknowledged_events_not_sent_again, 4, ("back after", "in checkpoint")),
)


@pytest.mark.parametrize(
    ("variant", "known_seed", "says"), VARIANTS, ids=[variant.__name__ for variant, *_ in VARIANTS]
)
def test_a_broken_variant_is_caught_where_subtasks_fail_alone(
    variant: Variant, known_seed: int, says: tuple[str, ...]
) -> None:
    """The variant is caught within 2,000 seeds, at a seed where the product breaks no law."""
    for seed in chain([known_seed], range(SEEDS)):
        with variant():
            said = run_subtasks(seed).violation
        if said is not None:
            print(f"{variant.__name__}: seed {seed}: {said}")
            assert any(words in said for words in says), said
            assert run_subtasks(seed).violation is None
            return
    raise AssertionError(f"{variant.__name__} went through {SEEDS} seeds")


def test_a_seed_always_gives_the_same_story() -> None:
    """A broken law can be reproduced."""
    with coordinator_mutants.never_closed():
        assert run_subtasks(2) == run_subtasks(2)
        assert run_subtasks(2).story


def test_subtasks_fail_and_checkpoints_complete_all_the_same() -> None:
    """No law is broken although subtasks fail, and checkpoints complete between the failures."""
    results = [run_subtasks(seed) for seed in range(300)]
    assert [result.violation for result in results if result.violation is not None] == []
    assert sum(result.failures for result in results) > 1_500
    assert sum(result.checkpoints for result in results) > 600
