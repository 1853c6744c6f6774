"""Names of tables and columns, as users give them, and types of Spark in its own notations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weir.errors import SinkError
from weir.storage.paths import is_utf8


def check_names(names: Iterable[str | None], *, place: str) -> None:
    """Raise ``SinkError`` for a name that neither Java nor a database could be given."""
    for name in names:
        if name is not None and not (is_utf8(name) and "\0" not in name):
            raise SinkError(
                f"{place} was given the name {name!r}, which is not UTF-8 text: use another."
            )


def quoted(column: str) -> str:
    """A column's name quoted for Spark SQL, whatever characters it has."""
    return f"`{column.replace('`', '``')}`"


def columns_ddl(fields: Iterable[dict[str, Any]]) -> str:
    """Columns of a Delta schema as Spark's DDL."""
    return ", ".join(f"{quoted(column['name'])} {_type_ddl(column['type'])}" for column in fields)


def _type_ddl(kind: Any) -> str:
    match kind:
        case {"type": "struct", "fields": fields}:
            inner = (f"{quoted(part['name'])}: {_type_ddl(part['type'])}" for part in fields)
            return f"STRUCT<{', '.join(inner)}>"
        case {"type": "array", "elementType": element}:
            return f"ARRAY<{_type_ddl(element)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"MAP<{_type_ddl(key)}, {_type_ddl(value)}>"
        case _:
            return str(kind)


def type_name(kind: Any) -> str:
    """A type of a Spark or Delta schema (JSON values) in Spark SQL's short notation."""
    match kind:
        case {"type": "struct", "fields": fields}:
            inner = ",".join(f"{field['name']}:{type_name(field['type'])}" for field in fields)
            return f"struct<{inner}>"
        case {"type": "array", "elementType": element}:
            return f"array<{type_name(element)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"map<{type_name(key)},{type_name(value)}>"
        case {"type": other}:
            return str(other)
        case _:
            return str(kind)
