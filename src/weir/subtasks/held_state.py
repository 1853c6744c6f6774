"""``HeldState``: where the state of one operator is after a batch, on the driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from weir.operators.state.types import TimeDomain, groups_of
from weir.subtasks.state_pieces import Location


@dataclass(frozen=True)
class HeldState:
    """The state of one operator after a batch.

    Never changed, since a snapshot of it may be taken meanwhile.
    """

    #: By subtask.
    lists: dict[int, Location]
    #: Raw state -> key group -> location.
    groups: dict[str, dict[str, Location]] = field(default_factory=dict)
    #: Keyed state -> subtask -> layers, oldest first (``weir/operators/state/keyed.py``).
    keyed: dict[str, dict[int, list[Location]]] = field(default_factory=dict)
    #: By subtask: when its next timer is due, by domain (``TimeDomain``).
    timers: dict[int, dict[str, int | None]] = field(default_factory=dict)
    #: By subtask: the run of the batch whose result counted.
    runs: dict[int, str] = field(default_factory=dict)
    #: The watermark that the operator has seen; None before the first.
    watermark_ms: int | None = None

    @property
    def files(self) -> set[str]:
        """All files that hold part of it."""
        located = [*self.lists.values()]
        located += [found for groups in self.groups.values() for found in groups.values()]
        located += [one for by in self.keyed.values() for layers in by.values() for one in layers]
        return {found["file"] for found in located if "file" in found}

    def earliest_ms(self, domain: TimeDomain) -> int | None:
        """When the next timer is due; None if there is none."""
        return earliest_of(found[domain.value] for found in self.timers.values())

    def after(self, results: Mapping[int, Mapping[str, Any]]) -> HeldState:
        """The state after a batch or a call, given the results of subtasks."""
        groups = {state: dict(found) for state, found in self.groups.items()}
        keyed = {state: dict(found) for state, found in self.keyed.items()}
        for subtask, result in results.items():
            for state, changed in result["groups"].items():
                groups.setdefault(state, {}).update(changed)
            for state, (stay, layer) in result["keyed"].items():
                layers = keyed.setdefault(state, {}).get(subtask, [])[:stay]
                keyed[state][subtask] = [*layers, *([] if layer is None else [layer])]
        return replace(
            self,
            lists=self.lists | {subtask: result["lists"] for subtask, result in results.items()},
            groups=groups,
            keyed=keyed,
            timers=self.timers | {subtask: result["timers"] for subtask, result in results.items()},
            runs=self.runs | {subtask: result["run"] for subtask, result in results.items()},
        )


def dealt_layers(
    by_subtask: Mapping[str, list[Location]], before: int, parallelism: int
) -> dict[int, list[Location]]:
    """The layers of a keyed state for another number of subtasks: each where its groups are."""
    kept = {int(subtask): layers for subtask, layers in by_subtask.items()}
    if before == parallelism:
        return kept
    dealt: dict[int, list[Location]] = {}
    for subtask in range(parallelism):
        owned = groups_of(subtask, parallelism)
        for old in sorted(kept):
            for layer in kept[old]:
                first, end = layer["groups"]
                groups = [max(first, owned.start), min(end, owned.stop)]
                if groups[0] < groups[1]:
                    # How many of its keys these are is not known.
                    part = {name: layer[name] for name in ("file", "offset", "length")}
                    dealt.setdefault(subtask, []).append(part | {"groups": groups})
    return dealt


def dealt_timers(
    by_subtask: Mapping[str, dict[str, int | None]], before: int, parallelism: int
) -> dict[int, dict[str, int | None]]:
    """When timers are due, by subtask.

    For another number of subtasks the earliest time of all stands for subtask 0, until the first
    batch has reported where the timers are now.
    """
    if before == parallelism:
        return {int(subtask): found for subtask, found in by_subtask.items()}
    times = {one: [found[one.value] for found in by_subtask.values()] for one in TimeDomain}
    return {0: {one.value: earliest_of(found) for one, found in times.items()}}


def earliest_of(times_ms: Iterable[int | None]) -> int | None:
    """The earliest of the times that are known."""
    return min((one for one in times_ms if one is not None), default=None)
