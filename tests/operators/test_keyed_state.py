"""Keyed state under random use, compared with a dictionary (weir/operators/state/keyed.py)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.kit.checkered import checkered
from tests.operators.layers import next_layer

from weir.errors import OperatorStateError
from weir.operators.state import key_index
from weir.operators.state.key_index import NOWHERE, KeyIndex
from weir.operators.state.keyed import KeyedState, normal_keys
from weir.operators.state.memory import StateMemory
from weir.operators.state.types import Layer

#: Makes the key of a number; few numbers have the same.
KINDS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "integers": (pa.int64(), lambda n: n - 50),
    "unsigned": (pa.uint64(), lambda n: 2**64 - 1 - n),
    "small": (pa.int8(), lambda n: n - 50),
    "floats": (pa.float64(), lambda n: n / 4),
    "texts": (pa.string(), lambda n: f"key {n}"),
    "bytes": (pa.binary(), lambda n: bytes([n])),
    "dates": (pa.date32(), lambda n: dt.date(2026, 1, 1) + dt.timedelta(n)),
    "times": (pa.timestamp("us", "UTC"), lambda n: dt.datetime(2026, 1, 1, n % 24, n % 60)),
    "decimals": (pa.decimal128(20, 2), lambda n: Decimal(n) / 4),
    "pairs": (
        pa.struct({"name": pa.string(), "at": pa.float64()}),
        lambda n: {"name": None if n % 5 == 0 else f"n{n // 10}", "at": n / 2},
    ),
    "with null": (pa.int32(), lambda n: None if n == 7 else n),
}


def group_of(numbers: list[int]) -> pa.Array:
    return pa.array([number % 16 for number in numbers], pa.int32())


def plain(keys: pa.Array) -> list[Any]:
    """The keys as keys of a dictionary."""
    return [tuple(key.values()) if isinstance(key, dict) else key for key in keys.to_pylist()]


#: Keys of the other kinds have codes of their own.
HASHED = ("texts", "bytes", "decimals", "pairs")


@pytest.mark.parametrize(
    ("keys_are", "memory"),
    checkered([*KINDS, *(f"{kind} of one hash" for kind in HASHED)], ["in memory", "in files"]),
    indirect=["memory"],
)
def test_any_use_agrees_with_a_dictionary(
    keys_are: str, memory: StateMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put, get, delete, contains, items, and state that is handed over by its changed groups."""
    kind, _, same_hash = keys_are.partition(" of one ")
    if same_hash:
        monkeypatch.setattr(key_index, "_codes", lambda keys: np.full(len(keys), 3))
    # Each key is compared with all that have its hash, which takes time.
    existing, rounds = (range(40), range(15)) if same_hash else (range(100), range(35))
    kind_of, key_of = KINDS[kind]
    random = Random(kind)
    state = KeyedState("s", pa.int64(), 0, memory=memory)
    expected = dict[Any, int]()
    layers: list[Layer] = []
    for _ in rounds:
        numbers = random.sample(existing, random.randrange(1, 30))
        keys = pa.array([key_of(number) for number in numbers], kind_of)
        values = [random.randrange(1_000) for _ in numbers]
        state.begin_batch(keys, group_of(numbers))
        if random.random() < 0.7:
            state.put(keys, pa.array(values, pa.int64()))
            expected |= dict(zip(plain(keys), values, strict=True))
        else:
            state.delete(keys)
            for key in plain(keys):
                expected.pop(key, None)
        asked = pa.array([key_of(number) for number in random.choices(existing, k=20)], kind_of)
        assert state.get(asked).to_pylist() == [expected.get(key, 0) for key in plain(asked)]
        assert state.contains(asked).to_pylist() == [key in expected for key in plain(asked)]
        state.end_batch()
        written = next_layer(state)
        if written is not None:
            stay, data = written
            layers = [*layers[:stay], *([] if data is None else [Layer(data, (0, 128))])]
            assert len(layers) <= 8
        assert len(state) == len(expected)
        if random.random() < 0.2:
            state = KeyedState("s", pa.int64(), 0, layers, memory=memory)
    rows = [
        row
        for batch in state.items()
        for row in zip(plain(batch["key"]), batch["value"].to_pylist(), strict=True)
    ]
    assert dict(rows) == expected
    assert len(rows) == len(expected)


def test_the_keys_of_deleted_values_are_forgotten_in_the_end() -> None:
    """Neither the index nor the arrays grow with keys that come and go."""
    state = KeyedState("s", pa.int64(), 0)
    for round in range(8):
        keys = pa.array(np.arange(60_000) + round * 60_000)
        state.begin_batch(keys, pa.array(np.zeros(60_000, np.int32)))
        state.put(keys, keys)
        state.delete(keys)
        state.end_batch()
    assert len(state) == 0
    assert len(state._index) <= 120_000
    assert next_layer(state) == (0, None)


def test_a_batch_writes_what_it_changed_and_not_what_exists() -> None:
    """The bytes of a small batch beside many keys: older layers are seldom written again."""
    state = KeyedState("s", pa.int64(), 0)
    keys = pa.array(np.arange(100_000))
    state.begin_batch(keys, group_of(list(range(100_000))))
    state.put(keys, keys)
    whole = len(_data(state))
    small = []
    for batch in range(200):
        state.put(keys.slice(100 * batch, 100), keys.slice(0, 100))
        small.append(len(_data(state)))
    assert sorted(small)[len(small) // 2] < whole / 100
    assert sum(small) < whole


def test_layers_follow_their_key_groups_to_other_subtasks() -> None:
    """What one subtask wrote is read by two, each its groups, and back by one."""
    state = KeyedState("s", pa.int64(), 0)
    keys = pa.array(np.arange(128))
    state.begin_batch(keys, keys.cast(pa.int32()))
    state.put(keys, keys)
    first = _data(state)
    state.put(keys.slice(60, 10), pa.array(np.zeros(10, np.int64)))
    second = _data(state)
    halves = [
        KeyedState("s", pa.int64(), -1, [Layer(first, groups), Layer(second, groups)])
        for groups in ((0, 64), (64, 128))
    ]
    assert [len(half) for half in halves] == [64, 64]
    assert halves[0].get(keys).to_pylist() == [*range(60), *[0] * 4, *[-1] * 64]
    assert halves[1].get(keys).to_pylist() == [*[-1] * 64, *[0] * 6, *range(70, 128)]


def _data(state: KeyedState) -> bytes:
    """The layer that is written now."""
    written = next_layer(state)
    assert written is not None
    assert written[1] is not None
    return written[1]


def test_a_lookup_asks_few_slots_however_the_keys_came() -> None:
    """So its cost does not grow with the keys that exist, or with the batches that brought them."""
    index = KeyIndex()
    for batch in range(1_000):
        assert index.add(pa.array(np.arange(7) + 7 * batch)).tolist() == list(
            range(7 * batch, 7 * batch + 7)
        )
    places = index._slots[index._slots > 0] - 1
    assert np.sort(places).tolist() == list(range(7_000))
    assert len(index._slots) >= 1.5 * 7_000
    asked = np.flatnonzero(index._slots) - index._first_slots(index._codes.values[places])
    assert (asked % len(index._slots)).mean() < 3
    found = index.find(pa.array([-1, 0, 6_999, 7_000]))
    assert found.tolist() == [NOWHERE, 0, 6_999, NOWHERE]


def test_two_values_for_one_pair_are_refused() -> None:
    """Of several columns as of one, with the one zero and the one NaN."""
    state = KeyedState("s", pa.int64(), 0)
    kind = pa.struct({"a": pa.float64(), "b": pa.int32()})
    keys = pa.array([{"a": 0.0, "b": 1}, {"a": -0.0, "b": 1}], kind)
    state.begin_batch(keys, pa.array([3, 3], pa.int32()))
    with pytest.raises(OperatorStateError, match="two values for one key"):
        state.put(keys, pa.array([1, 2]))
    state.put(keys.slice(0, 1), pa.array([1]))
    assert state.get(keys).to_pylist() == [1, 1]


def test_a_null_struct_is_another_key_than_a_struct_of_nulls() -> None:
    """At any depth, as for Spark's groupBy; what lies below a null does not matter."""
    inner = pa.struct({"b": pa.float64(), "c": pa.string()})
    kind = pa.struct({"a": pa.int64(), "in": inner})
    keys = pa.array(
        [
            None,
            {"a": None, "in": None},
            {"a": None, "in": {"b": None, "c": None}},
            {"a": None, "in": {"b": 0.0, "c": None}},
            {"a": 1, "in": None},
            {"a": 1, "in": {"b": 0.0, "c": "x"}},
        ],
        kind,
    )
    assert normal_keys(keys).equals(keys)
    below = [pa.array([7] * 6, pa.int64()), pa.array([{"b": 7.0, "c": "y"}] * 6, inner)]
    all_null = pa.StructArray.from_arrays(below, ["a", "in"], mask=pa.array([True] * 6))
    state = KeyedState("s", pa.int64(), 0)
    state.begin_batch(keys, group_of([1] * 6))
    state.put(keys, pa.array(range(1, 7), pa.int64()))
    assert state.get(keys).to_pylist() == [1, 2, 3, 4, 5, 6]
    assert state.get(all_null).to_pylist() == [1] * 6
    assert len(state) == 6


NESTED = pa.struct({"a": pa.struct({"b": pa.string(), "c": pa.float64()})})
#: Values that are all different keys, by the type of their array.
DIFFERENT: list[tuple[pa.DataType, list[Any]]] = [
    (pa.struct({"a": pa.int64()}), [None, {"a": None}, {"a": 0}]),
    (NESTED, [None, {"a": None}, {"a": {"b": None, "c": None}}, {"a": {"b": "", "c": 0.0}}]),
    (pa.struct([]), [None, {}]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None]),
    (pa.string_view(), ["a", "b", None]),
    (pa.binary_view(), [b"a", b"b", None]),
    (pa.run_end_encoded(pa.int32(), pa.string()), ["a", "b", None]),
    (
        pa.struct({"d": pa.dictionary(pa.int8(), pa.string()), "v": pa.string_view()}),
        [None, {"d": None, "v": None}, {"d": "a", "v": "b"}],
    ),
    (pa.null(), [None]),
    (pa.decimal256(50, 2), [Decimal(1), None]),
    (pa.binary(2), [b"ab", None]),
]


@pytest.mark.parametrize(("kind", "values"), DIFFERENT, ids=[str(kind) for kind, _ in DIFFERENT])
def test_keys_of_each_arrow_type_are_told_apart_and_found_again(
    kind: pa.DataType, values: list[Any]
) -> None:
    """A null struct is another key than a struct of nulls, as for Spark; an array's encoding is no
    part of its keys, also after a restore."""
    keys, numbers = pa.array(values, kind), list(range(1, len(values) + 1))
    state = KeyedState("s", pa.int64(), 0)
    for _ in range(2):
        state.begin_batch(keys, group_of([0] * len(values)))
        state.put(keys, pa.array(numbers))
    written = next_layer(state)
    assert written is not None
    restored = Layer(data=written[1] or b"", groups=(0, 128))
    for subject in (state, KeyedState("s", pa.int64(), 0, [restored])):
        assert len(subject) == len(values)
        assert subject.get(keys).to_pylist() == numbers
        (items,) = subject.items()
        assert items["key"].to_pylist() == values


def test_what_lies_below_a_null_of_a_struct_is_no_part_of_the_key() -> None:
    """Arrow leaves it there when a mask makes values null."""
    texts = pa.StructArray.from_arrays([pa.array(["some text"])], ["t"])
    masked = pa.StructArray.from_arrays([texts], ["s"]).take(pa.array([0, 0]))
    fields = pa.StructArray.from_arrays(
        [texts.field("t").take(pa.array([0, 0]))], ["t"], mask=pa.array([True, False])
    )
    keys = pa.StructArray.from_arrays([fields], ["s"])
    state = KeyedState("s", pa.int64(), 0)
    state.begin_batch(keys, group_of([0, 0]))
    state.put(keys, pa.array([1, 2]))
    assert state.get(pa.array([{"s": None}], keys.type)).to_pylist() == [1]
    assert state.get(masked).to_pylist() == [2, 2]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int64()),
        pa.large_list(pa.int64()),
        pa.list_view(pa.int64()),
        pa.list_(pa.int64(), 2),
        pa.map_(pa.string(), pa.int64()),
        pa.struct({"a": pa.list_(pa.int64())}),
        pa.float16(),
        pa.month_day_nano_interval(),
        pa.decimal64(15, 2),
    ],
    ids=str,
)
def test_keys_of_a_type_that_cannot_be_found_again_are_refused_by_the_type(
    kind: pa.DataType,
) -> None:
    """Arrow's own words would be about a function that the user never called."""
    state, keys = KeyedState("s", pa.int64(), 0), pa.array([None], kind)
    if pa.types.is_struct(kind):
        kind = kind.field("a").type
    with pytest.raises(OperatorStateError, match="cannot be keys") as refused:
        state.begin_batch(keys, group_of([0]))
    assert str(kind) in str(refused.value)
