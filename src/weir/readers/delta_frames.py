"""The rows of a version of a Delta table as a DataFrame of Spark without Delta's library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from weir.errors import StorageError
from weir.sinks.ddl import columns_ddl, quoted

if TYPE_CHECKING:
    import deltalake
    from pyspark.sql import DataFrame

#: Table features with which the Parquet files of a version still are exactly its rows.
_PLAIN_FEATURES = frozenset(("timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"))
#: Columns of the lookup frame that gives rows their partition values.
_PATH_COLUMN = "__weir_path"
_KNOWN_COLUMN = "__weir_known"


def with_partitions(
    frame: DataFrame,
    values: Mapping[str, Mapping[str, Any]],
    fields: list[dict[str, Any]],
    partition_by: list[str],
) -> DataFrame:
    """The files' rows with the partition values that the log has for each file.

    Columns are in the order of ``fields``. Values are not taken from directory names, which would
    have to be parsed and their types guessed. If Spark names a row's file in an unknown way, the
    query fails; an inner join would lose the row.
    """
    by_name = {column["name"]: column for column in fields}
    rows = []
    for uri in frame.inputFiles():
        path = re.sub("^file:/+", "/", unquote(uri))
        # Rows name a local file with one slash after the scheme, ``inputFiles`` with three.
        row_spelling = re.sub("^file:/+", "file:/", uri)
        rows.append((row_spelling, True, *(values[path][column] for column in partition_by)))
    keys = [{"name": _PATH_COLUMN, "type": "string"}, {"name": _KNOWN_COLUMN, "type": "boolean"}]
    columns = columns_ddl([*keys, *(by_name[column] for column in partition_by)])
    partitions = frame.sparkSession.createDataFrame(rows, columns).hint("broadcast")
    stored = [quoted(name) for name in by_name if name not in partition_by]
    path_of_row = frame.metadataColumn("_metadata")["file_path"].alias(_PATH_COLUMN)
    joined = frame.select(*stored, path_of_row).join(partitions, _PATH_COLUMN, "left")
    return joined.selectExpr(
        *(
            (
                f"IF({_KNOWN_COLUMN}, {quoted(name)}, raise_error('a file of the cut has no"
                f" partition')) AS {quoted(name)}"
                if name in partition_by
                else quoted(name)
            )
            for name in by_name
        )
    )


def check_plain(name: str, table: deltalake.DeltaTable) -> None:
    """Raise ``StorageError`` if the Parquet files alone are not the table's rows."""
    features = [
        feature
        for feature in table.protocol().reader_features or ()
        if feature not in _PLAIN_FEATURES
    ]
    if (
        not features
        and table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
    ):
        features.append("columnMapping")
    if features:
        raise StorageError(
            f"Table {name!r} has the features {', '.join(sorted(features))}, so its Parquet files"
            " alone do not give its rows: read cut.table(name) with delta-rs, or cut.versions"
            " with a Spark that has Delta's library."
        )
