"""``BroadcastRules``: rules that every subtask shares and that can be changed while a job runs.

A rule has a name and a value, any JSON. A change is sent to every subtask and takes effect at a
batch boundary. The rules are in the coordinator's snapshots and in those of the subtasks
(``weir.operators.RulesOperator``), so after a recovery each subtask has the rules of the
checkpoint, and gets each later change once and in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weir.coordinators.base import OperatorCoordinator
from weir.core.types import Payload
from weir.errors import CoordinatorStateError, PipelineError
from weir.json_values import KEPT, read_back

_NEW_RULES = ("refuse", "accept")


class BroadcastRules(OperatorCoordinator):
    """A coordinator whose rules are changed by requests.

    It takes the requests ``{"set": {name: value, ...}}``, ``{"remove": [name, ...]}``, both in one,
    and ``{}``, and answers with all rules after the change.

    Args:
        rules: The rules at the start of the job; a restored job has those of its checkpoint.
        new_rules: How to treat a request that sets a rule whose name is neither among ``rules`` nor
            in force. ``refuse``: refuse it, since the name may be mistyped, and then no operator
            would look at the rule. ``accept``: add it as a new rule. Without ``rules``, every name
            is accepted.
    """

    def __init__(
        self, rules: Mapping[str, Any] | None = None, *, new_rules: str = "refuse"
    ) -> None:
        """Raises ``PipelineError`` for invalid arguments."""
        if new_rules not in _NEW_RULES:
            raise PipelineError(
                f"BroadcastRules has new_rules={new_rules!r}: choose one of"
                f" {', '.join(_NEW_RULES)}."
            )
        try:
            self._initial: dict[str, Any] = read_back(dict(rules or {}))
        except ValueError as error:
            raise PipelineError(
                f"The rules of BroadcastRules cannot be stored, since {error}: make them of {KEPT}."
            ) from error
        self._accepts_new = new_rules == "accept" or not self._initial
        self._rules: dict[str, Any] = {}

    def reset_to_checkpoint(self, checkpoint_id: int | None, state: Payload | None) -> None:
        """Take the checkpoint's rules, which the subtasks have too, or send the initial rules.

        Raises ``CoordinatorStateError`` if the state is that of another coordinator.
        """
        rules = self._initial if state is None else state.get("rules")
        if not isinstance(rules, dict):
            raise CoordinatorStateError(
                f"The checkpoint's state of the coordinator of operator"
                f" {self.context.operator_id!r} has no rules, so it is not that of a"
                " BroadcastRules: give the step the coordinator that it had, or another uid."
            )
        self._rules = dict(rules)
        if state is None and self._rules:
            self._send({"set": self._rules})

    def checkpoint_coordinator(self, checkpoint_id: int) -> Payload:
        """All rules."""
        return {"rules": self._rules}

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Payload) -> None:
        """Raise ``ValueError``: no events are expected from operators."""
        raise ValueError(
            f"subtask {subtask} sent {event}, but {type(self).__name__} expects no events"
        )

    def handle_request(self, request: Payload) -> Payload:
        """Set and remove rules; return all rules. Raises ``ValueError`` for an invalid request."""
        unknown = sorted(request.keys() - {"set", "remove"})
        changed, removed = request.get("set", {}), request.get("remove", [])
        fits = isinstance(changed, dict) and isinstance(removed, list)
        if unknown or not fits or not all(isinstance(name, str) for name in removed):
            why = f", since it has the key {unknown[0]!r}" if unknown else ""
            raise ValueError(
                f'{request} is not a valid change of rules{why}: send {{"set": {{NAME: VALUE}}}},'
                ' {"remove": [NAME]}, or both;'
                f" the rules are {', '.join(self._rules) or 'none'}"
            )
        missing = [name for name in removed if name not in self._rules]
        if missing:
            raise ValueError(
                f"there is no rule {missing[0]!r} to remove; the rules are:"
                f" {', '.join(self._rules) or 'none'}"
            )
        known = dict.fromkeys((*self._initial, *self._rules))
        new = [name for name in changed if name not in known]
        if new and not self._accepts_new:
            raise ValueError(
                f"there is no rule {new[0]!r} to set; the rules are: {', '.join(known)} (allow new"
                " rules with BroadcastRules(..., new_rules='accept'))"
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
