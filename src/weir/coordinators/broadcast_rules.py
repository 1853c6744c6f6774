"""``BroadcastRules``: rules that are changed from outside while a job runs, and are the same in
every subtask.

A rule has a name and a value, any JSON. A change is sent to every subtask and reaches it at a batch
boundary; the rules are in the coordinator's checkpoints and in those of the subtasks
(``weir.operators.RulesOperator``), so after a recovery each subtask has the rules of the
checkpoint, and the later changes once and in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weir.coordinators.base import OperatorCoordinator
from weir.core.json_values import KEPT, read_back
from weir.core.types import Payload
from weir.errors import PipelineError

_NEW_RULES = ("refuse", "accept")


class BroadcastRules(OperatorCoordinator):
    """Takes the requests ``{"set": {name: value, ...}}``, ``{"remove": [name, ...]}``, both in one,
    and ``{}``. It answers with all rules as they are then.

    Args:
        rules: They hold from the begin of the job; a restored job has those of its checkpoint.
        new_rules: What becomes of a request that sets a rule of a name that is neither among
            ``rules`` nor in force. ``refuse``: it is refused, since it may be a typing error, and
            no operator would ever see the change. ``accept``: it is a new rule. Where there are no
            ``rules``, every name is accepted.
    """

    def __init__(
        self, rules: Mapping[str, Any] | None = None, *, new_rules: str = "refuse"
    ) -> None:
        """Raises ``PipelineError`` for what cannot be."""
        if new_rules not in _NEW_RULES:
            raise PipelineError(
                f"BroadcastRules has new_rules={new_rules!r}: choose one of"
                f" {', '.join(_NEW_RULES)}."
            )
        try:
            self._initial: dict[str, Any] = read_back(dict(rules or {}))
        except ValueError as error:
            raise PipelineError(
                f"The rules of BroadcastRules cannot be kept, since {error}: make them of {KEPT}."
            ) from error
        self._accepts_new = new_rules == "accept" or not self._initial
        self._rules: dict[str, Any] = {}

    def reset_to_checkpoint(self, checkpoint_id: int | None, state: Payload | None) -> None:
        """The rules of the checkpoint, which the subtasks have already; or the first ones, which
        they are sent."""
        self._rules = dict(self._initial if state is None else state["rules"])
        if state is None and self._rules:
            self._send({"set": self._rules})

    def checkpoint_coordinator(self, checkpoint_id: int) -> Payload:
        """All rules."""
        return {"rules": self._rules}

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Payload) -> None:
        """Operators have nothing to say."""
        raise ValueError(
            f"subtask {subtask} has sent {event}, but {type(self).__name__} expects no events"
        )

    def handle_request(self, request: Payload) -> Payload:
        """Change rules."""
        unknown = sorted(request.keys() - {"set", "remove"})
        changed, removed = request.get("set", {}), request.get("remove", [])
        fits = isinstance(changed, dict) and isinstance(removed, list)
        if unknown or not fits or not all(isinstance(name, str) for name in removed):
            why = f", since it has the key {unknown[0]!r}" if unknown else ""
            raise ValueError(
                f'{request} is no change of rules{why}: send {{"set": {{NAME: VALUE}}}},'
                ' {"remove": [NAME]}, or both;'
                f" the rules are {', '.join(self._rules) or 'none'}"
            )
        missing = [name for name in removed if name not in self._rules]
        if missing:
            raise ValueError(
                f"there is no rule {missing[0]!r} to be removed; there are:"
                f" {', '.join(self._rules) or 'none'}"
            )
        known = dict.fromkeys((*self._initial, *self._rules))
        new = [name for name in changed if name not in known]
        if new and not self._accepts_new:
            raise ValueError(
                f"there is no rule {new[0]!r} to be set; there are: {', '.join(known)} (a job that"
                " takes others says so with BroadcastRules(..., new_rules='accept'))"
            )
        self._rules = {
            name: rule for name, rule in self._rules.items() if name not in removed
        } | changed
        if changed or removed:
            self._send({"set": changed, "remove": removed})
        return {"rules": self._rules}

    def _send(self, change: Payload) -> None:
        for subtask in range(self.context.current_parallelism):
            self.context.send_event(subtask, change)
