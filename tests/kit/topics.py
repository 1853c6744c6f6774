"""A Kafka cluster in memory, for tests of ``KafkaTopic`` without a broker.

A partition has entries: rows of transactions that are committed, aborted or open, and the marks of
their ends. A consumer sees committed rows up to the first entry of an open transaction, the stable
end.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from weir.sources.topics.client import BEGINNING, END, Polled, Topic
from weir.sources.topics.splits import Partition

_clusters: dict[int, FakeKafka] = {}
_numbers = itertools.count()


@dataclass(frozen=True)
class FakeMessage:
    """``Message``."""

    place: Partition
    at: int
    data: bytes | None
    time_ms: int = 0

    def __len__(self) -> int:
        return len(self.data or b"")

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return b"k"

    def value(self) -> bytes | None:
        return self.data

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [("h", b"1"), ("none", None)] if self.at % 2 else None

    def timestamp(self) -> tuple[int, int]:
        return (1, self.time_ms) if self.time_ms else (0, -1)


@dataclass
class Entry:
    """A row, or a mark if it has no place in a transaction's state."""

    data: bytes | None
    #: ``committed``, ``aborted``, ``open`` or ``mark``.
    state: str
    time_ms: int = 0


@dataclass
class Log:
    """A partition."""

    entries: list[Entry] = field(default_factory=list)
    #: Entries before it are gone.
    start: int = 0

    @property
    def stable_end(self) -> int:
        """No transaction is open before it."""
        return next(
            (at for at, entry in enumerate(self.entries) if entry.state == "open"),
            len(self.entries),
        )


class FakeKafka:
    """``Cluster``; a copy, also by pickle, is the same cluster."""

    def __init__(self) -> None:
        self._number = next(_numbers)
        _clusters[self._number] = self
        self._ids: dict[str, str] = {}
        self.logs: dict[str, list[Log]] = {}
        #: How many rows of a partition a poll gives, at most.
        self.per_poll = 3
        #: Topics that the broker that is asked does not know yet.
        self.unknown: set[str] = set()
        #: Raised by every request, if set.
        self.error: Exception | None = None

    def __reduce__(self) -> object:
        return _cluster, (self._number,)

    # -- what tests do

    def create(self, name: str, partitions: int = 1) -> None:
        """Make a topic, perhaps in place of another of that name."""
        self._ids[name] = f"id{next(_numbers)}"
        self.logs[name] = [Log() for _ in range(partitions)]

    def add_partition(self, name: str) -> None:
        """Add an empty partition."""
        self.logs[name].append(Log())

    def put(
        self, name: str, partition: int, *values: bytes | None, state: str = "", time_ms: int = 0
    ) -> None:
        """Append rows, by a transaction of this state unless it is ""."""
        log = self.logs[name][partition]
        log.entries += [Entry(value, state or "committed", time_ms) for value in values]
        if state in ("committed", "aborted"):
            log.entries.append(Entry(None, "mark"))

    def settle(self, name: str, partition: int, state: str) -> None:
        """Commit or abort the open transaction of a partition, if there is one."""
        log = self.logs[name][partition]
        opened = [entry for entry in log.entries if entry.state == "open"]
        for entry in opened:
            entry.state = state
        log.entries += [Entry(None, "mark")] if opened else []

    # -- ``Cluster``

    def names(self) -> list[str]:
        self._raise()
        return sorted(self.logs)

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        self._raise()
        return {
            name: Topic(topic_id=self._ids[name], partitions=len(self.logs[name]))
            for name in names
            if name in self.logs.keys() - self.unknown
        }

    def offsets(self, partitions: Iterable[Partition], at_ms: int) -> dict[Partition, int]:
        self._raise()
        return {place: self._offset(self.logs[place[0]][place[1]], at_ms) for place in partitions}

    def consumer(self) -> FakeConsumer:
        return FakeConsumer(self)

    def _offset(self, log: Log, at_ms: int) -> int:
        if at_ms == BEGINNING:
            return log.start
        if at_ms == END:
            return log.stable_end
        later = (at for at, entry in enumerate(log.entries) if entry.time_ms >= at_ms)
        return next(later, log.stable_end)

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error


def _cluster(number: int) -> FakeKafka:
    return _clusters[number]


class FakeConsumer:
    """``Consumer``, which gives rows of one partition after another."""

    def __init__(self, cluster: FakeKafka) -> None:
        self._cluster = cluster
        self._positions: dict[Partition, int] = {}
        #: Where the end was reported.
        self._ends: dict[Partition, int] = {}

    def assign(self, positions: Mapping[Partition, int]) -> None:
        assert not self._positions.keys() & positions.keys()
        self._positions |= positions

    def unassign(self, partitions: Collection[Partition]) -> None:
        for place in partitions:
            del self._positions[place]
            self._ends.pop(place, None)

    def poll(self, max_rows: int, patience_s: float) -> Polled:
        polled = Polled()
        # The first is the last one the next time.
        for place in list(self._positions):
            at = self._positions[place]
            log = self._cluster.logs[place[0]][place[1]]
            if not log.start <= at <= len(log.entries):
                polled.out_of_range.add(place)
                continue
            rows = []
            while at < log.stable_end and len(rows) < min(max_rows, self._cluster.per_poll):
                entry = log.entries[at]
                if entry.state == "committed":
                    rows.append(FakeMessage(place, at, entry.data, entry.time_ms))
                at += 1
            del self._positions[place]
            self._positions[place] = at
            if rows:
                polled.records[place] = list(rows)
            if at == log.stable_end and self._ends.get(place) != at:
                self._ends[place] = at
                polled.ends[place] = at
            if rows:
                break
        return polled

    def close(self) -> None:
        self._positions.clear()
