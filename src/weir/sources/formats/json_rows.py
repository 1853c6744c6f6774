"""JSON: an object per line, as Python's ``json`` reads it.

msgspec decodes each line to a class that is made of the schema, so a column may first occur
anywhere in a file, and a value of another type is an error that names its place. Dates and times
are text in JSON; ``text_values.py`` converts them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from types import GenericAlias
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, UnsetType
from pyarrow import types

from weir.sources.formats.json_keys import Keys
from weir.sources.formats.names import folded, none_of
from weir.sources.formats.rows import batch_of
from weir.sources.formats.text_values import parsed

#: Decoded values: a decoder makes them of JSON as a schema says.
_Values: TypeAlias = list[Any]

#: Numbers that JSON does not have, as Python's ``json``, Spark and others write them.
_NOT_FINITE = re.compile(rb'"(?:[^"\\\r\n]|\\.)*+"|-?(?:NaN|Infinity)\b')
_QUOTED_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_QuotedNumber: TypeAlias = Literal["NaN", "Infinity", "-Infinity"]
_KINDS = (
    (types.is_boolean, bool),
    (types.is_integer, int),
    (types.is_floating, float | _QuotedNumber),
    (types.is_decimal, Decimal),
    (types.is_binary, bytes),
)


class JsonRows:
    """The rows of a JSON file (``records.RecordFormat``)."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._decode, self._keys = _compiled(schema)
        self._found = False
        #: The keys of the first record, if it has others than the schema.
        self._others: list[str] = []

    def whole(self, data: bytes) -> int:
        """How many bytes are whole lines."""
        return max(data.rfind(b"\n"), data.rfind(b"\r")) + 1

    def records(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The lines, without empty ones."""
        for number, line in enumerate(data.splitlines(keepends=True)):
            if line.strip():
                yield number, line

    def parse(self, data: bytes) -> pa.RecordBatch:
        """The rows of whole lines. Raises ``ValueError`` if one is bad."""
        if b"NaN" in data or b"Infinity" in data:
            data = _NOT_FINITE.sub(_quoted, data)
        lines = [line for line in data.splitlines() if line.strip()]
        batch, present = self._parsed(lines)
        if not self._keys.are_exact(data, present):
            spelled = [self._keys.spelled(line) for line in lines]
            if spelled != lines:
                batch, present = self._parsed(spelled)
        self._found = self._found or bool(present.total())
        if not self._found and not self._others:
            self._others = _first_keys(lines)
        return batch

    def parse_values(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """The row of each value, which is a JSON text by itself.

        Raises ``ValueError`` if one is bad.
        """
        data = b"\n".join(values)
        if data.count(b"\n") != len(values) - 1 or b"\r" in data:
            data = b"\n".join(map(_in_a_line, values))
        batch = self.parse(data)
        if batch.num_rows != len(values):
            raise ValueError("it is empty")
        return batch

    def check(self) -> None:
        """Raise ``ValueError`` if no record had any of the schema's keys, but others."""
        if self._others and not self._found:
            raise ValueError(none_of(self._schema.names, self._others, "keys"))

    def _parsed(self, lines: list[bytes]) -> tuple[pa.RecordBatch, Counter[str]]:
        present: Counter[str] = Counter()
        rows = []
        try:
            for line in lines:
                rows.append(self._decode(line))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(str(error)) from error
        columns = [
            _column(list(map(attrgetter(f"c{place}"), rows)), field.type, field.name, present)
            for place, field in enumerate(self._schema)
        ]
        return batch_of(columns, self._schema), present


@lru_cache(maxsize=8)
def _compiled(schema: pa.Schema) -> tuple[Callable[[bytes], Any], Keys]:
    return msgspec.json.Decoder(_object(list(schema))).decode, Keys(schema)


def _in_a_line(value: bytes) -> bytes:
    """A JSON text without line breaks. Raises ``ValueError`` if it is bad, as they may show."""
    try:
        return msgspec.json.format(value, indent=-1)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def _quoted(match: re.Match[bytes]) -> bytes:
    return match[0] if match[0].startswith(b'"') else b'"' + match[0] + b'"'


def _first_keys(lines: list[bytes]) -> list[str]:
    for line in lines:
        keys: list[str] = list(msgspec.json.decode(line, type=dict[str, msgspec.Raw]))
        if keys:
            return keys
    return []


def _object(fields: list[pa.Field]) -> Any:
    """The class of an object with these fields, all of which may be missing or null."""
    members = [
        (
            f"c{place}",
            _kind(field.type) | None | UnsetType,
            msgspec.field(name=field.name, default=UNSET),
        )
        for place, field in enumerate(fields)
    ]
    return msgspec.defstruct("Object", members, gc=False)


def _kind(kind: pa.DataType) -> Any:
    """The type that a decoder makes of a value; text for those that ``text_values.py`` converts."""
    if types.is_struct(kind):
        return _object([kind.field(place) for place in range(kind.num_fields)])
    if types.is_map(kind):
        return GenericAlias(dict, (str, _kind(kind.item_type) | None))
    if types.is_list(kind):
        return GenericAlias(list, (_kind(kind.value_type) | None,))
    if types.is_integer(kind) and kind.bit_width < 64:
        limit = 2 ** (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-limit, lt=limit)]
    return next((decoded for is_one, decoded in _KINDS if is_one(kind)), str)


def _column(values: _Values, kind: pa.DataType, name: str, present: Counter[str]) -> pa.Array:
    """The values of a key, some of which may be missing."""
    missing = values.count(UNSET)
    present[folded(name.rpartition(".")[2])] += len(values) - missing
    if missing:
        values = [None if value is UNSET else value for value in values]
    return _array(values, kind, name, present)


def _array(values: _Values, kind: pa.DataType, name: str, present: Counter[str]) -> pa.Array:
    if types.is_nested(kind):
        return _nested(values, kind, name, present)
    try:
        if types.is_floating(kind):
            return _floats(values, kind)
        if types.is_date(kind) or types.is_timestamp(kind):
            texts = pa.array(values, pa.string())
        else:
            return pa.array(values, kind)
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(f"column {name!r}: {error}") from error
    return parsed(texts, kind, name)


def _nested(values: _Values, kind: pa.DataType, name: str, present: Counter[str]) -> pa.Array:
    mask = pa.array([value is None for value in values], pa.bool_())
    if types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        children = [
            _column(
                [UNSET if value is None else getattr(value, f"c{place}") for value in values],
                field.type,
                f"{name}.{field.name}",
                present,
            )
            for place, field in enumerate(fields)
        ]
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    offsets = [0]
    for value in values:
        offsets.append(offsets[-1] + len(value or ()))
    places = pa.array(offsets, pa.int32())
    there = [value for value in values if value]
    if types.is_map(kind):
        keys = [key for value in there for key in value]
        items = _array(
            [one for value in there for one in value.values()], kind.item_type, name, present
        )
        return pa.MapArray.from_arrays(
            places, pa.array(keys, pa.string()), items, type=kind, mask=mask
        )
    elements = _array([one for value in there for one in value], kind.value_type, name, present)
    return pa.ListArray.from_arrays(places, elements, type=kind, mask=mask)


def _floats(values: _Values, kind: pa.DataType) -> pa.Array:
    try:
        doubles = pa.array(values, pa.float64())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        values = [
            _QUOTED_NUMBERS.get(value, value) if type(value) is str else value for value in values
        ]
        doubles = pa.array(values, pa.float64())
    found = doubles.cast(kind)
    if pc.any(pc.and_(pc.is_inf(found), pc.is_finite(doubles))).as_py():
        raise pa.ArrowInvalid(f"a number is beyond {kind}")
    return found
