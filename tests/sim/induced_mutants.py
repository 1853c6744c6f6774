"""Deliberately broken variants of checkpoints that readers induce; see ``mutants.py``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from tests.sim.mutants import Mutant, _with

from weir.core.task.triggers import WaitingTriggers


def taken_where_it_is_triggered() -> AbstractContextManager[None]:
    """The coordinator's trigger is a barrier, as for any other source (MISSION B4)."""
    return _with(
        patch.object(WaitingTriggers, "due", lambda self, records_flow: self.first),
    )


def taken_at_the_first_readers_point() -> AbstractContextManager[None]:
    """The task does not wait for readers that have yet to reach their points (MISSION B4)."""

    def due(self: WaitingTriggers, *, records_flow: bool) -> Any:
        first, reached = self.first, self._reached
        if first is None or not (self._induced and records_flow):
            return first
        there = reached is not None and reached.checkpoint_id == first.checkpoint_id
        return first if there else None

    return _with(patch.object(WaitingTriggers, "due", due))


INDUCED_MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=variant.__name__, variant=variant, says=tuple(says), known_seed=known_seed)
    for variant, known_seed, *says in (
        (taken_where_it_is_triggered, 71, "its mark is behind"),
        (taken_at_the_first_readers_point, 199, "while its readers stand at"),
    )
)
