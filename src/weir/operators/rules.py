"""``RulesOperator``: an operator with rules from ``weir.coordinators.BroadcastRules``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weir.core.types import Payload
from weir.operators.base import Operator

if TYPE_CHECKING:
    from weir.operators.state.store import ListState, StateStore


class RulesOperator(Operator):
    """Base class of operators with broadcast rules.

    Read ``self.rules`` (name -> JSON value) in ``process_batch``: they are the same for all records
    of a batch. A subclass that overrides ``initialize_state`` or ``handle_operator_event`` must
    call ``super()``'s.
    """

    transient = ("rules",)

    rules: dict[str, Any]
    _kept: ListState[list[Any]]

    def initialize_state(self, state: StateStore) -> None:
        """Restore the rules."""
        self._kept = state.broadcast_state("rules")
        self.rules = dict(self._kept.get())

    def handle_operator_event(self, event: Payload) -> None:
        """Apply a change of the rules."""
        for name in event.get("remove", ()):
            self.rules.pop(name, None)
        self.rules |= event.get("set", {})
        self._kept.update([name, rule] for name, rule in self.rules.items())
