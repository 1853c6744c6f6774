"""``Cluster``: what the reader of topics needs of Kafka, and ``ConfluentCluster``, which has it.

Every call of ``Cluster`` waits for the brokers, so the driver makes them on threads of their own.
A ``Consumer`` fetches on threads of its own; ``poll`` takes what has come.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from weir.errors import InputError, UnsupportedEnvironmentError
from weir.sources.topics.splits import Partition

if TYPE_CHECKING:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient

_log = logging.getLogger(__name__)

#: Options of librdkafka.
Conf: TypeAlias = Mapping[str, str | int | float | bool]
#: In place of a time: the first offset that a partition still has, and its end.
BEGINNING, END = -2, -1
#: How long an answer of the brokers is waited for.
_PATIENCE_S = 10.0
#: What a user may change by ``conf``. The rest decides what the reader's positions mean.
_DEFAULTS: Conf = {
    "group.id": "weir",
    "isolation.level": "read_committed",
    # The end of a partition is known so much after its last record.
    "fetch.wait.max.ms": 100,
    # Errors are reported by the callback, once.
    "log_level": 0,
}
_FIXED: Conf = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}
RESERVED = frozenset({"bootstrap.servers", *_FIXED})


class Message(Protocol):
    """A record (``confluent_kafka.Message``)."""

    def __len__(self) -> int:
        """How many bytes the value has."""

    def topic(self) -> str:
        """Its topic."""

    def partition(self) -> int:
        """Its partition."""

    def offset(self) -> int:
        """Its offset."""

    def key(self) -> bytes | None:
        """Its key."""

    def value(self) -> bytes | None:
        """Its value; None for a tombstone."""

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Its headers."""

    def timestamp(self) -> tuple[int, int]:
        """1 or 2 for the producer's or the broker's time, 0 for none; milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A topic of the cluster."""

    #: "" from a broker without ids.
    topic_id: str
    partitions: int


@dataclass(frozen=True)
class Polled:
    """What has come for a consumer."""

    records: dict[Partition, list[Message]] = field(default_factory=dict)
    #: Partitions that were read to their end, or their stable end, and where it is: behind the
    #: last record, and whatever a reader does not see, such as the marks of transactions.
    ends: dict[Partition, int] = field(default_factory=dict)
    #: Partitions that do not have the offset from which they are to be read.
    out_of_range: set[Partition] = field(default_factory=set)


class Consumer(Protocol):
    """Reads partitions."""

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read these partitions, too, from these offsets on."""

    def unassign(self, partitions: Collection[Partition]) -> None:
        """Do not read these partitions any more; what was fetched of them is dropped."""

    def poll(self, max_rows: int, patience_s: float) -> Polled:
        """At most ``max_rows`` records, once there is anything or ``patience_s`` has passed.

        Raises ``InputError`` for what no later poll would mend.
        """

    def close(self) -> None:
        """Stop."""


class Cluster(Protocol):
    """A Kafka cluster. Raises ``InputError`` if it does not answer."""

    def names(self) -> list[str]:
        """The names of all topics."""

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        """Those of these topics that exist, by name."""

    def offsets(self, partitions: Iterable[Partition], at_ms: int) -> dict[Partition, int]:
        """The offset of the first record at this time or later in each partition, or its end.

        ``BEGINNING`` and ``END`` stand for times. The end is the one that readers of committed
        records can reach, if the consumers are such.
        """

    def consumer(self) -> Consumer:
        """A new consumer."""


class ConfluentCluster:
    """``Cluster`` by confluent-kafka. It is pickled without what it has opened."""

    def __init__(self, servers: str, conf: Conf) -> None:
        self._servers = servers
        self._conf = dict(conf)
        self._admin: AdminClient | None = None
        self._errors = _Errors()

    def __getstate__(self) -> dict[str, Any]:
        """Without the client."""
        return vars(self) | {"_admin": None, "_errors": _Errors()}

    def names(self) -> list[str]:
        """See ``Cluster``."""
        with self._asking() as admin:
            return sorted(admin.list_topics(timeout=_PATIENCE_S).topics)

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        """See ``Cluster``."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        found: dict[str, Topic] = {}
        if not names:
            return found
        with self._asking() as admin:
            asked = TopicCollection(sorted(names))
            for name, answer in admin.describe_topics(asked, request_timeout=_PATIENCE_S).items():
                try:
                    described = answer.result(_PATIENCE_S)
                except KafkaException as error:
                    if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                        continue
                    raise
                topic_id = "" if described.topic_id is None else str(described.topic_id)
                found[name] = Topic(topic_id=topic_id, partitions=len(described.partitions))
        return found

    def offsets(self, partitions: Iterable[Partition], at_ms: int) -> dict[Partition, int]:
        """See ``Cluster``."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        specs: Any = OffsetSpec
        known = {BEGINNING: specs.earliest, END: specs.latest}
        spec = known[at_ms]() if at_ms in known else specs.for_timestamp(at_ms)
        asked = {TopicPartition(*place): spec for place in partitions}
        if not asked:
            return {}
        level = self._conf.get("isolation.level", _DEFAULTS["isolation.level"])
        isolation = IsolationLevel[str(level).upper()]
        with self._asking() as admin:
            answers = admin.list_offsets(
                asked, isolation_level=isolation, request_timeout=_PATIENCE_S
            )
            found = {
                (place.topic, place.partition): int(answer.result(_PATIENCE_S).offset)
                for place, answer in answers.items()
            }
        late = [place for place, offset in found.items() if offset < 0]
        return found | self.offsets(late, END) if late else found

    def consumer(self) -> Consumer:
        """See ``Cluster``."""
        return _ConfluentConsumer(self._servers, self._conf)

    def _asking(self) -> _Asking:
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            # It ignores the options of consumers.
            conf = {"log_level": 0, **self._conf, "bootstrap.servers": self._servers}
            options: Any = {**conf, "error_cb": self._errors}
            self._admin = AdminClient(options)
        return _Asking(self._admin, self._servers, self._errors)


class _Errors:
    """What a client said last: an answer that does not come has its reason there."""

    def __init__(self) -> None:
        self.last = ""

    def __call__(self, error: confluent_kafka.KafkaError) -> None:
        if error.name() != "_ALL_BROKERS_DOWN" or not self.last:
            self.last = error.str()


class _Asking:
    """Raises ``InputError`` in place of the client's errors."""

    def __init__(self, admin: AdminClient, servers: str, errors: _Errors) -> None:
        self._admin, self._servers, self._errors = admin, servers, errors

    def __enter__(self) -> AdminClient:
        self._errors.last = ""
        return self._admin

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from confluent_kafka import KafkaException

        if isinstance(error, KafkaException | TimeoutError):
            self._admin.poll(0)
            said = error.args[0].str() if error.args else "no answer in time"
            why = f"{said}; {self._errors.last}" if self._errors.last else said
            raise InputError(f"Kafka at {self._servers} does not answer ({why}).") from error


class _ConfluentConsumer:
    """``Consumer`` by confluent-kafka."""

    def __init__(self, servers: str, conf: Conf) -> None:
        from confluent_kafka import Consumer as Client

        self._servers = servers
        self._is_away = False
        options: dict[str, Any] = {**_DEFAULTS, **conf, **_FIXED, "bootstrap.servers": servers}
        self._client = Client(options | {"error_cb": self._say})

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """See ``Consumer``."""
        self._client.incremental_assign(_places(positions, positions))

    def unassign(self, partitions: Collection[Partition]) -> None:
        """See ``Consumer``."""
        self._client.incremental_unassign(_places(partitions, {}))

    def poll(self, max_rows: int, patience_s: float) -> Polled:
        """See ``Consumer``."""
        # It waits for all that it is asked for.
        messages: list[Any] = self._client.consume(1, patience_s)
        if messages and max_rows > 1:
            messages += self._client.consume(max_rows - 1, 0)
        polled = Polled()
        records, last = polled.records, None
        for message in messages:
            error = message.error()
            if error is not None:
                self._take_error(error, message, polled)
                last = None
                continue
            place = (message.topic(), message.partition())
            if place != last:
                last, rows = place, records.setdefault(place, [])
            rows.append(message)
        if records:
            self._is_away = False
        return polled

    def close(self) -> None:
        """See ``Consumer``."""
        self._client.close()

    def _take_error(
        self, error: confluent_kafka.KafkaError, message: confluent_kafka.Message, polled: Polled
    ) -> None:
        place = (str(message.topic()), int(message.partition() or 0))
        if error.name() == "_PARTITION_EOF":
            polled.ends[place] = int(message.offset() or 0)
        elif error.name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            polled.out_of_range.add(place)
        elif error.name() != "GROUP_AUTHORIZATION_FAILED":
            # A consumer also asks for its group, which is not used.
            raise InputError(f"Kafka at {self._servers}: {place[0]}: {error.str()}.")

    def _say(self, error: confluent_kafka.KafkaError) -> None:
        """Log that the brokers do not answer, once until they do."""
        if not self._is_away:
            self._is_away = True
            _log.warning("Kafka at %s: %s", self._servers, error.str())


def _places(
    partitions: Iterable[Partition], offsets: Mapping[Partition, int]
) -> list[confluent_kafka.TopicPartition]:
    from confluent_kafka import TopicPartition

    return [
        TopicPartition(place[0], place[1], offsets.get(place, END)) for place in sorted(partitions)
    ]


def check_installed() -> None:
    """Raise ``UnsupportedEnvironmentError`` without confluent-kafka."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise UnsupportedEnvironmentError(
            f"KafkaTopic needs confluent-kafka ({error}): run pip install 'weir-spark[kafka]', also"
            " where Spark's executors run."
        ) from error
