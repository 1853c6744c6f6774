"""User values stored as JSON; a value that JSON would change is refused (MISSION B7, C).

JSON turns NaN into ``null``, dates and ``Decimal`` into text, tuples into lists, and numeric keys
into text. A job that keeps running would then silently differ from a restored job. So every
such value is decoded again when it is written, and must compare equal. The error names the part
that changed and its place.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Any

import msgspec

#: What JSON preserves, for messages.
KEPT = "text, finite numbers, booleans, None, lists, and maps with text as keys"

#: What msgspec raises for a value that it cannot encode or decode.
_ERRORS = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


def read_back(value: Any) -> Any:
    """The value encoded and decoded: an equal copy.

    Raises ``ValueError`` naming the part that changed.
    """
    try:
        read = msgspec.json.decode(msgspec.json.encode(value))
        same = read == value
    except _ERRORS as error:
        raise _changes(value) from error
    if not same:
        raise _changes(value)
    return read


def encode_each(values: list[Any], known: dict[bytes, Any]) -> list[bytes]:
    """Encode each value as JSON.

    ``known`` caches the decoded values of the last call, so only new values are decoded; all are
    compared. Raises ``ValueError`` as ``read_back`` does.
    """
    try:
        encoded = [msgspec.json.encode(value) for value in values]
        read = [known[data] if data in known else msgspec.json.decode(data) for data in encoded]
        same = read == values
    except _ERRORS as error:
        raise _changes(values) from error
    if not same:
        raise _changes(values)
    known.clear()
    known.update(zip(encoded, read, strict=True))
    return encoded


def changed_part(value: Any) -> str | None:
    """The first part of a value that JSON changes, with its type and place; None if none does."""
    try:
        return _changed_part(value, "")
    except RecursionError:
        return "a value that is nested too deeply or contains itself"


def _changed_part(value: Any, place: str) -> str | None:
    if isinstance(value, dict):
        odd = [key for key in value if not (isinstance(key, str) and _is_kept(key))]
        if odd:
            return f"the key {_named(odd[0], place)}"
        parts: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    else:
        return None if _is_kept(value) else _named(value, place)
    found = (_changed_part(part, f"{place}[{key!r}]") for key, part in parts)
    return next((problem for problem in found if problem is not None), None)


def _is_kept(value: Any) -> bool:
    try:
        return bool(msgspec.json.decode(msgspec.json.encode(value)) == value)
    except _ERRORS:
        return False


def _named(value: Any, place: str) -> str:
    return f"{reprlib.repr(value)} ({type(value).__name__}){f' at {place}' if place else ''}"


def _changes(value: Any) -> ValueError:
    return ValueError(f"JSON cannot represent {changed_part(value) or _named(value, '')}")
