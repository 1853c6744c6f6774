"""Refuses values of partition columns that a Delta table cannot hold, before they are committed.

Such a value becomes the name of a directory, and text in the table's log:

1. delta-rs reads dates of the years 1 to 9999 only, and Spark writes others too.
2. A name has at most 255 bytes on a local file system. Spark makes the directories of an append,
   and fails by itself. Those of an upsert are made by delta-rs in the commit, when it is too late;
   it encodes each byte that is not a letter, a digit or one of ``_.-`` as three.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING
from urllib.parse import quote

from weir.errors import SinkError
from weir.sinks.staging import is_long_name, long_value

if TYPE_CHECKING:
    import pyarrow as pa

_DATE = re.compile(r"(?!0000)\d{4}-\d\d-\d\d")
_FIRST, _LAST = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))


def check_directories(schema: str, values: Mapping[str, str | None]) -> None:
    """Raise ``SinkError`` for values in the names of a file's directories.

    ``schema`` is Delta's, as JSON text.
    """
    dates = {field["name"] for field in json.loads(schema)["fields"] if field["type"] == "date"}
    for column, value in values.items():
        if column in dates and value is not None and not _DATE.fullmatch(value):
            raise _not_read(column, value)


def check_rows(rows: pa.Table, *, is_local: bool) -> None:
    """Raise ``SinkError`` for values in the partition columns of rows for an upsert.

    ``is_local``: whether the table's directories have names of limited length.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for column in rows.column_names:
        values = rows[column]
        if pa.types.is_date32(values.type):
            ends = pc.min_max(values.cast(pa.int32())).as_py().values()
            if wrong := [days for days in ends if days is not None and not _FIRST <= days <= _LAST]:
                raise _not_read(column, f"{wrong[0]} days from 1970-01-01")
        elif pa.types.is_string(values.type) and is_local:
            for text in pc.unique(values).drop_null().to_pylist():
                if is_long_name(_encoded(column, text)):
                    raise long_value(column, text)


def _encoded(column: str, text: str) -> str:
    """The name of a value's directory, as delta-rs makes it."""
    return "=".join(quote(part, safe="").replace("~", "%7E") for part in (column, text))


def _not_read(column: str, shown: str) -> SinkError:
    return SinkError(
        f"The partition column {column!r} has the date {shown}, and readers of Delta refuse dates"
        " outside the years 1 to 9999 there: change it before the sink, or do not partition by it."
    )
