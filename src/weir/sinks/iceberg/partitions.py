"""Partitions of Iceberg tables: Spark groups the rows, and each file's directory has the values.

A data file belongs to exactly one partition, and readers skip it by that partition's values. So
for each partition field Spark computes a text from which the value follows exactly, and writes the
rows with equal texts into one directory, named after it::

    weir-0a1b2c3d-orders-1/7/weir-country=vUS/weir-ts_day=20594/part-....parquet

The columns themselves stay in the files. Text has a ``v`` in front, since Spark names the directory
of an empty string like that of a null. Spark cannot compute ``bucket`` as Iceberg defines it (its
hash has another seed), so tables with such a field are refused, and so are types whose text is not
exact.

pyiceberg takes the values of files that it is given from the files' bounds, which fails for a
column without bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, TypeAlias

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from weir.errors import SinkMismatchError

#: In front of the name of a partition field, in directories.
_PREFIX = "weir-"
_DAY_US = 86_400_000_000
_HOUR_US = 3_600_000_000
#: As many digits as Iceberg's decimals have; Python's own context has fewer.
_DIGITS = Context(prec=38)
_WHOLE = (IntegerType, LongType)
_TIMES = (DateType, TimestampType, TimestamptzType)

_Grouping: TypeAlias = Callable[[str, IcebergType], str | None]


def new_spec(schema: Schema, partition_by: Sequence[str], *, place: str) -> PartitionSpec:
    """The partition spec of a new table: the values of these columns.

    Raises ``SinkMismatchError`` if a column does not exist.
    """
    names = [field.name for field in schema.fields]
    for column in partition_by:
        if column not in names:
            raise SinkMismatchError(
                f"{place} is partitioned by {column!r}, but the rows have only the columns {names}:"
                " add the column before the sink, or remove it from partition_by."
            )
    return PartitionSpec(
        *(
            PartitionField(
                source_id=schema.find_field(column).field_id,
                field_id=PARTITION_FIELD_ID_START + number,
                transform=IdentityTransform(),
                name=column,
            )
            for number, column in enumerate(partition_by)
        )
    )


def check_spec(spec: PartitionSpec, schema: Schema, *, place: str) -> None:
    """Raise ``SinkMismatchError`` if a partition's values cannot be computed exactly."""
    groupings(spec, schema, place=place)


def check_columns(spec: PartitionSpec, rows: Schema, *, place: str) -> None:
    """Raise ``SinkMismatchError`` if the rows lack a column by which the table is partitioned."""
    ids = {field.field_id for field in rows.fields}
    for field in spec.fields:
        if field.source_id not in ids:
            raise SinkMismatchError(
                f"{place} is partitioned by {field.name!r}, and the rows lack its column: add it"
                " before the sink."
            )


def groupings(spec: PartitionSpec, schema: Schema, *, place: str) -> dict[str, str]:
    """By directory column, the SQL expression of its text.

    Raises ``SinkMismatchError`` for a field whose values Spark cannot compute exactly.
    """
    found = {}
    for field in spec.fields:
        source = schema.find_field(field.source_id)
        column = next((known for known in schema.fields if known.field_id == field.source_id), None)
        grouping = _GROUPINGS.get(type(field.transform))
        text = None
        if column is not None and grouping is not None:
            text = grouping(_quoted(column.name), column.field_type)
        elif column is not None and isinstance(field.transform, TruncateTransform):
            text = _truncated(_quoted(column.name), column.field_type, field.transform.width)
        if text is None:
            raise SinkMismatchError(
                f"{place} is partitioned by {field.name!r}, which is {field.transform} of"
                f" {source.name!r} ({source.field_type}), and Spark cannot compute that exactly:"
                " use a table that is partitioned by a string, date, whole number, decimal or"
                " boolean, by year, month, day or hour of a time, or by truncate of a string or"
                " whole number."
            )
        found[f"{_PREFIX}{field.name}"] = text
    return found


def texts_of(spec: PartitionSpec, values: Mapping[str, str | None]) -> list[str | None]:
    """The texts for the spec's fields, from those of the directories."""
    return [values[f"{_PREFIX}{field.name}"] for field in spec.fields]


def partition_of(spec: PartitionSpec, schema: Schema, texts: Sequence[str | None]) -> Record:
    """The partition of a file. Raises ``ValueError`` for texts that no directory has."""
    return Record(
        *(
            None if text is None else _parsed(text, field.transform, schema, field.source_id)
            for field, text in zip(spec.fields, texts, strict=True)
        )
    )


def same_fields(one: PartitionSpec, other: PartitionSpec) -> bool:
    """Whether two specs give every row the same partition."""
    return [(field.source_id, str(field.transform)) for field in one.fields] == [
        (field.source_id, str(field.transform)) for field in other.fields
    ]


def _parsed(text: str, transform: Transform[Any, Any], schema: Schema, source_id: int) -> Any:
    kind = transform.result_type(schema.find_type(source_id))
    match kind:
        case StringType():
            return text[1:]
        case BooleanType():
            return text == "true"
        case DecimalType():
            # Spark may write it with an exponent; Iceberg stores the digits.
            return Decimal(text).quantize(Decimal(1).scaleb(-kind.scale), context=_DIGITS)
        case _:
            return int(text)


def _identity(column: str, kind: IcebergType) -> str | None:
    match kind:
        case StringType():
            return f"concat('v', {column})"
        case DateType():
            return f"cast(unix_date({column}) AS string)"
        case IntegerType() | LongType() | DecimalType() | BooleanType():
            return f"cast({column} AS string)"
        case _:
            return None


def _truncated(column: str, kind: IcebergType, width: int) -> str | None:
    if isinstance(kind, StringType):
        return f"concat('v', substring({column}, 1, {width}))"
    if isinstance(kind, _WHOLE):
        return f"cast({column} - pmod({column}, {width}) AS string)"
    return None


def _date(column: str, kind: IcebergType) -> str:
    """The day of a time, whatever the session's time zone is."""
    match kind:
        case TimestamptzType():
            return f"date_add(DATE'1970-01-01', cast({_units(column, _DAY_US)} AS int))"
        case TimestampType():
            return f"cast({column} AS date)"
        case _:
            return column


def _units(column: str, unit: int) -> str:
    """Whole units since the Unix epoch, rounded down."""
    micros = f"unix_micros({column})"
    return f"(({micros} - pmod({micros}, {unit})) div {unit})"


def _year(column: str, kind: IcebergType) -> str | None:
    if not isinstance(kind, _TIMES):
        return None
    return f"cast(year({_date(column, kind)}) - 1970 AS string)"


def _month(column: str, kind: IcebergType) -> str | None:
    if not isinstance(kind, _TIMES):
        return None
    date = _date(column, kind)
    return f"cast((year({date}) - 1970) * 12 + month({date}) - 1 AS string)"


def _day(column: str, kind: IcebergType) -> str | None:
    if not isinstance(kind, _TIMES):
        return None
    return f"cast(unix_date({_date(column, kind)}) AS string)"


def _hour(column: str, kind: IcebergType) -> str | None:
    match kind:
        case TimestamptzType():
            return f"cast({_units(column, _HOUR_US)} AS string)"
        case TimestampType():
            return f"cast(unix_date(cast({column} AS date)) * 24 + hour({column}) AS string)"
        case _:
            return None


_GROUPINGS: dict[type[Any], _Grouping] = {
    IdentityTransform: _identity,
    YearTransform: _year,
    MonthTransform: _month,
    DayTransform: _day,
    HourTransform: _hour,
}


def _quoted(name: str) -> str:
    """A column's name, quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"
