"""A channel as a streaming DataFrame: what another query of the job wrote, with that query's watermark (PROTOCOL P25).

The producer writes Parquet files (segments), and a source that the driver implements reads exactly those
that it admits (``weir/spark/channel_source.py``).

The watermark cannot be derived anew from the rows: what an outer join emits late would be dropped. It comes from one
row of the control input and from nothing else:

    control rows of this channel, as (nulls.., __weir_watermark)
      -> withWatermark("__weir_watermark", "0 seconds")
      -> a filter that drops the row behind it
      -> event-time columns get their metadata back, which a watermark node strips from all columns but its own
      -> first in the union with the segments, which have no watermark node

Both the filter and the nulls must be such that the optimizer sees nothing in them. Of ``rand() < 0`` it knows that it is
false, and past a deterministic filter it pushes what later steps filter by, below the watermark node, which then sees no
row. Of a literal null it knows that it is null: in a batch in which the segments of this channel are none, a join would
conclude from its key that the other side's must be null too, and drop every row of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    MapType,
    NullType,
    StructField,
    StructType,
    TimeType,
    YearMonthIntervalType,
)

from weir.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The metadata key that makes a column an event-time column.
EVENT_TIME = "spark.watermarkDelayMs"

_WATERMARK = "__weir_watermark"


def plain_schema(schema: StructType) -> StructType:
    """Names and types alone: the columns of a channel's files."""
    return StructType([StructField(field.name, field.dataType) for field in schema.fields])


def channel_frame(control: DataFrame, segments: DataFrame, *, index: int, schema: StructType) -> DataFrame:
    """The channel's rows, with the names, types and event-time columns of ``schema``, the producer's own.

    As from any file, each column may be null. ``control`` is the query's control input of ``CHANNEL_SCHEMA``, one object
    for all channels; ``index`` is this channel's number there. ``segments`` are the rows of ``plain_schema``. A channel
    without an event-time column has no watermark.
    """
    never = F.spark_partition_id() < 0
    nulls = [F.when(never, F.lit(None).cast(field.dataType)).alias(field.name) for field in schema.fields]
    if not has_event_time(schema):
        return control.select(*nulls).filter(never).union(segments)
    watermark = _unused_name(schema)
    told = control.filter(F.col("channel") == index).select(*nulls, F.col("watermark").alias(watermark))
    behind = told.withWatermark(watermark, "0 seconds").filter(never)
    return behind.select(*[_column(field) for field in schema.fields]).union(segments)


def has_event_time(schema: StructType) -> bool:
    """Whether a channel of this schema carries a watermark."""
    return any(EVENT_TIME in field.metadata for field in schema.fields)


def check_channel_schema(step_name: str, schema: StructType) -> None:
    """Raises ``PipelineError`` if rows of this schema cannot travel from one query to another as Parquet files."""
    repeated = _repeated(schema.names)
    if repeated is not None:
        raise PipelineError(
            f"Step {step_name!r} has two columns named {repeated!r} (case aside), but its rows go to another query as"
            " Parquet files, which cannot hold both: rename one of them, or drop it."
        )
    for field in schema.fields:
        unfit = _unfit(field.dataType)
        if unfit is not None:
            raise PipelineError(
                f"Column {field.name!r} of step {step_name!r} has type {field.dataType.simpleString()}, but its rows"
                f" go to another query as Parquet files, which cannot hold {unfit}: cast the column, or drop it."
            )
    if not schema.fields:
        raise PipelineError(
            f"Step {step_name!r} has no columns, so its rows cannot go to another query: keep one column."
        )


def _unfit(kind: DataType) -> str | None:
    """What of the type cannot travel, in words. Variants, geometries and collated strings can."""
    if isinstance(kind, CalendarIntervalType | DayTimeIntervalType | YearMonthIntervalType):
        return "intervals"
    if isinstance(kind, TimeType):
        return "times without a date"
    if isinstance(kind, NullType):
        return "a column without a type"
    parts: list[DataType] = []
    if isinstance(kind, ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, MapType):
        parts = [kind.keyType, kind.valueType]
    elif isinstance(kind, StructType):
        if not kind.fields:
            return "a struct without fields"
        if _repeated(kind.names) is not None:
            return "two fields of one name"
        parts = [field.dataType for field in kind.fields]
    return next((unfit for unfit in map(_unfit, parts) if unfit is not None), None)


def _repeated(names: Iterable[str]) -> str | None:
    """A name that occurs twice, case aside."""
    counts = Counter(name.lower() for name in names)
    return next((name for name, count in counts.items() if count > 1), None)


def _unused_name(schema: StructType) -> str:
    name = _WATERMARK
    while name in {field.name.lower() for field in schema.fields}:
        name += "_"
    return name


def _column(field: StructField) -> Column:
    """The column with its metadata; the delay is in the watermark that the producer tells."""
    column = F.col("`" + field.name.replace("`", "``") + "`")
    metadata: dict[str, Any] = field.metadata
    if EVENT_TIME not in metadata:
        return column
    return column.alias(field.name, metadata={**metadata, EVENT_TIME: 0})
