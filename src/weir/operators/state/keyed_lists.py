"""Lists by key: keyed state whose keys are pairs of a stream's key and a position (MISSION B7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from weir.errors import OperatorStateError
from weir.operators.state.casts import check_lengths
from weir.operators.state.key_index import Places
from weir.operators.state.keyed import KeyedState, first_rows, normal_keys, nth_occurrence
from weir.operators.state.memory import StateMemory
from weir.operators.state.types import Layer


class KeyedListState:
    """One list per key, in one subtask; every element is stored, written and moved by itself.

    An append costs by its rows, and a ``get`` by the elements that it returns, not by those that
    exist.
    """

    def __init__(
        self,
        name: str,
        value_type: pa.DataType,
        elements: Sequence[Layer] = (),
        lengths: Sequence[Layer] = (),
        *,
        memory: StateMemory | None = None,
    ) -> None:
        """``elements`` and ``lengths`` are the layers of the restored state, oldest first.

        ``memory`` as for ``KeyedState``. Raises ``OperatorStateError`` if they cannot be read.
        """
        self._name = name
        self._value_type = value_type
        number = pa.types.is_integer(value_type) or pa.types.is_floating(value_type)
        # Numbers that are never null lie in memory as such.
        default = 0 if number else None
        #: The elements, by pairs of key and position.
        self.elements = KeyedState(
            name, value_type, default, elements, compound=True, memory=memory
        )
        #: How many elements the list of each key has.
        self.lengths = KeyedState(name, pa.int64(), 0, lengths, memory=memory)
        self._check_lengths()

    def append(self, keys: pa.Array, values: pa.Array) -> None:
        """Append each value to the list of its key, in the order of the rows; keys may repeat.

        Raises ``OperatorStateError`` for a key that is not in the batch, for another number of
        values than of keys, and for a value that is null or cannot be stored.
        """
        check_lengths(f"The list state {self._name!r} was given", keys=keys, values=values)
        if not len(keys):
            return
        if values.null_count:
            raise OperatorStateError(
                f"The list state {self._name!r} was given a null: leave out such rows."
            )
        keys = normal_keys(keys)
        positions = self._lengths(keys) + nth_occurrence(keys)
        self.elements.put(_pairs(keys, positions), values)
        last = len(keys) - 1 - first_rows(keys.take(pa.array(np.arange(len(keys))[::-1])))
        self.lengths.put(keys.take(pa.array(last)), pa.array(positions[last] + 1))

    def get(self, keys: pa.Array) -> pa.Array:
        """The list of each key, as an Arrow list array; an empty list for an unknown key."""
        lengths = self._lengths(keys)
        values = self.elements.get(_all_pairs(keys, lengths))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)

    def lengths_of(self, keys: pa.Array) -> pa.Array:
        """How many elements the list of each key has (int64)."""
        return self.lengths.get(keys)

    def clear(self, keys: pa.Array) -> None:
        """Forget the lists of keys; keys without a list are ignored."""
        keys = normal_keys(keys)
        keys = keys.take(pa.array(first_rows(keys)))
        self.elements.delete(_all_pairs(keys, self._lengths(keys)))
        self.lengths.delete(keys)

    def items(self) -> Iterator[pa.RecordBatch]:
        """All keys of this subtask with their lists, as the columns ``key`` and ``value``.

        They come in batches, in no order that means anything. The state must not be changed before
        the last batch.
        """
        for batch in self.lengths.items():
            yield pa.record_batch([batch["key"], self.get(batch["key"])], ["key", "value"])

    def __len__(self) -> int:
        """The number of keys with a list, in this subtask."""
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """The bytes of the elements and their keys, in memory or on disk, without the index."""
        return self.elements.nbytes + self.lengths.nbytes

    # ---- internals

    def _check_lengths(self) -> None:
        """Raise ``OperatorStateError`` if a checkpoint has other elements than its lengths say."""
        shortest, elements = 1, 0.0
        for batch in self.lengths.items():
            lengths = batch["value"].to_numpy()
            shortest = min(shortest, int(lengths.min()))
            elements += float(lengths.sum(dtype=float))
        if shortest < 1 or elements != len(self.elements):
            raise OperatorStateError(
                f"The list state {self._name!r} cannot be read back (it has {len(self.elements)}"
                " elements, and its lengths say otherwise): restore from another checkpoint or"
                " savepoint."
            )

    def _lengths(self, keys: pa.Array) -> Places:
        lengths: np.ndarray[Any, np.dtype[np.int64]] = self.lengths.get(keys).to_numpy()
        return lengths


def _pairs(keys: pa.Array, positions: Places) -> pa.Array:
    return pa.StructArray.from_arrays([keys, pa.array(positions)], ["key", "position"])


def _all_pairs(keys: pa.Array, lengths: Places) -> pa.Array:
    """The pairs of all elements, list by list."""
    rows = np.repeat(np.arange(len(keys)), lengths)
    starts = np.cumsum(lengths) - lengths
    return _pairs(keys.take(pa.array(rows)), np.arange(len(rows)) - starts[rows])
