"""Output has the columns that the step declares, by name and type (MISSION B7)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from tests.operators.test_sent_events import context
from tests.operators.test_warm_subtasks import new_process, order_of

from weir.errors import PipelineError
from weir.operators import CoOperator, Operator, PandasOperator
from weir.operators.connected import INPUT
from weir.operators.output import fitted, tagged_column
from weir.subtasks.worker import BatchRun

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def batch(**columns: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_a_batch_of_the_declared_columns_is_passed_on_as_it_is() -> None:
    """Nothing is copied."""
    given = batch(id=[1, 2], name=["a", "b"])
    assert fitted(given, SCHEMA, "score") is given


def test_columns_are_taken_by_name_whatever_their_order() -> None:
    """Spark would match them by position."""
    assert fitted(batch(name=["a"], id=[1]), SCHEMA, "score").equals(batch(id=[1], name=["a"]))


def test_values_that_fit_the_declared_type_are_given_it() -> None:
    """pandas and Arrow often produce narrower or encoded ones."""
    narrow = batch(
        id=pa.array([1, None], pa.int32()), name=pa.array(["a", "b"]).dictionary_encode()
    )
    assert fitted(narrow, SCHEMA, "score").equals(batch(id=[1, None], name=["a", "b"]))


@pytest.mark.parametrize(
    "columns", [{"id": [1]}, {"id": [1], "nam": ["a"]}, {"id": [1], "name": ["a"], "x": [1]}]
)
def test_a_column_too_few_or_too_many_is_named(columns: dict[str, list[object]]) -> None:
    """With both sides of the difference."""
    names = ", ".join(columns)
    with pytest.raises(
        PipelineError,
        match=f"Operator 'score' emits the columns {names}, but declares id, name: ",
    ):
        fitted(batch(**columns), SCHEMA, "score")


@pytest.mark.parametrize(
    ("given", "declared"),
    [
        (pa.array([1.0, 1e300]), pa.float32()),
        (pa.array([[1e300], None]), pa.list_(pa.float32())),
        (pa.array([{"a": 1e300}]), pa.struct([("a", pa.float32())])),
        (
            pa.array([[("a", 1e300)]], pa.map_(pa.string(), pa.float64())),
            pa.map_(pa.string(), pa.float32()),
        ),
    ],
)
def test_a_number_beyond_the_range_of_the_declared_type_is_refused(
    given: pa.Array, declared: pa.DataType
) -> None:
    """Arrow makes it infinite, also within lists, structs and maps."""
    with pytest.raises(PipelineError, match="a finite number is beyond the range of"):
        fitted(pa.record_batch([given], ["x"]), pa.schema([("x", declared)]), "score")
    assert fitted(
        pa.record_batch([pa.array([float("inf"), None])], ["x"]),
        pa.schema([("x", pa.float32())]),
        "score",
    )["x"].to_pylist() == [float("inf"), None]


def test_values_that_do_not_fit_are_named_with_both_types() -> None:
    """And with the reason."""
    with pytest.raises(
        PipelineError, match=r"emits 'id' as double, .* declares it as int64, .*truncated"
    ):
        fitted(batch(id=[1.5], name=["a"]), SCHEMA, "score")


@pytest.mark.parametrize(
    ("given", "declared"),
    [
        (pa.array(["1"]), pa.int64()),
        (pa.array([1]), pa.string()),
        (pa.array([5]), pa.bool_()),
        (pa.array([1_700_000_000_000]), pa.timestamp("us", tz="UTC")),
        (pa.array([0], pa.timestamp("us")), pa.timestamp("us", tz="UTC")),
        (pa.array([0], pa.timestamp("us", tz="UTC")), pa.timestamp("us")),
        (pa.array([1.555]), pa.decimal128(10, 2)),
        (pa.array([{"z": 1}]), pa.struct([("x", pa.int64())])),
        (pa.array([{"x": 1, "y": 2}]), pa.struct([("x", pa.int64())])),
        (pa.array([[{"z": 1}]]), pa.list_(pa.struct([("x", pa.int64())]))),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_values_of_another_kind_are_refused(given: pa.Array, declared: pa.DataType) -> None:
    """Arrow would convert or round them, or replace them with null."""
    with pytest.raises(PipelineError, match="Operator 'score' emits 'v' as "):
        fitted(batch(v=given), pa.schema([("v", declared)]), "score")


@pytest.mark.parametrize(
    ("given", "declared"),
    [
        (pa.array([{"x": 1}], pa.struct([("x", pa.int32())])), pa.struct([("x", pa.int64())])),
        (pa.array([[1.0, None]]), pa.list_(pa.int64())),
        (pa.array(["a"], pa.large_string()), pa.string()),
        (pa.array([0], pa.timestamp("ms", tz="Europe/Berlin")), pa.timestamp("us", tz="UTC")),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())), pa.map_(pa.string(), pa.int64())),
        (pa.nulls(1), pa.decimal128(10, 2)),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_values_that_say_the_same_in_another_form_are_taken(
    given: pa.Array, declared: pa.DataType
) -> None:
    """Including nested ones."""
    put_out = fitted(batch(v=given), pa.schema([("v", declared)]), "score")
    assert put_out.column(0).type == declared
    assert put_out.column(0).to_pylist() == given.to_pylist()


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32()])
def test_a_null_where_none_may_be_is_refused(kind: pa.DataType) -> None:
    """Spark would read a number."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    with pytest.raises(
        PipelineError, match="emits a null in 'id', which its output_schema declares as NOT NULL"
    ):
        fitted(batch(id=pa.array([1, None], kind)), schema, "score")
    assert fitted(batch(id=pa.array([1], kind)), schema, "score").column(0).to_pylist() == [1]


def test_a_nested_null_where_none_may_be_is_refused_by_its_place() -> None:
    """A null list has no elements, and a null struct no fields."""
    kind = pa.list_(pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())]))
    schema = pa.schema([("v", kind)])
    values = pa.array([[{"a": 1}, None], None], kind)
    assert fitted(batch(v=values), schema, "score").num_rows == 2
    broken = pa.ListArray.from_arrays(
        [0, 1],
        pa.StructArray.from_arrays(
            [pa.array([None], pa.int64()), pa.array([1])],
            fields=[kind.value_field.type.field(0), kind.value_field.type.field(1)],
        ),
        type=kind,
    )
    with pytest.raises(PipelineError, match=r"emits a null in 'v\.item\.a'"):
        fitted(batch(v=broken), schema, "score")


@pytest.mark.parametrize("wrapped", [False, True])
def test_text_that_is_not_utf8_is_refused_by_its_column(wrapped: bool) -> None:
    """One such byte makes a Delta table unreadable, and Arrow does not look at it."""
    text = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"))
    values = pa.ListArray.from_arrays([0, 1], text) if wrapped else text
    with pytest.raises(PipelineError, match=r"emits 'v' as .*UTF8"):
        fitted(batch(v=values), pa.schema([("v", values.type)]), "score")


def test_columns_of_one_name_are_taken_by_their_order() -> None:
    """Nothing else distinguishes them."""
    schema = pa.schema([("a", pa.int64()), ("a", pa.string())])
    given = pa.RecordBatch.from_arrays(
        [pa.array([1], pa.int8()), pa.array(["x"])], names=["a", "a"]
    )
    assert [one.to_pylist() for one in fitted(given, schema, "score").columns] == [[1], ["x"]]


class Doubled(PandasOperator):
    """Doubles each frame and returns it in two halves."""

    def process_frame(self, frame: pd.DataFrame) -> Iterable[pd.DataFrame]:
        yield frame[frame["id"] < 2].assign(id=lambda f: f["id"] * 2)
        yield frame[frame["id"] >= 2].assign(id=lambda f: f["id"] * 2)


def test_a_pandas_operator_is_given_frames_and_emits_batches() -> None:
    """Even where a missing number has made pandas use floating point."""
    put_out = Doubled().process_batch(batch(name=["a", "b", "c"], id=[1, None, 3])) or ()
    assert pa.Table.from_batches([fitted(one, SCHEMA, "score") for one in put_out]).to_pydict() == {
        "id": [2, 6],
        "name": ["a", "c"],
    }


BATCH = batch(id=[1], name=["a"])


class Returning(Operator):
    """Returns what it is given."""

    def __init__(self, emitted: object) -> None:
        self.emitted = emitted

    def end_batch(self) -> Any:
        return self.emitted


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (BATCH, "Returning.end_batch returned a RecordBatch: return a list of record batches, or"),
        (7, "Returning.end_batch returned a int: return a list of record batches, or yield them"),
        ([BATCH["id"]], "Returning.end_batch emitted a Int64Array: emit record batches"),
        ([pa.Table.from_batches([BATCH])], "Returning.end_batch emitted a Table"),
    ],
)
def test_what_is_not_a_list_of_batches_is_refused_by_its_method(
    tmp_path: Path, given: object, says: str
) -> None:
    """A single batch would fall into its columns."""
    run = BatchRun(order_of(tmp_path, 0), context(), new_process())
    one = run.begin(Returning(given))
    with pytest.raises(PipelineError, match=says):
        list(run.batches(one, []))


class Single(PandasOperator):
    """Returns the frame that it is given, or its columns' names."""

    def __init__(self, *, names: bool) -> None:
        self.names = names

    def process_frame(self, frame: pd.DataFrame) -> Any:
        return list(frame) if self.names else frame


def test_what_is_not_a_list_of_frames_is_refused_by_its_method() -> None:
    """A single frame would fall into the names of its columns."""
    with pytest.raises(PipelineError, match=r"Single\.process_frame returned a DataFrame: return"):
        Single(names=False).process_batch(BATCH)
    with pytest.raises(
        PipelineError, match=r"Single\.process_frame emitted a str: emit DataFrames"
    ):
        Single(names=True).process_batch(BATCH)


class Both(CoOperator):
    """Returns the batch of its first input."""

    def process_batch1(self, batch: pa.RecordBatch) -> Any:
        return batch


def test_a_connected_operator_that_returns_one_batch_is_refused_by_its_method() -> None:
    """Of the input whose method it is."""
    given = pa.record_batch({INPUT: [1], tagged_column("1", "id"): [7]})
    with pytest.raises(PipelineError, match=r"Both\.process_batch1 returned a RecordBatch"):
        list(Both().process_batch(given))
