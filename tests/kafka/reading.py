"""Reads a topic to its end."""

from __future__ import annotations

from typing import Literal

from confluent_kafka import Consumer, Message, TopicPartition
from tests.kafka.server import KafkaServer

_PATIENCE_S = 60.0

Isolation = Literal["read_committed", "read_uncommitted"]


def records(
    server: KafkaServer, topic: str, *, isolation: Isolation = "read_committed"
) -> list[Message]:
    """All records of a topic up to its end, or its stable end, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": "tests",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=_PATIENCE_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        ended: set[int | None] = set()
        found: list[Message] = []
        while len(ended) < len(partitions):
            message = consumer.poll(_PATIENCE_S)
            assert message is not None, f"{topic} has no end after {len(found)} records"
            if (error := message.error()) is None:
                found.append(message)
            elif error.name() == "_PARTITION_EOF":
                ended.add(message.partition())
            else:
                raise AssertionError(error.str())
    finally:
        consumer.close()
    return sorted(found, key=lambda each: (each.partition(), each.offset()))
