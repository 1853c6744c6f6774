"""Types of PostgreSQL columns for Spark's, and whether a batch's rows fit a table.

Rows are staged in columns that hold every value of their Spark type exactly. The step from there to
the target's columns must not change a value either, so a target column that would round is refused
before the first row. One that raises an error instead (``varchar(10)``, a check, an enum) is
accepted: such a row is a violation, which ``PostgresTable`` reports or sets aside.

===================  =====================  =====================================================
Spark                staged, created        also accepted as the target's type
===================  =====================  =====================================================
boolean              boolean
byte, short          smallint               integer, bigint, numeric
int                  integer                bigint, numeric
long                 bigint                 numeric
float                real                   double precision
double               double precision
decimal(p,s)         numeric(p,s)           numeric with at least as many digits on either side
string               text                   varchar, char, citext, json, jsonb, uuid, inet, cidr,
                                            enums
binary               bytea
date                 date
timestamp            timestamptz
timestamp_ntz        timestamp
array of the above   T[]                    arrays of the types above
struct, map, others  jsonb                  json
===================  =====================  =====================================================

NaN and the infinities are values of PostgreSQL's floats. A domain counts as its base type.

With ``schema_evolution="add"`` a column may also become wider (``holds``): it gets the rows' type
if that has each of its values, among the integers and ``numeric``, or from ``real`` to ``double
precision``. Names of domains are never taken for such a type, since SQL would have to quote them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from weir.errors import SinkMismatchError

_PRIMITIVES = {
    "boolean": "boolean",
    "byte": "smallint",
    "short": "smallint",
    "integer": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_NUMERIC = re.compile(r"numeric\(\d+,\d+\)")
_TEXTS = re.compile(r"(?:var)?char\(\d+\)|string collate \w+")
#: The SQL of a staged column's type; nothing else that a payload says becomes SQL unquoted.
STAGED_TYPE = (
    r"\A(?:boolean|smallint|integer|bigint|real|double precision|numeric\(\d{1,2},\d{1,2}\)"
    r"|text|bytea|date|timestamptz|timestamp)(?:\[\])?\Z|\Ajsonb\Z"
)
#: By staged type, the names in ``pg_type`` of target types that take its values unchanged.
_ACCEPTED = {
    "boolean": {"bool"},
    "smallint": {"int2", "int4", "int8", "numeric"},
    "integer": {"int4", "int8", "numeric"},
    "bigint": {"int8", "numeric"},
    "real": {"float4", "float8"},
    "double precision": {"float8"},
    "numeric": {"numeric"},
    "text": {"text", "varchar", "bpchar", "citext", "json", "jsonb", "uuid", "inet", "cidr"},
    "bytea": {"bytea"},
    "date": {"date"},
    "timestamptz": {"timestamptz"},
    "timestamp": {"timestamp"},
    "jsonb": {"jsonb", "json"},
}
#: What text is cast to for these targets: the cast raises an error and cuts nothing off. The last
#: two need none to be inserted, but have another equality than text, by which keys are compared.
_CAST_FROM_TEXT = {"json", "jsonb", "uuid", "inet", "cidr", "citext", "bpchar"}
#: Spark's types that keep their value as a key in JSON, which is always text.
_JSON_KEYS = re.compile(r"string.*|(?:var)?char\(.*|boolean|byte|short|integer|long|decimal.*")
#: For ``to_json``: without these, Spark leaves out nulls and cuts timestamps to milliseconds.
_JSON_OPTIONS = ", ".join(
    f"'{option}'"
    for option in (
        *("ignoreNullFields", "false", "timeZone", "UTC"),
        *("timestampFormat", "yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSS\\'Z\\'"),
        *("timestampNTZFormat", "yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSS"),
    )
)
#: Digits of the integers.
_DIGITS = {"smallint": 5, "integer": 10, "bigint": 19}
#: PostgreSQL cuts longer names off.
_NAME_BYTES = 63


class StagedColumn(msgspec.Struct, frozen=True):
    """A column of staged rows, as a payload has it."""

    name: str
    #: SQL.
    type: str

    def __post_init__(self) -> None:
        if re.match(STAGED_TYPE, self.type) is None:
            raise ValueError(f"{self.type!r} is not a type of a staged column")


@dataclass(frozen=True, kw_only=True)
class TargetColumn:
    """A column of an existing table."""

    name: str
    #: As SQL has it: ``numeric(12,2)``.
    type: str
    #: The name in ``pg_type``, of a domain's base type; an array's starts with an underscore.
    type_name: str
    #: The type's modifier (precision and scale); -1 if it has none.
    modifier: int
    is_enum: bool
    not_null: bool
    #: Filled by the server if it is not given.
    has_default: bool
    #: Cannot be given.
    generated: bool

    @property
    def length(self) -> int | None:
        """How many characters ``varchar(n)``, or an element of ``varchar(n)[]``, may have."""
        is_varchar = self.type_name.removeprefix("_") == "varchar"
        return self.modifier - 4 if is_varchar and self.modifier >= 4 else None


def staged_columns(spark_schema: str, *, place: str) -> tuple[StagedColumn, ...]:
    """The columns for rows of this Spark schema (JSON text).

    Raises ``SinkMismatchError`` for types and names that PostgreSQL lacks; ``place`` names the
    sink.
    """
    columns = []
    for field in json.loads(spark_schema)["fields"]:
        name = field["name"]
        if not is_column_name(name):
            raise SinkMismatchError(
                f"{place} cannot have a column {name!r}, since names in PostgreSQL have 1 to"
                f" {_NAME_BYTES} bytes: rename it before the sink."
            )
        if name.startswith("weir_"):
            raise SinkMismatchError(
                f"{place} cannot have a column {name!r}, since staged rows have columns of Weir's"
                " own whose names start with 'weir_': rename it before the sink."
            )
        columns.append(StagedColumn(name, _staged_type(name, field["type"], place)))
    return tuple(columns)


def is_column_name(name: str) -> bool:
    """Whether PostgreSQL can have a column of this name."""
    return 0 < len(name.encode()) <= _NAME_BYTES and "\0" not in name


def staging_expressions(spark_schema: str) -> list[str]:
    """Spark SQL that selects the rows as they are staged: nested values as JSON."""
    return [
        _expression(field["name"], field["type"]) for field in json.loads(spark_schema)["fields"]
    ]


def check_fits(
    target: Sequence[TargetColumn], rows: Sequence[StagedColumn], *, place: str, adds: bool = False
) -> None:
    """Raise ``SinkMismatchError`` unless the table takes every value of the rows unchanged.

    ``adds``: columns that it lacks are added, and columns of narrower types are widened.
    """
    columns = {column.name: column for column in target}
    given = {column.name for column in rows}
    differences = []
    unknown = [column.name for column in rows if column.name not in columns]
    if unknown and not adds:
        differences.append(f"the table lacks {_names(unknown)}")
    by_case = {name.lower(): name for name in columns}
    for name in unknown if adds else ():
        if (known := by_case.get(name.lower())) is not None:
            differences.append(f"{name!r} of the rows is {known!r} in the table")
    if missing := [
        column.name
        for column in target
        if column.not_null and not column.has_default and column.name not in given
    ]:
        differences.append(f"the rows lack {_names(missing)}, which must not be null")
    for row in rows:
        column = columns.get(row.name)
        if column is not None and column.generated:
            differences.append(f"{row.name!r} is generated by the table")
        elif (
            column is not None
            and not takes(column, row)
            and not (adds and holds(row.type, column.type))
        ):
            differences.append(
                f"{row.name!r} is {row.type} in the rows, {column.type} in the table"
            )
    if differences:
        raise SinkMismatchError(
            f"The columns of the rows for {place} do not fit the table: {'; '.join(differences)}."
            " Select and cast the table's columns before the sink, or change the table"
            f"{'' if adds else '; schema_evolution=' + repr('add') + ' adds and widens columns'}."
        )


def cast_type(target: TargetColumn, staged: StagedColumn) -> str | None:
    """The type (SQL) to which a staged column must be cast before it is inserted; or None."""
    name = target.type_name.removeprefix("_")
    if staged.type == "timestamptz[]":
        # Staged as instants in UTC without their zone (``copy.physical_type``).
        return staged.type
    if not staged.type.startswith("text") or not (target.is_enum or name in _CAST_FROM_TEXT):
        return None
    # A cast to char(5) would cut off the rest.
    return staged.type.replace("text", "bpchar") if name == "bpchar" else target.type


def takes(target: TargetColumn, row: StagedColumn) -> bool:
    """Whether a column takes each value of a staged column unchanged, or refuses it by an error."""
    base = row.type.removesuffix("[]")
    kind = base.partition("(")[0]
    if (base != row.type) != target.type_name.startswith("_"):
        return False
    if target.is_enum:
        return kind == "text"
    name = target.type_name.removeprefix("_")
    if name not in _ACCEPTED[kind]:
        return False
    if target.modifier < 0:
        return True
    if name == "numeric":
        # As numeric's input function packs it, 4 bytes above.
        packed = target.modifier - 4
        precision, scale = packed >> 16 & 0xFFFF, (packed & 0x7FF ^ 1024) - 1024
        return _has_digits((precision, scale), _precision_of(base))
    # The precision of a timestamp, in digits: fewer than six would round.
    return name not in ("timestamp", "timestamptz") or target.modifier >= 6


def holds(wide: str, narrow: str) -> bool:
    """Whether a staged type has every value of another type (SQL) of its family, and more."""
    base, other = wide.removesuffix("[]"), narrow.removesuffix("[]")
    if (base != wide) != (other != narrow) or base == other:
        return False
    if base in _DIGITS:
        return _DIGITS[base] > _DIGITS.get(other, _DIGITS[base])
    if _NUMERIC.fullmatch(base):
        known = other in _DIGITS or _NUMERIC.fullmatch(other) is not None
        return known and _has_digits(_precision_of(base), _precision_of(other))
    return (base, other) == ("double precision", "real")


def _has_digits(wide: tuple[int, int], narrow: tuple[int, int]) -> bool:
    """Whether numbers of a precision and scale have at least the digits of others."""
    return wide[1] >= narrow[1] and wide[0] - wide[1] >= narrow[0] - narrow[1]


def _precision_of(staged: str) -> tuple[int, int]:
    if staged in _DIGITS:
        return _DIGITS[staged], 0
    precision, scale = re.findall(r"\d+", staged)
    return int(precision), int(scale)


def _staged_type(name: str, kind: Any, place: str) -> str:
    scalar = _scalar_type(kind)
    if scalar is not None:
        return scalar
    match kind:
        case {"type": "array", "elementType": element}:
            inner = _scalar_type(element)
            if inner is not None:
                return f"{inner}[]"
    if isinstance(kind, dict) and kind.get("type") in ("array", "struct", "map"):
        if (odd := _odd_json_key(kind)) is not None:
            raise SinkMismatchError(
                f"Column {name!r} for {place} has a map with keys of the type {odd}, which are not"
                " the same in JSON: cast the keys to a string before the sink."
            )
        return "jsonb"
    shown = kind if isinstance(kind, str) else kind.get("type")
    raise SinkMismatchError(
        f"Column {name!r} for {place} has the type {shown}, which has no counterpart in PostgreSQL"
        " here: cast it before the sink, such as to a string."
    )


def _odd_json_key(kind: Any) -> str | None:
    """The type of the keys of a map in this type, if JSON would change them; else None."""
    match kind:
        case {"type": "map", "keyType": key, "valueType": value}:
            kept = isinstance(key, str) and _JSON_KEYS.fullmatch(key) is not None
            return _odd_json_key(value) if kept else key if isinstance(key, str) else key["type"]
        case {"type": "array", "elementType": element}:
            return _odd_json_key(element)
        case {"type": "struct", "fields": fields}:
            return next(filter(None, (_odd_json_key(field["type"]) for field in fields)), None)
    return None


def _scalar_type(kind: Any) -> str | None:
    if not isinstance(kind, str):
        return None
    if decimal := _DECIMAL.fullmatch(kind):
        return f"numeric({decimal[1]},{decimal[2]})"
    return "text" if _TEXTS.fullmatch(kind) else _PRIMITIVES.get(kind)


def _expression(name: str, kind: Any) -> str:
    column = f"`{name.replace('`', '``')}`"
    match kind:
        case {"type": "array", "elementType": element} if _scalar_type(element) is not None:
            return column
        case {"type": "array" | "struct" | "map"}:
            return f"to_json({column}, map({_JSON_OPTIONS})) AS {column}"
    return column


def _names(columns: Sequence[str]) -> str:
    return ", ".join(map(repr, columns))
