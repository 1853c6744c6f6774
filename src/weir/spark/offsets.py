"""The offsets of Weir's own sources, as the offset log keeps them.

Spark compares offsets by their text, so the text of an offset never changes.
"""

from __future__ import annotations

import json
from typing import Self

import msgspec

from weir.core.types import VertexId
from weir.storage.records import decoded


class _Offset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    @classmethod
    def decode(cls, text: str) -> Self:
        """Decode an offset of this kind. Raises ``ValueError`` for any other."""
        return decoded(text, cls)

    def encode(self) -> str:
        """The offset as JSON."""
        return json.dumps(msgspec.to_builtins(self))


class ControlOffset(_Offset, frozen=True):
    """An offset of the control input."""

    #: How often it has moved.
    control: int
    #: The watermarks in milliseconds that the query has had, by channel number.
    watermarks: dict[str, int] = {}


class ChannelOffset(_Offset, frozen=True):
    """An offset of a channel: the last segment that was read."""

    channel: VertexId
    position: int


def is_control(text: str) -> bool:
    """Whether an offset is that of the control input, which has no rows."""
    try:
        ControlOffset.decode(text)
    except ValueError:
        return False
    return True
