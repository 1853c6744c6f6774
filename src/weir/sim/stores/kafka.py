"""A Kafka cluster, and what its clients are to one process: the real ``KafkaTopic`` runs over it.

What the sink assumes of Kafka, and what may happen there:

1. A new producer of a transactional id fences the older ones, once what they left has an end; what
   they still send is refused. A transaction that takes longer than its time is aborted, and its
   producer fenced by nobody.
2. A commit is decided when it is answered. The markers that show its records go to the partitions
   one after the other, a little later. If the answer is lost, it may have been decided, or not; or
   it is decided later, unless a new producer came first.
3. Readers see committed records, up to the first record of a transaction that is still open. So
   other writers, who are not Weir, may hide what is committed for a while.
4. The broker may restart. If it is killed just after it has answered a commit, it may take the
   markers that are left for written: these partitions *hang*, until somebody ends the transaction
   there by hand, or the next one of the same producer decides about it. A person runs
   ``weir repair-kafka`` once the job says so.
5. The cluster may be restored from a backup: what was committed since then is gone.

Spark's SQL, which makes the records, is not simulated: a row's value is its JSON.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, TypeVar

import pyarrow as pa

from weir.errors import SinkError, StorageError
from weir.sim.engine.auditor import AuditError
from weir.sim.engine.disk import Disk
from weir.sim.stores.faults import Network, Outcome, calling_process
from weir.sim.stores.frame import Frame, lines
from weir.sim.stores.store import Store
from weir.sinks.kafka.client import Ends, KafkaFailure, OpenTransaction, Outgoing, Partition, Record
from weir.sinks.kafka.client import Topic as KnownTopic
from weir.sinks.kafka.failures import is_fenced
from weir.sinks.kafka.hanging import UNDER_WAY
from weir.sinks.kafka.ledger import LedgerEntry
from weir.sinks.kafka.repair import finish, look
from weir.sinks.kafka.sink import KafkaTopic
from weir.storage.records import decoded

T = TypeVar("T")

#: How many partitions the target has.
_PARTITIONS = 2
#: How often a client asks again, and how long it waits for an answer.
_POLL_US = 20_000
_WITHIN_S = 15.0
#: How often other calls fail, compared with commits.
_OTHERS_FAIL = 0.1
#: The share of records that are sent at once; others are sent with the flush.
_AT_ONCE = 0.3
#: When the next marker is written, how long a broker is away, when one is killed after it has
#: answered a commit, and how long others' transactions take, in virtual microseconds.
_MARKER_US = (300, 3_000)
_AWAY_US = (50_000, 4_000_000)
_KILLED_US = 4_000
_OTHERS_US = 1_000_000
#: After how long a person repairs what hangs.
_REPAIR_US = (10_000, 2_000_000)
#: The shares of strikes that are restarts, and kills after a commit; of such kills, those after
#: which partitions hang; and of restored backups, those that lack another transaction.
_RESTARTS = 0.2
_KILLS = 0.65
_HANGS = 0.7
_LACKS = 0.7
#: What a broker allows for a transaction, in milliseconds: Kafka's default, or little.
_LIMITS_MS = (15 * 60_000, 1_500)
#: The key of records of other writers.
_OTHER = b"other"
_MAX_BYTES = 1_048_588
#: The state of a transaction that is to be committed, of which markers are missing.
_DECIDED = "PrepareCommit"


@dataclass
class Entry:
    """What is at an offset: a record, or the marker of a transaction's end."""

    producer_id: int
    #: None for a marker.
    record: Outgoing | None
    #: None as long as the transaction has no end here.
    committed: bool | None = None


class Log:
    """One partition."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        #: By producer: the first offset of the transaction that is open here, and the epoch.
        self.open: dict[int, tuple[int, int]] = {}

    @property
    def stable(self) -> int:
        """The offset before which no transaction is open."""
        return min((first for first, _ in self.open.values()), default=len(self.entries))

    def append(self, producer_id: int, epoch: int, record: Outgoing) -> int:
        """Add a record of a transaction; return the offset after it."""
        first, _ = self.open.get(producer_id, (len(self.entries), 0))
        self.open[producer_id] = (first, epoch)
        self.entries.append(Entry(producer_id, record))
        return len(self.entries)

    def mark(self, producer_id: int, *, commit: bool) -> None:
        """Write a marker: it ends all that the producer has open here."""
        for entry in self.entries:
            if entry.producer_id == producer_id and entry.committed is None:
                entry.committed = commit
        self.open.pop(producer_id, None)
        self.entries.append(Entry(producer_id, None, commit))


@dataclass
class Transactions:
    """What the coordinator knows of a transactional id."""

    producer_id: int
    epoch: int = -1
    state: str = "Empty"
    #: Those of the newest transaction.
    partitions: dict[Partition, None] = field(default_factory=dict)
    #: Grows with each end: markers and timeouts of an older transaction come to nothing.
    number: int = 0
    timeout_ms: int = 0


class Cluster(Store):
    """The cluster of one sink: its topic and its ledger."""

    def __init__(
        self, network: Network, disk: Disk, root: str, changed: Callable[[], object]
    ) -> None:
        """See ``Store``; only what is staged is on the simulated disk."""
        super().__init__(network, disk, root, changed)
        self.topics: dict[str, KnownTopic] = {}
        self.logs: dict[Partition, Log] = {}
        self.limit_ms = network.random.choice(_LIMITS_MS)
        #: Until when no broker answers, in virtual microseconds.
        self.away_until_us = 0
        self.producers: dict[str, Transactions] = {}
        #: The partitions that hang, by producer, and whether readers see the transaction's entry in
        #: the ledger, so that its records are committed.
        self.hanging: dict[tuple[Partition, int], bool] = {}
        self.has_hung = False
        self._target = ""
        #: The broker is killed after the next answer to a commit.
        self._is_killed_soon = False
        self._is_repaired_soon = False
        #: The ends of the partitions before each transaction.
        self._backups: list[dict[Partition, int]] = []

    def sink(self) -> KafkaTopic:
        """See ``Store``."""
        return KafkaTopic("out", servers="kafka:9092", staging=self._root, value="json")

    def attach(self, sink: Any) -> None:
        """See ``Store``."""
        super().attach(sink)
        self._target = sink._topic
        self.create(self._target, _PARTITIONS)
        self.limit_ms = max(self.limit_ms, int(sink._conf.get("transaction.timeout.ms", 0)))
        sink.connect = lambda _: SimKafkaClient(self)
        sink._encoding = SimpleNamespace(staged=lambda frame, _: _records(frame))

    @classmethod
    def lacks(cls, sink: Any) -> str | None:
        """See ``Store``."""
        if sink._topic is None:
            return "topics that rows name"
        if sink._encoding.tombstone_where is not None:
            return "tombstones"
        return "updates by key" if sink.takes_updates else None

    def rows(self) -> list[dict[str, Any]]:
        """What readers see, or will see once the markers of what is decided are there."""
        return [
            _decoded(entry.record.value or b"")
            for partition in self._partitions(self._target)
            for entry in self._shown(partition)
            if entry.record is not None and entry.record.key != _OTHER
        ]

    def disagreement(self) -> str | None:
        """See ``Store``: the newest entry of the ledger says where its rows end."""
        entries = [
            decoded(entry.record.value or b"", LedgerEntry)
            for partition in self._partitions(self._ledger)
            for entry in self._shown(partition)
            if entry.record is not None
        ]
        if not entries:
            return None
        ends = entries[-1].ends.get(self._target, {})
        found = sum(
            entry.record is not None and entry.record.key != _OTHER
            for partition in self._partitions(self._target)
            for entry in self._shown(partition, ends.get(partition.number, 0))
        )
        rows = sum(entry.rows for entry in entries)
        if found == rows:
            return None
        return f"up to the ends in the ledger readers see {found} rows, and its entries have {rows}"

    def strike(self) -> str | None:
        """Restart, be killed after the next commit, or be restored from a backup."""
        drawn = self.network.random.random()
        if drawn < _RESTARTS:
            self._restart()
            return "the broker restarts"
        if drawn < _RESTARTS + _KILLS:
            self._is_killed_soon = True
            return "the broker is killed after the next commit"
        if not self._backups:
            return None
        self._restore()
        return "the cluster is restored from a backup"

    def repair(self, wrong: Callable[[str], object]) -> None:
        """See ``Store``: run ``weir repair-kafka``."""
        if not self.has_hung:
            wrong("no transaction has ever hung, but the job says that one does")
        if not self._is_repaired_soon:
            self._is_repaired_soon = True
            network = self.network
            delay_us = network.random.randrange(*_REPAIR_US)
            network.loop.spawn(network.outside, partial(self._repair, wrong), delay_us)

    # -- what brokers do

    def create(self, name: str, partitions: int, **config: str) -> None:
        """Create a topic, unless it exists."""
        if name in self.topics:
            return
        self.topics[name] = KnownTopic(
            topic_id=f"id of {name}",
            partitions=partitions,
            max_bytes=_MAX_BYTES,
            cleanup=config.get("cleanup.policy", "delete"),
        )
        self.logs.update({each: Log() for each in self._partitions(name)})

    def log(self, partition: Partition) -> Log:
        """A partition. Raises ``KafkaFailure`` if it does not exist."""
        if partition not in self.logs:
            raise KafkaFailure("UNKNOWN_TOPIC_OR_PART", f"there is no {partition}")
        return self.logs[partition]

    def init(self, name: str, timeout_ms: int) -> int:
        """Fence older producers and end what they left; return the new epoch.

        Raises ``KafkaFailure`` as long as markers are missing, and for a timeout that is too long.
        """
        if timeout_ms > self.limit_ms:
            raise KafkaFailure("INVALID_TRANSACTION_TIMEOUT", "the timeout is too long")
        one = self.producers.setdefault(name, Transactions(len(self.producers)))
        if one.state == "Ongoing":
            one.epoch += 1
            self._end(one, commit=False)
        if one.state in UNDER_WAY:
            raise KafkaFailure("CONCURRENT_TRANSACTIONS", "a transaction is being ended")
        one.epoch += 1
        one.state, one.timeout_ms = "Empty", timeout_ms
        return one.epoch

    def produce(self, name: str, epoch: int, records: Sequence[Outgoing]) -> Ends:
        """Add records to the transaction, which begins with the first; return how far they go."""
        one = self._unfenced(name, epoch)
        if one.state in UNDER_WAY:
            raise KafkaFailure("CONCURRENT_TRANSACTIONS", "a transaction is being ended")
        ends: Ends = {}
        for record in records:
            log = self.log(where := self._place(record))
            self._add_partition(one, where)
            ends.setdefault(where.topic, {})[where.number] = log.append(
                one.producer_id, epoch, record
            )
        return ends

    def end(self, name: str, epoch: int, *, commit: bool) -> None:
        """Decide a transaction."""
        one = self._unfenced(name, epoch)
        if one.state != "Ongoing":
            return
        self._end(one, commit=commit)
        if not commit:
            return
        network = self.network
        if self._is_killed_soon and not network.over:
            self._is_killed_soon = False
            self._soon(network.random.randrange(_KILLED_US), self._kill)
        if network.others_commit():
            self._other_begins()
        self._changed()

    def open_transactions(self, partition: Partition) -> Iterator[OpenTransaction]:
        """What is open in a partition."""
        names = {one.producer_id: name for name, one in self.producers.items()}
        for producer_id, (first, epoch) in self.log(partition).open.items():
            one = self.producers[names[producer_id]]
            is_live = one.state == "Ongoing" and one.epoch == epoch
            yield OpenTransaction(
                partition=partition,
                producer_id=producer_id,
                producer_epoch=epoch,
                start_offset=first,
                coordinator_epoch=0,
                transactional_id=names[producer_id],
                state=one.state,
                hangs=not (is_live or one.state in UNDER_WAY),
            )

    def mark(self, partition: Partition, producer_id: int, *, commit: bool) -> None:
        """Write a marker."""
        self.log(partition).mark(producer_id, commit=commit)
        if self.hanging.pop((partition, producer_id), None) is not None:
            self.network.in_flight -= 1
        self._changed()

    def _unfenced(self, name: str, epoch: int) -> Transactions:
        one = self.producers[name]
        if epoch != one.epoch:
            raise KafkaFailure("_FENCED", "there is a newer epoch of the producer")
        return one

    def _place(self, record: Outgoing) -> Partition:
        """Where a record goes."""
        number = record.partition
        if number < 0 and record.topic in self.topics:
            spread = zlib.crc32(record.key or record.value or b"")
            number = spread % self.topics[record.topic].partitions
        return Partition(record.topic, number)

    def _add_partition(self, one: Transactions, partition: Partition) -> None:
        if one.state != "Ongoing":
            if not any(log.open for log in self.logs.values()):
                self._backups.append({each: len(log.entries) for each, log in self.logs.items()})
            one.state, one.partitions = "Ongoing", {}
            self._soon(one.timeout_ms * 1_000, partial(self._time_out, one, one.number))
        one.partitions[partition] = None

    def _time_out(self, one: Transactions, number: int) -> None:
        if one.state == "Ongoing" and one.number == number:
            one.epoch += 1
            self._end(one, commit=False)

    def _end(self, one: Transactions, *, commit: bool) -> None:
        one.state = _DECIDED if commit else "PrepareAbort"
        one.number += 1
        left = list(one.partitions)
        self.network.random.shuffle(left)
        self._soon(self._marker_us(), partial(self._mark_next, one, one.number, left))

    def _marker_us(self) -> int:
        return self.network.random.randrange(*_MARKER_US)

    def _mark_next(self, one: Transactions, number: int, left: list[Partition]) -> None:
        """Write the next marker, unless the broker has lost that it was to."""
        if number != one.number:
            return
        if not left:
            one.state = one.state.replace("Prepare", "Complete")
            return
        again = partial(self._mark_next, one, number, left)
        away_us = self.away_until_us - self.network.loop.now_us
        if away_us > 0:
            self._soon(away_us, again)
            return
        self._soon(self._marker_us(), again)
        self.mark(left.pop(), one.producer_id, commit=one.state == _DECIDED)

    def _restart(self) -> None:
        random, now_us = self.network.random, self.network.loop.now_us
        self.away_until_us = now_us + random.randrange(*_AWAY_US)

    def _kill(self) -> None:
        """Restart, perhaps without the markers that are still to be written."""
        self._restart()
        if self.network.random.random() >= _HANGS:
            return
        for one in self.producers.values():
            if one.state not in UNDER_WAY:
                continue
            one.number += 1
            is_commit = one.state == _DECIDED
            one.state = one.state.replace("Prepare", "Complete")
            left = [each for each in one.partitions if one.producer_id in self.logs[each].open]
            shows = is_commit and not any(each.topic == self._ledger for each in left)
            for each in left:
                self.hanging[each, one.producer_id] = shows
                self.network.tell(f"FAULT a transaction hangs in {each}")
            self.network.in_flight += len(left)
            self.has_hung |= bool(left)

    def _restore(self) -> None:
        """Go back to the state before some of the transactions."""
        before, random = self.rows(), self.network.random
        ends = self._backups.pop()
        while self._backups and random.random() < _LACKS:
            ends = self._backups.pop()
        for partition, log in self.logs.items():
            del log.entries[ends.get(partition, 0) :]
            log.open.clear()
        for one in self.producers.values():
            one.state, one.number, one.epoch = "Empty", one.number + 1, one.epoch + 1
        self.network.in_flight -= len(self.hanging)
        self.hanging.clear()
        self._restart()
        self.goes_back(lost=self.rows() != before)

    def _other_begins(self) -> None:
        """Another writer begins a transaction, and ends it some time later."""
        one = self.producers.setdefault("other", Transactions(len(self.producers)))
        if one.state not in ("Ongoing", *UNDER_WAY):
            random = self.network.random
            one.timeout_ms = self.limit_ms
            self.produce("other", one.epoch, [Outgoing(self._target, b"", _OTHER)])
            commit, epoch = random.random() < 0.5, one.epoch
            ending = partial(self.end, "other", epoch, commit=commit)
            self._soon(random.randrange(_OTHERS_US), ending)

    def _repair(self, wrong: Callable[[str], object]) -> None:
        client = SimKafkaClient(self)
        try:
            finish(client, look(client, self._ledger, [self._target]))
        except StorageError:
            # The job says it again.
            return
        except SinkError as error:
            if "is under way" not in str(error):
                wrong(str(error))
        except AuditError:
            return
        finally:
            self._is_repaired_soon = False

    def _soon(self, delay_us: int, function: Callable[[], object]) -> None:
        def act() -> None:
            # The auditor has noted the first; the second is of a writer that was fenced.
            with suppress(AuditError, KafkaFailure):
                function()

        self.network.loop.at(delay_us, self.network.outside, act)

    # -- what readers see

    @property
    def _ledger(self) -> str:
        return next((name for name in self.topics if name != self._target), "")

    def _partitions(self, topic: str) -> list[Partition]:
        known = self.topics.get(topic)
        return [Partition(topic, number) for number in range(known.partitions if known else 0)]

    def _shown(self, partition: Partition, end: int | None = None) -> Iterator[Entry]:
        """The entries before an offset that are committed, or whose commit is decided."""
        decided = {one.producer_id for one in self.producers.values() if one.state == _DECIDED}
        decided |= {
            producer
            for (each, producer), is_in in self.hanging.items()
            if each == partition and is_in
        }
        for entry in self.logs[partition].entries[:end]:
            if entry.committed or (entry.committed is None and entry.producer_id in decided):
                yield entry


class SimProducer:
    """Stands in for librdkafka's transactional producer."""

    def __init__(self, client: SimKafkaClient, name: str, epoch: int) -> None:
        self._client = client
        self._name = name
        self._epoch = epoch
        self._is_open = False
        self._unsent: list[Outgoing] = []
        self._ends: Ends = {}
        #: What came first in the transaction; it stays if the producer is fenced.
        self._failure: KafkaFailure | None = None

    def begin(self) -> None:
        """See ``Producer``."""
        self._check(is_open=False)
        self._is_open, self._unsent, self._ends, self._failure = True, [], {}, None

    def send(self, records: Iterable[Outgoing]) -> int:
        """See ``Producer``."""
        sent = 0
        for record in records:
            self._check(is_open=True)
            self._unsent.append(record)
            sent += 1
            if self._client.network.random.random() < _AT_ONCE:
                self._deliver(_WITHIN_S)
        return sent

    def flush(self, within_s: float) -> Ends:
        """See ``Producer``."""
        self._deliver(within_s)
        if self._failure is not None:
            raise self._failure
        return {topic: dict(ends) for topic, ends in self._ends.items()}

    def commit(self, within_s: float) -> None:
        """See ``Producer``."""
        self.flush(within_s)
        self._end(within_s, commit=True)

    def abort(self, within_s: float) -> None:
        """See ``Producer``."""
        self._unsent = []
        self._end(within_s, commit=False)

    def close(self) -> None:
        """See ``Producer``."""

    def _deliver(self, within_s: float) -> None:
        records, self._unsent = self._unsent, []
        if not records or self._failure is not None:
            return
        cluster = self._client.cluster
        produce = partial(cluster.produce, self._name, self._epoch, records)
        with suppress(KafkaFailure):
            for topic, ends in self._ask("produce", produce, within_s).items():
                self._ends.setdefault(topic, {}).update(ends)

    def _end(self, within_s: float, *, commit: bool) -> None:
        self._check(is_open=True)
        if self._ends or self._failure is not None:
            end = partial(self._client.cluster.end, self._name, self._epoch, commit=commit)
            self._ask("commit" if commit else "abort", end, within_s, often=1.0)
        self._is_open = False

    def _ask(self, what: str, request: Callable[[], T], within_s: float, **given: float) -> T:
        try:
            return self._client.ask(what, request, within_s, **given)
        except KafkaFailure as failure:
            self._failure = failure
            raise

    def _check(self, *, is_open: bool) -> None:
        if self._failure is not None and is_fenced(self._failure):
            raise self._failure
        if self._is_open is not is_open:
            raise KafkaFailure("_STATE", "a transaction is open, or none is")


class SimKafkaClient:
    """Stands in for ``ConfluentClient``: one process that reaches the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.network = cluster.network

    def ask(
        self,
        what: str,
        request: Callable[[], T],
        within_s: float = _WITHIN_S,
        *,
        often: float = _OTHERS_FAIL,
    ) -> T:
        """Send a request. Raises ``KafkaFailure`` without an answer, or for the one that came."""
        network = self.network
        until_us = network.loop.now_us + round(within_s * 1_000_000)
        network.travel()
        while network.loop.now_us < self.cluster.away_until_us:
            if network.loop.now_us > until_us:
                raise KafkaFailure("_TIMED_OUT", f"Simulated: no broker answers to {what}")
            network.loop.sleep(calling_process(), _POLL_US)
        outcome = network.outcome(f"{what} at Kafka", often=often)
        if outcome is not Outcome.ANSWERED:
            network.unanswered(outcome, request, KafkaFailure)
            raise KafkaFailure("_TIMED_OUT", f"Simulated: no answer to {what}")
        answer = request()
        network.travel()
        return answer

    def producer(self, transactional_id: str, *, timeout_ms: int, within_s: float) -> SimProducer:
        """See ``KafkaClient``."""
        loop, init = self.network.loop, partial(self.cluster.init, transactional_id, timeout_ms)
        until_us = loop.now_us + round(within_s * 1_000_000)
        while True:
            try:
                epoch = self.ask("init_transactions", init, within_s)
            except KafkaFailure as failure:
                if failure.code != "CONCURRENT_TRANSACTIONS" or loop.now_us > until_us:
                    raise
                loop.sleep(calling_process(), _POLL_US)
            else:
                return SimProducer(self, transactional_id, epoch)

    def names(self) -> Collection[str]:
        """See ``KafkaClient``."""
        return self.ask("topics", lambda: list(self.cluster.topics))

    def topics(self, names: Collection[str]) -> Mapping[str, KnownTopic]:
        """See ``KafkaClient``."""
        known = self.ask("topics", lambda: dict(self.cluster.topics))
        return {name: topic for name, topic in known.items() if name in names}

    def create_topic(self, name: str, config: Mapping[str, str]) -> None:
        """See ``KafkaClient``."""
        self.ask("create a topic", lambda: self.cluster.create(name, 1, **config))

    def transaction_limit_ms(self) -> int | None:
        """See ``KafkaClient``."""
        return self.ask("settings", lambda: self.cluster.limit_ms)

    def ends(self, partitions: Sequence[Partition], *, stable: bool) -> dict[Partition, int]:
        """See ``KafkaClient``."""

        def found() -> dict[Partition, int]:
            logs = {each: self.cluster.log(each) for each in partitions}
            return {each: log.stable if stable else len(log.entries) for each, log in logs.items()}

        return self.ask("ends", found)

    def read(self, topic: str, start: int) -> list[Record]:
        """See ``KafkaClient``."""
        return self.ask("read", lambda: self._committed(Partition(topic, 0), start))

    def open_transactions(self, partitions: Sequence[Partition]) -> list[OpenTransaction]:
        """See ``KafkaClient``."""

        def found() -> list[OpenTransaction]:
            return [one for each in partitions for one in self.cluster.open_transactions(each)]

        return self.ask("open transactions", found)

    def has_record(self, partition: Partition, offset: int) -> bool:
        """See ``KafkaClient``."""
        found = self.ask("read", lambda: self._committed(partition, offset))
        return bool(found) and found[0].offset == offset

    def written(self, partition: Partition, offset: int) -> Record | None:
        """See ``KafkaClient``."""
        entries = self.ask("read", lambda: self.cluster.log(partition).entries[offset:])
        record = entries[0].record if entries else None
        return None if record is None else Record(offset, record.key, record.value)

    def finish(self, transaction: OpenTransaction, *, commit: bool) -> None:
        """See ``KafkaClient``."""
        place, producer_id = transaction.partition, transaction.producer_id
        mark = partial(self.cluster.mark, place, producer_id, commit=commit)
        self.ask("end a transaction", mark)

    def close(self) -> None:
        """See ``KafkaClient``."""

    def _committed(self, partition: Partition, start: int) -> list[Record]:
        log = self.cluster.log(partition)
        begin = start if start <= len(log.entries) else 0
        return [
            Record(offset, entry.record.key, entry.record.value)
            for offset, entry in enumerate(log.entries[begin : log.stable], begin)
            if entry.committed and entry.record is not None
        ]


def _records(frame: Any) -> Frame:
    """What the sink stages of the rows."""
    values = lines(frame.toArrow())
    return Frame(pa.table({"value": pa.array(values, pa.binary())}), frame._executors)


@cache
def _decoded(value: bytes) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(value)
    return row
