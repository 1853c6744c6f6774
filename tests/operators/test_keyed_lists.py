"""Lists by key under random use, compared with a dictionary (operators/state/keyed_lists.py)."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.kit.checkered import checkered
from tests.operators.layers import deal_with, next_layer
from tests.operators.test_keyed_state import KINDS, group_of, plain

from weir.errors import OperatorStateError
from weir.operators.state.keyed import KeyedState
from weir.operators.state.keyed_lists import KeyedListState
from weir.operators.state.store import StateStore
from weir.operators.state.types import Layer

NAMES = ("list/s", "list lengths/s")


class Written:
    """What a checkpoint has of a store, by name."""

    def __init__(self) -> None:
        self.layers: dict[str, list[bytes]] = {name: [] for name in NAMES}

    def take(self, store: StateStore) -> None:
        for name, state in store.keyed.items():
            layer = next_layer(state)
            if layer is not None:
                kept = self.layers[name][: layer[0]]
                self.layers[name] = kept + ([layer[1]] if layer[1] else [])

    def store(self, groups: tuple[int, int] = (0, 128)) -> StateStore:
        found = {name: [Layer(data, groups) for data in self.layers[name]] for name in NAMES}
        return StateStore(None, None, found)


@pytest.mark.parametrize(
    ("kind", "value", "items"),
    checkered(
        ["integers", "floats", "texts", "pairs", "with null"],
        ["numbers", "texts"],
        [100_000, 10],
        colours=3,
    ),
)
def test_any_use_agrees_with_a_dictionary(
    kind: str, value: str, items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Append with repeated keys, get, clear and items; other parallelisms read what was written."""
    deal_with(monkeypatch, items)
    kind_of, key_of = KINDS[kind]
    value_type = pa.int64() if value == "numbers" else pa.string()
    random, written = Random(f"{kind} {value}"), Written()
    expected: dict[Any, list[Any]] = {}
    store = written.store()
    lists = store.keyed_list_state("s", value_type)
    for step in range(25):
        numbers = random.choices(range(12), k=random.randrange(12))
        keys = pa.array([key_of(number) for number in numbers], kind_of)
        values = [step * 100 + row for row in range(len(numbers))]
        given = pa.array(values if value == "numbers" else map(str, values), value_type)
        store.begin_batch(keys, group_of(numbers))
        lists.append(keys, given)
        for key, one in zip(plain(keys), given.to_pylist(), strict=True):
            expected.setdefault(key, []).append(one)
        if random.random() < 0.4:
            cleared = pa.array([key_of(number) for number in random.choices(range(12), k=3)])
            lists.clear(cleared.cast(kind_of))
            expected = {key: one for key, one in expected.items() if key not in plain(cleared)}
        asked = pa.array([key_of(number) for number in random.choices(range(14), k=5)], kind_of)
        assert lists.get(asked).to_pylist() == [expected.get(key, []) for key in plain(asked)]
        if random.random() < 0.5:
            store.end_batch()
            written.take(store)
            parallelism = random.randrange(1, 4)
            bounds = [16 * number // parallelism for number in range(parallelism + 1)]
            restored = [
                written.store(groups).keyed_list_state("s", value_type)
                for groups in itertools.pairwise(bounds)
            ]
            assert contents(*restored) == sorted(map(repr, expected.items()))
            store = written.store()
            lists = store.keyed_list_state("s", value_type)
    assert len(lists) == len(expected)
    assert contents(lists) == sorted(map(repr, expected.items()))


def contents(*lists: KeyedListState) -> list[str]:
    """All keys with their lists."""
    return sorted(
        repr((key, one))
        for some in lists
        for batch in some.items()
        for key, one in zip(plain(batch["key"]), batch["value"].to_pylist(), strict=True)
    )


def appended(keys: list[int], values: list[Any]) -> KeyedListState:
    lists = KeyedListState("s", pa.int64())
    for state in (lists.elements, lists.lengths):
        state.begin_batch(pa.array([1, 2]), pa.array([1, 2], pa.int32()))
    lists.append(pa.array(keys), pa.array(values, pa.int64()))
    return lists


def test_a_list_begins_anew_after_it_was_cleared() -> None:
    """Nothing of the former elements comes back, and its length is that of the new ones."""
    lists = appended([1, 1, 2], [10, 11, 20])
    lists.clear(pa.array([1, 1, 7]))
    lists.append(pa.array([1]), pa.array([12]))
    assert lists.get(pa.array([1, 2])).to_pylist() == [[12], [20]]
    assert lists.lengths_of(pa.array([1, 2, 7])).to_pylist() == [1, 1, 0]


def test_an_append_writes_its_own_rows_and_not_the_lists() -> None:
    """A checkpoint that follows it adds a few bytes to a long list."""
    lists = appended([1] * 20_000, [7] * 20_000)
    whole = next_layer(lists.elements)
    lists.append(pa.array([1]), pa.array([8]))
    layer = next_layer(lists.elements)
    assert whole is not None
    assert layer is not None
    assert whole[1] is not None
    assert layer[1] is not None
    assert len(layer[1]) < len(whole[1]) / 100


def test_a_null_and_a_key_outside_of_the_batch_are_refused() -> None:
    """And leave the lists as they are."""
    lists = appended([1], [10])
    with pytest.raises(OperatorStateError, match="was given a null: leave out such rows"):
        lists.append(pa.array([1]), pa.array([None], pa.int64()))
    with pytest.raises(OperatorStateError, match="not in the batch"):
        lists.append(pa.array([1, 3]), pa.array([11, 30]))
    assert lists.get(pa.array([1, 3])).to_pylist() == [[10], []]


def test_lengths_that_do_not_fit_the_elements_are_damage() -> None:
    """A checkpoint is not trusted: no array is made of a length that it claims."""
    lists = appended([1, 1, 2], [10, 11, 20])
    elements = next_layer(lists.elements)
    lists.lengths.put(pa.array([1]), pa.array([2**50]))
    lengths = next_layer(lists.lengths)
    assert elements is not None
    assert lengths is not None
    layers = [[Layer(data or b"", (0, 128))] for data in (elements[1], lengths[1])]
    with pytest.raises(OperatorStateError, match="has 3 elements, and its lengths say otherwise"):
        KeyedListState("s", pa.int64(), *layers)


def test_a_list_does_not_meet_other_states_of_its_name() -> None:
    """The store knows each by its kind, and gives the same list for the same name."""
    store = StateStore()
    lists = store.keyed_list_state("s", pa.int64())
    assert store.keyed_list_state("s", pa.int64()) is lists
    assert isinstance(store.keyed_state("s", pa.int64(), 0), KeyedState)
    assert store.list_state("s").get() == []
    assert set(store.keyed) == {*NAMES, "s"}
