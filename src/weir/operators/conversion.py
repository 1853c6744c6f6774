"""Converts values that come into the engine to the types that are declared for them.

Operators' outputs, users' sources and ``FileSource`` share it. Values are cast to the declared type
if that represents the same value in another form: narrower numbers, dictionary-encoded or large
columns, another unit of time, pandas' representation of missing numbers. Anything else is an error,
and so is a struct field under another name, which Arrow would turn into null. Text must be UTF-8,
which Arrow does not check and which readers of a table need; columns and nested fields that are
declared NOT NULL have no nulls, which Spark does not check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weir.operators.state.casts import cast

if TYPE_CHECKING:
    import pyarrow as pa


def converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values as another type. Raises ``pa.ArrowInvalid`` if one would change."""
    import pyarrow as pa

    if _has_text(values.type):
        values.validate(full=True)
    if values.type == kind:
        return values
    if not same_kind(values.type, kind):
        raise pa.ArrowInvalid(f"{values.type} is not {kind}")
    return cast(values, kind)


def null_in(values: pa.Array, field: pa.Field) -> str:
    """The name of the field, or of one nested in it, that is NOT NULL and has a null, or ``""``."""
    from pyarrow import types

    if not field.nullable and values.null_count:
        return str(field.name)
    kind = field.type
    if not _has_required(kind):
        return ""
    if values.null_count:
        # What is below a null is no value.
        values = values.drop_null()
    if types.is_struct(kind):
        below = [(values.field(place), kind.field(place)) for place in range(kind.num_fields)]
    elif types.is_map(kind):
        items = (values.keys, kind.key_field), (values.items, kind.item_field)
        start, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        below = [(part.slice(start, end - start), nested) for part, nested in items]
    else:
        below = [(values.flatten(), kind.value_field)]
    found = (null_in(part, nested) for part, nested in below)
    return next((f"{field.name}.{name}" for name in found if name), "")


def same_kind(given: pa.DataType, declared: pa.DataType) -> bool:
    """Whether values of type ``given`` keep their meaning as ``declared``.

    Single values that do not fit are found by the cast.
    """
    from pyarrow import types

    if given == declared or types.is_null(given):
        return True
    if types.is_dictionary(given):
        return same_kind(given.value_type, declared)
    if types.is_struct(given) and types.is_struct(declared):
        names = [field.name for field in given] == [field.name for field in declared]
        return names and all(
            same_kind(a.type, b.type) for a, b in zip(given, declared, strict=True)
        )
    if types.is_map(given) and types.is_map(declared):
        keys = same_kind(given.key_type, declared.key_type)
        return keys and same_kind(given.item_type, declared.item_type)
    if is_list(given) and is_list(declared):
        return same_kind(given.value_type, declared.value_type)
    kinds = (
        _is_number,
        is_text,
        is_bytes,
        _is_instant,
        _is_local_time,
        types.is_date,
        types.is_decimal,
    )
    return any(kind(given) and kind(declared) for kind in kinds)


def is_text(given: pa.DataType) -> bool:
    """Whether it is a type of text."""
    from pyarrow import types

    return bool(
        types.is_string(given) or types.is_large_string(given) or types.is_string_view(given)
    )


def is_bytes(given: pa.DataType) -> bool:
    """Whether it is a type of bytes."""
    from pyarrow import types

    plain = types.is_binary(given) or types.is_large_binary(given) or types.is_binary_view(given)
    return bool(plain or types.is_fixed_size_binary(given))


def is_list(given: pa.DataType) -> bool:
    """Whether it is a type of lists, which a map is not."""
    from pyarrow import types

    return bool(
        types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given)
    )


def _is_instant(given: pa.DataType) -> bool:
    """Whether it is Spark's ``timestamp``, which has a time zone."""
    from pyarrow import types

    return bool(types.is_timestamp(given)) and given.tz is not None


def _is_local_time(given: pa.DataType) -> bool:
    """Whether it is Spark's ``timestamp_ntz``, which has no time zone."""
    from pyarrow import types

    return bool(types.is_timestamp(given)) and given.tz is None


def _is_number(given: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_integer(given) or types.is_floating(given))


def _below(kind: pa.DataType) -> list[pa.Field]:
    """The fields of a nested type."""
    return [kind.field(place) for place in range(kind.num_fields)]


def _has_text(kind: pa.DataType) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _has_text(kind.value_type)
    if types.is_map(kind):
        return _has_text(kind.key_type) or _has_text(kind.item_type)
    return is_text(kind) or any(_has_text(field.type) for field in _below(kind))


def _has_required(kind: pa.DataType) -> bool:
    """Whether any nested field is NOT NULL; the keys of a map always are."""
    from pyarrow import types

    if types.is_map(kind):
        fields = [kind.item_field]
        return _has_required(kind.key_type) or any(
            not field.nullable or _has_required(field.type) for field in fields
        )
    return any(not field.nullable or _has_required(field.type) for field in _below(kind))
