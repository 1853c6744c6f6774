"""What all kinds of keyed state share: key groups, layers, domains of time."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

#: The number of key groups. Fixed with a job's first batch, since checkpoints hold state by group.
KEY_GROUPS = 128


def groups_of(subtask: int, parallelism: int) -> range:
    """The key groups of a subtask."""
    first, end = (-(-number * KEY_GROUPS // parallelism) for number in (subtask, subtask + 1))
    return range(first, end)


class Layer(NamedTuple):
    """A part of a keyed state: an Arrow stream, of which only the rows of some groups count."""

    data: bytes | pa.Buffer
    #: The first key group, and the last plus 1.
    groups: tuple[int, int]


class TimeDomain(enum.Enum):
    """What makes a timer due. The value is part of the name of its state."""

    #: The watermark has reached its time.
    EVENT = "event"
    #: The driver's clock has.
    PROCESSING = "processing"


class TtlUpdate(enum.Enum):
    """What restarts the time to live of an entry."""

    #: A write.
    ON_CREATE_AND_WRITE = "write"
    #: A write, and each ``get`` or ``contains`` that finds it.
    ON_READ_AND_WRITE = "read"
