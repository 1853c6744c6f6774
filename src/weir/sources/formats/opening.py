"""``read_file``: the rows of a file in the types of a schema, in one way for every caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyarrow import types

from weir.errors import PipelineError
from weir.operators.conversion import is_list
from weir.sources.formats.columns import BATCH_ROWS, arrow_batches, parquet_batches
from weir.sources.formats.compression import open_text
from weir.sources.formats.csv_rows import CsvRows, whole_header
from weir.sources.formats.json_rows import JsonRows
from weir.sources.formats.names import folded
from weir.sources.formats.partitions import in_directories
from weir.sources.formats.records import PIECE_BYTES, OnBad, Pieces, batches
from weir.sources.formats.rows import batch_of

_SIMPLE = (
    types.is_boolean, types.is_signed_integer, types.is_float32, types.is_float64,
    types.is_decimal128, types.is_string, types.is_binary, types.is_date32, types.is_timestamp,
)  # fmt: skip


def check_schema(schema: pa.Schema, format: str, *, source: str = "FileSource") -> None:
    """Raise ``PipelineError`` for a schema that no input of the format can have.

    ``source`` is the class that reads it, for messages.
    """
    names: dict[str, str] = {}
    for field in schema:
        other = names.setdefault(folded(field.name), field.name)
        if other != field.name or schema.names.count(field.name) > 1:
            raise PipelineError(
                f"The schema of a {source} has the columns {other!r} and {field.name!r}, which"
                " differ in case only: rename one of them."
            )
        if format in ("csv", "json") and not _has_text(field.type, format):
            raise PipelineError(
                f"A {source} cannot read column {field.name!r} of type {field.type} from"
                f" {format.upper()}: leave it out, or read it as a string."
            )


def _has_text(kind: pa.DataType, format: str) -> bool:
    """Whether values of the type are written in a text format."""
    if format == "json":
        if types.is_struct(kind):
            below = [kind.field(place) for place in range(kind.num_fields)]
            # Spark's variant, whose fields are in no file.
            is_variant = any(b"variant" in (field.metadata or {}) for field in below)
            return not is_variant and all(_has_text(field.type, format) for field in below)
        if types.is_map(kind):
            return bool(types.is_string(kind.key_type)) and _has_text(kind.item_type, format)
        if is_list(kind):
            return _has_text(kind.value_type, format)
    return any(is_one(kind) for is_one in _SIMPLE)


def read_file(
    path: Path,
    format: str,
    schema: pa.Schema,
    on_bad: OnBad,
    *,
    partitions: Mapping[str, str | None],
    piece_bytes: int = PIECE_BYTES,
    rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The rows of a file in batches that have rows.

    ``on_bad`` is called for bad records, if the format has any; it may raise. ``partitions`` are
    the values of columns that are in no file. About ``piece_bytes`` of text, or ``rows`` of a file
    of columns, are read at once. Raises an error of ``records.UNREADABLE`` for a file that cannot
    be read as a whole.
    """
    constant = in_directories(schema, partitions)
    inside = pa.schema([field for place, field in enumerate(schema) if place not in constant])
    if format == "parquet":
        found = parquet_batches(path, inside, rows=rows)
    elif format == "ipc":
        found = arrow_batches(path, inside, rows=rows)
    else:
        found = _text_batches(path, format, inside, on_bad, piece_bytes)
    for batch in found:
        if batch.num_rows and constant:
            columns = list(batch.columns)
            for place, value in sorted(constant.items()):
                columns.insert(place, pa.repeat(value, batch.num_rows))
            yield batch_of(columns, schema)
        elif batch.num_rows:
            yield batch


def _text_batches(
    path: Path, format: str, schema: pa.Schema, on_bad: OnBad, piece_bytes: int
) -> Iterator[pa.RecordBatch]:
    with open_text(path) as file:
        pieces = Pieces(file, piece_bytes=piece_bytes)
        if format == "csv":
            header = pieces.next(whole_header)
            if header is not None and header.data.strip(b"\r\n"):
                yield from batches(pieces, CsvRows(header.data, schema), on_bad)
        else:
            rows = JsonRows(schema)
            yield from batches(pieces, rows, on_bad)
            rows.check()
