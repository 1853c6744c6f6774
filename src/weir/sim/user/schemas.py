"""Arrow schemas of what users declare: Spark DDL, a ``StructType`` or an Arrow schema."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from weir.errors import PipelineError
from weir.sim.stores.frame import SIMPLE_TYPES

_TOKEN = re.compile(r"\s*(?:([A-Za-z_][\w.]*)|(`(?:[^`]|``)+`)|('(?:[^']|'')*')|(\d+)|([<>(),:]))")
_TYPES = {
    **SIMPLE_TYPES,
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def schema_of(declared: Any, step: str) -> pa.Schema:
    """The Arrow schema. Raises ``PipelineError`` for anything else; ``step`` names its step."""
    if isinstance(declared, pa.Schema):
        return declared
    try:
        if isinstance(declared, str):
            return _Ddl(declared).schema()
        return pa.schema([_field(one) for one in json.loads(declared.json())["fields"]])
    except (AttributeError, KeyError, LookupError, TypeError, ValueError) as error:
        raise PipelineError(
            f"The schema {declared!r} of step {step!r} is unknown to the simulator ({error}): write"
            " DDL such as 'id long, at timestamp', or an Arrow schema."
        ) from error


class _Ddl:
    """Spark's DDL: columns with their types."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        at, text = 0, text.strip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"unexpected {text[at : at + 10]!r}")
            self._tokens.append(found.group().strip())
            at = found.end()
        self._at = 0

    def schema(self) -> pa.Schema:
        """The whole text as a schema."""
        fields = [self._field()]
        while self._take(","):
            fields.append(self._field())
        if self._at < len(self._tokens):
            raise ValueError(f"unexpected {self._tokens[self._at]!r}")
        return pa.schema(fields)

    def _field(self) -> pa.Field:
        name = self._next()
        name = name[1:-1].replace("``", "`") if name.startswith("`") else name
        self._take(":")
        kind, nullable = self._type(), True
        if self._take("not"):
            self._expect("null")
            nullable = False
        if self._take("comment"):
            self._next()
        return pa.field(name, kind, nullable)

    def _type(self) -> pa.DataType:
        name = self._next().lower()
        if name in ("decimal", "dec", "numeric"):
            precision, scale = 10, 0
            if self._take("("):
                precision = int(self._next())
                scale = int(self._next()) if self._take(",") else 0
                self._expect(")")
            return pa.decimal128(precision, scale)
        if name in ("varchar", "char"):
            self._expect("(")
            self._next()
            self._expect(")")
            return pa.string()
        if name in ("array", "map", "struct"):
            self._expect("<")
            if name == "array":
                made = pa.list_(self._type())
            elif name == "map":
                key = self._type()
                self._expect(",")
                made = pa.map_(key, self._type())
            else:
                fields = [self._field()]
                while self._take(","):
                    fields.append(self._field())
                made = pa.struct(fields)
            self._expect(">")
            return made
        return _TYPES[name]

    def _next(self) -> str:
        if self._at == len(self._tokens):
            raise ValueError("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, token: str) -> bool:
        there = self._at < len(self._tokens) and self._tokens[self._at].lower() == token
        self._at += there
        return there

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise ValueError(f"{token!r} is missing")


def _field(field: dict[str, Any]) -> pa.Field:
    """A field of a ``StructType``'s JSON."""
    return pa.field(field["name"], _json_type(field["type"]), field["nullable"])


def _json_type(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        return _Ddl(f"value {kind}").schema().field(0).type
    match kind["type"]:
        case "array":
            return pa.list_(_json_type(kind["elementType"]))
        case "map":
            return pa.map_(_json_type(kind["keyType"]), _json_type(kind["valueType"]))
        case _:
            return pa.struct([_field(one) for one in kind["fields"]])
