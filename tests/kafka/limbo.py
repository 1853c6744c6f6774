"""Kills the broker just after it has answered a commit, and counts what readers see.

The broker answers a commit once ``PrepareCommit`` is in its log, and writes the markers afterwards.
If it is killed in between, it may take them for written when it starts again: the transaction
hangs. Each time the sink says so, the repair is run, and the epoch is committed again.
``python -m tests.kafka.limbo --tries 30 --seed 1``: some twenty seconds for each try.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.kafka.reading import records
from tests.kafka.server import KafkaServer, running_server
from tests.kafka.staged import attempt, flushed, made

from weir.cli.repair_kafka import Repair, _fate
from weir.errors import HangingTransactionError, WeirError
from weir.kernel import MACHINE
from weir.sinks.kafka.client import KafkaClient, Producer
from weir.sinks.kafka.confluent import ConfluentClient
from weir.sinks.kafka.sink import KafkaTopic

_TOPIC = "limbo"
_LEDGER = f"weir-ledger.{_TOPIC}.out"
_ROWS = 30
#: How often a commit is tried after a kill.
_TRIES_MAX = 10


class _Killing(ConfluentClient):
    """Kills the broker some milliseconds after a commit was answered, and starts it again."""

    def __init__(self, server: KafkaServer, chance: random.Random) -> None:
        super().__init__(server.address, {"linger.ms": 0}, MACHINE)
        self._server = server
        self._chance = chance
        self.kills = False

    def producer(self, transactional_id: str, *, timeout_ms: int, within_s: float) -> Producer:
        made = super().producer(transactional_id, timeout_ms=timeout_ms, within_s=within_s)
        commit = made.commit

        def then_kill(within_s: float) -> None:
            commit(within_s)
            if self.kills:
                self.kills = False
                time.sleep(self._chance.uniform(0, 0.004))
                self._server.kill()
                self._server.start()

        made.commit = then_kill
        return made


class _Driver:
    """The sink of a job whose attempts end with each error."""

    def __init__(self, server: KafkaServer, directory: Path, chance: random.Random) -> None:
        self.client = _Killing(server, chance)
        self.counts: Counter[str] = Counter()
        self._server = server
        self._directory = directory
        self._attempts = 0
        self._recorded = 0
        self._sink = self._opened()

    def publish(self, epoch: int) -> None:
        """Commit an epoch, whatever happens; repair what hangs."""
        rows = [{"value": b"%d %d" % (epoch, number)} for number in range(_ROWS)]
        payloads = flushed(self._sink, epoch, rows, self._directory)
        for tries in range(_TRIES_MAX):
            try:
                if tries:
                    self._sink = self._opened()
                found = self._sink.commit(epoch, payloads)
                break
            except WeirError as error:
                self.counts[type(error).__name__] += 1
                if isinstance(error, HangingTransactionError):
                    print(epoch, error, flush=True)
                    repair = Repair(self._server.address, _LEDGER, [_TOPIC], {})
                    fates = Counter(_fate(each) for each in repair.hanging)
                    self.counts.update(fates)
                    print(epoch, dict(fates), flush=True)
                    left = repair.finish()
                    assert not left, left
        else:
            raise AssertionError(f"epoch {epoch} was not committed")
        self.counts["committed" if found else "found committed"] += 1
        self._recorded = epoch

    def _opened(self) -> KafkaTopic:
        self._attempts += 1
        sink = made(self._server, _TOPIC, self._directory)

        def connect(_: object) -> KafkaClient:
            return self.client

        sink.connect = connect
        sink.open(attempt(self._attempts, newest=self._recorded))
        return sink


def run(server: KafkaServer, directory: Path, *, tries: int, seed: int) -> Counter[str]:
    """How often which error came, and of the rows: ``missing`` and ``doubled``."""
    server.create_topic(_TOPIC, partitions=3)
    driver = _Driver(server, directory, random.Random(seed))
    for number in range(tries):
        driver.publish(2 * number + 1)
        driver.client.kills = True
        driver.publish(2 * number + 2)
        driver.client.kills = False
    found = Counter(each.value() for each in records(server, _TOPIC))
    driver.counts["missing"] = 2 * tries * _ROWS - len(found)
    driver.counts["doubled"] = sum(found.values()) - len(found)
    return driver.counts


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="kill a Kafka broker just after commits")
    parser.add_argument("--tries", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with running_server() as server, tempfile.TemporaryDirectory() as directory:
        counts = run(server, Path(directory), tries=given.tries, seed=given.seed)
    print(dict(counts))
    return 1 if counts["missing"] or counts["doubled"] else 0


if __name__ == "__main__":
    sys.exit(main())
