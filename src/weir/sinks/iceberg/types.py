"""Schemas of Iceberg tables and of the rows for them: what fits, and under which field ids.

Iceberg finds columns by the ids of fields, so each Parquet file either has the id of every field or
of none. Spark writes the ids of columns and of struct fields, but not those of list elements, map
keys and map values. A file with only some ids is read differently by different engines. So files
of rows with a list or a map, at any depth, get none: readers then find the fields by the table's
``schema.name-mapping.default``, which the first such commit adds. The same holds for rows with a
field that the table lacks, whose id is known only once they are committed (``evolution.py``).
Files of all other rows have their ids, and are independent of names.

The *rows' schema* has the table's ids for the columns that the rows have, and ids from ``NEW_IDS``
for fields that the table lacks. Its types are those of the files: the table's, to which Spark casts
without loss before it writes, or wider types, to which the table's are widened by the commit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from pyiceberg.exceptions import ResolveError
from pyiceberg.schema import Schema, assign_fresh_schema_ids, promote
from pyiceberg.table.name_mapping import MappedField, NameMapping, update_mapping
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from weir.errors import SinkMismatchError
from weir.sinks.ddl import type_name

#: By Spark's type: the type in a new table, and further types that an existing column may have.
_TYPES: dict[str, tuple[PrimitiveType, ...]] = {
    "boolean": (BooleanType(),),
    "byte": (IntegerType(), LongType()),
    "short": (IntegerType(), LongType()),
    "integer": (IntegerType(), LongType()),
    "long": (LongType(),),
    "float": (FloatType(), DoubleType()),
    "double": (DoubleType(),),
    "string": (StringType(),),
    "binary": (BinaryType(),),
    "date": (DateType(),),
    "timestamp": (TimestamptzType(),),
    "timestamp_ntz": (TimestampType(),),
}
#: The type that Spark writes; of several, that which needs no cast.
_SPARK_TYPES = {types[0]: kind for kind, types in _TYPES.items() if kind not in ("byte", "short")}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
#: From here on, ids in rows' schemas stand for fields that the table lacked. No table has as many,
#: and those that Iceberg reserves are greater.
NEW_IDS = 1 << 30
#: Spark's key for the id of a Parquet field.
_FIELD_ID = "parquet.field.id"


def new_schema(spark_schema: str, *, place: str) -> Schema:
    """The schema of a new table for rows of this Spark schema (JSON text).

    Raises ``SinkMismatchError`` if Iceberg has no such type; ``place`` names the sink.
    """
    ids = count(1)
    fields = json.loads(spark_schema)["fields"]
    return Schema(*_new_fields(fields, ids, "", place))


def fitting_schema(spark_schema: str, table: Schema, *, adds: bool = False, place: str) -> Schema:
    """The rows' schema. Raises ``SinkMismatchError`` if the table does not take such rows.

    ``adds``: the rows may have fields that the table lacks, and types that are wider than its own.
    """
    rows = {field["name"]: field["type"] for field in json.loads(spark_schema)["fields"]}
    columns = {field.name: field for field in table.fields}
    unknown = [name for name in rows if name not in columns]
    ids = count(NEW_IDS)
    differences, fields = [], []
    for name, column in columns.items():
        if column.required:
            differences.append(f"{name!r} is required in the table, which Spark cannot promise")
        elif name in rows:
            kind = _fitted(rows[name], column.field_type, ids if adds else None, name, place)
            if kind is not None:
                fields.append(_optional(column.field_id, name, kind))
                continue
            differences.append(
                f"{name!r} is {type_name(rows[name])} in the rows and {column.field_type} in the"
                " table"
            )
    for name in unknown:
        if adds and (known := in_other_case(name, columns)) is not None:
            differences.append(f"{name!r} of the rows is {known!r} in the table")
        elif adds:
            kind = _new_type(rows[name], ids, name, place)
            fields.append(_optional(next(ids), name, kind))
        else:
            differences.append(f"the table lacks {name!r}")
    if not fields and not differences:
        differences.append("the rows have none of the table's columns")
    if differences:
        raise SinkMismatchError(
            f"The columns of the rows for {place} differ from the table's:"
            f" {'; '.join(sorted(differences))}. Select and cast the table's columns before the"
            " sink, change the table, or write to a new table"
            f"{'' if adds else '; schema_evolution=' + repr('add') + ' adds and widens columns'}."
        )
    return Schema(*fields)


def in_other_case(name: str, names: Iterable[str]) -> str | None:
    """The name that differs from this name only in case, so that Spark takes both for the same."""
    return next((other for other in names if other != name and other.lower() == name.lower()), None)


def widens(narrow: IcebergType, wide: IcebergType) -> bool:
    """Whether Iceberg may change a column from the first type to the second."""
    match narrow, wide:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType(), DecimalType():
            return narrow.scale == wide.scale and narrow.precision < wide.precision
        case _:
            return False


def check_takes(table: Schema, rows: Schema, *, same_table: bool, place: str) -> None:
    """Raise ``SinkMismatchError`` unless files with the rows' schema can be added to the table.

    Fields have the table's ids (``evolution``). The table may have changed since they were
    written. If it is another table, its fields must have the same names and ids, and the same types
    or wider types.
    """
    columns = {field.field_id: field for field in table.fields}
    differences = [
        f"{field.name!r} has become required" for field in table.fields if field.required
    ]
    for field in rows.fields:
        column = columns.get(field.field_id)
        if has_new_fields(Schema(field)):
            # It is in a column that was dropped, or has another type by now.
            fits = False
        elif same_table:
            # A column that was dropped meanwhile is no longer read.
            fits = column is None or _is_readable(field.field_type, column.field_type)
        else:
            fits = (
                column is not None
                and column.name == field.name
                and (
                    str(column.field_type) == str(field.field_type)
                    or widens(field.field_type, column.field_type)
                )
            )
        if not fits:
            found = "missing" if column is None else f"{column.name!r} of type {column.field_type}"
            differences.append(
                f"field {field.field_id} is {field.name!r} of type {field.field_type} in the rows"
                f" and {found} in the table"
            )
    if differences:
        raise SinkMismatchError(
            f"Staged rows do not fit {place}: {'; '.join(differences)}. Change the table back and"
            " run the job again; stop the job with a savepoint before you change its table."
        )


def check_rows_schema(rows: Schema) -> None:
    """Raise ``ValueError`` unless this can be the schema of rows that were staged.

    What it says becomes part of the table, and it comes from a checkpoint, which may be forged.
    """
    if not rows.fields:
        raise ValueError("the rows have no columns")
    ids = [field_id for _, field_id in paths(rows.fields)]
    if len(set(ids)) < len(ids):
        raise ValueError("two fields of the rows have the same id")
    for field in rows.fields:
        _check_staged_field(field, field.name)


def _check_staged_field(field: NestedField, name: str) -> None:
    if field.required:
        raise ValueError(f"field {name!r} of the rows is required")
    kind = field.field_type
    inner = [*_inner(kind)]
    if not inner and kind not in _SPARK_TYPES and not isinstance(kind, DecimalType):
        raise ValueError(f"field {name!r} of the rows is {kind}, which Spark does not write")
    for one in inner:
        # Keys of maps are never null.
        is_key = isinstance(kind, MapType) and one.field_id == kind.key_id
        _check_staged_field(
            _optional(one.field_id, one.name, one.field_type) if is_key else one,
            f"{name}.{one.name}",
        )


def check_takes_new_ids(rows: Schema, *, place: str) -> None:
    """Raise ``SinkMismatchError`` unless a new table for staged rows would give them their ids.

    A catalog numbers a new table's fields itself, level by level. Those of a table that was changed
    have other numbers, which the files have already.
    """
    new = assign_fresh_schema_ids(rows)
    for (name, written), (_, given) in zip(paths(rows.fields), paths(new.fields), strict=True):
        if written < NEW_IDS and written != given:
            raise SinkMismatchError(
                f"Staged rows do not fit a new table for {place}: their field {name!r} has the id"
                f" {written}, as in the table that they were staged for, and would have {given}."
                " Create the table as the other came to be, with its first columns and then the"
                " same changes, so that it has these ids, and run the job again; or start from a"
                " savepoint of weir stop, which leaves no rows to commit."
            )


def has_field_ids(rows: Schema) -> bool:
    """Whether files of these rows have the ids of their fields."""
    return not has_new_fields(rows) and not any(
        _has_list_or_map(field.field_type) for field in rows.fields
    )


def has_new_fields(rows: Schema) -> bool:
    """Whether rows have fields that the table lacked when they were staged."""
    return any(field_id >= NEW_IDS for field_id in rows.field_ids)


def new_mapping(written: Iterable[Schema], table: Schema) -> NameMapping:
    """A mapping for the table that also has the names under which the rows were written.

    A name that belongs to two fields by now is the table's: ``check_mapping`` then fails.
    """
    mapping = NameMapping([])
    for schema in (*written, table):
        ids = {field_id for _, field_id in mapped(mapping)}
        fields = {field_id: schema.find_field(field_id) for field_id in schema.field_ids}
        added = {
            parent: [field for field in inner if field.field_id not in ids]
            for parent, inner in _by_parent(schema.fields)
        }
        mapping = update_mapping(mapping, fields, added)
    return mapping


def check_mapping(mapping: NameMapping, rows: Schema, *, place: str) -> None:
    """Raise ``SinkMismatchError`` unless the table's mapping finds the rows' fields by name."""
    known = set(mapped(mapping))
    missing = [
        name
        for name, field_id in paths(rows.fields)
        if field_id < NEW_IDS and (name, field_id) not in known
    ]
    if missing:
        raise SinkMismatchError(
            f"{place} has rows with lists, maps or new columns, whose fields readers find by the"
            " table's property schema.name-mapping.default, and that does not have"
            f" {missing[0]!r} under its id: add it there, or remove the property, which is then"
            " written again, or give the columns their former names."
        )


def spark_schema_of(rows: Schema) -> dict[str, Any]:
    """The schema (Spark's JSON) that rows are cast to; only inner fields have their ids."""
    schema = _spark_struct(rows.fields, with_ids=has_field_ids(rows))
    return {**schema, "fields": [{**field, "metadata": {}} for field in schema["fields"]]}


def column_metadata(rows: Schema) -> dict[str, dict[str, Any]]:
    """By column, the metadata from which Spark takes the field's id.

    The columns must become aliases with this metadata after they were cast. Spark's optimizer
    forgets the metadata of a column that is merely selected, or is a literal.
    """
    fields = _spark_struct(rows.fields, with_ids=has_field_ids(rows))["fields"]
    return {field["name"]: field["metadata"] for field in fields}


def _new_fields(
    fields: Sequence[dict[str, Any]], ids: Iterator[int], parent: str, place: str
) -> list[NestedField]:
    return [
        _optional(
            next(ids),
            field["name"],
            _new_type(field["type"], ids, f"{parent}{field['name']}", place),
        )
        for field in fields
    ]


def _optional(field_id: int, name: str, kind: IcebergType) -> NestedField:
    return NestedField(field_id=field_id, name=name, field_type=kind, required=False)


def _new_type(kind: Any, ids: Iterator[int], column: str, place: str) -> IcebergType:
    match kind:
        case str() if (primitive := _primitive(kind)) is not None:
            return primitive
        case {"type": "struct", "fields": fields}:
            return StructType(*_new_fields(fields, ids, f"{column}.", place))
        case {"type": "array", "elementType": element}:
            return ListType(
                element_id=next(ids),
                element_type=_new_type(element, ids, column, place),
                element_required=False,
            )
        case {"type": "map", "keyType": key, "valueType": value}:
            return MapType(
                key_id=next(ids),
                key_type=_new_type(key, ids, column, place),
                value_id=next(ids),
                value_type=_new_type(value, ids, column, place),
                value_required=False,
            )
        case _:
            raise SinkMismatchError(
                f"{place} cannot hold the column {column!r} of type {type_name(kind)}, which"
                " Iceberg does not have: cast it (for example to a string) or drop it before the"
                " sink."
            )


def _fitted(
    kind: Any, theirs: IcebergType, ids: Iterator[int] | None, column: str, place: str
) -> IcebergType | None:
    """The type in the files of values of Spark's type; None if the table's does not take them.

    ``ids`` for fields that the table lacks; None if it must have all.
    """
    if ids is None or _fits(kind, theirs):
        return theirs if _fits(kind, theirs) else None
    match kind, theirs:
        case str(), PrimitiveType():
            ours = _primitive(kind)
            return ours if ours is not None and widens(theirs, ours) else None
        case {"type": "struct", "fields": fields}, StructType():
            return _fitted_struct(fields, theirs, ids, column, place)
        case {"type": "array", "elementType": element}, ListType() if not theirs.element_required:
            fitted = _fitted(element, theirs.element_type, ids, column, place)
            return (
                None
                if fitted is None
                else ListType(
                    element_id=theirs.element_id, element_type=fitted, element_required=False
                )
            )
        # A map's keys keep their type.
        case {"type": "map", "keyType": key, "valueType": value}, MapType() if (
            _fits(key, theirs.key_type) and not theirs.value_required
        ):
            fitted = _fitted(value, theirs.value_type, ids, column, place)
            return (
                None
                if fitted is None
                else MapType(
                    key_id=theirs.key_id,
                    key_type=theirs.key_type,
                    value_id=theirs.value_id,
                    value_type=fitted,
                    value_required=False,
                )
            )
        case _:
            return None


def _fitted_struct(
    fields: Sequence[dict[str, Any]],
    theirs: StructType,
    ids: Iterator[int],
    column: str,
    place: str,
) -> StructType | None:
    rows = {field["name"]: field["type"] for field in fields}
    known = {field.name: field for field in theirs.fields}
    if any(field.required for field in theirs.fields) or any(
        in_other_case(name, known) for name in rows.keys() - known.keys()
    ):
        return None
    fitted = []
    for name, field in known.items():
        if name in rows:
            kind = _fitted(rows[name], field.field_type, ids, f"{column}.{name}", place)
            if kind is None:
                return None
            fitted.append(_optional(field.field_id, name, kind))
    new = [field for field in fields if field["name"] not in known]
    return StructType(*fitted, *_new_fields(new, ids, f"{column}.", place))


def _primitive(kind: str) -> PrimitiveType | None:
    """The type in a new table; None if Iceberg has no such type."""
    if match := _DECIMAL.fullmatch(kind):
        return DecimalType(int(match[1]), int(match[2]))
    return _TYPES[kind][0] if kind in _TYPES else None


def _fits(kind: Any, theirs: IcebergType) -> bool:
    """Whether all values of Spark's type fit the type in the table without loss."""
    match kind, theirs:
        case str(), DecimalType() if match := _DECIMAL.fullmatch(kind):
            return theirs.precision >= int(match[1]) and theirs.scale == int(match[2])
        case str(), PrimitiveType():
            return theirs in _TYPES.get(kind, ())
        case {"type": "struct", "fields": fields}, StructType():
            rows = {field["name"]: field["type"] for field in fields}
            return rows.keys() == {field.name for field in theirs.fields} and all(
                not field.required and _fits(rows[field.name], field.field_type)
                for field in theirs.fields
            )
        case {"type": "array", "elementType": element}, ListType():
            return not theirs.element_required and _fits(element, theirs.element_type)
        case {"type": "map", "keyType": key, "valueType": value}, MapType():
            values_fit = not theirs.value_required and _fits(value, theirs.value_type)
            return values_fit and _fits(key, theirs.key_type)
        case _:
            return False


def _is_readable(written: IcebergType, now: IcebergType) -> bool:
    """Whether values of a type that was written can be read as the type that the table has now."""
    match written, now:
        case StructType(), StructType():
            fields = {field.field_id: field.field_type for field in now.fields}
            return all(
                field.field_id not in fields
                or _is_readable(field.field_type, fields[field.field_id])
                for field in written.fields
            )
        case ListType(), ListType():
            return written.element_id == now.element_id and _is_readable(
                written.element_type, now.element_type
            )
        case MapType(), MapType():
            return (
                (written.key_id, written.value_id) == (now.key_id, now.value_id)
                and _is_readable(written.key_type, now.key_type)
                and _is_readable(written.value_type, now.value_type)
            )
        case PrimitiveType(), PrimitiveType():
            try:
                return written == now or promote(written, now) == now
            except ResolveError:
                return False
        case _:
            return False


def _has_list_or_map(kind: IcebergType) -> bool:
    match kind:
        case ListType() | MapType():
            return True
        case StructType():
            return any(_has_list_or_map(field.field_type) for field in kind.fields)
        case _:
            return False


def paths(fields: Sequence[NestedField]) -> Iterator[tuple[str, int]]:
    """The names of all fields below, as a name mapping spells them, with their ids."""
    for field in fields:
        yield field.name, field.field_id
        for name, field_id in paths(_inner(field.field_type)):
            yield f"{field.name}.{name}", field_id


def _by_parent(
    fields: Sequence[NestedField], parent: int = -1
) -> Iterator[tuple[int, Sequence[NestedField]]]:
    """All fields below, by the id of the field that they are in; -1 for the columns."""
    yield parent, fields
    for field in fields:
        yield from _by_parent(_inner(field.field_type), field.field_id)


def _inner(kind: IcebergType) -> Sequence[NestedField]:
    match kind:
        case StructType():
            return kind.fields
        case ListType():
            return [kind.element_field]
        case MapType():
            return [kind.key_field, kind.value_field]
        case _:
            return []


def mapped(fields: Iterable[MappedField], parent: str = "") -> Iterator[tuple[str, int | None]]:
    """What a mapping finds: every spelling of a field's path, and its id."""
    for field in fields:
        for name in field.names:
            yield f"{parent}{name}", field.field_id
            yield from mapped(field.fields, f"{parent}{name}.")


def _spark_struct(fields: Sequence[NestedField], *, with_ids: bool) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {
                "name": field.name,
                "type": _spark_type(field.field_type, with_ids=with_ids),
                "nullable": True,
                "metadata": {_FIELD_ID: field.field_id} if with_ids else {},
            }
            for field in fields
        ],
    }


def _spark_type(kind: IcebergType, *, with_ids: bool) -> Any:
    match kind:
        case StructType():
            return _spark_struct(kind.fields, with_ids=with_ids)
        case ListType():
            element = _spark_type(kind.element_type, with_ids=with_ids)
            return {"type": "array", "elementType": element, "containsNull": True}
        case MapType():
            return {
                "type": "map",
                "keyType": _spark_type(kind.key_type, with_ids=with_ids),
                "valueType": _spark_type(kind.value_type, with_ids=with_ids),
                "valueContainsNull": True,
            }
        case DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
        case _:
            return _SPARK_TYPES[kind]  # type: ignore[index]
