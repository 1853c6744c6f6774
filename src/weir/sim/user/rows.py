"""The rows of a simulated pipeline: made where they enter Python code, since Spark does not run.

Row ``n`` of a source always has the same values, whatever the run, so a row that is lost or doubled
is noticed. A transformation without a declaration passes its first input on. With one, each row
keeps the columns that its schema has too, and the others follow from the row's values.
"""

from __future__ import annotations

import datetime
import decimal
import zlib
from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa

from weir.errors import PipelineError
from weir.sim.user.schemas import schema_of

#: Coprime, so that the first values of a number are distinct, and in no order.
_STEP, _SIZE = 379, 1_009
#: How many values a column with keys has.
_KEYS = 4
_FIRST = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


class RowMaker:
    """Makes rows by schema. Columns whose names are in ``keys`` have few distinct values."""

    def __init__(self, keys: Collection[str]) -> None:
        self._keys = frozenset(keys)

    def source(self, declared: Any, numbers: Sequence[int], step: str) -> pa.RecordBatch:
        """The rows of a source with these numbers."""
        if callable(declared):
            return as_batch(declared(list(numbers)), step)
        schema = schema_of(declared, step)
        columns = [
            pa.array([self._value(one, number) for number in numbers], one.type) for one in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def transformed(self, declared: Any, batch: pa.RecordBatch, step: str) -> pa.RecordBatch:
        """What a transformation makes of some rows."""
        if callable(declared):
            return as_batch(declared(batch), step)
        schema = schema_of(declared, step)
        numbers = [zlib.crc32(repr(row).encode()) for row in batch.to_pylist()]
        columns = []
        for field in schema:
            given = batch.schema.get_field_index(field.name)
            if given >= 0 and batch.schema.field(given).type == field.type:
                columns.append(batch.column(given))
            else:
                values = [self._value(field, number) for number in numbers]
                columns.append(pa.array(values, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _value(self, field: pa.Field, number: int) -> Any:
        if field.name in self._keys:
            number = number * _STEP % _SIZE % _KEYS
        return _value(field.type, field.name, number)


def _value(kind: pa.DataType, name: str, number: int) -> Any:
    types = pa.types
    spread = number * _STEP % _SIZE if number < _SIZE else number
    found: Any = None
    if types.is_boolean(kind):
        found = spread % 2 == 0
    elif types.is_integer(kind):
        found = spread % (1 << (kind.bit_width - 1))
    elif types.is_floating(kind):
        found = float(spread)
    elif types.is_decimal(kind):
        found = decimal.Decimal(spread % 10 ** (kind.precision - kind.scale))
    elif types.is_string(kind):
        found = f"{name} {number}"
    elif types.is_binary(kind):
        found = f"{name} {number}".encode()
    elif types.is_timestamp(kind):
        at = _FIRST + datetime.timedelta(minutes=number % 500_000)
        found = at if kind.tz else at.replace(tzinfo=None)
    elif types.is_date(kind):
        found = _FIRST.date() + datetime.timedelta(days=number % 10_000)
    elif types.is_list(kind):
        found = [_value(kind.value_type, name, number)]
    elif types.is_map(kind):
        found = [(_value(kind.key_type, name, number), _value(kind.item_type, name, number))]
    elif types.is_struct(kind):
        found = {one.name: _value(one.type, one.name, number) for one in kind}
    return found


def as_batch(rows: Any, step: str) -> pa.RecordBatch:
    """Rows that a user's function has made, as a record batch."""
    if isinstance(rows, pa.RecordBatch):
        return rows
    if isinstance(rows, pa.Table):
        if not len(rows):
            return pa.RecordBatch.from_pylist([], schema=rows.schema)
        return rows.combine_chunks().to_batches()[0]
    if isinstance(rows, list) and rows and all(isinstance(one, dict) for one in rows):
        return pa.RecordBatch.from_pylist(rows)
    raise PipelineError(
        f"The function for the rows of step {step!r} returned a {type(rows).__name__}: return an"
        " Arrow record batch or table, or a list of dicts with at least one row."
    )
