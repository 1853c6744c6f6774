"""Updates a Delta table by key: the newest row of each key replaces the row in the table.

The staged files of an epoch are read in the driver, reduced to the newest row of each key, and
merged by delta-rs in one transaction, which also sets the application transaction of the epoch. So
the rows of one epoch must fit into the driver's memory; those of an aggregation do, since a batch
has one row for each key that changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weir.errors import SinkMismatchError
from weir.storage.filesystem import FileSystem
from weir.storage.paths import is_local

if TYPE_CHECKING:
    import deltalake
    import pyarrow as pa
    from deltalake import CommitProperties

#: Types of which two equal values are one key. Not float and double: NaN equals nothing.
_KEY_TYPES = frozenset(
    (
        *("string", "binary", "boolean", "byte", "short", "integer", "long"),
        *("date", "timestamp", "timestamp_ntz"),
    )
)
_DECIMAL = re.compile(r"decimal\(\d+,\d+\)")


def check_key(schema: str, key: Sequence[str], *, place: str) -> None:
    """Raise ``SinkMismatchError`` unless the key's columns exist and have usable types.

    ``schema`` is Delta's, as JSON text.
    """
    types = {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
    if key and (misread := next((name for name in types if "`" in name), None)) is not None:
        raise SinkMismatchError(
            f"{place} has mode='upsert', and delta-rs misreads the column name {misread!r} there:"
            " rename the column before the sink."
        )
    for column in key:
        if column not in types:
            raise SinkMismatchError(
                f"{place} has the key column {column!r}, but the rows have only the columns"
                f" {', '.join(map(repr, types))}: add the column before the sink, or change key."
            )
        kind = types[column]
        if not (isinstance(kind, str) and (kind in _KEY_TYPES or _DECIMAL.fullmatch(kind))):
            shown = kind if isinstance(kind, str) else kind["type"]
            raise SinkMismatchError(
                f"{place} has the key column {column!r} of type {shown}, whose values"
                " cannot be compared reliably: use a string, a whole number, a decimal, a date or a"
                " timestamp."
            )


def read_rows(file_system: FileSystem, path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a staged Parquet file; ``columns`` None: all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.read_table(
        path if is_local(path) else pa.BufferReader(file_system.read(path)),
        columns=None if columns is None else list(columns),
        partitioning=None,
        coerce_int96_timestamp_unit="us",
    )


def newest_rows(file_system: FileSystem, paths: Sequence[str], key: Sequence[str]) -> pa.Table:
    """The last row of each key in Parquet files, which are given from the oldest to the newest."""
    import pyarrow as pa

    tables = [read_rows(file_system, path) for path in paths]
    # Spark writes some columns as never null, and a pipeline that was changed has other columns.
    rows = pa.concat_tables(
        [
            table.cast(pa.schema([field.with_nullable(True) for field in table.schema]))
            for table in tables
        ],
        promote_options="default",
    )
    keys = rows.select(list(key)).rename_columns([f"k{place}" for place in range(len(key))])
    numbered = keys.append_column("row", pa.array(range(rows.num_rows), pa.int64()))
    newest = numbered.group_by(keys.column_names).aggregate([("row", "max")])
    return rows.take(newest["row_max"])


def upsert(
    table: deltalake.DeltaTable,
    rows: pa.Table,
    key: Sequence[str],
    properties: CommitProperties,
) -> None:
    """Insert the rows, or update those of the table with the same key, in one transaction.

    A null is a key like any other. Raises ``DeltaError``.
    """
    same = (f"(target.{name} IS NOT DISTINCT FROM source.{name})" for name in map(_quoted, key))
    merger = table.merge(
        rows,
        " AND ".join(same),
        source_alias="source",
        target_alias="target",
        commit_properties=properties,
    )
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def _quoted(column: str) -> str:
    """A column's name quoted for DataFusion's SQL."""
    return '"' + column.replace('"', '""') + '"'
