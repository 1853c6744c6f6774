"""Reads Parquet footers: row counts, and statistics in Delta's JSON.

Statistics let readers of the table skip files, so wrong statistics lose rows silently. Therefore a
bound that JSON or the footer cannot express exactly (long strings, NaN, decimals beyond a double)
is left out, never rounded.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, TypeAlias

from weir.storage.filesystem import FileSystem

if TYPE_CHECKING:
    import pyarrow.parquet as pq

#: Delta's own limit (``delta.dataSkippingNumIndexedCols``): statistics of the first columns only.
_STATISTICS_COLUMNS_MAX = 32
_TEXT_MAX_CHARACTERS = 32
#: Every decimal with this many digits survives a round trip through a double.
_DOUBLE_DIGITS = 15

#: How much of a file's end is read at first: most footers are shorter.
_FOOTER_BYTES = 64 * 1024

_EPOCH = datetime.fromtimestamp(0, UTC)
_UNITS = {
    "milliseconds": timedelta(milliseconds=1),
    "microseconds": timedelta(microseconds=1),
}

_Json: TypeAlias = str | int | float


@dataclass(frozen=True, kw_only=True)
class Footer:
    """What a sink needs of a footer."""

    rows: int
    #: Delta's statistics of the file, as JSON text.
    statistics: str


def read_footer(file_system: FileSystem, path: str) -> Footer:
    """Read the footer of one file."""
    metadata = read_metadata(file_system, path)
    columns = [
        index
        for index in range(metadata.num_columns)
        # Top-level columns only: the leaf of a nested column has a path longer than its name.
        if metadata.schema.column(index).name == metadata.schema.column(index).path
    ]
    least: dict[str, _Json] = {}
    greatest: dict[str, _Json] = {}
    nulls: dict[str, int] = {}
    for index in columns[:_STATISTICS_COLUMNS_MAX]:
        name = metadata.schema.column(index).name
        statistics = [
            metadata.row_group(group).column(index).statistics
            for group in range(metadata.num_row_groups)
        ]
        if not all(entry is not None and entry.has_null_count for entry in statistics):
            continue
        nulls[name] = sum(entry.null_count for entry in statistics)
        bounds = _bounds(statistics, metadata.schema.column(index))
        if bounds is not None:
            least[name], greatest[name] = bounds
    return Footer(
        rows=metadata.num_rows,
        statistics=json.dumps(
            {
                "numRecords": metadata.num_rows,
                "minValues": least,
                "maxValues": greatest,
                "nullCount": nulls,
            },
            allow_nan=False,
            separators=(",", ":"),
        ),
    )


def count_rows(file_system: FileSystem, path: str) -> int:
    """The row count in a file's footer."""
    return int(read_metadata(file_system, path).num_rows)


def read_metadata(file_system: FileSystem, path: str) -> pq.FileMetaData:
    """The footer of one file, of which only the end is read."""
    # Not at the top: importing a sink would load pyarrow before anything else can start.
    import pyarrow as pa
    import pyarrow.parquet as pq

    end = file_system.read_end(path, _FOOTER_BYTES)
    # The file ends with the footer's length, in four bytes, and ``PAR1``.
    length = int.from_bytes(end[-8:-4], "little") + 8
    if length > len(end):
        end = file_system.read_end(path, length)
    return pq.read_metadata(pa.BufferReader(end))


def _bounds(statistics: list[pq.Statistics], column: pq.ColumnSchema) -> tuple[_Json, _Json] | None:
    """Least and greatest value over all row groups, or None if they are not known exactly."""
    filled = [entry for entry in statistics if entry.num_values > 0]
    if (
        not filled
        or not all(entry.has_min_max for entry in filled)
        or column.physical_type == "INT96"
    ):
        return None
    unit = _unit_of_instants(column)
    try:
        if unit is None:
            least = _as_json(min(entry.min for entry in filled))
            greatest = _as_json(max(entry.max for entry in filled))
        else:
            least = _as_json(_EPOCH + unit * min(entry.min_raw for entry in filled))
            greatest = _as_json(_EPOCH + unit * max(entry.max_raw for entry in filled))
    except (ValueError, OverflowError):
        # Spark's range of years exceeds Python's; such a column has no bounds.
        return None
    return None if least is None or greatest is None else (least, greatest)


def _unit_of_instants(column: pq.ColumnSchema) -> timedelta | None:
    """The unit of a column of points in time; None for others, or if Python has no such unit.

    pyarrow would convert its values too, but imports pandas for that: 0.7 s, in a first commit.
    """
    if column.logical_type.type != "TIMESTAMP":
        return None
    described = json.loads(column.logical_type.to_json())
    return _UNITS.get(described["timeUnit"]) if described["isAdjustedToUTC"] else None


def _as_json(value: object) -> _Json | None:
    """A bound in Delta's JSON, or None if it cannot be written exactly."""
    bound: _Json | None = None
    match value:
        case bool():
            pass
        case int():
            bound = value
        case float() if math.isfinite(value):
            bound = value
        case Decimal() if len(value.as_tuple().digits) <= _DOUBLE_DIGITS:
            bound = float(value)
        case str() if len(value) <= _TEXT_MAX_CHARACTERS:
            bound = value
        case datetime() if value.tzinfo is None:
            bound = value.isoformat(timespec="microseconds")
        case datetime():
            bound = (
                value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
            )
        case date():
            bound = value.isoformat()
    return bound
