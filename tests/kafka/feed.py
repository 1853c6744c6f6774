"""Writes numbers into a topic, in transactions of which some are aborted, no faster than asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer
from tests.kafka.server import KafkaServer
from tests.kit.waiting import wait_until

from weir.kernel import MACHINE
from weir.sinks.kafka.client import Partition
from weir.sinks.kafka.confluent import ConfluentClient

_IN_TRANSACTION = 100
#: After so many transactions, one that is aborted.
_ABORTED_EACH = 4
_PATIENCE_S = 120.0
_PAUSE_S = 0.1


class Feed:
    """A thread that writes the numbers from 0 on, up to an end that is raised now and then."""

    def __init__(self, server: KafkaServer, topic: str, *, partitions: int, rows: int) -> None:
        self._server = server
        self._topic = topic
        self._partitions = [Partition(topic, number) for number in range(partitions)]
        self._rows = rows
        self._next = 0
        self._allowed = 0
        #: Held while a transaction is open: whoever stops the broker holds it.
        self._transaction = threading.Lock()
        self._over = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._feed, name="feed", daemon=True)
        self._thread.start()

    def allow(self, share: float) -> None:
        """Let this share of all numbers be written."""
        self._allowed = min(self._rows, round(self._rows * share))

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Wait until all that is allowed can be read; nothing is written meanwhile."""
        wait_until(lambda: self._is_done() or self.error is not None, "all is fed")
        if self.error is not None:
            raise self.error
        with self._transaction:
            client = ConfluentClient(self._server.address, {}, MACHINE)

            def is_stable() -> bool:
                ends, stable = (client.ends(self._partitions, stable=one) for one in (False, True))
                return ends == stable

            wait_until(is_stable, "the input's markers are written")
            client.close()
            yield

    def ends(self) -> dict[int, int]:
        """The offsets up to which all is written."""
        client = ConfluentClient(self._server.address, {}, MACHINE)
        try:
            found = client.ends(self._partitions, stable=True)
        finally:
            client.close()
        return {each.number: end for each, end in found.items()}

    def end(self) -> None:
        """Stop writing."""
        self._over.set()
        self._thread.join()

    def _is_done(self) -> bool:
        return self._next >= self._allowed

    def _feed(self) -> None:
        try:
            producer = Producer(
                {
                    "bootstrap.servers": self._server.address,
                    "transactional.id": "feed",
                    "log_level": 0,
                }
            )
            producer.init_transactions(_PATIENCE_S)
            number = 0
            while not self._over.wait(_PAUSE_S):
                if self._is_done():
                    continue
                with self._transaction:
                    number += 1
                    last = min(self._next + _IN_TRANSACTION, self._rows)
                    if number % _ABORTED_EACH == 0:
                        self._write(producer, range(self._next, last))
                        producer.abort_transaction(_PATIENCE_S)
                    self._write(producer, range(self._next, last))
                    producer.commit_transaction(_PATIENCE_S)
                    self._next = last
        except BaseException as error:
            self.error = error

    def _write(self, producer: Producer, numbers: range) -> None:
        producer.begin_transaction()
        for number in numbers:
            partition = number % len(self._partitions)
            producer.produce(self._topic, b"%d" % number, partition=partition)
        producer.flush(_PATIENCE_S)
