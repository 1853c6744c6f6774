"""The ledger: which epochs are committed, in a compacted topic of one partition.

A transaction that publishes an epoch also writes the epoch's entry here, so that Kafka has both or
none. Not the offsets of a consumer group: these expire, and read as "none" while a transaction
ends.

The key of an entry is ``<job id>/<sink>/<epoch modulo 100>``: compaction keeps the newest entry of
each key, and so the newest hundred epochs or more, by which readers find older checkpoints. Several
jobs may have written one ledger, each under keys of its own. An entry says what the job had
committed before (``after``), which shows an entry that is missing, and how far each partition goes
with it (``ends``), also of partitions to which its epoch has added nothing.

The ledger is read to its end: an open transaction of another job would hide what is behind it, so
the stable end must have come up to the end that was seen before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from weir.core.types import Count, JobId, OperatorId
from weir.errors import SinkError
from weir.sinks.base import Commit
from weir.sinks.kafka.client import Ends, KafkaClient, KafkaFailure, Partition, Record
from weir.sinks.kafka.failures import UNKNOWN_TOPIC
from weir.storage.records import decoded

#: How many epochs have keys of their own.
_KEYS = 100
#: Settings of the topic. Small segments: only segments that are full are compacted.
LEDGER_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)}


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One committed epoch."""

    #: The epoch with rows that the job had committed before; 0 if none.
    after: Count
    rows: Count
    #: The topics with rows of the job, by name: a topic that is created again has another id.
    topic_ids: dict[str, str]
    #: The offset after the newest row of each partition, with this epoch.
    ends: dict[str, dict[int, Count]]
    commit: Commit

    @property
    def epoch(self) -> int:
        """The checkpoint that is committed."""
        return self.commit.checkpoint_id


class Ledger:
    """The entries of one ledger, as of the last ``look``."""

    def __init__(
        self,
        client: KafkaClient,
        topic: str,
        *,
        place: str,
        wait_until_stable: Callable[[dict[Partition, int]], None],
    ) -> None:
        """``place``: the sink, for messages.

        ``wait_until_stable``: waits until the partitions are stable up to these offsets, or raises.
        """
        self._client = client
        self.topic = topic
        self._place = place
        self._wait_until_stable = wait_until_stable
        #: By offset, oldest first.
        self._entries: dict[int, LedgerEntry] = {}

    @property
    def partition(self) -> Partition:
        """Where the entries are."""
        return Partition(self.topic, 0)

    def look(self) -> None:
        """Read what is new. If what was known is gone, all is read again."""
        try:
            ends = self._client.ends([self.partition], stable=False)
        except KafkaFailure as failure:
            if failure.code not in UNKNOWN_TOPIC:
                raise
            # The caller sees that what it knows to be committed is gone.
            self._entries.clear()
            return
        self._wait_until_stable(ends)
        newest = max(self._entries, default=None)
        if newest is not None:
            records = self._client.read(self.topic, newest)
            known = self._entries[newest]
            if records and records[0].offset == newest and self._entry(records[0]) == known:
                self._add(records[1:])
                return
        self._entries.clear()
        self._add(self._client.read(self.topic, 0))

    def newest(self, job_id: JobId, sink: OperatorId) -> LedgerEntry | None:
        """The newest entry of a job's sink."""
        return max(self.of(job_id, sink), key=lambda entry: entry.epoch, default=None)

    def of(self, job_id: JobId, sink: OperatorId) -> list[LedgerEntry]:
        """The entries of a job's sink, in the order in which they were written."""
        return [
            entry
            for entry in self._entries.values()
            if (entry.commit.job_id, entry.commit.sink) == (job_id, sink)
        ]

    def newest_first(self) -> list[LedgerEntry]:
        """All entries."""
        return [entry for _, entry in self.numbered()]

    def numbered(self) -> list[tuple[int, LedgerEntry]]:
        """All entries with their offsets, newest first."""
        return list(reversed(self._entries.items()))

    def ends(self, topic_ids: dict[str, str]) -> Ends:
        """How far each partition of these topics goes with all entries."""
        return ends_of(self._entries.values(), topic_ids)

    @staticmethod
    def record(entry: LedgerEntry) -> tuple[bytes, bytes]:
        """Key and value of an entry."""
        commit = entry.commit
        key = f"{commit.job_id}/{commit.sink}/{commit.checkpoint_id % _KEYS}"
        return key.encode(), msgspec.json.encode(entry)

    def _add(self, records: list[Record]) -> None:
        for record in records:
            self._entries[record.offset] = self._entry(record)

    def _entry(self, record: Record) -> LedgerEntry:
        try:
            return decoded(record.value or b"", LedgerEntry)
        except ValueError as error:
            raise SinkError(
                f"Offset {record.offset} of {self.topic!r}, the ledger of {self._place}, is not an"
                f" entry ({error}): only Weir may write there. Give the sink another ledger, and"
                " start a new job."
            ) from error


def ends_of(entries: Iterable[LedgerEntry], topic_ids: Mapping[str, str] | None = None) -> Ends:
    """How far each partition goes with all entries; with ``topic_ids``, of these topics only."""
    ends: Ends = {}
    for entry in entries:
        for topic, of_topic in entry.ends.items():
            if topic_ids is None or entry.topic_ids.get(topic) == topic_ids.get(topic):
                known = ends.setdefault(topic, {})
                for number, end in of_topic.items():
                    known[number] = max(known.get(number, 0), end)
    return ends
