"""How Spark writes the files of an Iceberg table: types, field ids, and the settings for both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyiceberg.schema import Schema

from weir.sinks.ddl import quoted
from weir.sinks.iceberg.types import column_metadata, has_field_ids, spark_schema_of
from weir.sinks.staging import StagedFile, write_frame
from weir.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Spark's settings for files as Iceberg needs them.
_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}


def write_rows(
    frame: DataFrame,
    rows: Schema,
    groupings: Mapping[str, str],
    *,
    file_system: FileSystem,
    path: str,
) -> list[StagedFile]:
    """Write the rows as their schema has them, each file in the directory of its groupings.

    ``groupings``: by directory column, its SQL expression.
    """
    groups = [f"{sql} AS {quoted(name)}" for name, sql in groupings.items()]
    with _settings(frame.sparkSession, rows):
        # Files of other tasks have no field ids, so the rows are written again.
        return write_frame(
            shaped(frame, rows).selectExpr("*", *groups),
            file_system,
            path,
            format_name="parquet",
            partition_by=list(groupings),
        )


def shaped(frame: DataFrame, rows: Schema, *others: str) -> DataFrame:
    """The rows cast to their schema, with field ids; ``others`` are integers that stay."""
    schema: dict[str, Any] = spark_schema_of(rows)
    integers = [
        {"name": name, "type": "integer", "nullable": True, "metadata": {}} for name in others
    ]
    # The class is pyspark's StructType, which sinks do not import.
    kind = type(frame.schema)
    typed = frame.to(kind.fromJson({**schema, "fields": [*schema["fields"], *integers]}))
    columns = [
        typed[quoted(name)].alias(name, metadata=metadata)
        for name, metadata in column_metadata(rows).items()
    ]
    return typed.select(*columns, *(typed[quoted(name)] for name in others))


def settings(rows: Schema) -> dict[str, str]:
    """Spark's settings for files of these rows."""
    # Columns of the rows may have ids of their own.
    with_ids = str(has_field_ids(rows)).lower()
    return {**_SETTINGS, "spark.sql.parquet.fieldId.write.enabled": with_ids}


@contextmanager
def _settings(session: SparkSession, rows: Schema) -> Iterator[None]:
    """The settings, until the end of the block."""
    before = {key: str(session.conf.get(key)) for key in settings(rows)}
    for key, value in settings(rows).items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            session.conf.set(key, value)
