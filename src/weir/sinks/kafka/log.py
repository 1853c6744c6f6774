"""What the ledger says was committed, for readers of several tables at one checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weir.errors import CutNotFoundError, StorageError
from weir.sinks.commit_log import CommitLog, Entry
from weir.sinks.kafka.client import Ends, KafkaClient, KafkaFailure, Partition
from weir.sinks.kafka.ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class LedgerLog(CommitLog):
    """The entries of a topic's ledger as of the last ``look_again``; versions are its offsets."""

    def __init__(
        self,
        name: str,
        *,
        place: str,
        topic: str | None,
        ledger: str | None,
        servers: str,
        conf: Mapping[str, Any],
        client: KafkaClient,
    ) -> None:
        """``ledger``: None if its name follows from the topic and the sink, which is not known."""
        super().__init__(name, f"topic {name!r} ({place})", f"kafka://{servers}/{topic or ''}")
        self._servers = servers
        self._conf = conf
        self._client = client
        with self._reading():
            found = ledger or self._found(f"weir-ledger.{topic or 'topics'}.")
            if not client.topics([found]):
                raise CutNotFoundError(
                    f"{self.place} has no ledger {found!r} yet: wait until its job has begun."
                )
            self._ledger = Ledger(client, found, place=place, wait_until_stable=self._wait)
            self._ledger.look()

    def look_again(self) -> None:
        """Read what is new."""
        with self._reading():
            self._ledger.look()

    def entries(self) -> Iterator[Entry]:
        """All entries that compaction has left, newest first."""
        for offset, entry in self._ledger.numbered():
            yield Entry(version=offset, commit=entry.commit, changes_data=True)

    def check_one_sink(self, job_id: str, job_name: str, sink: str) -> None:
        """Raise ``StorageError`` if another sink of the job has this ledger."""
        for entry in self._ledger.newest_first():
            if entry.commit.job_id == job_id and entry.commit.sink != sink:
                raise StorageError(
                    f"Several sinks of job {job_name!r} have the ledger {self._ledger.topic!r}, so"
                    f" no checkpoint can be read from {self.place}: give each a ledger of its own."
                )

    def cleaned_up(self) -> str:
        """Older entries are compacted."""
        return ", whose ledger keeps the newest hundred checkpoints with rows"

    def ends(self, version: int) -> Ends:
        """How far each partition goes with the entry at this offset, and all before it."""
        return {
            topic: dict(of_topic)
            for offset, entry in self._ledger.numbered()
            if offset == version
            for topic, of_topic in entry.ends.items()
        }

    def frame(self, ends: Ends, spark: SparkSession) -> DataFrame:
        """The committed records before these offsets, by Spark's connector."""
        security = {f"kafka.{name}": str(value) for name, value in self._conf.items()}
        assigned = {topic: sorted(of_topic) for topic, of_topic in ends.items()}
        reader = spark.read.format("kafka").options(**security)
        reader = reader.option("kafka.bootstrap.servers", self._servers)
        reader = reader.option("kafka.isolation.level", "read_committed")
        reader = reader.option("assign", json.dumps(assigned))
        reader = reader.option("startingOffsets", "earliest")
        return reader.option("endingOffsets", json.dumps(ends)).load()

    def _found(self, prefix: str) -> str:
        """The only ledger of the topic."""
        names = sorted(name for name in self._client.names() if name.startswith(prefix))
        if len(names) > 1:
            raise StorageError(
                f"{self.place} has the ledgers {', '.join(map(repr, names))}, of several sinks:"
                " give the sink that is passed the ledger= of one of them."
            )
        return names[0] if names else f"{prefix}<sink>"

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except KafkaFailure as failure:
            raise StorageError(f"{self.place} cannot be read ({failure}).") from failure

    def _wait(self, ends: dict[Partition, int]) -> None:
        """Nothing: what is hidden behind an open transaction counts as not committed yet."""
        del ends
