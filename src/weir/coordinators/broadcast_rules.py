"""``BroadcastRules``: rules that are changed from outside while a job runs, and are the same in every subtask.

A rule has a name and a value, any JSON. A change is sent to every subtask and reaches it at a batch boundary; the rules are
in the coordinator's checkpoints and in those of the subtasks (``weir.operators.RulesOperator``), so after a recovery each
subtask has the rules of the checkpoint, and the later changes once and in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weir.coordinators.base import OperatorCoordinator
from weir.core.types import Payload


class BroadcastRules(OperatorCoordinator):
    """Takes the requests ``{"set": {name: value, ...}}``, ``{"remove": [name, ...]}``, both in one, and ``{}``. It answers
    with all rules as they are then."""

    def __init__(self, rules: Mapping[str, Any] | None = None) -> None:
        """``rules`` hold from the begin of the job; a restored job has those of its checkpoint."""
        self._initial = dict(rules or {})
        self._rules: dict[str, Any] = {}

    def reset_to_checkpoint(self, checkpoint_id: int | None, state: Payload | None) -> None:
        """The rules of the checkpoint, which the subtasks have already; or the first ones, which they are sent."""
        self._rules = dict(self._initial if state is None else state["rules"])
        if state is None and self._rules:
            self._send({"set": self._rules})

    def checkpoint_coordinator(self, checkpoint_id: int) -> Payload:
        """All rules."""
        return {"rules": self._rules}

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Payload) -> None:
        """Operators have nothing to say."""
        raise ValueError(f"subtask {subtask} has sent {event}, but {type(self).__name__} expects no events")

    def handle_request(self, request: Payload) -> Payload:
        """Change rules."""
        unknown = sorted(request.keys() - {"set", "remove"})
        changed, removed = request.get("set", {}), request.get("remove", [])
        fits = isinstance(changed, dict) and isinstance(removed, list)
        if unknown or not fits or not all(isinstance(name, str) for name in removed):
            raise ValueError(
                f'{request} is no change of rules: send {{"set": {{NAME: VALUE}}}}, {{"remove": [NAME]}}, or both'
            )
        missing = [name for name in removed if name not in self._rules]
        if missing:
            raise ValueError(
                f"there is no rule {missing[0]!r} to be removed; there are: {', '.join(self._rules) or 'none'}"
            )
        self._rules = {name: rule for name, rule in self._rules.items() if name not in removed} | changed
        if changed or removed:
            self._send({"set": changed, "remove": removed})
        return {"rules": self._rules}

    def _send(self, change: Payload) -> None:
        for subtask in range(self.context.current_parallelism):
            self.context.send_event(subtask, change)
