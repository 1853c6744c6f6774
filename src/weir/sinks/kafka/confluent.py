"""``KafkaClient`` with confluent-kafka, which has librdkafka.

Every call has a deadline. ``send_offsets_to_transaction``, which ignores its own, is not used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from weir.errors import UnsupportedEnvironmentError
from weir.kernel import Kernel
from weir.sinks.kafka import hanging
from weir.sinks.kafka.client import (
    Ends,
    KafkaFailure,
    OpenTransaction,
    Outgoing,
    Partition,
    Producer,
    Record,
    Topic,
    needs,
)
from weir.sinks.kafka.failures import is_fenced
from weir.sinks.kafka.options import common, of_producer

if TYPE_CHECKING:
    from concurrent.futures import Future

    import confluent_kafka
    from confluent_kafka.admin import AdminClient

_WITHIN_S = 15.0
#: How often delivery reports are looked at while rows are added.
_POLL_EACH = 1_000
_FULL_QUEUE_POLL_S = 0.1
_LEADER_POLL_S = 0.1
#: A consumer also asks for its group, which is not used: it reads without that right.
_OF_THE_GROUP = "GROUP_AUTHORIZATION_FAILED"


def check_installed() -> None:
    """Raise ``UnsupportedEnvironmentError`` without confluent-kafka."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise UnsupportedEnvironmentError(
            "KafkaTopic needs confluent-kafka: install it with pip install 'weir-spark[kafka]'."
        ) from error


class ConfluentClient:
    """One cluster."""

    def __init__(self, servers: str, conf: Mapping[str, Any], kernel: Kernel) -> None:
        """``conf``: the user's options, with librdkafka's names."""
        check_installed()
        self._kernel = kernel
        self._servers = servers
        self._conf = conf
        #: Made when they are first used. The admin client must outlive its futures.
        self._admin: AdminClient | None = None
        self._reader: confluent_kafka.Consumer | None = None
        self._said: KafkaFailure | None = None

    def producer(self, transactional_id: str, *, timeout_ms: int, within_s: float) -> Producer:
        given = {
            "transaction.timeout.ms": timeout_ms,
            **of_producer(self._servers, self._conf),
            "transactional.id": transactional_id,
        }
        return _Producer(given, self._kernel, within_s)

    def names(self) -> Collection[str]:
        admin = self._administration()
        return list(_asked(lambda: admin.list_topics(timeout=_WITHIN_S)).topics)

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        return self._described(list(names)) if names else {}

    def create_topic(self, name: str, config: Mapping[str, str]) -> None:
        from confluent_kafka.admin import NewTopic

        # As many replicas as the cluster's default, which -1 stands for.
        topic = NewTopic(name, num_partitions=1, replication_factor=-1, config=dict(config))
        made = self._administration().create_topics([topic], operation_timeout=_WITHIN_S)
        try:
            with needs(f"Create on topic {name!r}"):
                self._answer(made[name])
        except KafkaFailure as failure:
            if failure.code != "TOPIC_ALREADY_EXISTS":
                raise
        deadline_ms = self._kernel.now_ms() + _WITHIN_S * 1000
        while True:
            try:
                self.ends([Partition(name, 0)], stable=False)
                return
            except KafkaFailure:
                # Its partition has no leader yet.
                if self._kernel.now_ms() > deadline_ms:
                    raise
            self._kernel.sleep(_LEADER_POLL_S)

    def transaction_limit_ms(self) -> int | None:
        from confluent_kafka.admin import ConfigResource, ResourceType

        admin = self._administration()
        brokers = _asked(lambda: admin.list_topics(timeout=_WITHIN_S)).brokers
        resource = ConfigResource(ResourceType.BROKER, str(min(brokers)))
        try:
            found = self._answer(admin.describe_configs([resource])[resource])
        except KafkaFailure as failure:
            if failure.is_refusal:
                return None
            raise
        limit = found.get("transaction.max.timeout.ms")
        return None if limit is None else int(limit.value)

    def ends(self, partitions: Sequence[Partition], *, stable: bool) -> dict[Partition, int]:
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        asked = {
            TopicPartition(each.topic, each.number): OffsetSpec.latest() for each in partitions
        }
        if not asked:
            return {}
        answers = self._administration().list_offsets(
            asked, isolation_level=level, request_timeout=_WITHIN_S
        )
        found = {}
        for where, answer in answers.items():
            with needs(f"Describe on topic {where.topic!r}"):
                found[Partition(where.topic, where.partition)] = self._answer(answer).offset
        return found

    def read(self, topic: str, start: int) -> list[Record]:
        return list(self._records(self._reading(), Partition(topic, 0), start))

    def open_transactions(self, partitions: Sequence[Partition]) -> list[OpenTransaction]:
        return hanging.open_transactions(self._servers, self._conf, partitions)

    def has_record(self, partition: Partition, offset: int) -> bool:
        found = self._first(self._reading(), partition, offset)
        return found is not None and found.offset == offset

    def written(self, partition: Partition, offset: int) -> Record | None:
        reader = self._consumer("read_uncommitted")
        try:
            found = self._first(reader, partition, offset)
        finally:
            reader.close()
        return found if found is not None and found.offset == offset else None

    def finish(self, transaction: OpenTransaction, *, commit: bool) -> None:
        hanging.finish(self._servers, self._conf, transaction, commit=commit)

    def close(self) -> None:
        if self._reader is not None:
            with suppress(Exception):
                self._reader.close()
        self._reader = self._admin = None

    def _administration(self) -> AdminClient:
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            settings: Any = {**common(self._servers, self._conf), "error_cb": self._take_error}
            self._admin = _asked(lambda: AdminClient(settings))
        return self._admin

    def _take_error(self, error: confluent_kafka.KafkaError) -> None:
        """What a client says while it connects: the calls themselves only run out of time."""
        if error.name() != "_ALL_BROKERS_DOWN":
            self._said = KafkaFailure(error.name(), error.str())

    def _answer(self, future: Future[Any]) -> Any:
        try:
            return _result(future)
        except KafkaFailure as failure:
            self._administration().poll(0)
            if failure.code == "_TIMED_OUT" and self._said is not None:
                raise self._said from failure
            raise

    def _reading(self) -> confluent_kafka.Consumer:
        if self._reader is None:
            self._reader = self._consumer("read_committed")
        return self._reader

    def _consumer(self, isolation: str) -> confluent_kafka.Consumer:
        from confluent_kafka import Consumer

        settings = {
            **common(self._servers, self._conf),
            # Nobody joins or commits to it; a consumer must have the name of one.
            "group.id": "weir",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
        }
        consumer: confluent_kafka.Consumer = _asked(lambda: Consumer(settings))
        return consumer

    def _first(
        self, reader: confluent_kafka.Consumer, partition: Partition, offset: int
    ) -> Record | None:
        """The first record from an offset on; None if there is none."""
        return next(self._records(reader, partition, offset), None)

    def _records(
        self, reader: confluent_kafka.Consumer, partition: Partition, start: int
    ) -> Iterator[Record]:
        """The records from an offset to the end that the reader sees."""
        from confluent_kafka import TopicPartition

        _asked(lambda: reader.assign([TopicPartition(*partition, start)]))
        deadline_ms = self._kernel.now_ms() + _WITHIN_S * 1000
        try:
            while True:
                message = _asked(lambda: reader.poll(_WITHIN_S))
                if message is None or self._kernel.now_ms() > deadline_ms:
                    raise KafkaFailure("_TIMED_OUT", f"{partition} has no end")
                error = message.error()
                if error is None:
                    yield Record(message.offset(), message.key(), message.value())
                elif error.name() == "_PARTITION_EOF":
                    return
                elif not error.retriable() and error.name() != _OF_THE_GROUP:
                    with needs(f"Read on topic {partition.topic!r}"):
                        raise KafkaFailure(error.name(), error.str())
        finally:
            with suppress(Exception):
                reader.unassign()

    def _described(self, names: list[str]) -> dict[str, Topic]:
        from confluent_kafka import TopicCollection
        from confluent_kafka.admin import ConfigResource, ResourceType

        admin = self._administration()
        described = {}
        answers = admin.describe_topics(TopicCollection(names), request_timeout=_WITHIN_S)
        for name, answer in answers.items():
            try:
                with needs(f"Describe on topic {name!r}"):
                    described[name] = self._answer(answer)
            except KafkaFailure as failure:
                if failure.code not in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
                    raise
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in described]
        configs = admin.describe_configs(resources) if resources else {}
        settings = {}
        for resource, answer in configs.items():
            with needs(f"DescribeConfigs on topic {resource.name!r}"):
                settings[resource.name] = self._answer(answer)
        return {
            name: Topic(
                topic_id=str(topic.topic_id),
                partitions=len(topic.partitions),
                max_bytes=int(settings[name]["max.message.bytes"].value),
                cleanup=str(settings[name]["cleanup.policy"].value),
            )
            for name, topic in described.items()
        }


class _Producer:
    """One handle of librdkafka."""

    def __init__(self, settings: dict[str, Any], kernel: Kernel, within_s: float) -> None:
        from confluent_kafka import Producer as Handle

        self._kernel = kernel
        self._handle = _asked(lambda: Handle(settings))
        self._ends: defaultdict[str, dict[int, int]] = defaultdict(dict)
        #: The first record that was not delivered; what follows it only says that it is so.
        self._failure: KafkaFailure | None = None
        self._patience_ms = int(settings["transaction.timeout.ms"])
        try:
            with needs(f"Write on the transactional id {settings['transactional.id']!r}"):
                self._do(lambda: self._handle.init_transactions(within_s))
        except KafkaFailure:
            self.close()
            raise

    def begin(self) -> None:
        self._ends.clear()
        self._failure = None
        self._do(self._handle.begin_transaction)

    def send(self, records: Iterable[Outgoing]) -> int:
        from confluent_kafka import KafkaException

        # Whatever is done here is done for every record.
        produce, delivered, sent = self._handle.produce, self._delivered, 0
        for topic, value, key, partition, headers, timestamp_ms in records:
            added = (topic, value, key, partition, delivered, None, timestamp_ms, headers)
            try:
                produce(*added)
            except BufferError:
                self._add_once_there_is_room(added)
            except KafkaException as error:
                raise self._first(_failure(error)) from error
            sent += 1
            if sent % _POLL_EACH == 0:
                self._do(lambda: self._handle.poll(0))
        return sent

    def _add_once_there_is_room(self, added: tuple[Any, ...]) -> None:
        """Records leave the queue while their reports are looked at."""
        deadline_ms = self._kernel.now_ms() + self._patience_ms
        while self._kernel.now_ms() <= deadline_ms:
            self._do(lambda: self._handle.poll(_FULL_QUEUE_POLL_S))
            with suppress(BufferError):
                self._do(lambda: self._handle.produce(*added))
                return
        raise KafkaFailure("_TIMED_OUT", "no record leaves the queue")

    def flush(self, within_s: float) -> Ends:
        left = self._do(lambda: self._handle.flush(within_s))
        if self._failure is not None:
            raise self._failure
        if left:
            raise KafkaFailure("_TIMED_OUT", f"{left} records are not acknowledged")
        return {topic: dict(ends) for topic, ends in self._ends.items()}

    def commit(self, within_s: float) -> None:
        self._do(lambda: self._handle.commit_transaction(within_s))

    def abort(self, within_s: float) -> None:
        self._do(lambda: self._handle.abort_transaction(within_s))

    def close(self) -> None:
        with suppress(Exception):
            self._handle.purge(blocking=False)
        with suppress(Exception):
            self._handle.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self._ends[message.topic()][message.partition()] = message.offset() + 1
        elif self._failure is None and error.name() not in ("_PURGE_QUEUE", "_PURGE_INFLIGHT"):
            failure = KafkaFailure(error.name(), error.str())
            right = f"Write on topic {message.topic()!r}"
            self._failure = KafkaFailure(failure.code, right) if failure.is_refusal else failure

    def _do(self, call: Callable[[], Any]) -> Any:
        try:
            return _asked(call)
        except KafkaFailure as failure:
            raise self._first(failure) from failure

    def _first(self, failure: KafkaFailure) -> KafkaFailure:
        """The failure that came first, unless this one says that the producer is fenced."""
        return failure if is_fenced(failure) or self._failure is None else self._failure


def _failure(error: confluent_kafka.KafkaException) -> KafkaFailure:
    from confluent_kafka import KafkaError

    cause = error.args[0] if error.args else None
    if isinstance(cause, KafkaError):
        return KafkaFailure(cause.name(), cause.str())
    return KafkaFailure("_FAIL", str(error))


def _asked(call: Callable[[], Any]) -> Any:
    """The call's result. Raises ``KafkaFailure`` for what librdkafka raises."""
    from confluent_kafka import KafkaException

    try:
        return call()
    except KafkaException as error:
        raise _failure(error) from error
    except SystemError as error:
        # A fatal error is raised out of whatever call is under way, and also if there is a function
        # for errors. A delivery report in the same call then fails, or takes the error away.
        if isinstance(error.__cause__, KafkaException):
            raise _failure(error.__cause__) from error
        raise KafkaFailure("_FATAL", str(error)) from error


def _result(future: Future[Any]) -> Any:
    """Like ``_asked``, for an answer of an admin client."""
    try:
        return _asked(lambda: future.result(_WITHIN_S * 2))
    except TimeoutError as error:
        raise KafkaFailure("_TIMED_OUT", "no answer") from error
