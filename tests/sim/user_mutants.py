"""Deliberately broken variants of what only users' pipelines run: chains of operators, and sources.

See ``mutants.py``. Each is caught with the pipeline that is named beside it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import msgspec
from tests.sim.mutants import Mutant, _with

from weir.core.messages.task import TakeSnapshot
from weir.sources.coordinator import SourceCoordinator
from weir.subtasks import chain as chain_module
from weir.subtasks import worker as worker_module
from weir.subtasks.chain import OperatorChain
from weir.subtasks.held_state import dealt_layers
from weir.subtasks.worker import WorkerProcess


def the_newest_state_for_any_position() -> AbstractContextManager[None]:
    """A snapshot for the position before a drain gets the state after it (P6)."""
    snapshot = OperatorChain.snapshot

    def newest(self: OperatorChain, effect: TakeSnapshot) -> Any:
        held, self._held = self._held, dict.fromkeys(self._held, self._held[self._version])
        try:
            return snapshot(self, effect)
        finally:
            self._held = held

    return _with(patch.object(OperatorChain, "snapshot", newest))


def going_on_after_a_run_that_did_not_count() -> AbstractContextManager[None]:
    """A process goes on with a subtask although another run of its last batch counted (P6)."""

    def is_current(warm: Any, setup: Any, subtask: int) -> bool:
        return (warm.token, warm.version) == (setup.token, setup.version)

    return _with(patch.object(worker_module, "_is_current", is_current))


def going_on_after_a_batch_that_failed() -> AbstractContextManager[None]:
    """A process goes on with the state that a failed run of a batch has changed (P6, P39)."""
    return _with(
        patch.object(WorkerProcess, "take", lambda self, *key: self._warm.get(key)),
        patch.object(worker_module, "close_stale", lambda *_: None),
    )


def timers_that_every_subtask_gets() -> AbstractContextManager[None]:
    """After a change of the parallelism, each subtask has the timers of all keys (MISSION B2)."""

    def whole(kept: Any, before: int, parallelism: int) -> Any:
        if before == parallelism:
            return dict(kept)
        layers = tuple(
            msgspec.structs.replace(layer, keys=msgspec.UNSET)
            for old in sorted(kept)
            for layer in kept[old]
        )
        return dict.fromkeys(range(parallelism), layers)

    return _with(patch.object(chain_module, "dealt_layers", whole))


def timers_of_the_newest_layer_only() -> AbstractContextManager[None]:
    """After a change of the parallelism, older layers of keyed state are forgotten (MISSION B2)."""

    def newest(kept: Any, before: int, parallelism: int) -> Any:
        if before == parallelism:
            return dict(kept)
        shorter = {subtask: layers[-1:] for subtask, layers in kept.items()}
        return dealt_layers(shorter, before, parallelism)

    return _with(patch.object(chain_module, "dealt_layers", newest))


def a_living_enumerator_that_goes_on() -> AbstractContextManager[None]:
    """A failed attempt's enumerator assigns on where it was, whatever is restored (MISSION C5)."""
    reset = SourceCoordinator.reset_to_checkpoint

    def only_once(self: Any, checkpoint_id: int | None, state: Any) -> None:
        enumerator, close = self._enumerator, self.close
        self.close = lambda: None
        reset(self, checkpoint_id, state)
        self.close = close
        self._enumerator = enumerator or self._enumerator

    return _with(patch.object(SourceCoordinator, "reset_to_checkpoint", only_once))


#: With the example of docs/SIMULATOR.md.
EXAMPLE_MUTANTS = (
    Mutant(
        name="the_newest_state_for_any_position",
        variant=the_newest_state_for_any_position,
        says=("shows other rows",),
        known_seed=1,
    ),
    Mutant(
        name="going_on_after_a_run_that_did_not_count",
        variant=going_on_after_a_run_that_did_not_count,
        says=("shows other rows",),
        known_seed=112,
    ),
    Mutant(
        name="going_on_after_a_batch_that_failed",
        variant=going_on_after_a_batch_that_failed,
        says=("shows other rows", "it keeps something outside"),
        known_seed=1,
    ),
)
#: With an operator that has timers, whose parallelism changes.
TIMER_MUTANTS = (
    Mutant(
        name="timers_that_every_subtask_gets",
        variant=timers_that_every_subtask_gets,
        says=("shows other rows",),
        known_seed=5,
    ),
    Mutant(
        name="timers_of_the_newest_layer_only",
        variant=timers_of_the_newest_layer_only,
        says=("shows other rows",),
        known_seed=19,
    ),
)
#: With a source of its own.
SOURCE_MUTANTS = (
    Mutant(
        name="a_living_enumerator_that_goes_on",
        variant=a_living_enumerator_that_goes_on,
        says=("shows other rows", "did not finish", "no fault explains"),
        known_seed=4,
    ),
)
