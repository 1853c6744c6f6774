"""``RowLog``: Arrow values of any type, numbered in the order of their addition.

They lie in chunks. Small chunks are merged as more come; large chunks stay as they are, in files if
the state's memory is full.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from weir.operators.state.memory import StateMemory

#: The most bytes of a merged chunk.
_CHUNK_BYTES_MAX = 32 * 1024 * 1024


class RowLog:
    """Values of one Arrow type by number."""

    def __init__(self, memory: StateMemory, kind: pa.DataType) -> None:
        self._memory = memory
        self._kind = kind
        self._chunks: list[pa.Array] = []
        #: The first number of each chunk, and the next free number.
        self._starts = [0]

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def nbytes(self) -> int:
        """The bytes of the values."""
        return sum(chunk.nbytes for chunk in self._chunks)

    def append(self, rows: pa.Array) -> int:
        """Add values; return the number of the first.

        Raises ``OperatorStateError`` if local disk is needed and full.
        """
        first = len(self)
        end = first + len(rows)
        while self._chunks and self._takes(rows):
            rows = pa.concat_arrays([self._chunks.pop(), rows])
            self._starts.pop()
        self._chunks.append(self._memory.kept_rows(rows))
        self._starts.append(end)
        return first

    def take(self, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
        """The values with these numbers, in any order."""
        if len(self._chunks) <= 1:
            rows = self._chunks[0] if self._chunks else pa.array([], self._kind)
            return rows.take(pa.array(numbers))
        chunks = np.searchsorted(self._starts, numbers, side="right") - 1
        order = np.argsort(chunks, kind="stable")
        bounds = np.searchsorted(chunks, np.arange(len(self._starts)), sorter=order)
        parts = [
            chunk.take(pa.array(numbers[order[start:end]] - first))
            for chunk, first, start, end in zip(
                self._chunks, self._starts[:-1], bounds[:-1], bounds[1:], strict=True
            )
            if start < end
        ]
        found = pa.concat_arrays(parts) if parts else pa.array([], self._kind)
        if (order[1:] > order[:-1]).all():
            return found
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return found.take(pa.array(back))

    def _takes(self, rows: pa.Array) -> bool:
        """Whether the last chunk is merged with values."""
        last = self._chunks[-1]
        return len(last) < 2 * len(rows) and last.nbytes + rows.nbytes <= _CHUNK_BYTES_MAX
