"""How elements of operator state become bytes, and are read back. Never a pickle: a checkpoint is read by other versions."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec


class Serializer(Protocol):
    """Turns one element into bytes and back."""

    def encode(self, value: Any) -> bytes:
        """The element as bytes. Raises ``TypeError`` or ``ValueError`` for what it cannot keep."""
        ...

    def decode(self, data: bytes) -> Any:
        """The element that ``encode`` was given."""
        ...


class JsonSerializer:
    """Text, finite numbers, booleans, None, lists and maps with text as keys. State refuses what would be read back
    different."""

    def encode(self, value: Any) -> bytes:
        """As JSON."""
        return msgspec.json.encode(value)

    def decode(self, data: bytes) -> Any:
        """From JSON."""
        return msgspec.json.decode(data)


class BytesSerializer:
    """Bytes as they are: raw state."""

    def encode(self, value: bytes) -> bytes:
        """The same."""
        if not isinstance(value, bytes):
            raise TypeError(f"{type(value).__name__} are no bytes")
        return value

    def decode(self, data: bytes) -> bytes:
        """The same."""
        return data


#: What states use unless they are given another one.
JSON = JsonSerializer()
BYTES = BytesSerializer()
