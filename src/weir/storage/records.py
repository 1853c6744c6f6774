"""Decodes what is read back from a disk: anyone may have written it.

A type says what each field may be, down to the names that become parts of paths
(``weir/core/types.py``). What does not agree with its type is a ``ValueError``, whatever was wrong
with it; the caller knows which file it was, and what to do.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

#: How deep lists and maps may lie in each other: whoever walks through a value must come to its
#: end.
_NESTING_MAX = 100
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_PATTERN = re.compile(r" matching regex '.*'", re.DOTALL)
_NO_BRACKET = re.compile(rb"[^\[\]{}]+")


def decoded(data: bytes | str, kind: type[T]) -> T:
    """The JSON text as a value of this type. Raises ``ValueError``."""
    data = data.encode() if isinstance(data, str) else data
    brackets = _NO_BRACKET.sub(b"", _TEXT.sub(b"", data))
    depth = max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets), default=0)
    if depth > _NESTING_MAX:
        raise ValueError(f"it is nested {depth} levels deep, and {_NESTING_MAX} are allowed")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, OverflowError, RecursionError) as error:
        raise _not_of_its_type(error) from error


def converted(value: Any, kind: type[T]) -> T:
    """The JSON value, which was decoded without a type, as one of this type. Raises
    ``ValueError``."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.MsgspecError, OverflowError, RecursionError) as error:
        raise _not_of_its_type(error) from error


def is_canonical(data: bytes) -> bool:
    """Whether the JSON text is the only spelling of its value: keys sorted and none twice, no
    blanks."""
    try:
        return msgspec.json.encode(msgspec.json.decode(data), order="sorted") == data
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return False


def _not_of_its_type(error: Exception) -> ValueError:
    """The error without the pattern of a name, which says nothing to people; where the name stands
    it says."""
    return ValueError(_PATTERN.sub(" of another form", str(error)))
