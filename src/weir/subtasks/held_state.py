"""``HeldState``: where the state of one operator is after a batch, on the driver.

``KeptOperator`` is what a snapshot keeps of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

import msgspec
from msgspec import UNSET

from weir.core.types import OperatorId
from weir.operators.state.types import KEY_GROUPS, TimeDomain, groups_of
from weir.subtasks.messages import (
    KeyGroup,
    LayerLocation,
    Location,
    NextTimers,
    Subtask,
    SubtaskState,
)


class KeptOperator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of one operator in a snapshot.

    What has a default may be missing, since earlier versions did not write it.
    """

    #: The number of subtasks.
    parallelism: Annotated[int, msgspec.Meta(ge=1, le=KEY_GROUPS)]
    #: By subtask: its list state.
    lists: dict[Subtask, Location]
    #: Raw keyed state, by state and key group.
    groups: dict[str, dict[KeyGroup, Location]]
    #: Keyed state, by state and subtask; layers, the oldest first.
    keyed: dict[str, dict[Subtask, tuple[LayerLocation, ...]]] = {}
    #: By subtask.
    timers: dict[Subtask, NextTimers] = {}
    #: The watermark that the operator has seen, in milliseconds; None before the first.
    watermark_ms: int | None = None
    #: The columns of the key, each a name and a type; empty without a key.
    key: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class HeldState:
    """The state of one operator after a batch.

    Never changed, since a snapshot of it may be taken meanwhile.
    """

    #: By subtask.
    lists: dict[int, Location]
    #: Raw state -> key group -> location.
    groups: dict[str, dict[int, Location]] = field(default_factory=dict)
    #: Keyed state -> subtask -> layers, oldest first (``weir/operators/state/keyed.py``).
    keyed: dict[str, dict[int, tuple[LayerLocation, ...]]] = field(default_factory=dict)
    #: By subtask.
    timers: dict[int, NextTimers] = field(default_factory=dict)
    #: By subtask: the run of the batch whose result counted.
    runs: dict[int, str] = field(default_factory=dict)
    #: The watermark that the operator has seen; None before the first.
    watermark_ms: int | None = None

    @property
    def files(self) -> set[str]:
        """All files that hold part of it."""
        return files_of(self)

    def earliest_ms(self, domain: TimeDomain) -> int | None:
        """When the next timer is due; None without timers."""
        return earliest_of(found.of(domain) for found in self.timers.values())

    def after(self, results: Mapping[int, SubtaskState]) -> HeldState:
        """The state after a batch or a snapshot, given that of subtasks."""
        groups = {state: dict(found) for state, found in self.groups.items()}
        keyed = {state: dict(found) for state, found in self.keyed.items()}
        for subtask, result in results.items():
            for name, changed in result.groups.items():
                groups.setdefault(name, {}).update(changed)
            for name, change in result.keyed.items():
                layers = keyed.setdefault(name, {}).get(subtask, ())[: change.stay]
                follows = () if change.follows is None else (change.follows,)
                keyed[name][subtask] = (*layers, *follows)
        return replace(
            self,
            lists=self.lists | {subtask: result.lists for subtask, result in results.items()},
            groups=groups,
            keyed=keyed,
            timers=self.timers | {subtask: result.timers for subtask, result in results.items()},
            runs=self.runs | {subtask: result.run for subtask, result in results.items()},
        )


def encode_kept(kept: Mapping[OperatorId, KeptOperator]) -> str:
    """The entry of a snapshot for its operators."""
    return msgspec.json.encode(msgspec.to_builtins(kept, str_keys=True), order="sorted").decode()


def files_of(state: HeldState | KeptOperator) -> set[str]:
    """All files that hold part of an operator's state."""
    located: list[Location | LayerLocation] = [*state.lists.values()]
    located += [location for groups in state.groups.values() for location in groups.values()]
    located += [layer for by in state.keyed.values() for layers in by.values() for layer in layers]
    return {location.file for location in located if location.file is not UNSET}


def dealt_layers(
    kept: Mapping[int, tuple[LayerLocation, ...]], before: int, parallelism: int
) -> dict[int, tuple[LayerLocation, ...]]:
    """The layers of a keyed state for another number of subtasks: each where its groups are."""
    if before == parallelism:
        return dict(kept)
    dealt: dict[int, tuple[LayerLocation, ...]] = {}
    for subtask in range(parallelism):
        owned = groups_of(subtask, parallelism)
        for old in sorted(kept):
            for layer in kept[old]:
                first, end = layer.groups
                groups = (max(first, owned.start), min(end, owned.stop))
                if groups[0] < groups[1]:
                    # How many of its keys these are is not known.
                    part = msgspec.structs.replace(layer, groups=groups, keys=UNSET)
                    dealt[subtask] = (*dealt.get(subtask, ()), part)
    return dealt


def dealt_timers(
    kept: Mapping[int, NextTimers], before: int, parallelism: int
) -> dict[int, NextTimers]:
    """When timers are due, by subtask.

    For another number of subtasks the earliest time of all stands for subtask 0, until the first
    batch has reported where the timers are now.
    """
    if before == parallelism:
        return dict(kept)
    event, processing = (
        earliest_of(found.of(domain) for found in kept.values())
        for domain in (TimeDomain.EVENT, TimeDomain.PROCESSING)
    )
    return {0: NextTimers(event=event, processing=processing)}


def earliest_of(times_ms: Iterable[int | None]) -> int | None:
    """The earliest of the times that are known."""
    return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)
