"""Transactions without an end: the sink writes nothing, and the repair aborts them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.kafka.limbo import run
from tests.kafka.reading import records
from tests.kafka.server import KafkaServer
from tests.kafka.staged import attempt, flushed, made, opened, values
from tests.kit.sink import JOB
from typer.testing import CliRunner

from weir.cli.app import app
from weir.errors import HangingTransactionError
from weir.kernel import MACHINE
from weir.sinks.base import Commit
from weir.sinks.kafka import hanging
from weir.sinks.kafka.client import OpenTransaction, Partition
from weir.sinks.kafka.confluent import ConfluentClient
from weir.sinks.kafka.ledger import Ledger, LedgerEntry

pytestmark = pytest.mark.kafka


class Limbo:
    """Leaves a transaction open, which is taken for one of the sink that its coordinator has ended.

    A real one takes a broker that is killed in the right millisecond (``limbo.py``).
    """

    def __init__(self, server: KafkaServer, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._producer = Producer(
            {"bootstrap.servers": server.address, "transactional.id": name, "log_level": 0}
        )
        self._producer.init_transactions(60)
        self._producer.begin_transaction()
        self._name = name
        self._shown = f"weir-{JOB}-out"
        self._look = hanging.open_transactions
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(hanging, "open_transactions", self._looked)

    def leave(self, topic: str, value: bytes, partition: int = 0) -> None:
        """Write a record and no marker."""
        self._producer.produce(topic, value, b"k", partition=partition)
        self._producer.flush(60)

    def is_seen(self) -> None:
        """From now on it is what it is: another writer's, and under way."""
        self._monkeypatch.setattr(hanging, "open_transactions", self._look)

    def is_of_another(self) -> None:
        """From now on it is another writer's, and hangs."""
        self._shown = self._name

    def _looked(self, *given: Any) -> list[OpenTransaction]:
        shown: Any = {
            "hangs": True,
            "state": "CompleteCommit",
            "transactional_id": self._shown,
        }
        return [
            replace(each, **shown) if each.transactional_id == self._name else each
            for each in self._look(*given)
        ]


def entry(epoch: int, topic: str, ends: dict[int, int]) -> bytes:
    """An epoch's entry in the ledger."""
    commit = Commit(
        timestamp_ms=1,
        job_id=JOB,
        job_name="orders",
        job_directory="",
        sink="out",
        checkpoint_id=epoch,
        attempt=1,
    )
    found = LedgerEntry(after=epoch - 1, rows=1, topic_ids={}, ends={topic: ends}, commit=commit)
    return Ledger.record(found)[1]


#: Which markers were lost, what became of the transaction, and whether the job writes it again.
CASES = {
    "all": ("abort", True),
    "those-of-the-topic": ("commit", False),
    "that-of-the-ledger": ("commit", False),
    "those-of-the-ledger-and-a-partition": ("commit", False),
}


@pytest.mark.parametrize("lost", CASES)
def test_a_transaction_that_hangs_ends_as_readers_have_seen_it(
    broker: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The sink writes nothing beside it, and names the command; then each row is there once."""
    topic = broker.create_topic(f"limbo-{lost}", partitions=2)
    ledger = f"weir-ledger.{topic}.out"
    sink = opened(broker, topic, tmp_path)
    first = [{"value": b"a", "partition": 0}, {"value": b"a", "partition": 1}]
    sink.commit(1, flushed(sink, 1, first, tmp_path))
    second = [{"value": b"b", "partition": 0}, {"value": b"b", "partition": 1}]
    payloads = flushed(sink, 2, second, tmp_path)
    sink.close()
    # Each partition has a record, and the marker of the first transaction.
    written = entry(2, topic, {0: 3, 1: 3})
    limbo = Limbo(broker, f"other-{lost}", monkeypatch)
    plain = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    for number in range(2):
        if lost in ("all", "those-of-the-topic") or (lost.endswith("partition") and number):
            limbo.leave(topic, b"b", number)
        else:
            plain.produce(topic, b"b", partition=number)
    if lost == "those-of-the-topic":
        plain.produce(ledger, written, b"k")
    else:
        limbo.leave(ledger, written)
    plain.flush(60)
    for number in (2, 3):
        with pytest.raises(HangingTransactionError, match=f"weir repair-kafka {broker.address}"):
            made(broker, topic, tmp_path).open(attempt(number))

    fate, again = CASES[lost]
    command = ["repair-kafka", broker.address, ledger, topic]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 1
    assert f"hangs: to {fate}" in shown.output
    assert "repeat the command with --yes" in shown.output
    done = CliRunner().invoke(app, [*command, "--yes"])
    assert (done.exit_code, "Run the job again." in done.output) == (0, True), done.output
    assert "No transaction hangs." in CliRunner().invoke(app, command).output
    sink = made(broker, topic, tmp_path)
    sink.open(attempt(4))
    assert sink.commit(2, payloads) == (2 if again else 0)
    assert sorted(each.value() or b"" for each in records(broker, topic)) == [b"a"] * 2 + [b"b"] * 2
    sink.commit(3, flushed(sink, 3, first, tmp_path))
    assert len(records(broker, topic)) == 6


def test_other_writers_transactions_are_no_concern(
    broker: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink writes beside one that is under way, and the repair leaves it alone."""
    topic = broker.create_topic("others")
    limbo = Limbo(broker, "others", monkeypatch)
    limbo.is_seen()
    limbo.leave(topic, b"limbo")
    sink = opened(broker, topic, tmp_path)
    assert sink.commit(1, flushed(sink, 1, values("a"), tmp_path)) == 1
    command = ["repair-kafka", broker.address, "weir-ledger.others.out", topic, "--yes"]
    done = CliRunner().invoke(app, command)
    assert "under way" in done.output
    assert "No transaction hangs." in done.output
    client = ConfluentClient(broker.address, {}, MACHINE)
    assert len(client.open_transactions([Partition(topic, 0)])) == 1


def test_what_hangs_of_another_writer_is_said_with_the_way_to_end_it(
    broker: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not Weir's to decide, but hides how the job's own transaction ended."""
    topic = broker.create_topic("hidden", partitions=2)
    ledger = "weir-ledger.hidden.out"
    sink = opened(broker, topic, tmp_path)
    sink.close()
    other = Limbo(broker, "other-hidden", monkeypatch)
    other.is_of_another()
    other.leave(topic, b"other", 1)
    own = Limbo(broker, "own-hidden", monkeypatch)
    plain = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    plain.produce(topic, b"b", partition=1)
    plain.flush(60)
    own.leave(topic, b"b", 0)
    own.leave(ledger, entry(1, topic, {0: 1, 1: 2}))
    command = ["repair-kafka", broker.address, ledger, topic, "--yes"]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 1
    assert "cannot be seen how the job's transaction ended" in refused.output
    printed = re.search(
        r"kafka-transactions.sh --bootstrap-server \S+ (abort .*?)\.", refused.output
    )
    assert printed is not None
    main = "org.apache.kafka.tools.TransactionsCommand"
    broker.run(main, "--bootstrap-server", broker.address, *printed[1].split())
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, "Run the job again." in done.output) == (0, True), done.output
    assert sorted(each.value() or b"" for each in records(broker, topic)) == [b"b", b"b"]


def test_a_repair_without_work_says_what_hangs_of_others(
    broker: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its transactional id, with the command that aborts it."""
    topic = broker.create_topic("foreign")
    opened(broker, topic, tmp_path).close()
    other = Limbo(broker, "foreign", monkeypatch)
    other.is_of_another()
    other.leave(topic, b"other")
    command = ["repair-kafka", broker.address, "weir-ledger.foreign.out", topic, "--yes"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    assert "The transaction of 'foreign'" in done.output
    assert "--topic foreign --partition 0 --start-offset 0" in " ".join(done.output.split())
    assert "No transaction of KafkaTopic hangs." in done.output


def test_kills_of_the_broker_after_commits_lose_and_double_nothing(
    own_broker: KafkaServer, tmp_path: Path
) -> None:
    """Three of them; ``python -m tests.kafka.limbo`` makes dozens, of which some hang."""
    counts = run(own_broker, tmp_path, tries=3, seed=3)
    assert (counts["missing"], counts["doubled"]) == (0, 0), counts
