"""What the sink asks of Kafka, so that a simulated broker can take the place of a real one.

``confluent.py`` implements it with confluent-kafka, and the two requests about open transactions
with kafka-python (``hanging.py``). Every call raises ``KafkaFailure``, with librdkafka's name of
the error; ``failures.py`` makes sentences of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

#: The offsets after the last record, by topic and partition.
Ends: TypeAlias = dict[str, dict[int, int]]
Headers: TypeAlias = list[tuple[str, bytes | None]] | None


class Partition(NamedTuple):
    """One partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"partition {self.number} of topic {self.topic!r}"


class KafkaFailure(Exception):
    """A call to Kafka failed. ``code`` is librdkafka's name of the error: ``_TIMED_OUT``.

    If a right is missing (``is_refusal``), ``text`` is the right, as far as it is known.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text

    @property
    def is_refusal(self) -> bool:
        """Whether the principal may not do this."""
        return self.code.endswith("AUTHORIZATION_FAILED")

    def __reduce__(self) -> tuple[type[KafkaFailure], tuple[str, str]]:
        return KafkaFailure, (self.code, self.text)


@contextmanager
def needs(right: str) -> Iterator[None]:
    """Name the right without which Kafka refuses what is done within."""
    try:
        yield
    except KafkaFailure as failure:
        if failure.is_refusal:
            raise KafkaFailure(failure.code, right) from failure
        raise


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A topic as the cluster knows it."""

    #: A topic that is deleted and created again has another.
    topic_id: str
    partitions: int
    #: ``max.message.bytes``: what a record batch may have at most, in bytes.
    max_bytes: int
    #: ``cleanup.policy``.
    cleanup: str


@dataclass(frozen=True, kw_only=True)
class OpenTransaction:
    """A transaction that has records in a partition, and no marker there that ends it."""

    partition: Partition
    producer_id: int
    producer_epoch: int
    #: Of its first record.
    start_offset: int
    coordinator_epoch: int
    #: None if no coordinator knows the producer any more.
    transactional_id: str | None
    #: What the coordinator says of it: ``Ongoing``, ``CompleteCommit``; empty if it is unknown.
    state: str
    #: Whether the coordinator has ended it, or does not know it: so no marker will ever come.
    hangs: bool


class Outgoing(NamedTuple):
    """A record to be published."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    #: -1 if its key decides.
    partition: int = -1
    headers: Headers = None
    #: Milliseconds since the Unix epoch; 0 for the time at which it is published.
    timestamp_ms: int = 0


class Record(NamedTuple):
    """One record of a partition."""

    offset: int
    key: bytes | None
    value: bytes | None


class Producer(Protocol):
    """A transactional producer whose predecessors are fenced, and their transactions ended."""

    def begin(self) -> None:
        """Begin a transaction."""

    def send(self, records: Iterable[Outgoing]) -> int:
        """Add records, in their order. Waits for room. Returns how many they were."""

    def flush(self, within_s: float) -> Ends:
        """Wait until every record is acknowledged; the end after those of the transaction."""

    def commit(self, within_s: float) -> None:
        """Commit the transaction. If this raises, its outcome is unknown."""

    def abort(self, within_s: float) -> None:
        """Abort the transaction, so that no reader waits for it."""

    def close(self) -> None:
        """Release the producer, which is never used again. Does not raise."""


class KafkaClient(Protocol):
    """One cluster, as the sink and the readers of its topics see it."""

    def producer(self, transactional_id: str, *, timeout_ms: int, within_s: float) -> Producer:
        """A new producer: fences older ones of its id, once what they left has been ended."""

    def names(self) -> Collection[str]:
        """The names of all topics that may be seen."""

    def topics(self, names: Collection[str]) -> Mapping[str, Topic]:
        """The topics of these names that exist."""

    def create_topic(self, name: str, config: Mapping[str, str]) -> None:
        """Create a topic of one partition, unless it exists; wait until it can be used."""

    def transaction_limit_ms(self) -> int | None:
        """The broker's ``transaction.max.timeout.ms``; None if it may not be asked."""

    def ends(self, partitions: Sequence[Partition], *, stable: bool) -> dict[Partition, int]:
        """The end of each partition, or its last stable offset."""

    def read(self, topic: str, start: int) -> list[Record]:
        """The committed records of partition 0 from an offset to its stable end.

        An offset that is out of range begins at the oldest record.
        """

    def open_transactions(self, partitions: Sequence[Partition]) -> list[OpenTransaction]:
        """The transactions without an end in these partitions."""

    def has_record(self, partition: Partition, offset: int) -> bool:
        """Whether a committed record is at this offset, which is before the stable end."""

    def written(self, partition: Partition, offset: int) -> Record | None:
        """The record at this offset, committed or not; None if there is none."""

    def finish(self, transaction: OpenTransaction, *, commit: bool) -> None:
        """Write the marker that commits or aborts a transaction in its partition."""

    def close(self) -> None:
        """Release connections."""
