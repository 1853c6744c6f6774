"""Map state under random use, compared with a dictionary (weir/operators/state/map_state.py)."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operators.layers import deal_with, next_layer

from weir.errors import OperatorStateError
from weir.operators.state.keyed import KeyedState
from weir.operators.state.map_state import MapState
from weir.operators.state.store import StateStore
from weir.operators.state.types import Layer

ENTRIES = st.dictionaries(
    st.tuples(st.integers(0, 12), st.none() | st.sampled_from("abcd")),
    st.integers(0, 99),
    min_size=1,
)
#: (what is done, the entries, and into how many subtasks the state is restored afterwards; 0: it
#: stays).
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "remove", "clear"]), ENTRIES, st.integers(0, 3)), max_size=12
)


def arrays(entries: dict[tuple[int, str | None], int]) -> tuple[pa.Array, pa.Array, pa.Array]:
    return (
        pa.array([key for key, _ in entries], pa.int64()),
        pa.array([map_key for _, map_key in entries], pa.string()),
        pa.array(list(entries.values()), pa.int64()),
    )


def maps_of(layers: list[Layer]) -> MapState:
    return MapState("m", pa.string(), pa.int64(), 0, layers)


def rows_of(
    maps: MapState, keys: pa.Array | None = None
) -> list[tuple[tuple[int, str | None], int]]:
    return [
        ((row["key"], row["map_key"]), row["value"])
        for batch in maps.items(keys)
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("items", [100_000, 4])
@settings(max_examples=15)
@given(steps=STEPS)
def test_any_use_agrees_with_a_dictionary(
    items: int, steps: list[tuple[str, dict[tuple[int, str | None], int], int]]
) -> None:
    """Put, remove, clear, get, contains and items, and layers read by other numbers of subtasks;
    with few ``items`` places are renumbered."""
    with pytest.MonkeyPatch.context() as patch:
        deal_with(patch, items)
        use(steps)


def use(steps: list[tuple[str, dict[tuple[int, str | None], int], int]]) -> None:
    maps, expected = maps_of([]), dict[tuple[int, str | None], int]()
    written: list[bytes] = []
    for step, entries, parallelism in steps:
        keys, map_keys, values = arrays(entries)
        maps.state.begin_batch(keys, keys.cast(pa.int32()))
        if step == "remove":
            maps.remove(keys, map_keys)
            expected = {pair: one for pair, one in expected.items() if pair not in entries}
        elif step == "clear":
            maps.clear(keys)
            cleared = {key for key, _ in entries}
            expected = {pair: one for pair, one in expected.items() if pair[0] not in cleared}
        else:
            maps.put(keys, map_keys, values)
            expected |= entries
        has = [step == "put"] * len(entries)
        assert maps.contains(keys, map_keys).to_pylist() == has
        assert maps.get(keys, map_keys).to_pylist() == [expected.get(pair, 0) for pair in entries]
        asked = keys.slice(0, 2)
        of_asked = [item for item in expected.items() if item[0][0] in asked.to_pylist()]
        assert sorted(map(repr, rows_of(maps, asked))) == sorted(map(repr, of_asked))
        maps.state.end_batch()
        layer = next_layer(maps.state)
        if layer is not None:
            written = [*written[: layer[0]], *([] if layer[1] is None else [layer[1]])]
        if parallelism:
            bounds = [16 * number // parallelism for number in range(parallelism + 1)]
            restored = [
                row
                for groups in itertools.pairwise(bounds)
                for row in rows_of(maps_of([Layer(data, groups) for data in written]))
            ]
            assert sorted(map(repr, restored)) == sorted(map(repr, expected.items()))
            maps = maps_of([Layer(data, (0, 128)) for data in written])
    assert len(maps) == len(expected)
    assert dict(rows_of(maps)) == expected


def test_a_key_of_several_columns_has_maps_as_well() -> None:
    """The pair's first half is then a struct itself."""
    maps = maps_of([])
    keys = pa.array([{"a": 0.0, "b": None}, {"a": 1.0, "b": 2}])
    maps.state.begin_batch(keys, pa.array([3, 4], pa.int32()))
    maps.put(keys, pa.array(["x", "x"]), pa.array([1, 2]))
    again = pa.array([{"a": -0.0, "b": None}, {"a": 1.0, "b": 3}], keys.type)
    assert maps.get(again, pa.array(["x", "x"])).to_pylist() == [1, 0]


def test_an_entry_of_a_key_outside_the_batch_is_refused() -> None:
    """It may belong to another subtask."""
    maps = maps_of([])
    maps.state.begin_batch(pa.array([1]), pa.array([1], pa.int32()))
    with pytest.raises(OperatorStateError, match="not in the batch"):
        maps.put(pa.array([2]), pa.array(["a"]), pa.array([1]))


def test_the_entries_of_a_key_are_found_without_a_look_at_the_others() -> None:
    """What is new since the last call is taken up, and an entry that returns has its old place."""
    maps = maps_of([])
    keys, many = pa.array([1]), pa.array(range(1_000))
    maps.state.begin_batch(many, many.cast(pa.int32()))
    for map_key in "abc":
        maps.put(many, pa.array([map_key] * 1_000), many)
        assert len(rows_of(maps, keys)) == "abc".index(map_key) + 1
    maps.remove(keys, pa.array(["b"]))
    assert [pair[1] for pair, _ in rows_of(maps, keys)] == ["a", "c"]
    maps.put(keys, pa.array(["b"]), pa.array([5]))
    assert sorted(pair[1] or "" for pair, _ in rows_of(maps, keys)) == ["a", "b", "c"]
    maps.clear(pa.array([1, 1, -1]))
    assert (len(maps), rows_of(maps, keys), rows_of(maps, pa.array([-1]))) == (2_997, [], [])


def test_a_map_and_a_value_of_one_name_do_not_meet() -> None:
    """The store knows each by its kind, and gives the same map for the same name."""
    store = StateStore()
    maps = store.map_state("s", pa.string(), pa.int64(), 0)
    assert store.map_state("s", pa.string(), pa.int64(), 0) is maps
    assert isinstance(store.keyed_state("s", pa.int64(), 0), KeyedState)
    assert set(store.keyed) == {"map/s", "s"}
