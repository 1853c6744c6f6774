"""Exactly-once writes to Kafka: Spark's tasks stage records, the driver publishes each epoch.

An epoch is published in one Kafka transaction of one producer, which also writes the epoch into
the ledger, a topic beside the target (``ledger.py``). So it has happened with its entry, or not at
all::

    stage    files of records below ``staging``, by Spark's tasks (``encoding.py``)
    flush    the files are durable, and their topics known
    commit   asks the ledger; begins, sends the rows and the entry, commits; reads the entry back

What decides is the ledger, never the answer to the commit:

1. ``init_transactions`` fences older producers of the id ``weir-<job id>-<sink>``, and ends what
   they left. Asked before, the ledger says nothing.
2. Then the ledger's partition and those of the target must have no transaction that hangs
   (``hanging.py``): the next one of its producer would decide about it. If there is one, the job
   stops with ``HangingTransactionError``, until ``weir repair-kafka`` has ended it.
3. The ledger has the epoch: nothing is written. It has not: the epoch is written.
4. Before it commits, the topics must be those with the ids that they had: one that was created
   again lacks the job's rows, and rows may have gone into either.
5. Once the commit is answered, the ledger must show the entry to a reader of what is committed,
   before the staged files go.

A producer that has failed, or whose commit has no known outcome, is never used again. One that is
fenced may have met its time-out (``transaction.timeout.ms``) or a newer driver: the job's own
records say which, and a driver that has been replaced stops, so that two never go on fencing each
other. A transaction is open only while ``commit`` runs, which aborts it if anything fails.

Payload::

    {"directory": "0a1b2c3d-out-1", "position": 7, "flushed": true, "after": 12,
     "topics": ["orders"], "files": [{"path": "part-0.c000.parquet", "size": 451, "rows": 3}]}
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from weir.core.types import Payload, Position
from weir.errors import (
    HangingTransactionError,
    JobFencedError,
    LostRowsError,
    SinkError,
    StorageError,
)
from weir.kernel import MACHINE
from weir.lineage.datasets import Dataset, kafka_datasets
from weir.sinks.base import Batch, Commit, SinkContext
from weir.sinks.kafka.client import (
    Ends,
    KafkaClient,
    KafkaFailure,
    Outgoing,
    Partition,
    Producer,
    Topic,
    needs,
)
from weir.sinks.kafka.confluent import ConfluentClient, check_installed
from weir.sinks.kafka.encoding import Encoding, ValueFormat, refusal
from weir.sinks.kafka.failures import explained, is_fenced
from weir.sinks.kafka.formats import RowFormat
from weir.sinks.kafka.ledger import LEDGER_CONFIG, Ledger, LedgerEntry
from weir.sinks.kafka.log import LedgerLog
from weir.sinks.kafka.options import check_options
from weir.sinks.kafka.records import newest_of_each_key, staged_records, topics_of
from weir.sinks.parquet import count_rows
from weir.sinks.staging import (
    ConflictError,
    FilePayload,
    FileSink,
    PayloadFile,
    StagedFile,
    slug,
    write_frame,
)
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.job_log import JobLog
from weir.storage.paths import join, name_of, parent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)

Mode: TypeAlias = Literal["append", "upsert"]

#: The broker's own default for the longest transaction.
_TIMEOUT_MS = 15 * 60_000
_INIT_S = 60.0
_COMMIT_S = 60.0
_ABORT_S = 10.0
#: How long another job's transaction in the ledger may take.
_STABLE_S = 30.0
#: How long markers of a transaction that has ended usually take at most.
_MARKERS_S = 1.0
_POLL_S = 0.02


class KafkaPayload(FilePayload, kw_only=True):
    """What a checkpoint stores of a batch's staged records."""

    #: Those that its records name; known once flushed.
    topics: list[str] = msgspec.field(default_factory=list)


class KafkaTopic(FileSink[KafkaPayload, None]):
    """Publishes rows to a topic, exactly once for readers with ``isolation.level=read_committed``.

    ``topic``: None if a column ``topic`` says it, which counts only then. ``servers``: of
    the cluster. ``staging``: a directory of this sink alone, which the driver and all executors
    share. Columns have the names of Spark's own sink: ``value``, and ``key``, ``topic``,
    ``partition``, ``headers``, ``timestamp`` if they are there. ``value``: makes values of
    all other columns: ``"json"``, ``"avro"``, ``"protobuf"``; ``"text"`` or ``"bytes"`` of one.
    ``key``: columns of which the key is made; a column ``key`` is then like any other. A null value
    is a tombstone; ``tombstone_where`` is a condition in SQL for rows that become one.
    ``mode="upsert"``: takes updates, and publishes of each epoch the newest row of each key, for a
    compacted topic.

    ``schema``: Avro's, as JSON text. ``message``: a class that ``protoc`` has made.
    ``schema_registry``: options of confluent-kafka's ``SchemaRegistryClient``, and
    ``serializer_conf`` those of its serializer. ``ledger``: the topic that records the epochs;
    ``weir-ledger.<topic>.<sink>`` by default. ``conf``: options of librdkafka, for security and
    producers.

    Raises ``SinkError`` for arguments that contradict each other, and
    ``UnsupportedEnvironmentError`` without confluent-kafka.
    """

    _payload_type = KafkaPayload
    _staging_below = "_weir/staged"
    _files_stay = False

    def __init__(
        self,
        topic: str | None = None,
        *,
        servers: str,
        staging: str,
        mode: Mode = "append",
        value: ValueFormat | None = None,
        key: str | Sequence[str] = (),
        tombstone_where: str | None = None,
        schema: str | None = None,
        message: type[Any] | None = None,
        schema_registry: Mapping[str, Any] | None = None,
        serializer_conf: Mapping[str, Any] | None = None,
        ledger: str | None = None,
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        check_installed()
        self._topic = topic
        self._servers = servers
        self._conf = dict(conf or {})
        self._given_ledger = ledger
        self._mode = mode
        self.takes_updates = mode == "upsert"
        #: Reaches the brokers; a simulated cluster takes its place.
        self.connect: Callable[[SinkContext], KafkaClient] = self._connected
        self._client: KafkaClient | None = None
        self._producer: Producer | None = None
        #: Whether its transaction was to be committed.
        self._asked = False
        #: The topics that were looked up for this attempt.
        self._topics: Mapping[str, Topic] = {}
        self._ledger_read: Ledger | None = None
        super().__init__(staging, ())
        self._encoding = Encoding(
            topic=topic,
            value_format=value,
            key=(key,) if isinstance(key, str) else tuple(key),
            tombstone_where=tombstone_where,
            rows=_row_format(value, schema, message, schema_registry, serializer_conf),
            place=self.describe(),
        )
        self._encoding.check()
        check_options(self._conf, self.describe())
        if mode not in ("append", "upsert"):
            raise SinkError(f"{self.describe()} has mode={mode!r}: use 'append' or 'upsert'.")

    def describe(self) -> str:
        """What and where, for messages."""
        what = repr(self._topic) if self._topic is not None else "of each row"
        return f"KafkaTopic({what} at {self._servers})"

    def identity(self) -> str:
        """The topic, its cluster and a ledger with a name of its own."""
        ledger = f", ledger {self._given_ledger}" if self._given_ledger else ""
        return f"KafkaTopic {self._topic or 'of each row'} at {self._servers}{ledger}"

    def destination(self) -> str | None:
        """The topic on its cluster; unknown if each row names its own."""
        dataset = self.dataset()
        return None if dataset is None else f"{dataset.namespace}/{dataset.name}"

    def dataset(self) -> Dataset | None:
        """The topic on its cluster."""
        if self._topic is None:
            return None
        return kafka_datasets(self._servers, self._topic)[0]

    def check(self, context: SinkContext) -> None:
        """Refuse a topic that does not exist, and a ledger that cannot be one."""
        self._disconnect()
        self._names_found(context)
        client = self.connect(context)
        try:
            with self._explained("checking its topic"):
                name = self._ledger_name(context)
                found = client.topics([each for each in (self._topic, name) if each is not None])
                if self._topic is not None and self._topic not in found:
                    raise SinkError(
                        f"The topic {self._topic!r} does not exist at {self._servers}: create it,"
                        " with the partitions that its readers need."
                    )
                self._check_ledger(name, found.get(name))
                if self.takes_updates and self._topic is not None:
                    self._check_compacted(found[self._topic])
        finally:
            client.close()

    def open(self, context: SinkContext) -> None:
        """Create the ledger, fence older drivers and end what they have left."""
        self._disconnect()
        self._begin_attempt(context)
        self._target.check(self._file_system)
        mark = join(self._root, "_weir")
        self._file_system.make_directory(mark)
        self._target.is_known_by(mark)
        with self._explained("opening its topic"):
            client = self._connection
            name = self._ledger_name(context)
            if not client.topics([name]):
                client.create_topic(name, LEDGER_CONFIG)
            own = client.names() if self._topic is None else [self._topic]
            self._topics = client.topics([each for each in own if not each.startswith("__")])
            if not context.is_in_other_name:
                # That other job may still run: it is fenced only if its rows are published.
                self._make_ready(())

    def stage(self, frame: DataFrame, batch: Batch) -> Payload | None:
        """Write the batch's records below ``staging``, in one Spark job.

        Raises ``SinkMismatchError`` if the columns do not fit, or for a record that its topic
        could never take.
        """
        try:
            return super().stage(frame, batch)
        except Exception as error:
            refused = refusal(error, self.describe())
            if refused is None:
                raise
            raise refused from error

    def close(self) -> None:
        """Release the producer and all connections."""
        self._disconnect()

    def newest_committed(self) -> int | None:
        """The newest epoch in the ledger (PROTOCOL P21)."""
        with self._explained("reading its ledger"):
            if self._producer is None:
                self._make_ready(())
            self._ledger.look()
        entry = self._newest_entry()
        return None if entry is None else entry.epoch

    def commits(self, context: SinkContext) -> Iterator[Commit]:
        """The entries of the ledger, newest first."""
        client = self.connect(context)
        try:
            with self._explained("reading its ledger"):
                name = self._ledger_name(context)
                if not client.topics([name]):
                    return iter(())
                ledger = Ledger(
                    client, name, place=self.describe(), wait_until_stable=lambda _: None
                )
                ledger.look()
            return iter([entry.commit for entry in ledger.newest_first()])
        finally:
            client.close()

    def log(self, name: str) -> LedgerLog:
        """The checkpoints that the topic shows, for readers who call it ``name``.

        Raises ``CutNotFoundError`` if there is no ledger, and ``StorageError`` if there are several
        or it cannot be read.
        """
        return LedgerLog(
            name,
            place=self.describe(),
            topic=self._topic,
            ledger=self._given_ledger,
            servers=self._servers,
            conf=self._conf,
            client=ConfluentClient(self._servers, self._conf, MACHINE),
        )

    def _connected(self, context: SinkContext) -> KafkaClient:
        return ConfluentClient(self._servers, self._conf, context.kernel)

    # Staging.

    def _new_payload(self, frame: DataFrame, directory: str, position: Position) -> KafkaPayload:
        return KafkaPayload(directory=directory, position=position, flushed=False, files=[])

    def _write(self, frame: DataFrame, path: str, written: Sequence[str]) -> list[StagedFile]:
        records = self._encoding.staged(frame, self._topics)
        return write_frame(records, self._file_system, path, format_name="parquet")

    def _described(self, payload: KafkaPayload) -> list[PayloadFile]:
        return [
            msgspec.structs.replace(
                file,
                rows=count_rows(self._file_system, join(self._root, self._staged(payload, file))),
            )
            for file in payload.files
        ]

    def _completed(self, payload: KafkaPayload) -> KafkaPayload:
        topics = {self._topic} if self._topic is not None else set()
        for file in payload.files:
            topics |= topics_of(self._file_system, join(self._root, self._staged(payload, file)))
        completed = super()._completed(payload)
        return msgspec.structs.replace(completed, topics=sorted(topics))

    def _left_over(self, dead: Sequence[str]) -> Iterator[tuple[str, Callable[[str], bool]]]:
        # What is committed is deleted by its commit.
        return ((directory, lambda _: True) for directory in dead)

    # Committing.

    def _look(self, payloads: Sequence[KafkaPayload]) -> tuple[None, int]:
        """The newest epoch in the ledger, once it can be believed."""
        topics = sorted({topic for payload in payloads for topic in payload.topics})
        with self._explained("reading its ledger"):
            if self._producer is None or not self._topics.keys() >= set(topics):
                self._make_ready(topics)
            self._ledger.look()
        entry = self._newest_entry()
        return None, 0 if entry is None else entry.epoch

    def _add(self, target: None, epoch: int, payloads: Sequence[KafkaPayload]) -> int:
        """Publish the epoch, and see it in the ledger."""
        producer = self._producer
        if producer is None:
            raise ConflictError("its producer is gone")
        try:
            rows = self._publish(producer, epoch, payloads)
            self._confirm(epoch)
        except BaseException as error:
            # Once it was asked to commit, only Kafka may decide.
            self._drop(abort=not self._asked)
            if isinstance(error, KafkaFailure):
                self._disconnect()
                raise self._failed(error, epoch) from error
            raise
        return rows

    def _publish(self, producer: Producer, epoch: int, payloads: Sequence[KafkaPayload]) -> int:
        """Begin, send, commit; return the rows."""
        paths = [path for payload in payloads for path in self._paths(payload)]
        read = newest_of_each_key if self._mode == "upsert" else staged_records
        self._asked = False
        producer.begin()
        rows = producer.send(read(self._file_system, paths, self._topic))
        ends = producer.flush(self._timeout_ms / 1000)
        entry = self._entry(epoch, rows, ends, self._written_to(ends))
        key, value = Ledger.record(entry)
        with needs(f"Write on topic {self._ledger.topic!r}"):
            producer.send([Outgoing(self._ledger.topic, value, key, 0)])
            self._asked = True
            producer.commit(_COMMIT_S)
        return rows

    def _written_to(self, ends: Ends) -> Mapping[str, Topic]:
        """The topics with rows of the job, which still are those that the attempt has found.

        Raises ``LostRowsError`` if one was created again, and ``KafkaFailure`` if this epoch has to
        be sent again.
        """
        found = self._connection.topics({*ends, *self._written()})
        self._check_same_topics(found)
        for name in ends:
            if name not in found or found[name].topic_id != self._topics[name].topic_id:
                raise KafkaFailure("UNKNOWN_TOPIC_ID", f"{name!r} was deleted while it was written")
        return found

    def _confirm(self, epoch: int) -> None:
        """Return once readers see the ledger's entry. Raises ``StorageError`` if they do not."""
        kernel = self._context.kernel
        deadline_ms = kernel.now_ms() + _STABLE_S * 1000
        while True:
            self._ledger.look()
            entry = self._newest_entry()
            if entry is not None and entry.epoch >= epoch:
                return
            if kernel.now_ms() > deadline_ms:
                raise StorageError(
                    f"Kafka has answered that checkpoint {epoch} is committed to"
                    f" {self.describe()}, but its ledger {self._ledger.topic!r} does not show it:"
                    " the brokers are asked again before anything is written."
                )
            kernel.sleep(_POLL_S)

    def _entry(self, epoch: int, rows: int, ends: Ends, found: Mapping[str, Topic]) -> LedgerEntry:
        newest = self._newest_entry()
        known = {} if newest is None else newest.topic_ids
        now = {name: topic.topic_id for name, topic in found.items()}
        # It may have been accepted that one was created again.
        topic_ids = {
            name: topic_id for name, topic_id in known.items() if now.get(name) in (None, topic_id)
        }
        topic_ids |= {name: now[name] for name in ends}
        together = self._ledger.ends(topic_ids)
        for topic, of_topic in ends.items():
            together.setdefault(topic, {}).update(of_topic)
        context = self._context
        return LedgerEntry(
            after=0 if newest is None else newest.epoch,
            rows=rows,
            topic_ids=topic_ids,
            ends=together,
            commit=Commit(
                timestamp_ms=context.kernel.wall_ms(),
                job_id=context.job_id,
                job_name=context.job_name,
                job_directory=context.job_directory or "",
                sink=context.sink,
                checkpoint_id=epoch,
                attempt=context.attempt,
                joins=context.leaves_out,
            ),
        )

    def _failed(self, failure: KafkaFailure, epoch: int) -> Exception:
        """What a commit raises, whose producer is gone."""
        if not is_fenced(failure):
            return explained(failure, self.describe(), f"committing checkpoint {epoch}")
        self._check_not_replaced()
        _log.warning(
            "The transaction of checkpoint %d to %s was ended by Kafka, and no newer attempt of the"
            " job is on record: it took longer than transaction.timeout.ms (%d ms), or a driver"
            " that was replaced interfered. It is looked up in the ledger and, unless it is"
            " there, published again.",
            epoch,
            self.describe(),
            self._timeout_ms,
        )
        return ConflictError(str(failure))

    def _check_not_replaced(self) -> None:
        """Raise ``JobFencedError`` if the job's records have a newer attempt than this one."""
        context = self._context
        if context.job_directory is None:
            return
        directory = context.job_directory
        storage = CheckpointStorage(
            fs=context.file_system, base_directory=parent(directory), job_id=name_of(directory)
        )
        log = JobLog(context.file_system(directory), storage.log_directory, job_id=storage.job_id)
        record = log.newest()
        if record is not None and record.attempt > context.attempt:
            raise JobFencedError(
                f"Attempt {record.attempt} of job {context.job_name!r} has replaced attempt"
                f" {context.attempt} and publishes to {self.describe()}: this driver stops."
            )

    # The producer.

    def _make_ready(self, topics: Sequence[str]) -> None:
        """A new producer, and the certainty that nothing hangs where it will write."""
        self._drop()
        self._check_not_replaced()
        client, context = self._connection, self._context
        self._timeout_ms = self._allowed_timeout_ms()
        transactional_id = f"weir-{context.job_id}-{slug(context.sink)}"
        producer = client.producer(transactional_id, timeout_ms=self._timeout_ms, within_s=_INIT_S)
        try:
            self._ledger.look()
            own = [] if self._topic is None else [self._topic]
            found = client.topics({*topics, *self._written(), *own})
            self._check_same_topics(found)
            if missing := sorted(set(topics) - found.keys()):
                raise SinkError(
                    f"The topic {missing[0]!r} of {self.describe()} does not exist: create it. Rows"
                    " that were staged stay so, and are committed once it is there."
                )
            self._topics = {**self._topics, **found}
            partitions = [
                Partition(name, number)
                for name, topic in found.items()
                for number in range(topic.partitions)
            ]
            self._check_none_hangs(partitions, transactional_id)
        except BaseException:
            producer.close()
            raise
        self._producer = producer

    def _allowed_timeout_ms(self) -> int:
        given = self._conf.get("transaction.timeout.ms")
        if given is not None:
            return int(given)
        limit_ms = self._connection.transaction_limit_ms()
        return _TIMEOUT_MS if limit_ms is None else min(_TIMEOUT_MS, limit_ms)

    def _check_same_topics(self, found: Mapping[str, Topic]) -> None:
        """Raise ``LostRowsError`` if a topic with rows of the job was created again."""
        newest, context = self._newest_entry(), self._context
        if newest is None:
            return
        if context.may_have_gone_back and newest.commit.attempt != context.attempt:
            return
        for name, topic_id in newest.topic_ids.items():
            if name in found and found[name].topic_id != topic_id:
                raise LostRowsError(
                    f"The topic {name!r} of {self.describe()} was deleted and created again: rows"
                    " that were committed there are gone. Start from a snapshot from before them,"
                    " or from any with --from-savepoint PATH --accept-duplicates."
                )

    def _check_none_hangs(self, partitions: Sequence[Partition], transactional_id: str) -> None:
        """Raise ``HangingTransactionError`` if a later commit would show what is not committed.

        Other producers' transactions in the target, hanging or not, are no concern of this sink.
        """
        client = self._connection
        ends, stable = (client.ends(partitions, stable=stable) for stable in (False, True))
        behind = [each for each in partitions if stable[each] < ends[each]]
        opened = client.open_transactions(behind) if behind else []
        for transaction in opened:
            if not transaction.hangs:
                continue
            if transaction.transactional_id == transactional_id:
                raise self._hanging(transaction.partition, transaction.producer_id)
            _log.warning(
                "The transaction of %r hangs in %s since offset %d: readers of committed records"
                " wait there.",
                transaction.transactional_id,
                transaction.partition,
                transaction.start_offset,
            )

    def _wait_until_stable(self, ends: Mapping[Partition, int]) -> None:
        """Wait until the ledger shows what it had: another job's transaction may be under way."""
        client, kernel = self._connection, self._context.kernel
        began_ms = kernel.now_ms()
        asked = False
        while True:
            stable = client.ends(list(ends), stable=True)
            behind = [each for each, end in ends.items() if stable[each] < end]
            if not behind:
                return
            waited_s = (kernel.now_ms() - began_ms) / 1000
            if waited_s > (_STABLE_S if asked else _MARKERS_S):
                for transaction in client.open_transactions(behind):
                    if transaction.hangs:
                        raise self._hanging(transaction.partition, transaction.producer_id)
                asked = True
            if waited_s > _STABLE_S:
                raise StorageError(
                    f"A transaction is open in {behind[0]}, the ledger of {self.describe()}, for"
                    f" {_STABLE_S:.0f} s: another job with the same ledger may be publishing. Give"
                    " the sinks of two jobs ledgers of their own."
                )
            kernel.sleep(_POLL_S)

    def _hanging(self, partition: Partition, producer_id: int) -> HangingTransactionError:
        topics = {self._topic, partition.topic, *self._written()} - {self._ledger.topic, None}
        names = " ".join(sorted(filter(None, topics)))
        return HangingTransactionError(
            f"A transaction of producer {producer_id} hangs in {partition}: its coordinator takes"
            " it for complete, but the partition has no marker, as after a broker was killed just"
            f" after a commit. {self.describe()} writes nothing before it has an end there, since"
            " the next transaction would decide about its records. Stop all drivers of the job, run"
            f" 'weir repair-kafka {self._servers} {self._ledger.topic} {names}', then run the job"
            " again."
        )

    def _written(self) -> list[str]:
        """The topics with rows of the job, as far as its ledger shows them."""
        newest = self._newest_entry()
        return [] if newest is None else list(newest.topic_ids)

    def _drop(self, *, abort: bool = False) -> None:
        """Give up the producer; abort its transaction, so that no reader waits for its end."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        if abort:
            with suppress(KafkaFailure):
                producer.abort(_ABORT_S)
        producer.close()

    def _disconnect(self) -> None:
        """Give up all connections: clients may keep what a broker that has restarted refuses."""
        self._drop()
        self._ledger_read = None
        if self._client is not None:
            self._client.close()
            self._client = None

    # The ledger.

    @property
    def _connection(self) -> KafkaClient:
        if self._client is None:
            self._client = self.connect(self._context)
        return self._client

    @property
    def _ledger(self) -> Ledger:
        if self._ledger_read is None:
            self._ledger_read = Ledger(
                self._connection,
                self._ledger_name(self._context),
                place=self.describe(),
                wait_until_stable=self._wait_until_stable,
            )
        return self._ledger_read

    def _newest_entry(self) -> LedgerEntry | None:
        return self._ledger.newest(self._context.job_id, self._context.sink)

    def _ledger_name(self, context: SinkContext) -> str:
        return self._given_ledger or f"weir-ledger.{self._topic or 'topics'}.{slug(context.sink)}"

    def _check_ledger(self, name: str, found: Topic | None) -> None:
        if found is None:
            return
        if found.partitions != 1 or "compact" not in found.cleanup:
            raise SinkError(
                f"The topic {name!r} cannot be the ledger of {self.describe()}: it has"
                f" {found.partitions} partitions and cleanup.policy={found.cleanup}, and needs one"
                " and 'compact', so that no entry expires."
            )

    def _check_compacted(self, topic: Topic) -> None:
        if "compact" not in topic.cleanup:
            _log.warning(
                "%s has mode='upsert', but cleanup.policy=%s: older rows of a key stay in the"
                " topic, and its newest may expire.",
                self.describe(),
                topic.cleanup,
            )

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Make sentences of Kafka's failures."""
        try:
            yield
        except KafkaFailure as failure:
            self._disconnect()
            if is_fenced(failure):
                self._check_not_replaced()
            raise explained(failure, self.describe(), doing) from failure


def _row_format(
    value_format: ValueFormat | None,
    schema: str | None,
    message: type[Any] | None,
    registry: Mapping[str, Any] | None,
    serializer: Mapping[str, Any] | None,
) -> RowFormat | None:
    """How Avro and Protobuf are made; None if nothing is given for them."""
    if value_format == "protobuf" and message is None:
        return None
    if schema is None and message is None and registry is None:
        return None
    return RowFormat(schema=schema, message=message, registry=registry, serializer=serializer)
