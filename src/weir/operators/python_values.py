"""Values of Arrow as Python has them: its dates end with the year 9999, those of Arrow and Spark do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weir.errors import OperatorStateError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def to_python(values: pa.Array, column: str) -> list[Any]:
    """The values as a list. Raises ``OperatorStateError`` for a date that Python does not have; ``column`` says what they
    are."""
    try:
        python: list[Any] = values.to_pylist()
    except (ValueError, OverflowError) as error:
        raise _outside(values, column, error) from error
    return python


def to_pandas(batch: pa.RecordBatch) -> pd.DataFrame:
    """The records as a DataFrame. Raises ``OperatorStateError`` as ``to_python`` does."""
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
        f"Row {row} of {column} has a date outside of the years 1 to 9999, which Python does not have ({error}): make such"
        " dates null, or leave their rows out, before the operator."
    )


def _is_python(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except (ValueError, OverflowError):
        return False
    return True
