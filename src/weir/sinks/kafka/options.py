"""Options of the Kafka clients: which are refused, and which are defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weir.errors import SinkError

#: What exactly-once writing stands on, or what the sink decides itself.
RESERVED = {
    "acks": "every record is acknowledged by all replicas",
    "request.required.acks": "every record is acknowledged by all replicas",
    "bootstrap.servers": "give it as bootstrap_servers",
    "delivery.report.only.error": "the sink needs each record's offset",
    "enable.auto.commit": "nothing is committed to a consumer group",
    "enable.gapless.guarantee": "the transaction has it",
    "enable.idempotence": "transactions need it",
    "enable.partition.eof": "the ledger is read to its end",
    "group.id": "no consumer group is used",
    "isolation.level": "the ledger is read committed",
    "max.in.flight": "transactions limit it",
    "max.in.flight.requests.per.connection": "transactions limit it",
    "metadata.broker.list": "use servers=",
    "transactional.id": "it is made of job and sink, so that a successor fences its predecessor",
}
#: Of all clients; the user's come after them.
_COMMON = {
    # What fails is raised; librdkafka would also write to standard error, many times a second.
    "log_level": 0,
    # A broker that is back is noticed soon.
    "reconnect.backoff.max.ms": 1_000,
}
#: Of the producer; the user's come after them.
_PRODUCER = {
    "partitioner": "murmur2_random",  # as Java's clients and Spark choose partitions
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "compression.type": "lz4",
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 262_144,
}
#: Options of librdkafka that only producers know.
_OF_PRODUCERS = frozenset(
    (
        *_PRODUCER,
        *("acks", "queue.buffering.max.ms", "compression.codec", "compression.level"),
        *("message.timeout.ms", "delivery.timeout.ms", "message.send.max.retries", "retries"),
        *("retry.backoff.ms", "retry.backoff.max.ms", "request.timeout.ms", "batch.num.messages"),
        *("queuing.strategy", "sticky.partitioning.linger.ms", "transaction.timeout.ms"),
        *("message.max.bytes", "message.copy.max.bytes", "queue.buffering.backpressure.threshold"),
    )
)


def check_options(conf: Mapping[str, Any], place: str) -> None:
    """Raise ``SinkError`` for an option that the sink sets itself."""
    for name in sorted(conf):
        if (why := RESERVED.get(name)) is not None:
            raise SinkError(f"{place} does not take the option {name!r}: {why}. Remove it.")


def common(servers: str, conf: Mapping[str, Any]) -> dict[str, Any]:
    """What every client gets: addresses, security, time-outs of sockets."""
    given = {name: value for name, value in conf.items() if name not in _OF_PRODUCERS}
    return {**_COMMON, **given, "bootstrap.servers": servers}


def of_producer(servers: str, conf: Mapping[str, Any]) -> dict[str, Any]:
    """What the transactional producer gets."""
    return {**_COMMON, **_PRODUCER, **conf, "bootstrap.servers": servers}
