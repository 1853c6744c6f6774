"""Converts the rows that an operator emits to the types that its step declares.

Spark takes columns by position and reads no other type. Values are cast to the declared type if
that represents the same value in another form: narrower numbers, dictionary-encoded or large
columns, another unit or zone of time, pandas' representation of missing numbers. Anything else is
an error, and so is a struct field under another name, which Arrow would turn into null.
``to_python`` refuses dates outside the years 1 to 9999, which Python does not have, while Arrow and
Spark do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from weir.core.graph import MAIN_OUTPUT
from weir.errors import OperatorStateError, PipelineError
from weir.operators.state.casts import cast

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from weir.core.types import OperatorId

T = TypeVar("T")

#: The column with the tag of a row's side output, null in rows of the main output, in the frame of
#: an operator that has side outputs.
OUTPUT = "__weir_output"


def tagged_column(tag: str, name: str) -> str:
    """The name of a column in a frame that several outputs, or inputs, share."""
    return f"__weir_{tag}/{name}"


class Outputs:
    """Makes record batches of one schema from the rows of an operator's outputs.

    They have the columns of the main output, then ``OUTPUT`` and the columns of each side output;
    without side outputs only the first.
    """

    def __init__(
        self, operator_id: OperatorId, main: pa.Schema, sides: Mapping[str, pa.Schema]
    ) -> None:
        """``sides`` are the schemas of the side outputs by tag."""
        self._operator_id = operator_id
        self._schemas = {MAIN_OUTPUT: main, **sides}

    def rows(self, tag: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of one output. Raises ``PipelineError`` if they do not fit its schema."""
        import pyarrow as pa

        where = f"side_outputs[{tag!r}]" if tag else "output_schema"
        batch = fitted(batch, self._schemas[tag], self._operator_id, where)
        if len(self._schemas) == 1:
            return batch
        columns: dict[str, pa.Array] = {}
        for output, schema in self._schemas.items():
            for field in schema:
                name = tagged_column(output, field.name) if output else field.name
                columns[name] = (
                    batch.column(field.name) if output == tag else pa.nulls(len(batch), field.type)
                )
            if output == MAIN_OUTPUT:
                columns[OUTPUT] = pa.array([tag or None] * len(batch), pa.string())
        return pa.RecordBatch.from_pydict(columns)


def record_batches(given: object, where: str) -> Iterator[pa.RecordBatch]:
    """What a method of an operator emits; ``where`` names it, for messages.

    Raises ``PipelineError`` for anything but record batches.
    """
    import pyarrow as pa

    return emitted(given, pa.RecordBatch, "record batches", where)


def emitted(given: object, kind: type[T], kinds: str, where: str) -> Iterator[T]:
    """Yield the values that a method returned or yields, all of one type; nothing for None.

    ``kinds`` and ``where`` name the type and the method, for messages.
    Raises ``PipelineError`` for a single value, which would fall apart into its columns, and for
    values of other types.
    """
    if given is None:
        return
    if isinstance(given, kind) or not isinstance(given, Iterable):
        raise PipelineError(
            f"{where} returned a {type(given).__name__}: return a list of {kinds}, or yield them."
        )
    for value in given:
        if not isinstance(value, kind):
            raise PipelineError(f"{where} emitted a {type(value).__name__}: emit {kinds}.")
        yield value


def to_pandas(batch: pa.RecordBatch) -> pd.DataFrame:
    """The records as a DataFrame. Raises ``OperatorStateError`` for a date that Python lacks."""
    try:
        frame: pd.DataFrame = batch.to_pandas()
    except (ValueError, OverflowError) as error:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.to_pandas()
            except (ValueError, OverflowError):
                raise _outside(column, f"the column {name!r}", error) from error
        raise
    return frame


def _outside(values: pa.Array, column: str, error: Exception) -> OperatorStateError:
    row = next(row for row in range(len(values)) if not _is_python(values[row]))
    return OperatorStateError(
        f"Row {row} of {column} has a date outside of the years 1 to 9999, which Python does not"
        f" have ({error}): make such dates null, or leave their rows out, before the operator."
    )


def _is_python(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except (ValueError, OverflowError):
        return False
    return True


def fitted(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    operator_id: OperatorId,
    where: str = "output_schema",
) -> pa.RecordBatch:
    """The batch with the columns of ``schema``, in its order and with its types.

    ``where`` is the attribute of the operator that declares the schema, for messages.
    Raises ``PipelineError`` if the columns differ from the schema's, if values do not fit their
    type, or if a column declared NOT NULL has a null.
    """
    import pyarrow as pa

    if batch.schema.names == schema.names:
        if batch.schema.types == schema.types:
            _check_nulls(batch, schema, operator_id, where)
            return batch
    elif sorted(batch.schema.names) == sorted(schema.names) and len(set(schema.names)) == len(
        schema
    ):
        batch = batch.select(schema.names)
    else:
        raise PipelineError(
            f"Operator {operator_id!r} emits the columns {_listed(batch.schema)}, but declares"
            f" {_listed(schema)}: change its {where} or its output."
        )
    columns = []
    for given, column, declared in zip(batch.schema, batch.columns, schema, strict=True):
        try:
            if not _says_the_same(given.type, declared.type):
                raise pa.ArrowInvalid(f"{given.type} is not {declared.type}")
            columns.append(cast(column, declared.type))
        except pa.ArrowException as error:
            raise PipelineError(
                f"Operator {operator_id!r} emits {given.name!r} as {given.type}, but its"
                f" {where} declares it as {declared.type}, and the values do not fit"
                f" ({error}): change one of them."
            ) from error
    batch = pa.RecordBatch.from_arrays(columns, names=schema.names)
    _check_nulls(batch, schema, operator_id, where)
    return batch


def _check_nulls(
    batch: pa.RecordBatch, schema: pa.Schema, operator_id: OperatorId, where: str
) -> None:
    """Raise ``PipelineError`` for a null in a NOT NULL column, which Spark does not check."""
    for declared, column in zip(schema, batch.columns, strict=True):
        if not declared.nullable and column.null_count:
            raise PipelineError(
                f"Operator {operator_id!r} emits a null in {declared.name!r}, which its"
                f" {where} declares as NOT NULL: change one of them."
            )


def _says_the_same(given: pa.DataType, declared: pa.DataType) -> bool:
    """Whether values of type ``given`` keep their meaning as ``declared``.

    Single values that do not fit are found by the cast.
    """
    from pyarrow import types

    if given == declared or types.is_null(given):
        return True
    if types.is_dictionary(given):
        return _says_the_same(given.value_type, declared)
    if types.is_struct(given) and types.is_struct(declared):
        names = [field.name for field in given] == [field.name for field in declared]
        return names and all(
            _says_the_same(a.type, b.type) for a, b in zip(given, declared, strict=True)
        )
    if types.is_map(given) and types.is_map(declared):
        keys = _says_the_same(given.key_type, declared.key_type)
        return keys and _says_the_same(given.item_type, declared.item_type)
    if _is_list(given) and _is_list(declared):
        return _says_the_same(given.value_type, declared.value_type)
    kinds = (
        _is_number,
        _is_text,
        _is_bytes,
        _is_instant,
        _is_local_time,
        types.is_date,
        types.is_decimal,
    )
    return any(kind(given) and kind(declared) for kind in kinds)


def _is_instant(given: pa.DataType) -> bool:
    """Whether it is Spark's ``timestamp``, which has a time zone."""
    from pyarrow import types

    return bool(types.is_timestamp(given)) and given.tz is not None


def _is_local_time(given: pa.DataType) -> bool:
    """Whether it is Spark's ``timestamp_ntz``, which has no time zone."""
    from pyarrow import types

    return bool(types.is_timestamp(given)) and given.tz is None


def _is_number(given: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_integer(given) or types.is_floating(given))


def _is_text(given: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_string(given) or types.is_large_string(given) or types.is_string_view(given)
    )


def _is_bytes(given: pa.DataType) -> bool:
    from pyarrow import types

    plain = types.is_binary(given) or types.is_large_binary(given) or types.is_binary_view(given)
    return bool(plain or types.is_fixed_size_binary(given))


def _is_list(given: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given)
    )


def _listed(schema: pa.Schema) -> str:
    return ", ".join(schema.names)
