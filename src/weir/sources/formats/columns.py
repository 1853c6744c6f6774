"""Parquet and Arrow files: columns that have types of their own.

The types of a file are compared with the schema's before any value is converted
(``operators/conversion.py``), and the fields of structs by name, as those of the file. What Spark
converts with another meaning is refused: a time without a zone is no instant, a double no float. A
time as INT96 is one, though its type has no zone: Spark and Hive write instants so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from weir.operators.conversion import converted, is_bytes, is_list, is_text
from weir.sources.formats.names import places
from weir.sources.formats.rows import batch_of

#: Rows that are converted at once.
BATCH_ROWS = 128 * 1024

_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
#: The first days that the calendars of old and new Spark have in common.
_COMMON_DAY = -141_427
_COMMON_TIME_US = -2_208_988_800_000_000


def parquet_batches(path: Path, schema: pa.Schema, *, rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, some at a time."""
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        found = file.schema_arrow
        wanted = places(found.names, schema.names)
        names = [found.names[place] for place in wanted if place is not None]
        instants = {name for name in names if _is_int96(file.schema, name)}
        is_legacy = _has_old_calendar(file.metadata.metadata or {})
        for batch in file.iter_batches(batch_size=rows, columns=names):
            if is_legacy:
                _check_calendar(batch)
            yield _fitted(batch, schema, found.names, wanted, instants)


def arrow_batches(path: Path, schema: pa.Schema, *, rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of a file in Arrow's file format, some at a time."""
    with pa.OSFile(str(path)) as file:
        with pa.ipc.open_file(file) as whole:
            found = whole.schema
        wanted = places(found.names, schema.names)
        included = sorted(place for place in wanted if place is not None)
        options = pa.ipc.IpcReadOptions(included_fields=included)
        with pa.ipc.open_file(file, options=options) as reader:
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                for start in range(0, len(batch), rows):
                    part = batch.slice(start, rows)
                    yield _fitted(part, schema, found.names, wanted, frozenset())


def _fitted(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    names: list[str],
    wanted: list[int | None],
    instants: set[str] | frozenset[str],
) -> pa.RecordBatch:
    """The rows with the schema's columns. Raises ``ValueError``, which names the column."""
    columns = []
    for field, place in zip(schema, wanted, strict=True):
        if place is None:
            columns.append(pa.nulls(len(batch), field.type))
            continue
        values = batch.column(batch.schema.get_field_index(names[place]))
        try:
            if names[place] in instants:
                values = values.cast(_zoned(values.type))
            columns.append(_fit(values, field.type, field.name))
        except pa.ArrowException as error:
            raise ValueError(f"column {field.name!r}: {error}") from error
    return batch_of(columns, schema)


def _fit(values: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """The values as the type of the schema, with the fields of structs by name."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if types.is_dictionary(values.type):
        values.validate(full=True)
        values = values.dictionary_decode()
    given = values.type
    if given == kind or types.is_null(given):
        return converted(values, kind)
    if types.is_nested(given) and values.offset:
        # So that offsets and nulls can be taken as they are.
        values = pa.concat_arrays([values.slice(0, 0), values])
    if types.is_struct(given) and types.is_struct(kind):
        return _fit_struct(values, kind, name)
    if is_list(given) and types.is_list(kind):
        values = values.cast(pa.list_(given.value_field))
        offsets, elements = values.offsets, _fit(values.values, kind.value_type, name)
        return pa.ListArray.from_arrays(offsets, elements, type=kind, mask=values.is_null())
    if types.is_map(given) and types.is_map(kind):
        keys = _fit(values.keys, kind.key_type, name)
        items = _fit(values.items, kind.item_type, name)
        mask = values.is_null()
        return pa.MapArray.from_arrays(values.offsets, keys, items, type=kind, mask=mask)
    if types.is_float64(given) and types.is_float32(kind):
        raise pa.ArrowInvalid(f"{given} is not {kind}")
    if (is_text(given) and is_bytes(kind)) or (types.is_binary(given) and is_text(kind)):
        # Old writers do not mark text.
        return values.cast(kind)
    return converted(values, kind)


def _fit_struct(values: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    given = values.type
    fields = [kind.field(place) for place in range(kind.num_fields)]
    names = [given.field(place).name for place in range(given.num_fields)]
    children = []
    wanted = places(names, [field.name for field in fields], f"fields in {name!r}")
    for field, place in zip(fields, wanted, strict=True):
        if place is None:
            children.append(pa.nulls(len(values), field.type))
        else:
            children.append(_fit(values.field(place), field.type, f"{name}.{field.name}"))
    return pa.StructArray.from_arrays(children, fields=fields, mask=values.is_null())


def _is_int96(schema: pq.ParquetSchema, name: str) -> bool:
    """Whether all times in a column are INT96."""
    leaves = [schema.column(place) for place in range(len(schema.names))]
    below = [leaf for leaf in leaves if leaf.path == name or leaf.path.startswith(f"{name}.")]
    kinds = {leaf.physical_type for leaf in below}
    others = any(leaf.logical_type.type == "TIMESTAMP" for leaf in below)
    return "INT96" in kinds and not others


def _zoned(kind: pa.DataType) -> pa.DataType:
    """The type with instants in place of times without a zone."""
    if types.is_timestamp(kind):
        return pa.timestamp(kind.unit, "UTC")
    if types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return pa.struct([field.with_type(_zoned(field.type)) for field in fields])
    if types.is_map(kind):
        return pa.map_(_zoned(kind.key_type), _zoned(kind.item_type))
    if is_list(kind):
        return pa.list_(kind.value_field.with_type(_zoned(kind.value_type)))
    return kind


def _has_old_calendar(notes: Mapping[bytes, bytes]) -> bool:
    """Whether Spark before 3.0, or a newer one with the setting LEGACY, wrote the file."""
    version = notes.get(b"org.apache.spark.version", b"")
    return version.startswith((b"1.", b"2.")) or any(key in notes for key in _LEGACY)


def _check_calendar(batch: pa.RecordBatch) -> None:
    """Raise ``ValueError`` for days that old Spark counted by another calendar."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        for leaf in _leaves(column):
            if types.is_date32(leaf.type):
                first, whole = pc.min(leaf.cast(pa.int32())).as_py(), _COMMON_DAY
            elif types.is_timestamp(leaf.type):
                micros = leaf.cast(pa.timestamp("us", leaf.type.tz), safe=False)
                first, whole = pc.min(micros.cast(pa.int64())).as_py(), _COMMON_TIME_US
            else:
                continue
            if first is not None and first < whole:
                raise ValueError(
                    f"column {name!r} has days before 1582, or times before 1900, in the calendar"
                    " of an old Spark (spark.sql.parquet.datetimeRebaseModeInWrite=LEGACY): write"
                    " it again with CORRECTED"
                )


def _leaves(values: pa.Array) -> Iterator[pa.Array]:
    kind = values.type
    if types.is_struct(kind):
        for place in range(kind.num_fields):
            yield from _leaves(values.field(place))
    elif types.is_map(kind):
        yield from _leaves(values.keys)
        yield from _leaves(values.items)
    elif is_list(kind):
        yield from _leaves(values.flatten())
    else:
        yield values
