"""Converts text to the values of a type: every column of CSV, dates and times of JSON, partitions.

Nothing is rounded, guessed or cut: a text that is not a value of the type as a whole is an error.
Spaces around numbers, dates and times do not matter.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types


def parsed(texts: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """The values of an array of texts, or of bytes; nulls stay null.

    Raises ``ValueError``, which names the column, if one is not a value of the type.
    """
    try:
        if types.is_binary(kind):
            return texts.cast(kind)
        texts = texts.cast(pa.string())
        if types.is_string(kind):
            return texts
        if types.is_boolean(kind):
            return _booleans(texts)
        return _parsed(texts, kind)
    except pa.ArrowException as error:
        raise ValueError(f"column {name!r}: {error}") from error


def _parsed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if types.is_integer(kind):
        _refuse_hexadecimal(texts)
    try:
        values = texts.cast(kind)
    except pa.ArrowException:
        values = _tidied(texts, kind).cast(kind)
    if types.is_floating(kind):
        _refuse_overflow(texts, values)
    return values


def _tidied(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """The texts in the one form that Arrow reads."""
    texts = pc.ascii_trim_whitespace(texts)
    if types.is_integer(kind):
        return pc.replace_substring_regex(texts, r"^\+(\d)", r"\1")
    if types.is_timestamp(kind):
        # Nanoseconds, if they are whole microseconds.
        return pc.replace_substring_regex(texts, r"(\.\d{6})0+", r"\1")
    return texts


def _booleans(texts: pa.Array) -> pa.Array:
    lowered = pc.ascii_lower(texts)
    values = pc.equal(lowered, "true")
    _refuse(texts, pc.invert(pc.or_(values, pc.equal(lowered, "false"))), "is not true or false")
    return values


def _refuse_hexadecimal(texts: pa.Array) -> None:
    for letter in "xX":
        _refuse(texts, pc.match_substring(texts, letter), "is not a decimal number")


def _refuse_overflow(texts: pa.Array, values: pa.Array) -> None:
    infinite = pc.is_inf(values)
    if pc.any(infinite).as_py():
        named = pc.match_substring_regex(texts, "(?i)inf")
        _refuse(texts, pc.and_(infinite, pc.invert(named)), f"is beyond {values.type}")


def _refuse(texts: pa.Array, bad: pa.Array, why: str) -> None:
    if pc.any(bad).as_py():
        first = texts.filter(bad)[0].as_py()
        raise pa.ArrowInvalid(f"{first!r} {why}")
