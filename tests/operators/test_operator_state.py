"""State of Python operators: lists that are redistributed, and values by key (MISSION B7)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operators.layers import next_layer

from weir.errors import OperatorStateError
from weir.operators import PandasOperator
from weir.operators.state.keyed import KeyedState
from weir.operators.state.store import (
    BYTES,
    JsonSerializer,
    Lists,
    StateStore,
    decode_lists,
    redistributed,
)
from weir.operators.state.types import KEY_GROUPS, Layer


def kept(**lists: list[int]) -> Lists:
    """A subtask's lists of each kind, as they are handed over."""
    store = StateStore()
    store.list_state("split").update(lists.get("split", []))
    store.union_list_state("union").update(lists.get("union", []))
    store.broadcast_state("broadcast").update(lists.get("broadcast", []))
    return decode_lists(store.dump_lists())


def found(lists: Lists) -> tuple[list[int], list[int], list[int]]:
    store = StateStore(lists)
    return (
        store.list_state("split").get(),
        store.union_list_state("union").get(),
        store.broadcast_state("broadcast").get(),
    )


def test_lists_are_found_again_as_they_were_left() -> None:
    """For every kind of list."""
    assert found(kept(split=[1, 2], union=[3], broadcast=[4])) == ([1, 2], [3], [4])


@given(st.lists(st.lists(st.integers()), min_size=1, max_size=6), st.integers(1, 6))
def test_elements_are_dealt_out_again_and_none_is_lost(
    subtasks: list[list[int]], parallelism: int
) -> None:
    """A list is split evenly, unless the parallelism is as before; every subtask gets the whole
    union; a broadcast list stays as it is."""
    before = [kept(split=one, union=one, broadcast=[7]) for one in subtasks]
    after = [found(one) for one in redistributed(before, parallelism)]
    everything = sorted(element for one in subtasks for element in one)
    sizes = [len(split) for split, _, _ in after]
    assert sorted(element for split, _, _ in after for element in split) == everything
    if len(subtasks) == parallelism:
        assert [split for split, _, _ in after] == subtasks
    else:
        assert max(sizes) - min(sizes) <= 1
    assert all(sorted(union) == everything and broadcast == [7] for _, union, broadcast in after)


def test_a_list_that_nobody_asks_for_is_kept() -> None:
    """An operator may be changed, and changed back."""
    lists = decode_lists(StateStore(kept(split=[1])).dump_lists())
    assert found(lists)[0] == [1]


def test_a_list_of_another_kind_is_refused() -> None:
    """It would be redistributed wrongly."""
    with pytest.raises(
        OperatorStateError, match="was saved as a list state and is now requested as a union state"
    ):
        StateStore(kept(split=[1])).union_list_state("split")


@pytest.mark.parametrize("kind", ["list_state", "union_list_state", "broadcast_state"])
@pytest.mark.parametrize(
    ("element", "part"),
    [
        (float("nan"), r"nan (float) at [1]"),
        ({"a": [0, Decimal("1.5")]}, r"Decimal('1.5') (Decimal) at [1]['a'][1]"),
        ([date(2024, 1, 1)], r"datetime.date(2024, 1, 1) (date) at [1][0]"),
        (b"ab", r"b'ab' (bytes) at [1]"),
        ((1, 2), r"(1, 2) (tuple) at [1]"),
        ({"a": {1: 2}}, r"the key 1 (int) at [1]['a']"),
        (np.int64(3), r"np.int64(3) (int64) at [1]"),
        ({"a"}, r"{'a'} (set) at [1]"),
        ("\ud800", r"'\ud800' (str) at [1]"),
    ],
)
def test_an_element_that_json_would_change_is_refused_by_its_place(
    kind: str, element: Any, part: str
) -> None:
    """With operator, state, type and the way out: a restored operator would go on with a different
    value."""
    store = StateStore(operator_id="score")
    getattr(store, kind)("things").update(["kept", element])
    with pytest.raises(OperatorStateError) as refused:
        store.dump_lists()
    says = str(refused.value)
    assert (
        "The state 'things' of operator 'score' cannot be stored, since JSON cannot represent"
        f" {part}: make it of" in says
    )
    assert "or give the state a serializer, such as weir.operators.state.store.BYTES" in says


def test_an_element_that_changes_its_type_and_not_its_json_is_refused_too() -> None:
    """The tuple's text equals that of the stored list, and NaN's that of None."""
    for before, after in (([1, 2], (1, 2)), (None, float("nan"))):
        store = StateStore()
        things = store.list_state("things")
        things.update([before])
        store.dump_lists()
        things.update([after])
        with pytest.raises(OperatorStateError, match="JSON cannot represent"):
            store.dump_lists()


def test_a_json_serializer_of_the_user_is_as_strict() -> None:
    """NaN would come back as None."""
    store = StateStore(operator_id="score")
    store.list_state("things", JsonSerializer()).update([float("nan")])
    with pytest.raises(OperatorStateError, match="JSON cannot represent nan"):
        store.dump_lists()


def test_an_element_that_is_changed_after_it_was_kept_is_kept_again() -> None:
    """The list that was read back last belongs to the caller alone."""
    store = StateStore()
    thing = {"n": [1]}
    store.list_state("things").add(thing)
    store.dump_lists()
    thing["n"].append(2)
    assert StateStore(decode_lists(store.dump_lists())).list_state("things").get() == [
        {"n": [1, 2]}
    ]


def test_a_list_that_holds_itself_is_refused() -> None:
    """It is infinite."""
    store = StateStore()
    endless: list[Any] = []
    endless.append(endless)
    store.list_state("things").add(endless)
    with pytest.raises(OperatorStateError, match="nested too deeply or contains itself"):
        store.dump_lists()


def test_an_element_that_a_serializer_cannot_keep_is_refused() -> None:
    """The error has the state's name."""
    store = StateStore()
    store.list_state("things", BYTES).add("text")
    with pytest.raises(
        OperatorStateError,
        match="'things' of operator '' cannot be stored, since str are not bytes",
    ):
        store.dump_lists()


def test_raw_state_of_key_groups_is_handed_over_where_it_has_changed() -> None:
    """A group keeps its bytes; groups outside the batch are left alone."""
    raw = StateStore().raw_keyed_state("index")
    raw.begin_batch(pa.array([3, 5, 3], pa.int32()))
    assert raw.record_groups.to_pylist() == [3, 5, 3]
    raw.put(3, b"\x00three")
    raw.put(5, b"")
    first = raw.changed_groups()
    raw.put(3, b"three again")
    again = StateStore(None, {"index": first | raw.changed_groups()}).raw_keyed_state("index")
    assert {group: again.get(group) for group in again.groups} == {3: b"three again", 5: b""}
    assert again.get(4) is None
    assert again.changed_groups() == {}


def test_bytes_for_a_key_group_of_another_subtask_are_refused() -> None:
    """A redistribution would lose them. Its own can be written at any time."""
    raw = StateStore(owned=range(64)).raw_keyed_state("index")
    raw.put(63, b"")
    with pytest.raises(OperatorStateError, match="key group 64, which belongs to another subtask"):
        raw.put(64, b"")
    with pytest.raises(TypeError):
        raw.put(3, 10)  # type: ignore[arg-type]


def test_the_key_groups_of_records_are_known_while_they_are_processed() -> None:
    """Also by a state that is requested only then, and by none afterwards."""
    store = StateStore()
    store.begin_batch(pa.array(["a"]), pa.array([3], pa.int32()))
    raw = store.raw_keyed_state("index")
    assert raw.record_groups.to_pylist() == [3]
    store.end_batch()
    with pytest.raises(OperatorStateError, match="give the step key_by, and ask in process_batch"):
        _ = raw.record_groups


def test_keyed_and_raw_state_are_not_taken_for_each_other() -> None:
    """Neither within an operator nor when handed over."""
    store = StateStore()
    keyed, raw = store.keyed_state("keyed", pa.int64(), 0), store.raw_keyed_state("raw")
    store.begin_batch(pa.array(["a"]), pa.array([3], pa.int32()))
    keyed.put(pa.array(["a"]), pa.array([1]))
    raw.put(3, b"1")
    with pytest.raises(
        OperatorStateError, match="'raw' is requested as keyed state and as raw state"
    ):
        store.keyed_state("raw", pa.int64(), 0)
    with pytest.raises(
        OperatorStateError, match="'keyed' is requested as keyed state and as raw state"
    ):
        store.raw_keyed_state("keyed")
    found = {"keyed": followed((), keyed)}
    with pytest.raises(
        OperatorStateError, match="'keyed' was saved as keyed state and is now requested as raw"
    ):
        StateStore(None, None, found).raw_keyed_state("keyed")
    with pytest.raises(
        OperatorStateError, match="'raw' was saved as raw state and is now requested as keyed"
    ):
        StateStore(None, {"raw": raw.changed_groups()}).keyed_state("raw", pa.int64(), 0)


def test_raw_state_is_bytes() -> None:
    """As a user wrote them."""
    store = StateStore()
    store.list_state("raw", BYTES).add(b"\x00\xff")
    assert StateStore(decode_lists(store.dump_lists())).list_state("raw", BYTES).get() == [
        b"\x00\xff"
    ]


def counts(layers: Sequence[Layer] = ()) -> KeyedState:
    return KeyedState("counts", pa.int64(), 0, layers)


def followed(layers: Sequence[Layer], state: KeyedState) -> list[Layer]:
    """The layers, after a batch."""
    written = next_layer(state)
    if written is None:
        return [*layers]
    stay, data = written
    return [*layers[:stay], *([] if data is None else [Layer(data, (0, KEY_GROUPS))])]


def group_of(keys: pa.Array) -> pa.Array:
    """Key groups as Spark would assign them; here the key's last digits."""
    return pa.array([key % 8 for key in keys.to_pylist()], pa.int32())


def add(state: KeyedState, *numbers: int) -> None:
    """Count some keys, as an operator does with a batch."""
    keys = pa.array(numbers, pa.int64())
    state.begin_batch(keys, group_of(keys))
    unique = keys.value_counts()
    state.put(
        unique.field("values"),
        pa.array(state.get(unique.field("values")).to_numpy() + unique.field("counts").to_numpy()),
    )


def value(state: KeyedState, *keys: int) -> list[int]:
    found: list[int] = state.get(pa.array(keys, pa.int64())).to_pylist()
    return found


def test_a_value_is_the_one_that_was_put_last_or_the_default() -> None:
    """By key, for whole arrays."""
    state = counts()
    add(state, 1, 2, 2)
    add(state, 2, 9)
    assert value(state, 2, 9, 1, 5, 2) == [3, 1, 1, 0, 3]


@given(st.lists(st.lists(st.integers(0, 40), min_size=1), max_size=8), st.integers(0, 7))
def test_values_handed_over_by_group_are_those_of_a_plain_count(
    batches: list[list[int]], at: int
) -> None:
    """Whatever the batches are, and wherever another process takes over."""
    state, written, expected = counts(), list[Layer](), dict[int, int]()
    for number, batch in enumerate(batches):
        if number == at:
            state = counts(written)
        add(state, *batch)
        written = followed(written, state)
        for key in batch:
            expected[key] = expected.get(key, 0) + 1
    assert value(counts(written), *range(41)) == [expected.get(key, 0) for key in range(41)]


def test_keys_and_values_may_be_text_and_values_may_be_missing() -> None:
    """Any Arrow type works."""
    state = KeyedState("names", pa.string(), None)
    keys = pa.array(["a", "b"])
    state.begin_batch(keys, pa.array([1, 2], pa.int32()))
    state.put(keys, pa.array(["x", None]))
    again = KeyedState("names", pa.string(), None, followed((), state))
    assert again.get(pa.array(["b", "a", "c"])).to_pylist() == [None, "x", None]


def test_a_key_that_is_not_in_the_batch_is_refused() -> None:
    """It may belong to another subtask."""
    state = counts()
    state.begin_batch(pa.array([1]), pa.array([1], pa.int32()))
    with pytest.raises(OperatorStateError, match="a key that is not in the batch"):
        state.put(pa.array([2]), pa.array([1]))


def test_new_keys_are_refused_when_no_records_are_processed() -> None:
    """A key that has a value may get another at any time."""
    store = StateStore()
    keys = pa.array([1, 2])
    state = store.keyed_state("counts", pa.int64(), 0)
    store.begin_batch(keys, group_of(keys))
    state.put(keys.slice(0, 1), pa.array([1]))
    store.end_batch()
    state.put(keys.slice(0, 1), pa.array([5]))
    with pytest.raises(OperatorStateError, match="cannot take a new key here"):
        state.put(keys.slice(1), pa.array([1]))
    assert value(state, 1, 2) == [5, 0]


def test_two_values_for_one_key_are_refused() -> None:
    """It would be unclear which one counts: for a new key, a known one, or a known one among new
    ones."""
    state = counts()
    keys = pa.array([1, 2, 3])
    state.begin_batch(keys, group_of(keys))
    for _ in range(2):
        with pytest.raises(
            OperatorStateError, match="two values for one key, 1: put each key once"
        ):
            state.put(pa.array([2, 1, 1]), pa.array([0, 1, 2]))
        state.put(pa.array([1]), pa.array([7]))
    with pytest.raises(OperatorStateError, match="two values for one key, 1"):
        state.put(pa.array([1, 3, 1]), pa.array([1, 2, 3]))


NAN_OF_OTHER_BITS = float(np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0])


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_the_two_zeros_are_one_key_and_all_nan_are_one(kind: pa.DataType) -> None:
    """As in Spark, which assigns them one key group; whatever their bits, also after a restore."""
    state = KeyedState("counts", pa.int64(), 0)
    first, second = (
        pa.array([0.0, float("nan"), None], kind),
        pa.array(np.array([-0.0, -NAN_OF_OTHER_BITS])).cast(kind),
    )
    state.begin_batch(first, pa.array([1, 2, 3], pa.int32()))
    state.put(first, pa.array([10, 20, 30]))
    state.begin_batch(second, pa.array([1, 2], pa.int32()))
    assert state.get(second).to_pylist() == [10, 20]
    state.put(second, pa.array([11, 21]))
    state = KeyedState("counts", pa.int64(), 0, followed((), state))
    assert state.get(pa.concat_arrays([first, second])).to_pylist() == [11, 21, 30, 11, 21]
    with pytest.raises(OperatorStateError, match="two values for one key"):
        state.put(pa.array([0.0, -0.0], kind), pa.array([1, 2]))


@pytest.mark.parametrize(
    ("kind", "outside"),
    [(pa.date32(), 3_000_000), (pa.timestamp("us", "UTC"), 2**60), (pa.timestamp("us"), -(2**60))],
)
def test_a_date_that_python_does_not_have_is_kept(kind: pa.DataType, outside: int) -> None:
    """State holds what Arrow holds, also dates outside of the years 1 to 9999."""
    values = pa.array([0, outside], pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)
    state = KeyedState("last", kind, None)
    keys = pa.array([1, 2])
    state.begin_batch(keys, group_of(keys))
    state.put(keys, values)
    again = KeyedState("last", kind, None, followed((), state))
    assert again.get(keys).equals(values)


def test_a_date_that_pandas_does_not_have_is_refused_by_row_and_column() -> None:
    """No frame with such rows is possible."""
    good, bad = pa.array([0, 0, 0]), pa.array([0, 0, 3_000_000], pa.int32()).cast(pa.date32())
    with pytest.raises(
        OperatorStateError,
        match="Row 2 of the column 'day' has a date outside of the years 1 to 9999",
    ):
        PandasOperator().process_batch(pa.record_batch([good, bad], ["id", "day"]))


def test_a_null_is_refused_where_there_is_a_default() -> None:
    """It would become a number."""
    state = counts()
    state.begin_batch(pa.array([1]), pa.array([1], pa.int32()))
    with pytest.raises(OperatorStateError, match="was given a null, but has the default 0"):
        state.put(pa.array([1]), pa.array([None], pa.int64()))
