"""``KeyIndex``: numbers the keys of a keyed state, and finds them by whole arrays.

A hash table over all keys cannot be extended by pandas or Arrow, only built. So the keys lie in
levels, as in a log-structured merge tree: new keys make a level, and a level that is not at least
twice as large as the next one is merged with it. A key is moved into a larger level a logarithmic
number of times, and a lookup asks a logarithmic number of levels. Neither costs by the keys that
exist.

Levels index 64-bit codes. Numbers, dates and times are their own codes. Other keys have a hash, and
what is found by it is compared; a key whose hash another key has already is kept in a dictionary.
Null is in no level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

Places = np.ndarray[Any, np.dtype[np.int64]]

#: The place of a key that is unknown.
NOWHERE = -1


@dataclass
class _Level:
    """Keys with consecutive places."""

    first: int
    keys: pa.Array
    index: pd.Index[Any]
    #: For each code of the index, which of the keys it belongs to; None: they correspond.
    of: Places | None


class KeyIndex:
    """The keys of one state in one subtask, numbered from 0 in the order of their addition."""

    def __init__(self) -> None:
        self._levels: list[_Level] = []
        self._count = 0
        #: Keys whose code another key had before.
        self._collided: dict[Any, int] = {}
        self._null = NOWHERE

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """The bytes of the keys themselves."""
        return sum(level.keys.nbytes for level in self._levels)

    def find(self, keys: pa.Array) -> Places:
        """The place of each key; ``NOWHERE`` for an unknown one."""
        places: Places = np.full(len(keys), NOWHERE, np.int64)
        if not self._count or not len(keys):
            return places
        codes, exact = _codes(keys), _is_exact(keys.type)
        nulls = keys.is_null().to_numpy(zero_copy_only=False)
        places[nulls] = self._null
        rest = np.flatnonzero(~nulls)
        for level in self._levels:
            found = level.index.get_indexer(pd.Index(codes[rest]))
            hit = found >= 0
            at = found[hit] if level.of is None else level.of[found[hit]]
            places[rest[hit]] = level.first + at
            if not exact:
                same = _equal(level.keys.take(pa.array(at)), keys.take(pa.array(rest[hit])))
                for row in rest[hit][~same]:
                    places[row] = self._collided.get(_hashable(keys[int(row)]), NOWHERE)
            rest = rest[~hit]
        return places

    def add(self, keys: pa.Array) -> Places:
        """Number new keys, which are unknown and unique; return their places."""
        first = self._count
        self._count += len(keys)
        self._push(_Level(first, keys, *self._indexed(keys, first)))
        return np.arange(first, self._count, dtype=np.int64)

    def keys_at(self, places: Places) -> pa.Array:
        """The keys at ascending places."""
        parts = []
        for level in self._levels:
            start, end = np.searchsorted(places, (level.first, level.first + len(level.keys)))
            if start < end:
                parts.append(level.keys.take(pa.array(places[start:end] - level.first)))
        return pa.concat_arrays(parts) if parts else self._levels[0].keys.slice(0, 0)

    def _indexed(self, keys: pa.Array, first: int) -> tuple[pd.Index[Any], Places | None]:
        """An index of the codes that no other key has; the other keys go to the dictionary."""
        codes = _codes(keys)
        left_out = keys.is_null().to_numpy(zero_copy_only=False)
        if left_out.any():
            self._null = first + int(np.flatnonzero(left_out)[0])
        if not _is_exact(keys.type):
            taken = pd.Index(codes).duplicated()
            for level in self._levels:
                taken |= level.index.get_indexer(pd.Index(codes)) >= 0
            taken &= ~left_out
            for row in np.flatnonzero(taken):
                self._collided[_hashable(keys[int(row)])] = first + int(row)
            left_out = left_out | taken
        if not left_out.any():
            return pd.Index(codes), None
        return pd.Index(codes[~left_out]), np.flatnonzero(~left_out).astype(np.int64)

    def _push(self, level: _Level) -> None:
        while self._levels and len(self._levels[-1].keys) < 2 * len(level.keys):
            level = _merged(self._levels.pop(), level)
        self._levels.append(level)


def _merged(one: _Level, other: _Level) -> _Level:
    of: Places | None = None
    if one.of is not None or other.of is not None:
        of = np.concatenate([_positions(one), _positions(other) + len(one.keys)])
    return _Level(
        first=one.first,
        keys=pa.concat_arrays([one.keys, other.keys]),
        index=pd.Index(np.concatenate([one.index.to_numpy(), other.index.to_numpy()])),
        of=of,
    )


def _positions(level: _Level) -> Places:
    return np.arange(len(level.keys), dtype=np.int64) if level.of is None else level.of


def _is_exact(kind: pa.DataType) -> bool:
    """Whether keys of this type with the same code are equal."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date(kind)
        or pa.types.is_time(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
    )


def _codes(keys: pa.Array) -> Places:
    """A 64-bit code per key; that of null means nothing."""
    kind = keys.type
    codes: Places
    if pa.types.is_floating(kind):
        codes = keys.cast(pa.float64()).fill_null(0.0).to_numpy().view(np.int64)
    elif pa.types.is_uint64(kind):
        codes = keys.fill_null(0).to_numpy().view(np.int64)
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        codes = keys.cast(pa.int32()).fill_null(0).to_numpy().astype(np.int64)
    elif _is_exact(kind):
        codes = keys.cast(pa.int64()).fill_null(0).to_numpy()
    elif pa.types.is_struct(kind):
        hashes: np.ndarray[Any, Any] = np.zeros(len(keys), np.uint64)
        for field in keys.flatten():
            hashes = (hashes ^ (hashes >> np.uint64(29))) * np.uint64(0x9E37_79B9_7F4A_7C15)
            hashes = hashes + _codes(field).view(np.uint64)
        codes = hashes.view(np.int64)
    else:
        values = np.array([_hashable(key) for key in keys], object)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            values = keys.fill_null("").to_numpy(zero_copy_only=False)
        codes = pd.util.hash_array(values, categorize=False).view(np.int64)
    return codes


def _hashable(key: pa.Scalar) -> Any:
    """A key for a dictionary: its text, if Python cannot hash it."""
    value = key.as_py()
    return value if isinstance(value, str | bytes) else repr(value)


def _equal(one: pa.Array, other: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether the keys of two arrays are equal, row by row; null equals null."""
    if pa.types.is_struct(one.type):
        same = np.ones(len(one), bool)
        for field, of_other in zip(one.flatten(), other.flatten(), strict=True):
            same &= _equal(field, of_other)
        return same
    equal = pc.fill_null(pc.equal(one, other), False).to_numpy(zero_copy_only=False)
    both_null = pc.and_(one.is_null(), other.is_null()).to_numpy(zero_copy_only=False)
    both: np.ndarray[Any, np.dtype[np.bool_]] = equal | both_null
    if pa.types.is_floating(one.type):
        both |= pc.and_(
            pc.fill_null(pc.is_nan(one), False), pc.fill_null(pc.is_nan(other), False)
        ).to_numpy(zero_copy_only=False)
    return both
