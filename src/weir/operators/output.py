"""Converts the rows that an operator emits to the types that its step declares.

Spark takes columns by position and reads no other type; ``conversion.py`` says which values are
converted. ``to_pandas`` refuses dates outside the years 1 to 9999, which Python does not have,
while Arrow and Spark do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from weir.core.graph import MAIN_OUTPUT
from weir.errors import OperatorStateError, PipelineError
from weir.operators.conversion import converted, null_in

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


def rejects_tag(rejects: OperatorId) -> str:
    """The tag of the output that a rejects step reads. No operator's side output has it."""
    return f"rejects/{rejects}"


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
    type, if text is not UTF-8, or if a column declared NOT NULL has a null.
    """
    import pyarrow as pa

    if batch.schema.names != schema.names:
        if sorted(batch.schema.names) != sorted(schema.names) or len(set(schema.names)) < len(
            schema
        ):
            raise PipelineError(
                f"Operator {operator_id!r} emits the columns {_listed(batch.schema)}, but declares"
                f" {_listed(schema)}: change its {where} or its output."
            )
        batch = batch.select(schema.names)
    columns = []
    for given, column, declared in zip(batch.schema, batch.columns, schema, strict=True):
        try:
            columns.append(converted(column, declared.type))
        except pa.ArrowException as error:
            raise PipelineError(
                f"Operator {operator_id!r} emits {given.name!r} as {given.type}, but its"
                f" {where} declares it as {declared.type}, and the values do not fit"
                f" ({error}): change one of them."
            ) from error
    if batch.schema.types != schema.types:
        batch = pa.RecordBatch.from_arrays(columns, names=schema.names)
    _check_nulls(batch, schema, operator_id, where)
    return batch


def _check_nulls(
    batch: pa.RecordBatch, schema: pa.Schema, operator_id: OperatorId, where: str
) -> None:
    """Raise ``PipelineError`` for a null in a NOT NULL column, which Spark does not check."""
    for declared, column in zip(schema, batch.columns, strict=True):
        name = null_in(column, declared)
        if name:
            raise PipelineError(
                f"Operator {operator_id!r} emits a null in {name!r}, which its"
                f" {where} declares as NOT NULL: change one of them."
            )


def _listed(schema: pa.Schema) -> str:
    return ", ".join(schema.names)
