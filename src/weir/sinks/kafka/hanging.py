"""Transactions that hang: found and ended with kafka-python, which alone has the two requests.

A broker that is killed just after it has answered a commit may come up again with the coordinator
saying ``CompleteCommit``, while some partitions have no marker. Then no reader sees the records,
and the next transaction of the same producer decides about them: its commit shows them, its abort
removes them. So nothing may be written before the transaction is ended in those partitions, by
hand, with the producer's id and epoch and the coordinator's epoch that the partition itself has.
``repair.py`` decides how.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weir.errors import UnsupportedEnvironmentError
from weir.sinks.kafka.client import KafkaFailure, OpenTransaction, Partition, needs

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

#: States in which a marker may still come.
UNDER_WAY = frozenset(("PrepareCommit", "PrepareAbort", "PrepareEpochFence"))
_TIMEOUT_MS = 30_000
#: librdkafka's options by the names that kafka-python has for them.
_RENAMED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "security.protocol": ("security_protocol", lambda value: str(value).upper()),
    "sasl.mechanism": ("sasl_mechanism", str),
    "sasl.mechanisms": ("sasl_mechanism", str),
    "sasl.username": ("sasl_plain_username", str),
    "sasl.password": ("sasl_plain_password", str),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", str),
    "ssl.ca.location": ("ssl_cafile", str),
    "ssl.certificate.location": ("ssl_certfile", str),
    "ssl.key.location": ("ssl_keyfile", str),
    "ssl.key.password": ("ssl_password", str),
    "ssl.endpoint.identification.algorithm": (
        "ssl_check_hostname",
        lambda value: str(value).lower() == "https",
    ),
    "client.id": ("client_id", str),
}


def open_transactions(
    servers: str, conf: Mapping[str, Any], partitions: Sequence[Partition]
) -> list[OpenTransaction]:
    """The transactions without an end in these partitions."""
    from kafka import TopicPartition

    with _admin(servers, conf) as admin:
        asked = [TopicPartition(each.topic, each.number) for each in partitions]
        topics = " and ".join(sorted({repr(each.topic) for each in partitions}))
        with needs(f"Read on topic {topics}"), _failing():
            described_producers = admin.describe_producers(asked)
        found = [
            (Partition(where.topic, where.partition), producer)
            for where, state in described_producers.items()
            for producer in state.active_producers
            if producer.current_transaction_start_offset is not None
            and producer.current_transaction_start_offset >= 0
        ]
        if not found:
            return []
        ids = {
            listed.producer_id: listed.transactional_id
            for of_broker in admin.list_transactions().values()
            for listed in of_broker
        }
        wanted = sorted({ids[each.producer_id] for _, each in found if each.producer_id in ids})
        known = admin.describe_transactions(wanted) if wanted else {}
    opened = []
    for partition, producer in found:
        name = ids.get(producer.producer_id)
        described = None if name is None else known.get(name)
        state = "" if described is None else str(described.state.value)
        is_live = described is not None and (
            state in UNDER_WAY
            or (state == "Ongoing" and described.producer_epoch == producer.producer_epoch)
        )
        opened.append(
            OpenTransaction(
                partition=partition,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                start_offset=producer.current_transaction_start_offset,
                coordinator_epoch=producer.coordinator_epoch,
                transactional_id=name,
                state=state,
                hangs=not is_live,
            )
        )
    return opened


def finish(
    servers: str, conf: Mapping[str, Any], transaction: OpenTransaction, *, commit: bool
) -> None:
    """Write the marker that commits or aborts a transaction in its partition."""
    from kafka.admin import AbortTransactionSpec

    from kafka import TopicPartition

    where = TopicPartition(transaction.partition.topic, transaction.partition.number)
    with _admin(servers, conf) as admin:
        request_of = admin._abort_transaction_request

        def request(spec: Any) -> Any:
            made = request_of(spec)
            made.markers[0].transaction_result = commit
            return made

        # Its public call only aborts.
        admin._abort_transaction_request = request
        with needs("Alter on the cluster"), _failing():
            admin.abort_transaction(
                AbortTransactionSpec(
                    where,
                    transaction.producer_id,
                    transaction.producer_epoch,
                    # A marker with another is refused: TransactionCoordinatorFenced.
                    transaction.coordinator_epoch,
                )
            )


@contextmanager
def _admin(servers: str, conf: Mapping[str, Any]) -> Iterator[KafkaAdminClient]:
    """An admin client. Raises ``KafkaFailure`` for what it raises."""
    try:
        from kafka.admin import KafkaAdminClient
    except ImportError as error:
        raise UnsupportedEnvironmentError(
            "Hanging transactions are found with kafka-python: install it with pip install"
            " 'weir-spark[kafka]'."
        ) from error
    given = {}
    for name, value in conf.items():
        if name in _RENAMED:
            renamed, convert = _RENAMED[name]
            given[renamed] = convert(value)
    with _failing():
        admin = KafkaAdminClient(
            bootstrap_servers=servers.split(","), request_timeout_ms=_TIMEOUT_MS, **given
        )
        try:
            yield admin
        finally:
            admin.close()


@contextmanager
def _failing() -> Iterator[None]:
    """Raise ``KafkaFailure`` for what kafka-python raises, with librdkafka's name of the error."""
    from kafka.errors import KafkaError

    try:
        yield
    except KafkaError as error:
        words = re.findall("[A-Z][a-z]+", type(error).__name__.removesuffix("Error"))
        raise KafkaFailure("_".join(words).upper(), str(error)) from error
