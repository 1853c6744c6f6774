"""Decodes what is read back from disk, where anyone may have written it.

A type says what each field may be, down to the names that become parts of paths
(``weir/core/types.py``). Data that does not match its type is a ``ValueError``, whatever is wrong
with it; the caller knows which file it was and what to do.

msgspec works out a type when it first meets it, and the process crashes (SIGSEGV) if a second
thread uses the type meanwhile. ``prepare`` admits one thread at a time.
"""

from __future__ import annotations

import re
import threading
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

#: How deep lists and maps may be nested, so that recursive code can walk any value.
_NESTING_MAX = 100
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_PATTERN = re.compile(r" matching regex '.*'", re.DOTALL)
#: The types that msgspec has worked out, and the lock of the thread that adds a type.
_prepared: set[Any] = set()
_preparing = threading.Lock()
_NO_BRACKET = re.compile(rb"[^\[\]{}]+")


def prepare(kind: Any) -> None:
    """Make a type safe to decode or convert on several threads at once."""
    if kind not in _prepared:
        with _preparing:
            msgspec.json.Decoder(kind)
            _prepared.add(kind)


def decoded(data: bytes | str, kind: type[T]) -> T:
    """Decode JSON text as a value of this type. Raises ``ValueError``."""
    data = data.encode() if isinstance(data, str) else data
    brackets = _NO_BRACKET.sub(b"", _TEXT.sub(b"", data))
    depth = max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets), default=0)
    if depth > _NESTING_MAX:
        raise ValueError(
            f"it is nested {depth} levels deep, but at most {_NESTING_MAX} are allowed"
        )
    prepare(kind)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, OverflowError, RecursionError) as error:
        raise _not_of_its_type(error) from error


def converted(value: Any, kind: type[T]) -> T:
    """Convert a JSON value that was decoded without a type to this type. Raises ``ValueError``."""
    prepare(kind)
    try:
        return msgspec.convert(value, kind)
    except (msgspec.MsgspecError, OverflowError, RecursionError) as error:
        raise _not_of_its_type(error) from error


def is_canonical(data: bytes) -> bool:
    """Whether JSON text is spelled canonically: sorted, unique keys and no blanks."""
    try:
        return msgspec.json.encode(msgspec.json.decode(data), order="sorted") == data
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return False


def _not_of_its_type(error: Exception) -> ValueError:
    """The error with its location, but without the regular expression of a name."""
    return ValueError(_PATTERN.sub(" in another format", str(error)))
