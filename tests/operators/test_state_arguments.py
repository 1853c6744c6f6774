"""What state does with arrays that are empty, of different lengths, or of another type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.operators.layers import next_layer

from weir.errors import OperatorStateError
from weir.operators.state.keyed import KeyedState
from weir.operators.state.memory import StateMemory
from weir.operators.state.store import StateStore
from weir.operators.state.types import KEY_GROUPS, Layer

ALL_GROUPS = (0, KEY_GROUPS)
NOTHING = pa.array([])
ONE, TWO, THREE = (pa.array(list(range(1, count + 1))) for count in (1, 2, 3))


def store_in_a_batch() -> StateStore:
    """State while records with the keys of ``THREE`` are processed."""
    store = StateStore(operator_id="score")
    store.begin_batch(THREE, pa.array([1, 2, 3], pa.int32()))
    return store


def keyed(store: StateStore) -> Callable[..., Any]:
    return store.keyed_state("s", pa.int64(), 0).put


def mapped(store: StateStore) -> Callable[..., Any]:
    state = store.map_state("s", pa.int64(), pa.int64(), 0)
    return lambda keys, values: state.put(keys, keys, values)


def listed(store: StateStore) -> Callable[..., Any]:
    return store.keyed_list_state("s", pa.int64()).append


def timed(store: StateStore) -> Callable[..., Any]:
    return store.event_timers("s").register


@pytest.mark.parametrize("of", [keyed, mapped, listed, timed])
def test_a_call_without_keys_changes_nothing(of: Callable[[StateStore], Any]) -> None:
    """A batch in which a filter leaves no row is nothing special: no layer is written for it."""
    store = store_in_a_batch()
    put = of(store)
    put(TWO, TWO)
    assert [next_layer(state) is not None for state in store.keyed.values()] == [True] * len(
        store.keyed
    )
    put(NOTHING, NOTHING)
    put(TWO.slice(0, 0), TWO.slice(0, 0))
    assert [next_layer(state) for state in store.keyed.values()] == [None] * len(store.keyed)


def test_a_layer_without_a_byte_holds_no_rows(tmp_path: Path) -> None:
    """Earlier versions wrote one after a call without keys, also as the only one."""
    state = KeyedState("s", pa.int64(), 0)
    state.begin_batch(TWO, pa.array([1, 2], pa.int32()))
    state.put(TWO, TWO)
    written = next_layer(state)
    assert written is not None
    assert written[1] is not None
    (tmp_path / "empty").touch()
    memory = StateMemory()
    empty = Layer(memory.mapped_file(str(tmp_path / "empty"), 0, 0), ALL_GROUPS)
    layers = [empty, Layer(written[1], ALL_GROUPS), empty]
    assert KeyedState("s", pa.int64(), 0, layers).get(TWO).to_pylist() == [1, 2]
    assert len(KeyedState("s", pa.int64(), 0, [empty])) == 0


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (keyed, "The keyed state 's' was given 3 keys and 1 values: give as many of each"),
        (mapped, "The map state 's' was given 3 keys and 1 values"),
        (listed, "The list state 's' was given 3 keys and 1 values"),
        (timed, "The timers 's' were given 3 keys and 1 times"),
    ],
)
def test_arrays_of_different_lengths_are_refused(
    of: Callable[[StateStore], Any], says: str
) -> None:
    """A key would get the value of another one."""
    store = store_in_a_batch()
    with pytest.raises(OperatorStateError, match=says):
        of(store)(THREE, ONE)
    assert [len(state) for state in store.keyed.values()] == [0] * len(store.keyed)


def test_keys_and_map_keys_of_different_lengths_are_refused() -> None:
    """In every call that takes both."""
    state = store_in_a_batch().map_state("s", pa.int64(), pa.int64(), 0)
    with pytest.raises(OperatorStateError, match="'s' was given 3 keys and 2 map keys"):
        state.get(THREE, TWO)


def test_a_value_that_does_not_fit_its_type_is_refused_by_the_state_s_name() -> None:
    """With both types and the way out."""
    store = store_in_a_batch()
    state = store.keyed_state("s", pa.int64(), 0)
    says = "The keyed state 's' was given values of type string, which do not fit its type int64"
    with pytest.raises(OperatorStateError, match=says):
        state.put(ONE, pa.array(["x"]))
    maps = store.map_state("m", pa.int64(), pa.int64(), 0)
    with pytest.raises(OperatorStateError, match="'m' was given map keys of type string"):
        maps.get(ONE, pa.array(["x"]))
    with pytest.raises(OperatorStateError, match="'t' were given times of type string"):
        store.event_timers("t").register(ONE, pa.array(["x"]))


def test_a_number_beyond_the_range_of_a_float_is_refused() -> None:
    """It would become infinite; what was infinite before may stay so."""
    state = store_in_a_batch().keyed_state("s", pa.float32(), 0.0)
    with pytest.raises(OperatorStateError, match="a finite number is beyond the range of float"):
        state.put(ONE, pa.array([1e300]))
    state.put(ONE, pa.array([float("inf")]))
    assert state.get(ONE).to_pylist() == [float("inf")]


def restored(kind: pa.DataType, values: pa.Array, requested: pa.DataType) -> pa.Array:
    """Values of one type, after a restore with another one."""
    keys = pa.array(range(len(values)))
    state = KeyedState("s", kind, None)
    state.begin_batch(keys, keys.cast(pa.int32()))
    state.put(keys, values)
    written = next_layer(state)
    assert written is not None
    assert written[1] is not None
    return KeyedState("s", requested, None, [Layer(written[1], ALL_GROUPS)]).get(keys)


@pytest.mark.parametrize(
    ("kind", "value", "requested"),
    [
        (pa.string(), "x", pa.int64()),
        (pa.float64(), 0.1, pa.float32()),
        (pa.float64(), 1.5, pa.int64()),
        (pa.int64(), 300, pa.int8()),
        (pa.list_(pa.float64()), [0.1], pa.list_(pa.float32())),
    ],
)
def test_saved_values_that_another_type_would_change_are_refused(
    kind: pa.DataType, value: Any, requested: pa.DataType
) -> None:
    """Also where Arrow's cast loses digits in silence."""
    with pytest.raises(OperatorStateError) as refused:
        restored(kind, pa.array([value], kind), requested)
    says = str(refused.value)
    assert f"The keyed state 's' was saved with values of type {kind} and is now requested" in says
    assert "request it as it was, or give the new state another name" in says


@pytest.mark.parametrize(
    ("kind", "values", "requested"),
    [
        (pa.int32(), [1, None], pa.int64()),
        (pa.float32(), [0.5, None, float("inf")], pa.float64()),
        (pa.float64(), [0.5, None, -0.0], pa.float32()),
    ],
)
def test_saved_values_are_converted_to_a_type_that_holds_them(
    kind: pa.DataType, values: list[Any], requested: pa.DataType
) -> None:
    """A column may become wider between two runs."""
    found = restored(kind, pa.array(values, kind), requested)
    assert found.type == requested
    assert found.to_pylist() == values


@pytest.mark.parametrize("data", [b"", b"nonsense", "no rows", "another column"])
def test_raw_state_that_is_damaged_is_refused_by_its_name(data: Any) -> None:
    """Whatever the damage is."""
    if isinstance(data, str):
        schema = pa.schema([("group", pa.int16()), ("raw", pa.binary())])
        rows = pa.record_batch([pa.array([], one.type) for one in schema], schema=schema)
        if data == "another column":
            rows = pa.record_batch([pa.array([1])], ["other"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows)
        data = bytes(sink.getvalue())
    with pytest.raises(OperatorStateError, match="The raw state 'index' cannot be read back"):
        StateStore(None, {"index": {3: data}}).raw_keyed_state("index")


@pytest.mark.parametrize("plain_first", [True, False])
def test_a_plain_value_and_a_map_that_are_kept_under_one_name_are_refused(
    plain_first: bool,
) -> None:
    """Each would write over the other, whichever is requested first."""
    store = StateStore()
    requests = [
        lambda: store.keyed_state("map/s", pa.int64(), 0),
        lambda: store.map_state("s", pa.int64(), pa.int64(), 0),
    ]
    first, second = requests if plain_first else reversed(requests)
    first()
    with pytest.raises(OperatorStateError, match="'map/s' has the name under which a map"):
        second()
