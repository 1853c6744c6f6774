"""``RulesOperator``: an operator with rules that its coordinator,
``weir.coordinators.BroadcastRules``, changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weir.core.types import Payload
from weir.operators.base import Operator

if TYPE_CHECKING:
    from weir.operators.state import ListState, StateStore


class RulesOperator(Operator):
    """Derive from it, and read ``self.rules`` (name -> JSON value) in ``process_batch``: they are
    the same for all records of a batch. A subclass that has its own ``initialize_state`` or
    ``snapshot_state`` calls this one's too."""

    rules: dict[str, Any]
    _kept: ListState[list[Any]]

    def initialize_state(self, state: StateStore) -> None:
        """The rules as they were."""
        self._kept = state.broadcast_state("rules")
        self.rules = dict(self._kept.get())

    def handle_operator_event(self, event: Payload) -> None:
        """A change of rules."""
        for name in event.get("remove", ()):
            self.rules.pop(name, None)
        self.rules |= event.get("set", {})

    def snapshot_state(self, state: StateStore) -> None:
        """Keep them."""
        self._kept.update([name, rule] for name, rule in self.rules.items())
