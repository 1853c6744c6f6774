"""Deliberately broken variants of what only users' pipelines run: chains of operators, and sources.

See ``mutants.py``. Each is caught with the pipeline that is named beside it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from tests.sim.mutants import Mutant, _with

from weir.core.messages.task import TakeSnapshot
from weir.sources.coordinator import SourceCoordinator
from weir.subtasks import worker as worker_module
from weir.subtasks.chain import OperatorChain


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
        known_seed=64,
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
