"""Keyed state of Python operators (MISSION B7): values by key, and raw bytes by key group.

``KeyedState`` holds one value per key, and reads and writes whole Arrow arrays of keys at once. A
Python call per key would be too slow, so there is none: ``KeyIndex`` looks up keys, NumPy gathers
and scatters values, at a cost by the batch and not by the keys that exist. As in Spark, ``0.0`` and
``-0.0`` are the same key, and so are all NaN.

It is handed over in *layers*, which cost by what changed as well. A layer has the rows that changed
in a batch, and what a later layer says about a key counts. A layer that is not at least twice as
large as the next one is written again together with it, so there are few, and a row is written a
logarithmic number of times. A deleted key has a row without life; the first layer has none such.

``RawKeyedState`` holds bytes per key group, which only the operator can interpret (raw state): an
index, a sketch, a library's own model. Raw state that belongs to the subtask is a list of bytes
instead: ``list_state(name, BYTES)``.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import OperatorStateError
from weir.operators.base import Layer, TimeDomain, TtlUpdate
from weir.operators.expiry import UNKNOWN, Expiry, TimeToLive
from weir.operators.key_index import NOWHERE, KeyIndex, Places
from weir.operators.output import to_python

#: How many keys ``items`` returns at a time.
_ITEMS = 100_000
#: The columns of a layer with times of use, which have one name for each domain.
_TIMES = {f"used_{domain.value}_ms" for domain in TimeDomain}


class KeyedState:
    """The keyed values of one state name in one subtask.

    A key that was deleted keeps its place, without a value, until half of the places are such.

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
    ) -> None:
        """``layers``: the restored state, oldest first. ``ttl``: when it expires; None: never.

        Raises ``OperatorStateError`` if it cannot be read.
        """
        self._name = name
        self._compound = compound
        #: How often places were numbered anew.
        self.compactions = 0
        self._value_type = value_type
        self._default = pa.scalar(default, value_type)
        #: The places that changed since the last layer was written, by call.
        self._touched: list[Places] = []
        #: Rows of the first layer (None: none is written), and the places in each later one.
        self._first_rows: int | None = None
        self._layers: list[Places] = []
        #: The keys of the current batch, and their groups.
        self._current: tuple[pa.Array, np.ndarray[Any, Any]] | None = None
        self._expiry = None if ttl is None else Expiry(ttl)
        self._forget()
        for layer in layers:
            self._load(layer)
        if self._expiry is not None:
            self._expiry.restart(self._expiry.used_ms, len(self._index))

    def get(self, keys: pa.Array) -> pa.Array:
        """The value of each key, or the default."""
        places = self._index.find(normal_keys(keys))
        known = self._has(places)
        values = self._defaults(len(places))
        values[known] = self._values[places[known]]
        if self._expiry is not None:
            self._read(places[known])
        return self._to_arrow(values)

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
        and for values that cannot be stored.
        """
        if values.null_count and self._default.is_valid:
            raise OperatorStateError(
                f"The keyed state {self._name!r} was given a null, but has the default"
                f" {self._default}: give it default=None."
            )
        array = self._to_numpy(
            values.cast(self._value_type) if values.type != self._value_type else values
        )
        keys = normal_keys(keys)
        places = self._index.find(keys)
        new = places == NOWHERE
        if new.any():
            places[new] = self._add(keys.filter(pa.array(new)))
        self._check_once(places, keys)
        self._values[places] = array
        self._count += len(places) - int(np.count_nonzero(self._live[places]))
        self._live[places] = True
        self._touched.append(places)
        if self._expiry is not None:
            self._expiry.use(places)

    def delete(self, keys: pa.Array) -> None:
        """Forget the values of keys; those without one are ignored."""
        places = self._index.find(normal_keys(keys))
        self.drop(np.unique(places[self._has(places)]))

    def items(self) -> Iterator[pa.RecordBatch]:
        """All keys of this subtask with their values, as the columns ``key`` and ``value``.

        They come in batches, in no order that means anything. The state must not be changed before
        the last batch.
        """
        return self.items_at(self.live_places())

    def __len__(self) -> int:
        """The number of keys with a value, in this subtask."""
        return self._count

    @property
    def nbytes(self) -> int:
        """The bytes of the keys and values in memory, without the index; objects as pointers."""
        return self._index.nbytes + self._values.nbytes

    # ---- for the runtime

    def begin_batch(self, keys: pa.Array, groups: pa.Array) -> None:
        """A batch starts, with these keys and their key groups."""
        self._current = (normal_keys(keys), groups.to_numpy(zero_copy_only=False).astype(np.int16))

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
            places = self.live_places()
            places = places[expiry.used_ms[places] == UNKNOWN]
            if len(places):
                self._touched.append(expiry.use(places))

    def expire(self, domain: TimeDomain) -> None:
        """Forget the entries whose time has come, if the state expires by the domain."""
        if self._expiry is not None and self._expiry.ttl.domain is domain:
            places = self._expiry.take_expired()
            places = places[self._live[places]]
            if len(places):
                self.drop(places)

    def drop(self, places: Places) -> None:
        """Forget the values at places, each of which has one."""
        self._live[places] = False
        self._values[places] = self._defaults(len(places))
        self._count -= len(places)
        self._touched.append(places)
        if len(self._index) > _ITEMS and 2 * self._count < len(self._index):
            self._compact()

    def live_places(self) -> Places:
        """The places of all keys with a value, ascending."""
        return np.flatnonzero(self._live[: len(self._index)])

    def items_at(self, places: Places) -> Iterator[pa.RecordBatch]:
        """The keys and values at ascending places, as ``items`` returns them."""
        for start in range(0, len(places), _ITEMS):
            yield from self._table(places[start : start + _ITEMS]).to_batches()

    @property
    def places(self) -> int:
        """How many places there are, also without a value. New keys get the next ones."""
        return len(self._index)

    def are_live(self, places: Places) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether the key at each place has a value."""
        return self._live[places]

    def places_of(self, keys: pa.Array) -> Places:
        """The place of each key; ``NOWHERE`` for one that never had a value."""
        return self._index.find(normal_keys(keys))

    def keys_at(self, places: Places) -> pa.Array:
        """The keys at ascending places."""
        return self._index.keys_at(places)

    def groups_of(self, keys: pa.Array) -> pa.Array:
        """The key group of each key, all of which have a value."""
        return pa.array(self._groups[self.places_of(keys)], pa.int32())

    def next_layer(self) -> tuple[int, bytes | None] | None:
        """What has changed since the last call; None: nothing.

        Otherwise how many of the layers so far stay, and the layer that follows them, encoded; None
        if the state is empty now.
        """
        if not self._touched:
            return None
        places = np.unique(np.concatenate(self._touched))
        self._touched = []
        while self._layers and len(self._layers[-1]) < 2 * len(places):
            places = np.union1d(self._layers.pop(), places)
        first = self._first_rows
        if first is not None and (self._layers or 2 * len(places) <= first <= 2 * self._count):
            self._layers.append(places)
            return len(self._layers), _encoded(self._rows(places))
        places = self.live_places()
        self._first_rows = len(places) or None
        return 0, _encoded(self._rows(places)) if len(places) else None

    # ---- internals

    def _forget(self) -> None:
        self._index = KeyIndex()
        #: By place, with room for more than there are.
        self._values = self._to_numpy(pa.array([], self._value_type))
        self._groups = np.empty(0, np.int16)
        self._live = np.empty(0, bool)
        if self._expiry is not None:
            self._expiry.restart(np.empty(0, np.int64), 0)
        #: Places with a value.
        self._count = 0

    def _read(self, places: Places) -> None:
        """Entries at these places, possibly several times, are read."""
        expiry = self._expiry
        if expiry is not None and expiry.ttl.update is TtlUpdate.ON_READ_AND_WRITE:
            changed = expiry.use(np.unique(places))
            if len(changed):
                self._touched.append(changed)

    def _has(self, places: Places) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether there is a value at each place."""
        known: np.ndarray[Any, np.dtype[np.bool_]] = places != NOWHERE
        known[known] = self._live[places[known]]
        return known

    def _table(self, places: Places) -> pa.Table:
        keys, values = self._index.keys_at(places), self._to_arrow(self._values[places])
        return pa.table({"key": keys, "value": values})

    def _rows(self, places: Places) -> pa.Table:
        """The rows of a layer."""
        rows = (
            self._table(places)
            .append_column("group", pa.array(self._groups[places], pa.int16()))
            .append_column("live", pa.array(self._live[places]))
        )
        if self._expiry is None:
            return rows
        used = self._expiry.used_ms[places]
        times = pa.array(used, pa.int64(), mask=used == UNKNOWN)
        return rows.append_column(self._expiry.ttl.column, times)

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
        room = len(self._live)
        if len(self._index) > room:
            more = max(len(self._index), 2 * room) - room
            self._values = np.concatenate([self._values, self._defaults(more)])
            self._groups = np.concatenate([self._groups, np.zeros(more, np.int16)])
            self._live = np.concatenate([self._live, np.zeros(more, bool)])
            if self._expiry is not None:
                self._expiry.grow(more)
        self._groups[places] = groups
        return places

    def _compact(self) -> None:
        """Leave out the places without a value."""
        places = self.live_places()
        keys, values, groups = (
            self._index.keys_at(places),
            self._values[places],
            self._groups[places],
        )
        used = None if self._expiry is None else self._expiry.used_ms[places]
        self._forget()
        places = self._append(keys, groups)
        if self._expiry is not None and used is not None:
            self._expiry.restart(used, len(used))
        self._values[places] = values
        self._live[places] = True
        self._count = len(places)
        self.compactions += 1
        # Its places are new, so it is written as a whole.
        self._first_rows, self._layers, self._touched = None, [], [places]

    def _check_once(self, places: Places, keys: pa.Array) -> None:
        """Raise ``OperatorStateError`` unless all places differ."""
        if pd.Index(places).has_duplicates:
            raise self._two_values(keys)

    def _two_values(self, keys: pa.Array) -> OperatorStateError:
        again = np.setdiff1d(np.arange(len(keys)), first_rows(keys))
        twice = keys[int(again[0])]
        return OperatorStateError(
            f"The keyed state {self._name!r} was given two values for one key, {twice}: put each"
            " key once."
        )

    def _load(self, layer: Layer) -> None:
        rows = layer_rows(layer, self._name)
        keys = normal_keys(_array(rows["key"]))
        places = self._index.find(keys)
        new = places == NOWHERE
        if new.any():
            groups = _array(rows["group"]).to_numpy()
            places[new] = self._append(keys.filter(pa.array(new)), groups[new])
        live = _array(rows["live"]).to_numpy(zero_copy_only=False)
        self._count += int(live.sum()) - int(self._live[places].sum())
        self._live[places] = live
        self._values[places] = self._to_numpy(_array(rows["value"]).cast(self._value_type))
        expiry = self._expiry
        if expiry is not None:
            expiry.used_ms[places] = _times_of_use(rows, expiry.ttl.column)
        if self._first_rows is None:
            self._first_rows = len(places)
        else:
            self._layers.append(places)

    def _defaults(self, count: int) -> np.ndarray[Any, Any]:
        return np.repeat(self._to_numpy(pa.array([self._default.as_py()], self._value_type)), count)

    def _to_numpy(self, values: pa.Array) -> np.ndarray[Any, Any]:
        """Convert values: numbers without nulls to a numeric array, all others to objects."""
        default_is_null = not self._default.is_valid
        plain = pa.types.is_integer(self._value_type) or pa.types.is_floating(self._value_type)
        if plain and not default_is_null and not values.null_count:
            return np.array(values.to_numpy(zero_copy_only=False))
        objects = np.empty(len(values), object)
        objects[:] = to_python(values, f"the values of the keyed state {self._name!r}")
        return objects

    def _to_arrow(self, values: np.ndarray[Any, Any]) -> pa.Array:
        return pa.array(values, self._value_type)


def normal_keys(keys: pa.Array) -> pa.Array:
    """The keys with a single zero and a single NaN, which Arrow would distinguish by their bits."""
    if pa.types.is_struct(keys.type):
        fields = [normal_keys(field) for field in keys.flatten()]
        return pa.StructArray.from_arrays(fields, [field.name for field in keys.type])
    if not pa.types.is_floating(keys.type):
        return keys
    nan = pa.scalar(float("nan"), keys.type)
    return pc.if_else(pc.is_nan(keys), nan, pc.add(keys, pa.scalar(0.0, keys.type)))


def layer_rows(layer: Layer, name: str) -> pa.Table:
    """The rows of a layer that are in its key groups: ``key``, ``value``, ``group``, ``live``.

    Of state that expires also the time of its last use (``TimeToLive.column``).

    Raises ``OperatorStateError`` if it cannot be read.
    """
    try:
        with pa.ipc.open_stream(layer.data) as reader:
            rows = reader.read_all()
        # Arrow trusts what a stream says about its own buffers.
        rows.validate(full=True)
        group = rows["group"]
        first, end = layer.groups
        times = [name for name in rows.column_names if name in _TIMES]
        if any(rows.schema.field(name).type != pa.int64() for name in times):
            raise pa.ArrowInvalid("its times of use are not integers")
        rows = rows.select(["key", "value", "group", "live", *times])
        return rows.filter(pc.and_(pc.greater_equal(group, first), pc.less(group, end)))
    except (pa.ArrowException, OSError, KeyError) as error:
        raise OperatorStateError(
            f"The keyed state {name!r} cannot be read back ({error}): restore from another"
            " checkpoint or savepoint."
        ) from error


def _times_of_use(rows: pa.Table, column: str) -> Places:
    """The time of the last use of each row; ``UNKNOWN`` for rows without one in this column."""
    if column not in rows.column_names:
        return np.full(len(rows), UNKNOWN, np.int64)
    times: Places = _array(rows[column]).fill_null(UNKNOWN).to_numpy()
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
    coded = [one.dictionary_encode(null_encoding="encode").indices for one in _leaves(keys)]
    return pd.DataFrame({number: one.to_numpy() for number, one in enumerate(coded)})


def _leaves(keys: pa.Array) -> list[pa.Array]:
    """The fields of a struct, of its structs, and so on; other keys as they are."""
    if not pa.types.is_struct(keys.type):
        return [keys]
    return [leaf for field in keys.flatten() for leaf in _leaves(field)]


def _rows_in(keys: pa.Array, among: pa.Array) -> Places:
    """A row of each key in another array; ``NOWHERE`` if it is not there."""
    first, index = first_rows(among), KeyIndex()
    index.add(among.take(pa.array(first)))
    places = index.find(keys)
    found = places != NOWHERE
    places[found] = first[places[found]]
    return places


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _encoded(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


#: The schema of a raw key group in a checkpoint: a self-describing Arrow stream with one row.
_SCHEMA = pa.schema([("group", pa.int16()), ("raw", pa.binary())])


class RawKeyedState:
    """The raw bytes of one state name, by key group, in one subtask."""

    def __init__(self, name: str, groups: Mapping[int, bytes], owned: Container[int]) -> None:
        """``groups``: the restored state; ``owned``: the subtask's key groups."""
        self._name = name
        self._owned = owned
        self._bytes = {group: self._decoded(data) for group, data in groups.items()}
        self._changed: set[int] = set()
        self._current: pa.Array | None = None

    @property
    def groups(self) -> list[int]:
        """The key groups with bytes in this subtask, ascending, each below 128.

        They move between subtasks when the parallelism changes.
        """
        return sorted(self._bytes)

    @property
    def record_groups(self) -> pa.Array:
        """The key group of each record being processed (int32).

        Raises ``OperatorStateError`` when no records are being processed.
        """
        if self._current is None:
            raise OperatorStateError(
                f"The raw state {self._name!r} has no key groups of records: give the step key_by,"
                " and ask in process_batch."
            )
        return self._current

    def get(self, group: int) -> bytes | None:
        """The bytes of a key group; None if it has none."""
        return self._bytes.get(group)

    def put(self, group: int, data: bytes) -> None:
        """Set a key group's bytes. Raises ``OperatorStateError`` for another subtask's group."""
        if group not in self._owned:
            raise OperatorStateError(
                f"The raw state {self._name!r} is given bytes for key group {group}, which belongs"
                " to another subtask: put those of record_groups or groups only."
            )
        self._bytes[group] = bytes(memoryview(data))
        self._changed.add(group)

    # ---- for the runtime

    def begin_batch(self, groups: pa.Array | None) -> None:
        """Records in these key groups are processed from now on; None: no records are."""
        self._current = groups

    def changed_groups(self) -> dict[int, bytes]:
        """The groups that were set since the last call, encoded."""
        changed, self._changed = self._changed, set()
        return {group: _encoded_group(group, self._bytes[group]) for group in sorted(changed)}

    def _decoded(self, data: bytes) -> bytes:
        with pa.ipc.open_stream(data) as reader:
            raw: bytes = reader.read_all()["raw"][0].as_py()
            return raw


def _encoded_group(group: int, data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_batch(
            pa.record_batch([pa.array([group], pa.int16()), pa.array([data])], schema=_SCHEMA)
        )
    return bytes(sink.getvalue())
