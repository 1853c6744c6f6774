"""Keyed state of Python operators (MISSION B7): values by key.

``KeyedState`` holds one value per key, and reads and writes whole Arrow arrays of keys at once. A
Python call per key would be too slow. Instead, ``KeyIndex`` looks up keys, and NumPy gathers
and scatters values, at a cost by the batch and not by the keys that exist. As in Spark, ``0.0`` and
``-0.0`` are the same key, and so are all NaN.

It is handed over in *layers*, which cost by what changed as well. A layer has the rows that changed
in a batch; for each key the latest layer that has it counts. A layer that is not at least twice as
large as the next layer is written again together with it, so there are few layers, and a row is
written a logarithmic number of times. A deleted key has a row that is not live, except in the first
layer, which leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from io import IOBase
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import OperatorStateError
from weir.operators.state.casts import check_lengths, stored_as
from weir.operators.state.expiry import UNKNOWN, Expiry, TimeToLive
from weir.operators.state.key_index import NOWHERE, KeyIndex, Mask, Places, ascending
from weir.operators.state.memory import Column, StateMemory
from weir.operators.state.types import Layer, TimeDomain, TtlUpdate
from weir.operators.state.value_column import value_column

#: How many keys ``items`` returns at a time, and how many rows of a layer lie in one Arrow batch.
_ITEMS = 100_000
#: How many places are united at a time.
_UNITED = 1 << 20
#: The columns of a layer with times of use, which have one name for each domain.
_TIMES = {f"used_{domain.value}_ms" for domain in TimeDomain}


class _Before(NamedTuple):
    """What places had before a change."""

    places: Places
    live: Mask
    #: Of those with a value.
    values: pa.Array
    #: When they were used, if the state expires.
    used_ms: Places | None


class KeyedState:
    """The keyed values of one state name in one subtask.

    A key that was deleted keeps its place, without a value, until more than half of the places are
    such, and there are more than 100,000.

    With ``compound``, the keys are structs, and their field ``key`` is the key of the stream.
    """

    def __init__(
        self,
        name: str,
        value_type: pa.DataType,
        default: Any,
        layers: Sequence[Layer] = (),
        *,
        compound: bool = False,
        ttl: TimeToLive | None = None,
        memory: StateMemory | None = None,
    ) -> None:
        """``layers``: the restored state, oldest first. ``ttl``: when it expires; None: never.

        ``memory``: for its arrays; None: memory without a bound. Raises ``OperatorStateError`` if
        the layers cannot be read, or if local disk is needed and full.
        """
        self._name = name
        self._compound = compound
        #: Its memory, also for what finds its places.
        self.memory = memory or StateMemory()
        #: How often places got new numbers.
        self.compactions = 0
        self._value_type = value_type
        self._default = pa.scalar(default, value_type)
        #: The places that changed since the last layer was written, by call.
        self._touched: list[Places] = []
        #: Rows of the first layer (None: none is written), and the places in each later layer.
        self._first_rows: int | None = None
        self._layers: list[Places] = []
        #: The keys of the current batch, and their groups.
        self._current: tuple[pa.Array, np.ndarray[Any, Any]] | None = None
        self._expiry = None if ttl is None else Expiry(ttl, self.memory)
        #: What places had before each change since ``mark``; None: nobody will roll back.
        self._before: list[_Before] | None = None
        self._forget()
        for layer in layers:
            self._load(layer)

    def get(self, keys: pa.Array) -> pa.Array:
        """The value of each key, or the default."""
        places = self._index.find(normal_keys(keys))
        if self._expiry is not None:
            self._read(places[self._has(places)])
        # A place without a value has the default.
        return self._values.get(places)

    def contains(self, keys: pa.Array) -> pa.Array:
        """Whether each key has a value of its own."""
        places = self._index.find(normal_keys(keys))
        known = self._has(places)
        if self._expiry is not None:
            self._read(places[known])
        return pa.array(known)

    def put(self, keys: pa.Array, values: pa.Array) -> None:
        """Set the value of each key. Keys are unique.

        A key without a value must be one of the records being processed, since any other may belong
        to another subtask. Raises ``OperatorStateError`` for such a key, for a key with two values,
        for another number of values than of keys, for values that cannot be stored, and if local
        disk is needed and full.
        """
        given = f"The keyed state {self._name!r} was given"
        check_lengths(given, keys=keys, values=values)
        if not len(keys):
            return
        self._check_nulls(values)
        values = stored_as(self._value_type, values, f"{given} values")
        keys = normal_keys(keys)
        places = self._index.find(keys)
        new = places == NOWHERE
        if new.any():
            places[new] = self._add(keys.filter(pa.array(new)))
        touched = ascending(places)
        if len(touched) != len(places):
            raise self._two_values(keys)
        self._remember(places)
        self._values.set(places, values)
        self._make_live(places)
        self._touched.append(touched)
        if self._expiry is not None:
            self._expiry.use(places)

    def delete(self, keys: pa.Array) -> None:
        """Forget the values of keys; keys without a value are ignored."""
        places = self._index.find(normal_keys(keys))
        self.drop(ascending(places[self._has(places)]))

    def items(self) -> Iterator[pa.RecordBatch]:
        """All keys of this subtask with their values, as the columns ``key`` and ``value``.

        They come in batches, in no order that means anything. The state must not be changed before
        the last batch.
        """
        for places in self.live_places():
            yield self._items(places)
            self.memory.trim()

    def __len__(self) -> int:
        """The number of keys with a value, in this subtask."""
        return self._count

    @property
    def nbytes(self) -> int:
        """The bytes of the keys and values, in memory or on local disk, without the index."""
        return self._index.nbytes + self._values.nbytes

    # ---- for the runtime

    def begin_batch(self, keys: pa.Array, groups: pa.Array) -> None:
        """A batch starts, with these keys and their key groups."""
        self._current = (normal_keys(keys), groups.to_numpy(zero_copy_only=False).astype(np.uint8))

    def end_batch(self) -> None:
        """All records have been processed."""
        self._current = None

    def set_time(self, domain: TimeDomain, now_ms: int) -> None:
        """Uses happen at this time from now on, if the state expires by the domain."""
        expiry = self._expiry
        if expiry is None or expiry.ttl.domain is not domain:
            return
        is_first, expiry.now_ms = expiry.now_ms is None, now_ms
        if is_first:
            # What came before the first watermark, and what was saved without a time to live.
            for places in self.live_places():
                unknown = places[expiry.used_ms(places) == UNKNOWN]
                if len(unknown):
                    self._touched.append(expiry.use(unknown))

    def expire(self, domain: TimeDomain) -> None:
        """Forget the entries whose time has come, if the state expires by the domain."""
        if self._expiry is not None and self._expiry.ttl.domain is domain:
            places = self._expiry.take_expired()
            places = places[self._live.values[places]]
            self.drop(places)

    def drop(self, places: Places) -> None:
        """Forget the values at places, each of which has a value."""
        if not len(places):
            return
        self._remember(places)
        self._live.values[places] = False
        self._values.reset(places)
        self._count -= len(places)
        self._touched.append(places)
        # Remembered places keep their numbers.
        wasteful = len(self._index) > _ITEMS and 2 * self._count < len(self._index)
        if wasteful and self._before is None:
            self._compact()

    def mark(self) -> None:
        """What changes from now on may be rolled back, until ``settle``."""
        self._before = []

    def settle(self) -> None:
        """What has changed stays."""
        self._before = None

    def roll_back(self) -> Places:
        """Undo what has changed since ``mark``; return the places that have a value again."""
        before, self._before = self._before or [], None
        revived = [np.empty(0, np.int64)]
        for change in reversed(before):
            revived.append(change.places[change.live & ~self._live.values[change.places]])
            self._count -= int(np.count_nonzero(self._live.values[change.places]))
            self._count += int(np.count_nonzero(change.live))
            self._live.values[change.places] = change.live
            self._values.reset(change.places[~change.live])
            self._values.set(change.places[change.live], change.values)
            if self._expiry is not None and change.used_ms is not None:
                self._expiry.set(change.places, change.used_ms)
            self._touched.append(ascending(change.places))
        places = ascending(*revived)
        return places[self._live.values[places]]

    def live_places(self) -> Iterator[Places]:
        """The places of all keys with a value, ascending, in parts."""
        return _live_places(self._live, len(self._index))

    def items_at(self, places: Places) -> Iterator[pa.RecordBatch]:
        """The keys and values at places, as ``items`` returns them."""
        for start in range(0, len(places), _ITEMS):
            yield self._items(places[start : start + _ITEMS])

    @property
    def places(self) -> int:
        """How many places there are, also without a value. New keys get the next places."""
        return len(self._index)

    def are_live(self, places: Places) -> Mask:
        """Whether the key at each place has a value."""
        live: Mask = self._live.values[places]
        return live

    def places_of(self, keys: pa.Array) -> Places:
        """The place of each key; ``NOWHERE`` for a key that never had a value."""
        return self._index.find(normal_keys(keys))

    def keys_at(self, places: Places) -> pa.Array:
        """The keys at places."""
        return self._index.keys_at(places)

    def groups_of(self, keys: pa.Array) -> pa.Array:
        """The key group of each key, all of which have a value."""
        return pa.array(self._groups.values[self.places_of(keys)].astype(np.int32))

    def next_layer(self, sink: IOBase) -> tuple[int, bool] | None:
        """Write what has changed since the last call; return None if nothing has.

        Otherwise return how many of the layers so far stay, and whether a layer follows them: not
        if the state is empty now.
        """
        if not self._touched:
            return None
        places = ascending(*self._touched)
        self._touched = []
        if not len(places) and self._first_rows is not None:
            return None
        while self._layers and len(self._layers[-1]) < 2 * len(places):
            places = self._union(self._layers.pop(), places)
        first = self._first_rows
        if first is not None and (self._layers or 2 * len(places) <= first <= 2 * self._count):
            self._layers.append(self.memory.kept(places))
            parts = (places[at : at + _ITEMS] for at in range(0, len(places), _ITEMS))
            self._write(parts, sink)
            return len(self._layers), True
        self._first_rows = self._count or None
        if self._count:
            self._write(self.live_places(), sink)
        return 0, bool(self._count)

    # ---- internals

    def _forget(self) -> None:
        self._index = KeyIndex(self.memory)
        #: By place.
        self._values = value_column(self.memory, self._value_type, self._default)
        self._groups = Column(self.memory, np.uint8)
        self._live = Column(self.memory, np.bool_)
        #: Places with a value.
        self._count = 0

    def _remember(self, places: Places) -> None:
        """Keep what these places have, if it may be rolled back."""
        if self._before is not None:
            live = self._live.values[places].copy()
            used_ms = None if self._expiry is None else self._expiry.used_ms(places).copy()
            self._before.append(_Before(places, live, self._values.get(places[live]), used_ms))

    def _read(self, places: Places) -> None:
        """Entries at these places, possibly several times, are read."""
        expiry = self._expiry
        if expiry is not None and expiry.ttl.update is TtlUpdate.ON_READ_AND_WRITE:
            self._remember(ascending(places))
            changed = expiry.use(ascending(places))
            if len(changed):
                self._touched.append(changed)

    def _has(self, places: Places) -> Mask:
        """Whether there is a value at each place."""
        known: Mask = places != NOWHERE
        known[known] = self._live.values[places[known]]
        return known

    def _make_live(self, places: Places) -> None:
        dead = places[~self._live.values[places]]
        self._live.values[dead] = True
        self._count += len(dead)

    def _items(self, places: Places) -> pa.RecordBatch:
        return pa.record_batch(
            [self._index.keys_at(places), self._values.get(places)], ["key", "value"]
        )

    def _union(self, left: Places, right: Places) -> Places:
        """The places that are in at least one of two ascending arrays."""
        if len(left) + len(right) <= _UNITED:
            return ascending(left, right)
        union = self.memory.zeros(len(left) + len(right), np.int64)
        end = 0
        for start in range(0, len(self._index), _UNITED):
            bounds = (start, start + _UNITED)
            parts = [whole[slice(*np.searchsorted(whole, bounds))] for whole in (left, right)]
            part = ascending(*parts)
            union[end : end + len(part)] = part
            end += len(part)
            self.memory.trim()
        return union[:end]

    def _write(self, parts: Iterable[Places], sink: IOBase) -> None:
        """Write a layer with the rows at places."""
        writer = None
        for places in parts:
            rows = self._rows(places)
            if writer is None:
                writer = pa.ipc.new_stream(sink, rows.schema)
            writer.write_batch(rows)
            self.memory.trim()
        if writer is not None:
            writer.close()

    def _rows(self, places: Places) -> pa.RecordBatch:
        """The rows of a layer."""
        columns = {
            "key": self._index.keys_at(places),
            "value": self._values.get(places),
            "group": pa.array(self._groups.values[places].astype(np.int16)),
            "live": pa.array(self._live.values[places]),
        }
        if self._expiry is not None:
            used = self._expiry.used_ms(places)
            columns[self._expiry.ttl.column] = pa.array(used, pa.int64(), mask=used == UNKNOWN)
        return pa.RecordBatch.from_pydict(columns)

    def _add(self, keys: pa.Array) -> Places:
        """Append new keys with default values; return their places."""
        if self._current is None:
            raise OperatorStateError(
                f"The keyed state {self._name!r} cannot take a new key here: give the step key_by,"
                " and put new keys in process_batch only, since keys belong to the records of a"
                " batch."
            )
        batch_keys, batch_groups = self._current
        at = _rows_in(keys.field("key") if self._compound else keys, batch_keys)
        if (at == NOWHERE).any():
            raise OperatorStateError(
                f"The keyed state {self._name!r} was given a key that is not in the batch: put"
                " values only for keys of the batch, since others may belong to another subtask."
            )
        if len(first_rows(keys)) != len(keys):
            raise self._two_values(keys)
        return self._append(keys, batch_groups[at])

    def _append(self, keys: pa.Array, groups: np.ndarray[Any, Any]) -> Places:
        places = self._index.add(keys)
        count = len(self._index)
        for column in (self._groups, self._live, self._values):
            column.grow(count)
        if self._expiry is not None:
            self._expiry.grow(count)
        self._groups.values[places] = groups
        return places

    def _compact(self) -> None:
        """Leave out the places without a value."""
        parts = self.live_places()
        index, values, groups = self._index, self._values, self._groups
        used_ms = None if self._expiry is None else self._expiry.restart()
        self._forget()
        for old in parts:
            places = self._append(index.keys_at(old), groups.values[old])
            self._values.set(places, values.get(old))
            self._make_live(places)
            if self._expiry is not None and used_ms is not None:
                self._expiry.set(places, used_ms.values[old])
            self.memory.trim()
        self.compactions += 1
        # Its places are new, so it is written as a whole.
        self._first_rows, self._layers, self._touched = None, [], [np.empty(0, np.int64)]

    def _check_nulls(self, values: pa.Array) -> None:
        if values.null_count and self._default.is_valid:
            raise OperatorStateError(
                f"The keyed state {self._name!r} was given a null, but has the default"
                f" {self._default}: give it default=None."
            )

    def _as_requested(self, values: pa.Array) -> pa.Array:
        """Restored values of another type, if it can represent each of them."""
        kind = self._value_type
        try:
            converted = values.cast(kind)
            # Some casts lose digits in silence.
            if not _equal_values(converted.cast(values.type), values):
                raise pa.ArrowInvalid("some values would change")
        except pa.ArrowException as error:
            raise OperatorStateError(
                f"The keyed state {self._name!r} was saved with values of type {values.type} and is"
                f" now requested with {kind}, which cannot hold them all ({error}): request it as"
                " it was, or give the new state another name."
            ) from error
        return converted

    def _two_values(self, keys: pa.Array) -> OperatorStateError:
        again = np.setdiff1d(np.arange(len(keys)), first_rows(keys))
        twice = keys[int(again[0])]
        return OperatorStateError(
            f"The keyed state {self._name!r} was given two values for one key, {twice}: put each"
            " key once."
        )

    def _load(self, layer: Layer) -> None:
        loaded, count = Column(self.memory, np.int64), 0
        for rows in layer_rows(layer, self._name):
            places = self._load_rows(rows)
            if self._first_rows is not None:
                loaded.grow(count + len(places))
                loaded.values[count : count + len(places)] = places
            count += len(places)
            self.memory.trim()
        if self._first_rows is None:
            self._first_rows = count
        else:
            loaded.values[:count].sort()
            self._layers.append(loaded.values[:count])

    def _load_rows(self, rows: pa.RecordBatch) -> Places:
        keys = normal_keys(rows["key"])
        places = self._index.find(keys)
        new = places == NOWHERE
        if new.any():
            groups = rows["group"].to_numpy()
            places[new] = self._append(keys.filter(pa.array(new)), groups[new])
        live = rows["live"].to_numpy(zero_copy_only=False)
        self._make_live(places[live])
        dead = places[~live]
        self._count -= int(np.count_nonzero(self._live.values[dead]))
        self._live.values[dead] = False
        self._values.reset(dead)
        values = rows["value"].filter(rows["live"])
        if values.type != self._value_type:
            values = self._as_requested(values)
        self._check_nulls(values)
        self._values.set(places[live], values)
        if self._expiry is not None:
            self._expiry.set(places, _times_of_use(rows, self._expiry.ttl.column))
        return places


def _live_places(live: Column, end: int) -> Iterator[Places]:
    for start in range(0, end, _ITEMS):
        found = np.flatnonzero(live.values[start : min(start + _ITEMS, end)])
        if len(found):
            yield start + found


def normal_keys(keys: pa.Array) -> pa.Array:
    """The keys as plain arrays, with a single zero and a single NaN.

    Arrow would distinguish these by their bits. Raises ``OperatorStateError`` for a type whose
    values cannot be found again.
    """
    keys = _plain(keys)
    kind = keys.type
    if pa.types.is_struct(kind):
        fields = [normal_keys(field) for field in keys.flatten()]
        names = [pa.field(name.name, field.type) for name, field in zip(kind, fields, strict=True)]
        # A null struct is another key than a struct of nulls.
        return pa.StructArray.from_arrays(fields, fields=names, mask=keys.is_null())
    if not _can_be_key(kind):
        raise OperatorStateError(
            f"Keyed state was given keys of type {kind}, which cannot be keys: make a text or a"
            " struct of them."
        )
    if not pa.types.is_floating(kind):
        return keys
    nan = pa.scalar(float("nan"), kind)
    return pc.if_else(pc.is_nan(keys), nan, pc.add(keys, pa.scalar(0.0, kind)))


def _plain(keys: pa.Array) -> pa.Array:
    """The same values without a dictionary, runs, views, or an extension's name."""
    kind = keys.type
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(keys.storage)
    if pa.types.is_dictionary(kind):
        return _plain(keys.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return _plain(pc.run_end_decode(keys))
    if pa.types.is_string_view(kind):
        return keys.cast(pa.string())
    if pa.types.is_binary_view(kind):
        return keys.cast(pa.binary())
    return keys


def _can_be_key(kind: pa.DataType) -> bool:
    """Whether the index finds values of this plain type, which is not a struct."""
    if pa.types.is_primitive(kind):
        # Arrow compares neither.
        return not (pa.types.is_float16(kind) or pa.types.is_interval(kind))
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_decimal256(kind)
        or pa.types.is_null(kind)
    )


def layer_rows(layer: Layer, name: str) -> Iterator[pa.RecordBatch]:
    """The rows of a layer that are in its key groups: ``key``, ``value``, ``group``, ``live``.

    Of state that expires also the time of its last use (``TimeToLive.column``). They come in
    batches, at least one batch unless the layer is empty.

    Raises ``OperatorStateError`` if it cannot be read.
    """
    if not len(layer.data):
        # Earlier versions wrote such a layer if ``put`` was called without keys.
        return
    try:
        with pa.ipc.open_stream(layer.data) as reader:
            if (reader.schema.field("group").type, reader.schema.field("live").type) != (
                pa.int16(),
                pa.bool_(),
            ):
                raise pa.ArrowInvalid("its columns have other types")
            times = [name for name in reader.schema.names if name in _TIMES]
            if any(reader.schema.field(name).type != pa.int64() for name in times):
                raise pa.ArrowInvalid("its times of use are not integers")
            for batch in reader:
                # Arrow trusts what a stream says about its own buffers.
                batch.validate(full=True)
                rows = batch.select(["key", "value", "group", "live", *times])
                group, (first, end) = rows["group"], layer.groups
                counted = pc.and_(pc.greater_equal(group, first), pc.less(group, end))
                for start in range(0, len(rows), _ITEMS):
                    part = rows.slice(start, _ITEMS)
                    yield part.filter(counted.slice(start, _ITEMS))
    except (pa.ArrowException, OSError, KeyError) as error:
        raise OperatorStateError(
            f"The keyed state {name!r} cannot be read back ({error}): restore from another"
            " checkpoint or savepoint."
        ) from error


def _equal_values(left: pa.Array, right: pa.Array) -> bool:
    """Whether all values are equal; NaN equals itself."""
    if not pa.types.is_floating(left.type):
        return bool(left.equals(right))
    first, second = (each.to_numpy(zero_copy_only=False) for each in (left, right))
    same_nulls = bool(left.is_null().equals(right.is_null()))
    return same_nulls and np.array_equal(first, second, equal_nan=True)


def _times_of_use(rows: pa.RecordBatch, column: str) -> Places:
    """The time of the last use of each row; ``UNKNOWN`` for rows without a time in this column."""
    if column not in rows.schema.names:
        return np.full(len(rows), UNKNOWN, np.int64)
    times: Places = rows[column].fill_null(UNKNOWN).to_numpy()
    return times


def first_rows(keys: pa.Array) -> Places:
    """The row of each key at its first occurrence."""
    return np.flatnonzero(~_coded(keys).duplicated().to_numpy()).astype(np.int64)


def nth_occurrence(keys: pa.Array) -> Places:
    """For each row, how often its key occurs in rows before it."""
    coded = _coded(keys)
    return np.asarray(coded.groupby(list(coded.columns)).cumcount(), np.int64)


def _coded(keys: pa.Array) -> pd.DataFrame:
    """Numbers that are equal in two rows if the keys are, a column for each field."""
    coded = [leaf.dictionary_encode(null_encoding="encode").indices for leaf in _leaves(keys)]
    return pd.DataFrame({number: codes.to_numpy() for number, codes in enumerate(coded)})


def _leaves(keys: pa.Array) -> list[pa.Array]:
    """The fields of a struct and whether it is null, of its structs, and so on; others as is."""
    if not pa.types.is_struct(keys.type):
        return [keys]
    return [keys.is_null(), *(leaf for field in keys.flatten() for leaf in _leaves(field))]


def _rows_in(keys: pa.Array, among: pa.Array) -> Places:
    """A row of each key in another array; ``NOWHERE`` if it is not there."""
    first, index = first_rows(among), KeyIndex()
    index.add(among.take(pa.array(first)))
    places = index.find(keys)
    found = places != NOWHERE
    places[found] = first[places[found]]
    return places
