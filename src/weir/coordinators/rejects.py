"""``Rejects``: input that a source could not read, as its coordinator keeps it in checkpoints.

If a coordinator's state has ``rejects``, a list of maps, ``weir inspect`` and REST show them;
``rejected`` is their total number, if not all of them are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weir.core.types import OperatorId, Payload


@dataclass(frozen=True, kw_only=True)
class Rejects:
    """The rejects of one operator."""

    operator: OperatorId
    #: The total number, including those that are not kept.
    count: int
    #: The newest rejects, oldest first.
    newest: tuple[Payload, ...]


def rejects_in(states: Mapping[OperatorId, Payload]) -> list[Rejects]:
    """The rejects of every operator whose coordinator keeps them."""
    found = []
    for operator, state in states.items():
        newest = state.get("rejects")
        if isinstance(newest, list) and all(isinstance(reject, dict) for reject in newest):
            # Any coordinator may use these names, perhaps for something else.
            said = state.get("rejected")
            count = said if type(said) is int else len(newest)
            found.append(Rejects(operator=operator, count=count, newest=tuple(newest)))
    return found
