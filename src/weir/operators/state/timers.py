"""``Timers``: times at which an operator wants to be called, by key (MISSION B2, E1).

Timers are state: they are in every checkpoint, and move with their key when the parallelism
changes. A timer is a key of a keyed state, a struct of its time and its key, so what is written is
what changed. ``Runs`` finds what is due at a cost by what is due.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import OperatorStateError
from weir.operators.state.casts import check_lengths, stored_as
from weir.operators.state.key_index import Places
from weir.operators.state.keyed import KeyedState, first_rows, normal_keys, nth_occurrence
from weir.operators.state.memory import StateMemory
from weir.operators.state.runs import Runs
from weir.operators.state.types import Layer, TimeDomain


class DueTimers(NamedTuple):
    """Timers that are due together: each key at most once."""

    keys: pa.Array
    times_ms: pa.Array
    #: The key group of each key.
    groups: pa.Array


class Timers:
    """The timers of one name and domain in one subtask; a key can have several."""

    def __init__(
        self,
        name: str,
        domain: TimeDomain,
        layers: Sequence[Layer] = (),
        *,
        memory: StateMemory | None = None,
    ) -> None:
        """``layers``: the restored timers. ``memory`` as for ``KeyedState``.

        Raises ``OperatorStateError`` if they are unreadable.
        """
        self.name = name
        self.domain = domain
        self._state = KeyedState(name, pa.bool_(), False, layers, compound=True, memory=memory)
        #: The earliest time that was registered since it was last looked at.
        self._registered_ms: int | None = None
        self._compactions = self._state.compactions
        self._rebuild()

    def register(self, keys: pa.Array, times_ms: pa.Array) -> None:
        """Set a timer for each row: the key, and when, in milliseconds since the epoch.

        Times may also be timestamps, rounded up to whole milliseconds. A timer that is set already
        stays as it is, and a timer in the past is due at once. Keys are those
        of the records or timers being processed. Raises ``OperatorStateError`` for another key, and
        for a time that is null.
        """
        timers = self._timers(keys, times_ms)
        timers = timers.take(pa.array(first_rows(timers)))
        known = self._state.contains(timers).to_numpy(zero_copy_only=False)
        new = timers.filter(pa.array(~known))
        if not len(new):
            return
        self._state.put(new, pa.array(np.ones(len(new), bool)))
        self._rebuild_if_compacted()
        self._runs.add(_times(new), self._state.places_of(new))
        earliest = int(_times(new).min())
        if self._registered_ms is None or earliest < self._registered_ms:
            self._registered_ms = earliest

    def delete(self, keys: pa.Array, times_ms: pa.Array) -> None:
        """Forget the timers of these keys at these times; those that are not set are ignored.

        Raises ``OperatorStateError`` for a time that is null.
        """
        self._state.delete(self._timers(keys, times_ms))
        self._rebuild_if_compacted()

    def __len__(self) -> int:
        """The number of timers, in this subtask."""
        return len(self._state)

    # ---- for the runtime

    @property
    def state(self) -> KeyedState:
        """What a checkpoint keeps of them."""
        return self._state

    def roll_back(self) -> None:
        """Undo what has changed since the state was marked."""
        places = self._state.roll_back()
        # Those that were deleted may have left the runs.
        self._runs.add(_times(self._state.keys_at(places)), places)

    def earliest_ms(self) -> int | None:
        """When the next timer is due; None without timers."""
        return self._runs.first()

    def is_due(self, domain: TimeDomain, until_ms: int) -> bool:
        """Whether the timers are of this domain, and one of them is due by then."""
        earliest = self.earliest_ms() if domain is self.domain else None
        return earliest is not None and earliest <= until_ms

    def due(self, until_ms: int) -> Iterator[DueTimers]:
        """Take what is due until then, including what is registered meanwhile.

        The timers of a key come in the order of their times, one at a time.
        """
        while (timers := self._taken(until_ms)) is not None:
            turns = nth_occurrence(timers.field("key"))
            for turn in range(int(turns.max()) + 1):
                self._registered_ms = None
                # An earlier turn may have deleted some.
                group = self._still_set(timers.filter(pa.array(turns == turn)))
                if len(group):
                    yield self._fired(group)
                if self._registered_ms is not None and self._registered_ms <= until_ms:
                    # It may come before the next turn of its key.
                    rest = self._still_set(timers.filter(pa.array(turns > turn)))
                    self._runs.add(_times(rest), self._state.places_of(rest))
                    break

    # ---- internals

    def _timers(self, keys: pa.Array, times_ms: pa.Array) -> pa.StructArray:
        given = f"The timers {self.name!r} were given"
        check_lengths(given, keys=keys, times=times_ms)
        times = times_ms
        if pa.types.is_timestamp(times.type):
            times = pc.ceil_temporal(times, unit="millisecond").cast(pa.timestamp("ms"))
        if times.null_count:
            raise OperatorStateError(f"{given} null as a time: leave out such rows.")
        fields = [stored_as(pa.int64(), times, f"{given} times"), normal_keys(keys)]
        return pa.StructArray.from_arrays(fields, ["time_ms", "key"])

    def _taken(self, until_ms: int) -> pa.StructArray | None:
        """Remove what is due from the runs; return it by ascending time, or None."""
        places = self._runs.take(until_ms)
        places = places[self._state.are_live(places)]
        if not len(places):
            return None
        timers = self._state.keys_at(places)
        return timers.take(pa.array(np.argsort(_times(timers), kind="stable")))

    def _still_set(self, timers: pa.StructArray) -> pa.StructArray:
        return timers.filter(self._state.contains(timers))

    def _fired(self, timers: pa.StructArray) -> DueTimers:
        groups = self._state.groups_of(timers)
        self._state.delete(timers)
        self._rebuild_if_compacted()
        return DueTimers(timers.field("key"), timers.field("time_ms"), groups)

    def _rebuild_if_compacted(self) -> None:
        """Rebuild the runs if the state has given its places new numbers."""
        if self._compactions != self._state.compactions:
            self._rebuild()

    def _rebuild(self) -> None:
        self._compactions = self._state.compactions
        self._runs = Runs(self._state.are_live, self._state.memory)
        for places in self._state.live_places():
            self._runs.add(_times(self._state.keys_at(places)), places)
            self._state.memory.trim()


def _times(timers: pa.StructArray) -> Places:
    times: Places = timers.field("time_ms").to_numpy()
    return times
