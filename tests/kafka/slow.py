"""A sink whose first transaction takes longer than Kafka allows."""

from __future__ import annotations

from tests.kafka.server import KafkaServer
from tests.kit.waiting import wait_until

from weir.kernel import MACHINE
from weir.sinks.kafka.client import Partition
from weir.sinks.kafka.confluent import ConfluentClient
from weir.sinks.kafka.sink import KafkaTopic


class SlowOnce:
    """Makes the sink's next transaction wait until the broker has aborted it."""

    def __init__(self, sink: KafkaTopic, server: KafkaServer) -> None:
        self.waited = False
        self._server = server
        self._producer = producer = sink._producer
        assert producer is not None
        self._commit = producer.commit
        self._topic = sink._topic or ""
        producer.commit = self._late

    def _late(self, within_s: float) -> None:
        client = ConfluentClient(self._server.address, {}, MACHINE)
        wait_until(lambda: not client.open_transactions([Partition(self._topic, 0)]), "a time-out")
        self.waited = True
        self._commit(within_s)
