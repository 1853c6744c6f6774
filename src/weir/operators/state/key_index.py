"""``KeyIndex``: finds keys by whole Arrow arrays, and numbers them in the order of their addition.

It is a hash table in NumPy arrays. Each key has a 64-bit code. A slot of the table holds the number
of a key, which is its *place*, and a key whose slot is taken goes to the next free slot. All
keys of a call look at their slots together, then those that have not found theirs look at the next
slots, and so on. A third of the slots is free, so a key looks at few, whatever exists.

Numbers, dates and times are their own codes, and are not kept twice. Other keys have a hash; what
is found by it is compared, and keys with the same hash are just neighbours. Null has no slot.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import OperatorStateError
from weir.operators.state.memory import Column, StateMemory
from weir.operators.state.row_log import RowLog

Places = np.ndarray[Any, np.dtype[np.int64]]
Hashes = np.ndarray[Any, np.dtype[np.uint64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

#: The place of a key that is unknown.
NOWHERE = -1
#: How many keys are put into a new table at a time.
_STEP = 1 << 18
#: Values of more bytes are hashed one by one.
_WORDWISE_BYTES_MAX = 256
#: Odd, and secret: an attacker who knew it could choose keys that all meet in one slot.
_SECRET = np.uint64(secrets.randbits(64) | 1)
#: The code of a null in a struct.
_NULL = np.uint64(0)
_FACTOR = np.uint64(0x9E37_79B9_7F4A_7C15)


def ascending(*parts: Places) -> Places:
    """All places, each once. NumPy's ``unique`` hashes numbers, and takes many times as long."""
    places = np.sort(np.concatenate(parts))
    first = np.ones(len(places), bool)
    np.not_equal(places[1:], places[:-1], out=first[1:])
    found: Places = places[first]
    return found


class KeyIndex:
    """The keys of one state in one subtask, numbered from 0 in the order of their addition."""

    def __init__(self, memory: StateMemory | None = None) -> None:
        """``memory``: for its arrays; None: memory without a bound."""
        self._memory = memory or StateMemory()
        self._kind: pa.DataType | None = None
        #: The code of each place.
        self._codes = Column(self._memory, np.int64)
        #: The keys, unless they are their codes.
        self._keys: RowLog | None = None
        #: By slot, a place + 1; 0: free. A power of two.
        self._slots = np.zeros(0, np.int32)
        self._count = 0
        self._null = NOWHERE

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """The bytes of the keys themselves."""
        return 8 * self._count if self._keys is None else self._keys.nbytes

    def find(self, keys: pa.Array) -> Places:
        """The place of each key; ``NOWHERE`` for an unknown key.

        Raises ``OperatorStateError`` for keys of another type than that of the known keys.
        """
        places: Places = np.full(len(keys), NOWHERE, np.int64)
        if not self._count or not len(keys):
            return places
        keys = self._of_kind(keys)
        codes = _codes(keys)
        rest = np.arange(len(keys))
        if keys.null_count:
            nulls = keys.is_null().to_numpy(zero_copy_only=False)
            places[nulls] = self._null
            rest = np.flatnonzero(~nulls)
        slots = self._first_slots(codes[rest])
        while len(rest):
            at = self._slots[slots].astype(np.int64) - 1
            known = at >= 0
            rest, slots, at = rest[known], slots[known], at[known]
            same = self._codes.values[at] == codes[rest]
            if self._keys is not None and same.any():
                found = self._keys.take(at[same])
                same[same] = _equal(found, keys.take(pa.array(rest[same])))
            places[rest[same]] = at[same]
            rest, slots = rest[~same], self._next_slots(slots[~same])
        return places

    def add(self, keys: pa.Array) -> Places:
        """Number new keys, which are unknown and unique; return their places.

        Raises ``OperatorStateError`` like ``find``, and if local disk is needed and full.
        """
        if self._kind is None:
            self._kind = keys.type
            self._keys = None if _is_exact(keys.type) else RowLog(self._memory, keys.type)
        keys = self._of_kind(keys)
        first = self._count
        places: Places = np.arange(first, first + len(keys), dtype=np.int64)
        codes = _codes(keys)
        self._codes.grow(first + len(keys))
        self._codes.values[first : first + len(keys)] = codes
        if self._keys is not None:
            self._keys.append(keys)
        self._count += len(keys)
        slotted = places
        if keys.null_count:
            nulls = keys.is_null().to_numpy(zero_copy_only=False)
            self._null = first + int(np.flatnonzero(nulls)[0])
            codes, slotted = codes[~nulls], places[~nulls]
        if 3 * self._count > 2 * len(self._slots):
            self._enlarge()
        else:
            self._insert(codes, slotted)
        return places

    def keys_at(self, places: Places) -> pa.Array:
        """The keys at places."""
        if self._keys is not None:
            return self._keys.take(places)
        nulls = places == self._null
        return _decoded(
            self._codes.values[places], self._kind or pa.null(), nulls if nulls.any() else None
        )

    # ---- internals

    def _of_kind(self, keys: pa.Array) -> pa.Array:
        if keys.type == self._kind:
            return keys
        try:
            return keys.cast(self._kind)
        except pa.ArrowException as error:
            raise OperatorStateError(
                f"Keyed state has keys of type {self._kind} and was given some of type {keys.type}:"
                " key the stream as before, or give the state another name."
            ) from error

    def _first_slots(self, codes: Places) -> Places:
        bits = np.uint64(64 - (len(self._slots).bit_length() - 1))
        hashes = codes.view(np.uint64) * _SECRET
        hashes = (hashes ^ (hashes >> np.uint64(32))) * _FACTOR
        slots: Places = (hashes >> bits).astype(np.int64)
        return slots

    def _next_slots(self, slots: Places) -> Places:
        return (slots + 1) & (len(self._slots) - 1)

    def _insert(self, codes: Places, places: Places) -> None:
        slots, numbers = self._first_slots(codes), places.astype(np.int32) + 1
        while len(numbers):
            free = self._slots[slots] == 0
            # Of the keys that meet in a slot, one stays there.
            self._slots[slots[free]] = numbers[free]
            lost = self._slots[slots] != numbers
            slots, numbers = self._next_slots(slots[lost]), numbers[lost]

    def _enlarge(self) -> None:
        size = max(16, 1 << (2 * self._count - 1).bit_length())
        self._slots = np.zeros(0, np.int32)  # freed before the new array is allocated
        self._slots = self._memory.zeros(size, np.int32)
        for start in range(0, self._count, _STEP):
            places: Places = np.arange(start, min(start + _STEP, self._count), dtype=np.int64)
            places = places[places != self._null]
            self._insert(self._codes.values[places], places)
            self._memory.trim()


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
        hashes: Hashes = np.zeros(len(keys), np.uint64)
        for field in keys.flatten():
            words = _codes(field).view(np.uint64)
            if field.null_count:
                # What lies below a null may be anything.
                words = np.where(field.is_null().to_numpy(zero_copy_only=False), _NULL, words)
            hashes = _mixed(hashes, words)
        codes = hashes.view(np.int64)
    else:
        codes = _hashes(keys).view(np.int64)
    return codes


def _decoded(codes: Places, kind: pa.DataType, nulls: Mask | None) -> pa.Array:
    """The keys with these codes."""
    if pa.types.is_floating(kind):
        return pa.array(codes.view(np.float64), mask=nulls).cast(kind)
    if pa.types.is_boolean(kind):
        return pa.array(codes.astype(bool), mask=nulls)
    if pa.types.is_integer(kind):
        return pa.array(codes.astype(kind.to_pandas_dtype()), kind, mask=nulls)
    if kind.bit_width == 32:
        return pa.array(codes.astype(np.int32), mask=nulls).view(kind)
    return pa.array(codes, mask=nulls).view(kind)


def _mixed(hashes: Hashes, words: Hashes) -> Hashes:
    """Hashes of what was hashed so far and one more word each."""
    mixed = ((hashes ^ words) + _FACTOR) * _SECRET
    return mixed ^ (mixed >> np.uint64(29))


def _hashes(keys: pa.Array) -> Hashes:
    """A hash per key; that of null means nothing."""
    kind = keys.type
    if not len(keys):
        return np.zeros(0, np.uint64)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if is_text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        keys = keys.cast(pa.large_binary())
    elif pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal128(kind):
        keys = keys.view(pa.binary(16)) if pa.types.is_decimal128(kind) else keys
        keys = keys.cast(pa.binary()).cast(pa.large_binary())
    else:
        return _hashed_one_by_one([repr(key.as_py()) for key in keys])
    _, offsets, data = keys.buffers()
    ends = np.frombuffer(offsets, np.int64)[keys.offset : keys.offset + len(keys) + 1]
    return _hashed_words(ends[:-1], np.diff(ends), data)


def _hashed_words(starts: Places, lengths: Places, data: pa.Buffer | None) -> Hashes:
    """A hash of each run of bytes, all eight bytes of all of them at a time."""
    hashes: Hashes = lengths.astype(np.uint64) * _FACTOR
    if data is None or not len(lengths):
        return hashes
    long = np.flatnonzero(lengths > _WORDWISE_BYTES_MAX)
    rest = np.flatnonzero((lengths > 0) & (lengths <= _WORDWISE_BYTES_MAX))
    last = int((starts + lengths)[rest].max()) if len(rest) else 0
    first = int(starts[rest].min()) if len(rest) else 0
    padded = np.zeros(last - first + 8, np.uint8)
    padded[: last - first] = np.frombuffer(data, np.uint8)[first:last]
    # A word at every byte.
    words = np.ndarray((last - first + 1,), "<u8", padded, strides=(1,))
    at, left = starts[rest] - first, lengths[rest]
    while len(rest):
        beyond = (8 - np.minimum(left, 8)).astype(np.uint64) * np.uint64(8)
        hashes[rest] = _mixed(hashes[rest], (words[at] << beyond) >> beyond)
        more = left > 8
        rest, at, left = rest[more], at[more] + 8, left[more] - 8
    if len(long):
        raw = memoryview(data)
        ends = starts + lengths
        hashes[long] = _hashed_one_by_one([bytes(raw[starts[row] : ends[row]]) for row in long])
    return hashes


def _hashed_one_by_one(values: list[Any]) -> Hashes:
    hashes: Hashes = pd.util.hash_array(np.array([*values, None], object), categorize=False)[:-1]
    return hashes


def _equal(left: pa.Array, right: pa.Array) -> Mask:
    """Whether the keys of two arrays are equal, row by row; null equals null."""
    if pa.types.is_struct(left.type):
        nulls = pc.equal(left.is_null(), right.is_null())
        same: Mask = nulls.to_numpy(zero_copy_only=False).copy()
        for field, of_right in zip(left.flatten(), right.flatten(), strict=True):
            same &= _equal(field, of_right)
        return same
    equal = pc.equal(left, right)
    both: Mask = pc.fill_null(equal, False).to_numpy(zero_copy_only=False)
    if equal.null_count:
        both |= pc.and_(left.is_null(), right.is_null()).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(left.type):
        both |= pc.and_(
            pc.fill_null(pc.is_nan(left), False), pc.fill_null(pc.is_nan(right), False)
        ).to_numpy(zero_copy_only=False)
    return both
