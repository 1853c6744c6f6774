"""``Runs``: places of a keyed state by a number: a time, or the number of a key.

They lie in ascending *runs*, which are merged as they grow, so that a search costs by what it
finds. Large runs are not merged any more: there are few, and merging them would need as much memory
again. A place that is no longer wanted stays in its run until it is merged or taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from weir.operators.state.key_index import Places, ascending
from weir.operators.state.memory import StateMemory

#: How many places are examined at a time for the first that is still wanted.
_LOOK_AHEAD = 1024
#: The longest merged run, in places.
_MERGED_MAX = 1 << 20


class _Run(NamedTuple):
    """Places by ascending number."""

    numbers: Places
    places: Places


class Runs:
    """Numbers, such as times in milliseconds, each with a place."""

    def __init__(
        self,
        are_live: Callable[[Places], np.ndarray[Any, np.dtype[np.bool_]]],
        memory: StateMemory,
    ) -> None:
        """``are_live``: which places are still wanted. Others may be left out."""
        self._are_live = are_live
        self._memory = memory
        self._runs: list[_Run] = []

    def add(self, numbers: Places, places: Places) -> None:
        """Add places with their numbers, in any order."""
        run = _sorted(numbers, places)
        while self._runs and self._is_merged(self._runs[-1], run):
            last = self._runs.pop()
            numbers = np.concatenate([last.numbers, run.numbers])
            places = np.concatenate([last.places, run.places])
            live = self._are_live(places)
            run = _sorted(numbers[live], places[live])
        if len(run.numbers):
            self._runs.append(_Run(*map(self._memory.kept, run)))

    def take(self, until: int) -> Places:
        """Remove all up to this number; return the places, ascending and each once."""
        taken = [np.empty(0, np.int64)]
        for number, (numbers, places) in enumerate(self._runs):
            end = int(np.searchsorted(numbers, until, side="right"))
            taken.append(places[:end])
            self._runs[number] = _Run(numbers[end:], places[end:])
        self._runs = [run for run in self._runs if len(run.numbers)]
        return ascending(*taken)

    def at(self, numbers: Places) -> Places:
        """The places of these numbers, in no order that means anything."""
        found = [np.empty(0, np.int64)]
        for run in self._runs:
            first = np.searchsorted(run.numbers, numbers, side="left")
            counts = np.searchsorted(run.numbers, numbers, side="right") - first
            starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
            found.append(run.places[starts + np.arange(len(starts))])
        return np.concatenate(found)

    def first(self) -> int | None:
        """The lowest number of a place that is still wanted; None without such a place."""
        runs = [cut for run in self._runs if (cut := self._from_first(run)) is not None]
        self._runs = runs
        return min((int(run.numbers[0]) for run in runs), default=None)

    def _is_merged(self, last: _Run, run: _Run) -> bool:
        count = len(last.numbers) + len(run.numbers)
        return len(last.numbers) < 2 * len(run.numbers) and count <= _MERGED_MAX

    def _from_first(self, run: _Run) -> _Run | None:
        """The run from its first place that is still wanted; None without such a place."""
        for start in range(0, len(run.places), _LOOK_AHEAD):
            live = self._are_live(run.places[start : start + _LOOK_AHEAD])
            if live.any():
                first = start + int(live.argmax())
                return _Run(run.numbers[first:], run.places[first:])
        return None


def _sorted(numbers: Places, places: Places) -> _Run:
    order = np.argsort(numbers, kind="stable")
    return _Run(numbers[order], places[order])
