"""Casts of what user code gives to state and to outputs, with an error where a value would change.

Arrow's own casts refuse what does not fit, except that a double beyond the range of a float becomes
infinite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weir.errors import OperatorStateError

if TYPE_CHECKING:
    import pyarrow as pa


def cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values as another type. Raises ``pa.ArrowException`` if a value does not fit."""
    import pyarrow as pa

    if values.type == kind:
        return values
    converted = values.cast(kind)
    if _infinite(converted) > _infinite(values):
        raise pa.ArrowInvalid(f"a finite number is beyond the range of {kind}")
    return converted


def stored_as(kind: pa.DataType, values: pa.Array, given: str) -> pa.Array:
    """The values as a state keeps them; ``given`` starts the message.

    Raises ``OperatorStateError`` if they do not fit.
    """
    import pyarrow as pa

    try:
        return cast(values, kind)
    except pa.ArrowException as error:
        raise OperatorStateError(
            f"{given} of type {values.type}, which do not fit its type {kind} ({error}): convert"
            " them, or give the state another type and name."
        ) from error


def check_lengths(given: str, **arrays: pa.Array) -> None:
    """Raise ``OperatorStateError`` unless all arrays of a call have the same length.

    ``given`` starts the message.
    """
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = " and ".join(
            f"{len(array)} {name.replace('_', ' ')}" for name, array in arrays.items()
        )
        raise OperatorStateError(f"{given} {lengths}: give as many of each.")


def _infinite(values: pa.Array) -> int:
    """How many numbers are infinite, also within lists, maps and structs."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if pa.types.is_floating(kind):
        return int(pc.sum(pc.is_inf(values), min_count=0).as_py())
    if pa.types.is_dictionary(kind):
        return _infinite(values.dictionary_decode())
    if pa.types.is_struct(kind):
        return sum(map(_infinite, values.flatten()))
    if pa.types.is_map(kind):
        entries = values.cast(
            pa.list_(pa.struct([("key", kind.key_type), ("item", kind.item_type)]))
        )
        return _infinite(entries.flatten())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _infinite(values.flatten())
    return 0
