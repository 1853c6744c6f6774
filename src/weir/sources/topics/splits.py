"""``KafkaSplit``: a partition of a topic, and the offset that is read next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

#: A topic and the number of one of its partitions.
Partition: TypeAlias = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class KafkaSplit:
    """A partition at its position."""

    topic: str
    partition: int
    #: The id that the cluster gave the topic when it was made; "" from brokers without ids.
    topic_id: str
    #: The next offset to read.
    offset: int
    #: Where reading ends; None for a partition that is read for ever.
    stop: int | None = None

    @property
    def split_id(self) -> str:
        """The topic and the partition: ``orders-3``."""
        return name_of(self.place)

    @property
    def place(self) -> Partition:
        """The topic and the partition."""
        return (self.topic, self.partition)


def name_of(place: Partition) -> str:
    """A partition's name, as Kafka's tools write it."""
    return f"{place[0]}-{place[1]}"
