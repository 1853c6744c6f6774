"""``Brokers``: what Kafka's admin client says of topics, and the offsets of a consumer group.

The client is the one in the connector's jars, so it is always there and takes the same options as
the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from weir.spark.java import JvmClasses

if TYPE_CHECKING:
    from pyspark import SparkContext

#: Offsets by topic and partition.
Offsets = dict[str, dict[str, int]]

_PREFIX = "kafka."
_ADMIN = "org.apache.kafka.clients.admin."
_CLIENTS = "org.apache.kafka.clients.consumer."
_COMMON = "org.apache.kafka.common."
#: Kafka's names of what says that a topic, or a partition of it, is not there.
_UNKNOWN = "UnknownTopicOrPartitionException"


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A topic that is there."""

    #: No other topic has it, also none of the same name.
    id: str
    #: Their numbers begin with 0.
    partitions: int


class Brokers:
    """The brokers that the options of a source name. Use it as a context manager."""

    def __init__(self, context: SparkContext, options: Mapping[str, str]) -> None:
        self._jvm = JvmClasses(context)
        properties = self._jvm.java_class("java.util.Properties")()
        for key, value in options.items():
            if key.startswith(_PREFIX):
                properties.put(key.removeprefix(_PREFIX), value)
        self._client = self._jvm.java_class(f"{_ADMIN}Admin").create(properties)

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client, without waiting for what is under way."""
        self._client.close(self._jvm.java_class("java.time.Duration").ZERO)

    def names(self) -> set[str]:
        """The names of all topics that may be seen."""
        return set(_answer(self._client.listTopics().names()))

    def topics(self, topics: Iterable[str]) -> dict[str, Topic]:
        """These topics by name, without those that are not there."""
        answers = self._client.describeTopics(self._list(topics)).topicNameValues()
        found = {}
        for topic in answers:
            described = _answer_if_known(answers[topic])
            if described is not None:
                found[str(topic)] = Topic(
                    id=str(described.topicId().toString()), partitions=described.partitions().size()
                )
        return found

    def earliest(self, offsets: Offsets) -> Offsets:
        """The earliest offsets of these partitions.

        They must be there: the client would look for others until its time is up.
        """
        spec = self._jvm.java_class(f"{_ADMIN}OffsetSpec").earliest()
        wanted = self._jvm.java_class("java.util.HashMap")()
        partitions = {
            (topic, partition): self._partition(topic, partition)
            for topic, of_topic in offsets.items()
            for partition in of_topic
        }
        for partition in partitions.values():
            wanted.put(partition, spec)
        answers = self._client.listOffsets(wanted)
        found: Offsets = {}
        for (topic, number), partition in partitions.items():
            answer = _answer(answers.partitionResult(partition))
            found.setdefault(topic, {})[number] = int(answer.offset())
        return found

    def commit(self, group: str, offsets: Offsets) -> None:
        """Set the offsets of a consumer group, which must have no members."""
        committed = self._jvm.java_class("java.util.HashMap")()
        made = self._jvm.java_class(f"{_CLIENTS}OffsetAndMetadata")
        for topic, of_topic in offsets.items():
            for partition, offset in of_topic.items():
                committed.put(self._partition(topic, partition), made(offset))
        _answer(self._client.alterConsumerGroupOffsets(group, committed).all())

    def _partition(self, topic: str, partition: str) -> Any:
        return self._jvm.java_class(f"{_COMMON}TopicPartition")(topic, int(partition))

    def _list(self, values: Iterable[str]) -> Any:
        made = self._jvm.java_class("java.util.ArrayList")()
        for value in values:
            made.add(value)
        return made


def _answer(future: Any) -> Any:
    """What a Kafka future gives. Raises ``Py4JJavaError`` with Kafka's own exception within."""
    return future.get()


def _answer_if_known(future: Any) -> Any:
    try:
        return _answer(future)
    except Py4JJavaError as error:
        if _UNKNOWN in str(error.java_exception.toString()):
            return None
        raise
