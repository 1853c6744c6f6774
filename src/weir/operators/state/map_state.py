"""Maps by key: keyed state whose keys are pairs of a stream's key and a map's key (MISSION B7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from weir.operators.state.casts import check_lengths, stored_as
from weir.operators.state.expiry import TimeToLive
from weir.operators.state.key_index import NOWHERE, KeyIndex, Places, ascending
from weir.operators.state.keyed import KeyedState, first_rows, normal_keys
from weir.operators.state.memory import StateMemory
from weir.operators.state.runs import Runs
from weir.operators.state.types import Layer

#: How many entries are examined at a time.
_STEP = 100_000


class MapState:
    """One map per key, in one subtask; every entry is stored, written and moved by itself.

    ``keys`` are keys of the stream and ``map_keys`` keys of their maps, row by row: all arrays of a
    call have the same length. A call costs by its rows, not by the entries that exist.
    """

    def __init__(
        self,
        name: str,
        map_key_type: pa.DataType,
        value_type: pa.DataType,
        default: Any,
        layers: Sequence[Layer] = (),
        *,
        ttl: TimeToLive | None = None,
        memory: StateMemory | None = None,
    ) -> None:
        """``layers``: the restored state, oldest first. ``ttl``: when an entry expires.

        ``memory`` as for ``KeyedState``. Raises ``OperatorStateError`` if it cannot be read.
        """
        self._name = name
        self._map_key_type = map_key_type
        #: The entries, by pairs of keys.
        self.state = KeyedState(
            name, value_type, default, layers, compound=True, ttl=ttl, memory=memory
        )
        self._by_key = _ByKey(self.state)

    def get(self, keys: pa.Array, map_keys: pa.Array) -> pa.Array:
        """The value of each entry, or the default."""
        return self.state.get(self._pairs(keys, map_keys))

    def contains(self, keys: pa.Array, map_keys: pa.Array) -> pa.Array:
        """Whether each entry exists."""
        return self.state.contains(self._pairs(keys, map_keys))

    def put(self, keys: pa.Array, map_keys: pa.Array, values: pa.Array) -> None:
        """Set the value of each entry. Pairs are unique.

        Raises ``OperatorStateError`` for a new entry whose key is not in the batch, for an entry
        with two values, for arrays of different lengths, and for values that cannot be stored.
        """
        pairs = self._pairs(keys, map_keys)
        check_lengths(f"The map state {self._name!r} was given", keys=keys, values=values)
        self.state.put(pairs, values)

    def remove(self, keys: pa.Array, map_keys: pa.Array) -> None:
        """Remove entries; those that do not exist are ignored."""
        self.state.delete(self._pairs(keys, map_keys))

    def clear(self, keys: pa.Array) -> None:
        """Remove all entries of keys; keys without any are ignored."""
        self.state.drop(self._by_key.places_of(keys))

    def items(self, keys: pa.Array | None = None) -> Iterator[pa.RecordBatch]:
        """The entries of keys, as the columns ``key``, ``map_key`` and ``value``.

        None: those of all keys of this subtask. They come in batches, in no order that means
        anything. The state must not be changed before the last batch.
        """
        batches = (
            self.state.items()
            if keys is None
            else self.state.items_at(self._by_key.places_of(keys))
        )
        for batch in batches:
            pairs = batch["key"]
            yield pa.record_batch(
                [pairs.field("key"), pairs.field("map_key"), batch["value"]],
                ["key", "map_key", "value"],
            )

    def __len__(self) -> int:
        """The number of entries in this subtask."""
        return len(self.state)

    @property
    def nbytes(self) -> int:
        """The bytes of the entries, in memory or on local disk, without the index."""
        return self.state.nbytes

    # ---- internals

    def _pairs(self, keys: pa.Array, map_keys: pa.Array) -> pa.Array:
        given = f"The map state {self._name!r} was given"
        check_lengths(given, keys=keys, map_keys=map_keys)
        map_keys = stored_as(self._map_key_type, map_keys, f"{given} map keys")
        return pa.StructArray.from_arrays([keys, map_keys], ["key", "map_key"])


class _ByKey:
    """Finds the entries of keys, at a cost by what is found and by what is new since the last call.

    So who only asks for pairs pays nothing, and the first call costs by the entries that exist.
    """

    def __init__(self, state: KeyedState) -> None:
        self._state = state
        self._restart()

    def places_of(self, keys: pa.Array) -> Places:
        """The places of all entries of keys, ascending."""
        if self._compactions != self._state.compactions:
            self._restart()
        self._take_new()
        numbers = ascending(self._keys.find(normal_keys(keys)))
        places = np.sort(self._runs.at(numbers[numbers != NOWHERE]))
        live: Places = places[self._state.are_live(places)]
        return live

    def _restart(self) -> None:
        """Start again, since places have new numbers."""
        self._compactions = self._state.compactions
        #: Numbers the keys of the stream.
        self._keys = KeyIndex(self._state.memory)
        #: The places of entries by the number of their key, also of removed entries, which may
        #: return.
        self._runs = Runs(lambda places: np.ones(len(places), bool), self._state.memory)
        #: How many places it has seen.
        self._known = 0

    def _take_new(self) -> None:
        for first in range(self._known, self._state.places, _STEP):
            places = np.arange(first, min(first + _STEP, self._state.places))
            keys = self._state.keys_at(places).field("key")
            new = keys.filter(pa.array(self._keys.find(keys) == NOWHERE))
            if len(new):
                self._keys.add(new.take(pa.array(first_rows(new))))
            self._runs.add(self._keys.find(keys), places)
            self._state.memory.trim()
        self._known = self._state.places
