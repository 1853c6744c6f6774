"""Converts Spark schemas to Delta schemas, and checks whether a batch's rows fit a table.

Both spell a schema in nearly the same JSON. Three things differ, and each would do harm if it were
passed on:

1. Types that Delta lacks (intervals, void, user-defined types) are refused by name.
2. Columns become nullable, as when Spark creates a Delta table: Spark's own ``nullable`` flags
   change with its plans.
3. Column metadata is dropped. Spark keeps watermarks there, and a query that read the table would
   have a watermark that never advances.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weir.errors import SinkMismatchError
from weir.sinks.ddl import quoted, type_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PRIMITIVES = frozenset(
    (
        "string",
        "long",
        "integer",
        "short",
        "byte",
        "float",
        "double",
        "boolean",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
    )
)
_PRECISION = re.compile(r"decimal\((\d+),(\d+)\)")
_DECIMAL = re.compile(r"decimal\(\d+,-?\d+\)")
#: The types whose values a partition directory's name gives exactly, without time zones or
#: rounding, and which other readers read. delta-rs does not read decimals below zero.
_PARTITION_TYPES = frozenset(("string", "long", "integer", "short", "byte", "boolean", "date"))


def delta_schema_json(spark_schema: str, *, place: str) -> str:
    """The schema of a Delta table for rows of this Spark schema, both as JSON text.

    Raises ``SinkMismatchError`` if Delta has no such type; ``place`` names the sink in the message.
    """
    fields = json.loads(spark_schema)["fields"]
    return json.dumps(_struct([_field(field, field["name"], place) for field in fields]))


def check_partition_columns(schema: str, partition_by: Sequence[str], *, place: str) -> None:
    """Raise ``SinkMismatchError`` unless each partition column exists and has a usable type."""
    types = {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
    for column in partition_by:
        if column not in types:
            raise SinkMismatchError(
                f"{place} is partitioned by {column!r}, but the rows have only the columns"
                f" {_names(types)}: add the column before the sink, or remove it from"
                " partition_by."
            )
        kind = types[column]
        if not isinstance(kind, str) or kind not in _PARTITION_TYPES:
            raise SinkMismatchError(
                f"{place} is partitioned by {column!r} of type {type_name(kind)}, which not every"
                " reader of Delta reads exactly from a directory's name: partition by a string,"
                " date, integer or boolean derived from it."
            )
    if len(partition_by) == len(types):
        raise SinkMismatchError(
            f"{place} is partitioned by all of its columns: remove at least one from partition_by."
        )


def check_fits(table_schema: str, rows_schema: str, *, place: str, adds: bool = False) -> None:
    """Raise ``SinkMismatchError`` if the rows cannot be appended to the table.

    Both schemas are Delta's, as JSON text. ``adds``: columns may be missing on either side.
    """
    table = {field["name"]: field for field in json.loads(table_schema)["fields"]}
    rows = {field["name"]: field for field in json.loads(rows_schema)["fields"]}
    differences = []
    if not adds and (missing := [name for name in table if name not in rows]):
        differences.append(f"the rows lack {_names(missing)}")
    if not adds and (unknown := [name for name in rows if name not in table]):
        differences.append(f"the table lacks {_names(unknown)}")
    by_case = {name.lower(): name for name in table}
    for name in rows.keys() - table.keys():
        if (known := by_case.get(name.lower())) is not None:
            differences.append(f"{name!r} of the rows is {known!r} in the table")
    for name in table.keys() & rows.keys():
        ours, theirs = (
            type_name(_nullable(rows[name]["type"])),
            type_name(_nullable(table[name]["type"])),
        )
        if ours != theirs:
            differences.append(f"{name!r} is {ours} in the rows and {theirs} in the table")
    if differences:
        raise SinkMismatchError(
            f"The columns of the rows for {place} differ from the table's:"
            f" {'; '.join(sorted(differences))}. Select and cast the table's columns before the"
            " sink, change the table, or write to a new path"
            f"{'' if adds else '; schema_evolution=' + repr('add') + ' adds columns'}."
        )


def added_fields(table_schema: str, rows_schemas: Iterable[str]) -> list[dict[str, Any]]:
    """The fields of the rows that the table lacks, each once. Schemas are Delta's, as JSON text."""
    known = {field["name"] for field in json.loads(table_schema)["fields"]}
    fields = (field for schema in rows_schemas for field in json.loads(schema)["fields"])
    return list({field["name"]: field for field in fields if field["name"] not in known}.values())


def with_fields(schema: str, fields: Sequence[dict[str, Any]]) -> str:
    """A schema with more fields at its end."""
    return json.dumps(_struct([*json.loads(schema)["fields"], *fields]))


def widened(table_schema: str, rows_schema: str) -> tuple[str, dict[str, str]]:
    """The rows' schema with the table's wider types, and the columns that are cast to those."""
    table = {field["name"]: field["type"] for field in json.loads(table_schema)["fields"]}
    fields, casts = json.loads(rows_schema)["fields"], {}
    for field in fields:
        ours, theirs = field["type"], table.get(field["name"])
        if isinstance(ours, str) and isinstance(theirs, str) and _widens(ours, theirs):
            field["type"] = casts[field["name"]] = theirs
    return json.dumps(_struct(fields)), casts


def cast_columns(frame: DataFrame, casts: Mapping[str, str]) -> DataFrame:
    """The frame with some columns cast to other types."""
    shown = {name: quoted(name) for name in frame.columns}
    shown |= {name: f"CAST({quoted(name)} AS {to}) AS {quoted(name)}" for name, to in casts.items()}
    return frame.selectExpr(*shown.values())


def _widens(narrow: str, wide: str) -> bool:
    for order in (("byte", "short", "integer", "long"), ("float", "double")):
        if narrow in order and wide in order:
            return order.index(narrow) < order.index(wide)
    less, more = _PRECISION.fullmatch(narrow), _PRECISION.fullmatch(wide)
    if less is None or more is None or narrow == wide:
        return False
    scales = int(less[2]), int(more[2])
    return scales[0] <= scales[1] and int(less[1]) - scales[0] <= int(more[1]) - scales[1]


def check_no_rules(
    schema: str, configuration: dict[str, str], features: Iterable[str], *, place: str
) -> None:
    """Raise ``SinkMismatchError`` if the table has rules that the sink cannot keep.

    The sink appends plain Parquet files, exactly once.
    """
    rules = [f"the property {key}" for key in configuration if key.startswith("delta.constraints.")]
    if "delta.setTransactionRetentionDuration" in configuration:
        # When transaction ids expire, the table forgets which checkpoints it has.
        rules.append("the property delta.setTransactionRetentionDuration")
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        rules.append("the property delta.columnMapping.mode")
    for field in json.loads(schema)["fields"]:
        if not field["nullable"]:
            rules.append(f"NOT NULL of the column {field['name']!r}")
        rules.extend(
            f"{key} of the column {field['name']!r}"
            for key in field["metadata"]
            if key in _COLUMN_RULES
        )
    rules.extend(
        f"the table feature {feature}" for feature in features if feature in _FEATURES_REFUSED
    )
    if rules:
        raise SinkMismatchError(
            f"{place} cannot append to this table exactly once and keep"
            f" {', '.join(sorted(rules))}: remove these from the table, or write to another table."
        )


_COLUMN_RULES = frozenset(
    ("delta.invariants", "delta.generationExpression", "delta.identity.start")
)
_FEATURES_REFUSED = frozenset(
    (
        "rowTracking",
        "clustering",
        "icebergCompatV1",
        "icebergCompatV2",
        "icebergCompatV3",
        "inCommitTimestamp",
    )
)


def _field(field: dict[str, Any], column: str, place: str) -> dict[str, Any]:
    return _named(field["name"], _type(field["type"], column, place))


def _type(kind: Any, column: str, place: str) -> Any:
    """The nullable Delta type of a Spark type."""
    match kind:
        case str() if kind in _PRIMITIVES or _DECIMAL.fullmatch(kind):
            return kind
        case {"type": "struct", "fields": fields}:
            return _struct([_field(field, f"{column}.{field['name']}", place) for field in fields])
        case {"type": "array", "elementType": element}:
            return _array(_type(element, column, place))
        case {"type": "map", "keyType": key, "valueType": value}:
            return _map(_type(key, column, place), _type(value, column, place))
        case _:
            raise SinkMismatchError(
                f"{place} cannot hold the column {column!r} of type {type_name(kind)}, which"
                " Delta does not support: cast it (for example to a string) or drop it before the"
                " sink."
            )


def _nullable(kind: Any) -> Any:
    """A Delta type in the form that ``_type`` gives it, for comparison."""
    match kind:
        case {"type": "struct", "fields": fields}:
            return _struct([_named(field["name"], _nullable(field["type"])) for field in fields])
        case {"type": "array", "elementType": element}:
            return _array(_nullable(element))
        case {"type": "map", "keyType": key, "valueType": value}:
            return _map(_nullable(key), _nullable(value))
        case _:
            return kind


def _named(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _struct(fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "struct", "fields": fields}


def _array(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def _map(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def _names(columns: Iterable[str]) -> str:
    return ", ".join(repr(column) for column in columns)
