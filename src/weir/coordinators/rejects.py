"""Rejects: what a source could not read, as its coordinator keeps it in checkpoints, for whoever
looks.

A coordinator's state that has ``rejects``, a list of maps, is shown with it by ``weir inspect`` and
by REST; ``rejected`` is their number where not all of them are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weir.core.types import OperatorId, Payload


@dataclass(frozen=True, kw_only=True)
class Rejects:
    """Of one operator."""

    operator: OperatorId
    #: How many there were.
    count: int
    #: The newest, oldest first.
    newest: tuple[Payload, ...]


def rejects_in(states: Mapping[OperatorId, Payload]) -> list[Rejects]:
    """The rejects of every operator whose coordinator keeps them."""
    found = []
    for operator, state in states.items():
        newest = state.get("rejects")
        if isinstance(newest, list) and all(isinstance(one, dict) for one in newest):
            # Anyone may have written it, also a coordinator that means something else by these
            # names.
            said = state.get("rejected")
            count = said if type(said) is int else len(newest)
            found.append(Rejects(operator=operator, count=count, newest=tuple(newest)))
    return found
