"""The values of a keyed state by place: numbers in a column, others as Arrow values in a log."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from weir.operators.state.key_index import NOWHERE, Places
from weir.operators.state.memory import Column, StateMemory
from weir.operators.state.row_log import RowLog

#: A log is rewritten when it has this many values more than twice those that count.
_LEFT_OVER_MAX = 100_000


class ValueColumn(Protocol):
    """Values by place. A place that was never set, or was reset, has the default."""

    def grow(self, count: int) -> None:
        """Make room for places below this. Raises ``OperatorStateError`` if the disk is full."""
        ...

    def get(self, places: Places) -> pa.Array:
        """The values at places; the default for ``NOWHERE``."""
        ...

    def set(self, places: Places, values: pa.Array) -> None:
        """Set values of the column's type. Raises ``OperatorStateError`` if the disk is full."""
        ...

    def reset(self, places: Places) -> None:
        """Set the default."""
        ...

    @property
    def nbytes(self) -> int:
        """The bytes of the values."""
        ...


def value_column(memory: StateMemory, kind: pa.DataType, default: pa.Scalar) -> ValueColumn:
    """A column for the type of the values."""
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if plain and default.is_valid:
        return _Numbers(memory, kind, default)
    return _Rows(memory, kind, default)


class _Numbers:
    """Numbers that are never null."""

    def __init__(self, memory: StateMemory, kind: pa.DataType, default: pa.Scalar) -> None:
        self._kind = kind
        self._default = default.as_py()
        self._column = Column(memory, kind.to_pandas_dtype())
        self._count = 0

    def grow(self, count: int) -> None:
        self._column.grow(count)
        if self._default != 0:
            self._column.values[self._count : count] = self._default
        self._count = count

    def get(self, places: Places) -> pa.Array:
        unknown = places == NOWHERE
        if not unknown.any():
            return pa.array(self._column.values[places], self._kind)
        values = np.full(len(places), self._default, self._column.values.dtype)
        values[~unknown] = self._column.values[places[~unknown]]
        return pa.array(values, self._kind)

    def set(self, places: Places, values: pa.Array) -> None:
        self._column.values[places] = values.to_numpy(zero_copy_only=False)

    def reset(self, places: Places) -> None:
        self._column.values[places] = self._default

    @property
    def nbytes(self) -> int:
        return self._count * self._column.values.itemsize


class _Rows:
    """Values of any type: a log, and by place the number of the value that counts."""

    def __init__(self, memory: StateMemory, kind: pa.DataType, default: pa.Scalar) -> None:
        self._memory, self._kind, self._default = memory, kind, default
        self._numbers = Column(memory, np.int64)
        #: Places below it have room, and values may count.
        self._count = 0
        self._log = self._new_log()

    def grow(self, count: int) -> None:
        self._numbers.grow(count)
        self._count = count

    def get(self, places: Places) -> pa.Array:
        numbers: Any = 0
        if self._count:
            numbers = np.where(places == NOWHERE, 0, self._numbers.values[places])
        return self._log.take(np.broadcast_to(numbers, len(places)).astype(np.int64))

    def set(self, places: Places, values: pa.Array) -> None:
        first = self._log.append(values)
        self._numbers.values[places] = first + np.arange(len(places))
        if len(self._log) > 2 * self._count + _LEFT_OVER_MAX:
            self._rewrite()

    def reset(self, places: Places) -> None:
        self._numbers.values[places] = 0

    @property
    def nbytes(self) -> int:
        return self._log.nbytes

    def _new_log(self) -> RowLog:
        log = RowLog(self._memory, self._kind)
        # Its number is 0, which a new column has everywhere.
        log.append(pa.array([self._default.as_py()], self._kind))
        return log

    def _rewrite(self) -> None:
        """Leave out the values that do not count any more."""
        log = self._new_log()
        for start in range(0, self._count, _LEFT_OVER_MAX):
            numbers = self._numbers.values[start : min(start + _LEFT_OVER_MAX, self._count)]
            ours = np.flatnonzero(numbers)
            first = log.append(self._log.take(numbers[ours]))
            numbers[ours] = first + np.arange(len(ours))
            self._memory.trim()
        self._log = log
