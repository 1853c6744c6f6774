"""What a manifest says of a data file, from the file's Parquet footer.

Readers skip files by their bounds, so a wrong bound loses rows silently. pyiceberg derives bounds
from the row groups that have some; a column with a row group that has none (NaN, long text, years
that Python lacks) therefore gets only counts. The same holds for nulls: a column with a row group
that does not say how many it has gets no count of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import StringType, StructType

from weir.errors import invariant
from weir.sinks.iceberg.evolution import new_ids
from weir.sinks.iceberg.partitions import partition_of
from weir.sinks.iceberg.payload import Column, IcebergPayload, StagedDataFile
from weir.sinks.iceberg.types import check_rows_schema, has_field_ids
from weir.sinks.parquet import read_metadata
from weir.storage.filesystem import FileSystem

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import StatisticsCollector

#: Arrow's key for the id of a Parquet field.
_FIELD_ID = b"PARQUET:field_id"


def described(
    file_system: FileSystem,
    path: str,
    file: StagedDataFile,
    *,
    rows: Schema,
    partition: list[str | None],
    properties: Mapping[str, str],
) -> StagedDataFile:
    """The file, which is at ``path``, with the metrics from its footer.

    ``properties`` are the table's, which say what metrics it wants.
    """
    from pyiceberg.io.pyarrow import compute_statistics_plan, parquet_path_to_id_mapping

    footer = read_metadata(file_system, path)
    _check_ids(footer, rows, path)
    ids = parquet_path_to_id_mapping(rows)
    plan = _with_counts_only(
        compute_statistics_plan(rows, dict(properties)), _lacking(footer, ids, _has_bounds)
    )
    found = _statistics(footer, plan, ids, rows)
    uncounted = set(_lacking(footer, ids, _has_null_count))
    columns = [
        Column(
            id=field_id,
            size=size,
            values=found["value_counts"].get(field_id),
            nulls=None if field_id in uncounted else found["null_value_counts"].get(field_id),
            lower=found["lower_bounds"].get(field_id),
            upper=found["upper_bounds"].get(field_id),
        )
        for field_id, size in found["column_sizes"].items()
    ]
    return msgspec.structs.replace(
        file,
        rows=footer.num_rows,
        partition=partition,
        columns=columns,
        splits=found["split_offsets"],
    )


def written_as(payload: IcebergPayload) -> tuple[Schema, PartitionSpec]:
    """The rows' schema and the partition spec of a payload's files."""
    return _parsed(payload.schema, payload.spec)


@lru_cache(maxsize=64)
def _parsed(schema: str, spec: str) -> tuple[Schema, PartitionSpec]:
    # Once for all files of an epoch: with many columns it takes longer than all else.
    return Schema.model_validate_json(schema), PartitionSpec.model_validate_json(spec)


def data_files(payload: IcebergPayload, location: str, spec_id: int) -> list[DataFile]:
    """The manifest entries of a flushed payload's files, below the table's data location.

    Raises ``ValueError`` if the payload contradicts itself.
    """
    schema, spec = written_as(payload)
    check_rows_schema(schema)
    below = f"{location}/{payload.directory}/{payload.position}"
    return [
        data_file(
            file, f"{below}/{file.path}", schema=schema, spec=spec, spec_id=spec_id, rows=schema
        )
        for file in payload.files
    ]


def data_file(
    file: StagedDataFile,
    location: str,
    *,
    schema: Schema,
    spec: PartitionSpec,
    spec_id: int,
    rows: Schema,
) -> DataFile:
    """The entry of a flushed file for a manifest; ``location`` as readers of the table spell it.

    ``schema`` is that with which it was written, ``rows`` the same with the table's ids. Raises
    ``ValueError`` if the spec cannot have its partition.
    """
    ids = new_ids(schema, rows)
    columns = {ids.get(column.id, column.id): column for column in file.columns or []}
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=partition_of(spec, schema, file.partition or []),
        record_count=file.rows,
        file_size_in_bytes=file.size,
        column_sizes={key: column.size for key, column in columns.items()},
        value_counts={
            key: column.values for key, column in columns.items() if column.values is not None
        },
        null_value_counts={
            key: column.nulls for key, column in columns.items() if column.nulls is not None
        },
        nan_value_counts={},
        lower_bounds={
            key: column.lower for key, column in columns.items() if column.lower is not None
        },
        upper_bounds={
            key: column.upper for key, column in columns.items() if column.upper is not None
        },
        split_offsets=file.splits,
        sort_order_id=None,
        spec_id=spec_id,
        equality_ids=None,
        key_metadata=None,
    )


def _statistics(
    footer: pq.FileMetaData,
    plan: dict[int, StatisticsCollector],
    ids: dict[str, int],
    rows: Schema,
) -> dict[str, Any]:
    """pyiceberg's statistics of the file."""
    from pyiceberg.io.pyarrow import data_file_statistics_from_parquet_metadata as statistics

    try:
        return statistics(footer, plan, ids).to_serialized_dict()
    except UnicodeEncodeError:
        # The upper bound of long text is a shorter text whose last character is the next greater,
        # and what follows U+D7FF is not a character.
        texts = [
            field_id
            for field_id in ids.values()
            if isinstance(rows.find_type(field_id), StringType)
        ]
        return statistics(footer, _with_counts_only(plan, texts), ids).to_serialized_dict()


def _with_counts_only(
    plan: dict[int, StatisticsCollector], columns: Iterable[int]
) -> dict[int, StatisticsCollector]:
    """The plan, by which these columns get no bounds."""
    from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode

    counts = MetricsMode(MetricModeTypes.COUNTS)
    fewer = {
        field_id: replace(plan[field_id], mode=counts)
        for field_id in columns
        if plan[field_id].mode.type != MetricModeTypes.NONE
    }
    return {**plan, **fewer}


def _lacking(
    footer: pq.FileMetaData,
    ids: Mapping[str, int],
    is_known: Callable[[pq.ColumnChunkMetaData], bool],
) -> Iterator[int]:
    """The ids of columns of which something is not known in every row group."""
    for number in range(footer.num_columns):
        groups = [footer.row_group(group).column(number) for group in range(footer.num_row_groups)]
        if not all(map(is_known, groups)):
            yield ids[footer.schema.column(number).path]


def _has_null_count(column: pq.ColumnChunkMetaData) -> bool:
    statistics = column.statistics
    return statistics is not None and bool(statistics.has_null_count)


def _has_bounds(column: pq.ColumnChunkMetaData) -> bool:
    statistics = column.statistics
    if not _has_null_count(column):
        return False
    if statistics.num_values == 0:
        return True
    try:
        # A NaN differs from itself.
        return bool(
            statistics.has_min_max
            and statistics.min == statistics.min
            and statistics.max == statistics.max
        )
    except (ValueError, OverflowError, NotImplementedError):
        return False


def _check_ids(footer: pq.FileMetaData, rows: Schema, path: str) -> None:
    """Make sure that the file has the ids of all fields, or of none."""
    expected = dict(_ids_of(rows.as_struct())) if has_field_ids(rows) else {}
    found = dict(_ids_in(footer.schema.to_arrow_schema(), ""))
    invariant(found == expected, f"{path} has the field ids {found} instead of {expected}")


def _ids_of(struct: StructType, parent: str = "") -> Iterator[tuple[str, int]]:
    for field in struct.fields:
        yield f"{parent}{field.name}", field.field_id
        if isinstance(field.field_type, StructType):
            yield from _ids_of(field.field_type, f"{parent}{field.name}.")


def _ids_in(fields: Sequence[pa.Field] | pa.Schema, parent: str) -> Iterator[tuple[str, int]]:
    for field in fields:
        name = f"{parent}{field.name}"
        if field.metadata and _FIELD_ID in field.metadata:
            yield name, int(field.metadata[_FIELD_ID])
        inner = [field.type.field(number) for number in range(field.type.num_fields)]
        yield from _ids_in(inner, f"{name}.")
