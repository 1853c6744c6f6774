"""Decodes what is read back from disk, where anyone may have written it.

A type says what each field may be, down to the names that become parts of paths
(``weir/core/types.py``). Data that does not match its type is a ``ValueError``, whatever is wrong
with it; the caller knows which file it was and what to do.

Records that arbitrate between drivers are sealed: canonical JSON with the version of its form and a
checksum, so that every changed bit is noticed::

    {"attempt":2,"checksum":"sha256:...","job_id":"0a1b...",...,"version":2}

Version 1 is the form of the first Weir, without a checksum, which is still read.

msgspec works out a type when it first meets it, and the process crashes (SIGSEGV) if a second
thread uses the type meanwhile. ``prepare`` admits one thread at a time.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

from weir.core.types import Ordinal
from weir.errors import StorageError

#: Of sealed records.
VERSION = 2

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


class _Header(msgspec.Struct):
    #: Records of the first form that are not of a job's log have no version.
    version: Ordinal = 1
    checksum: str | None = None


def sealed(form: str, record: Any, facts: Mapping[str, object] | None = None) -> bytes:
    """A record as it is written. ``form`` says what it is, and ``facts`` are added to its fields.

    They are those that ``unsealed`` expects, such as the job that the record belongs to.
    """
    fields = {**msgspec.to_builtins(record), **(facts or {}), "version": VERSION}
    return _with_checksum(form, fields)


def unsealed(
    form: str, data: bytes, kind: type[T], *, name: str, facts: Mapping[str, object] | None = None
) -> T:
    """The record in what was read. ``name`` is its file, for a message.

    Raises ``ValueError`` if it is damaged, of another form or has other facts, and ``StorageError``
    if a newer Weir wrote it.
    """
    header = decoded(data, _Header)
    fields = decoded(data, dict[str, Any])
    if header.checksum is None and header.version == 1:
        return decoded(data, kind)
    if header.checksum is not None and data != _with_checksum(form, dict(fields)):
        raise ValueError("it differs from its checksum")
    if header.version > VERSION:
        raise StorageError(
            f"{name} has version {header.version}, but this Weir supports versions up to"
            f" {VERSION}: run the job with the newer Weir that wrote it."
        )
    if header.checksum is None:
        raise ValueError("it has no checksum")
    for fact, value in (facts or {}).items():
        if fields.get(fact) != value:
            raise ValueError(f"its {fact} is {fields.get(fact)!r}")
    return decoded(data, kind)


def _with_checksum(form: str, fields: dict[str, Any]) -> bytes:
    fields.pop("checksum", None)
    body = msgspec.json.encode(fields, order="sorted")
    checksum = hashlib.sha256(f"{form}\n".encode() + body).hexdigest()
    return msgspec.json.encode({**fields, "checksum": f"sha256:{checksum}"}, order="sorted") + b"\n"


def _not_of_its_type(error: Exception) -> ValueError:
    """The error with its location, but without the regular expression of a name."""
    return ValueError(_PATTERN.sub(" in another format", str(error)))
