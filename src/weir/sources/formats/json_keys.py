"""Keys of JSON objects that are spelled in another case than in the schema, or are there twice.

A decoder of JSON looks for exact keys, and takes the last of two. The keys of nearly all files are
exact, which is quick to see: each occurs as often as it has a value. Otherwise, as when an object
within a record has such keys, too, the records are looked through one by one, first by their own
keys, which is quick as well, and their keys are spelled as in the schema.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
from pyarrow import types

from weir.sources.formats.names import folded

_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*+)"(\s*+:)?+|[{}\[\]]', re.DOTALL)
#: An escaped ASCII letter, which a key need not have.
_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")


@dataclass
class _Place:
    """What the schema has at a place of a record."""

    #: The fields of an object by folded name, as they are spelled and with what is below them.
    fields: dict[str, tuple[str, _Place]] = field(default_factory=dict)
    #: What the values of a map, or the elements of a list, are.
    values: _Place | None = None
    is_map: bool = False


_UNKNOWN = _Place()
_own_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Keys:
    """The keys that a schema has."""

    def __init__(self, schema: pa.Schema) -> None:
        self._root = _Place(fields=_fields(schema))
        names = [*_names(self._root)]
        #: Whether ``are_exact`` cannot say anything, since it looks for ASCII and fixed keys.
        self._unclear = _has_map(self._root) or not all(
            name.isascii() and name.isprintable() and not set(name) & set('"\\') for name in names
        )
        self._is_flat = not any(_below(below) for _, below in self._root.fields.values())
        self._patterns = {name: f'"{name}"'.lower().encode() for name in map(folded, names)}

    def are_exact(self, data: bytes, present: Counter[str]) -> bool:
        """Whether these records surely have each key as the schema spells it, and none twice.

        ``present`` is how many values of each folded name were found.
        """
        if self._unclear or _ESCAPED_LETTER.search(data):
            return False
        lowered = data.lower()
        return all(lowered.count(key) == present[name] for name, key in self._patterns.items())

    def spelled(self, line: bytes) -> bytes:
        """The record with keys as in the schema. Raises ``ValueError`` if one is there twice."""
        if self._is_flat and not self._unclear and self._has_exact(line):
            return line
        return self._spelled(line)

    def _has_exact(self, line: bytes) -> bool:
        """Whether the record surely has each of the schema's own keys exactly, and none twice."""
        if _ESCAPED_LETTER.search(line):
            return False
        keys = _own_keys(line)
        for key in keys:
            name, _ = _found(self._root, key)
            if name is not None and name != key:
                return False
        lowered = line.lower()
        for pattern in self._patterns.values():
            count = lowered.count(pattern)
            if count > 1:
                within = sum(bytes(value).lower().count(pattern) for value in keys.values())
                if count - within > 1:
                    return False
        return True

    def _spelled(self, line: bytes) -> bytes:
        pieces: list[bytes] = []
        done = 0
        #: For each open object or list, what it is, and the keys that it had.
        stack: list[tuple[_Place, set[str]]] = []
        following = self._root
        for match in _TOKEN.finditer(line):
            token = match[0]
            if token in (b"{", b"["):
                stack.append((following, set()))
                following = (token == b"[" and following.values) or _UNKNOWN
            elif token in (b"}", b"]"):
                if stack:
                    stack.pop()
                following = (stack and stack[-1][0].values) or _UNKNOWN
            elif match[2] and stack:
                place, keys = stack[-1]
                key = _decoded(match[1])
                name, following = _found(place, key)
                if name in keys:
                    raise ValueError(f"the key {name!r} occurs twice")
                if name is not None:
                    keys.add(name)
                    if name != key:
                        pieces += [line[done : match.start()], json.dumps(name).encode()]
                        done = match.end(1) + 1
        return b"".join([*pieces, line[done:]]) if pieces else line


def _found(place: _Place, key: str) -> tuple[str | None, _Place]:
    if place.is_map:
        return key, place.values or _UNKNOWN
    return place.fields.get(folded(key), (None, _UNKNOWN))


def _decoded(key: bytes) -> str:
    text = key.decode(errors="replace")
    return str(json.loads(f'"{text}"', strict=False)) if "\\" in text else text


def _fields(fields: Iterable[pa.Field]) -> dict[str, tuple[str, _Place]]:
    return {folded(field.name): (field.name, _place(field.type)) for field in fields}


def _place(kind: pa.DataType) -> _Place:
    if types.is_struct(kind):
        return _Place(fields=_fields(kind))
    if types.is_map(kind):
        return _Place(values=_place(kind.item_type), is_map=True)
    if types.is_list(kind):
        return _Place(values=_place(kind.value_type))
    return _UNKNOWN


def _below(place: _Place) -> Sequence[_Place]:
    return [
        *(below for _, below in place.fields.values()),
        *([place.values] if place.values else []),
    ]


def _names(place: _Place) -> Iterable[str]:
    yield from (name for name, _ in place.fields.values())
    for below in _below(place):
        yield from _names(below)


def _has_map(place: _Place) -> bool:
    return place.is_map or any(map(_has_map, _below(place)))
