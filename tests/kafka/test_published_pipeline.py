"""Whole jobs that are killed while they publish: topics, table and files have each row once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.kafka import jars
from tests.kafka.reading import records
from tests.kafka.server import KafkaServer
from tests.kit.place import Place, delta_rows, files_rows

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.kill, pytest.mark.slow]

PIPELINE = Path(__file__).with_name("published_pipeline.py")
_NUMBERS = 2_000
_IN_TRANSACTION = 50


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A directory in which commands run; they are ended with the test."""
    made = Place(tmp_path)
    yield made
    made.clear()


def feed(server: KafkaServer) -> None:
    """Write the numbers in transactions; after each, one that is aborted."""
    producer = Producer(
        {"bootstrap.servers": server.address, "transactional.id": "feed", "log_level": 0}
    )
    producer.init_transactions(60)
    for first in range(0, _NUMBERS, _IN_TRANSACTION):
        for add, end in (
            (0, producer.commit_transaction),
            (_NUMBERS, producer.abort_transaction),
        ):
            producer.begin_transaction()
            for number in range(first, first + _IN_TRANSACTION):
                producer.produce("in", b"%d" % (number + add))
            producer.flush(60)
            end(60)


@pytest.mark.timeout(1200)
def test_a_driver_killed_at_each_step_publishes_each_row_once(
    own_broker: KafkaServer, place: Place
) -> None:
    """Killed before, within and after a transaction, and again in the recommit."""
    for topic in ("in", "raw", "minutes"):
        own_broker.create_topic(topic, partitions=3)
    feed(own_broker)
    environment = {"SERVERS": own_broker.address, "JARS": jars.connector()}
    for point, nth in (
        ("before-a-publication", 2),
        ("within-a-publication", 3),
        ("after-a-publication", 2),
        ("before-a-recommit", 1),
        ("after-a-publication", 3),
    ):
        place.die_at(point, nth, pipeline=PIPELINE, environment=environment)
    place.finish(pipeline=PIPELINE, environment=environment)

    raw = Counter(json.loads(each.value() or b"")["id"] for each in records(own_broker, "raw"))
    assert raw == Counter(range(_NUMBERS))
    files = files_rows(place.directory / "out" / "files")
    assert Counter(row[0] for row in files.elements()) == raw
    totals: Counter[int] = Counter()
    for number in range(_NUMBERS):
        totals[number // 60] += number
    table = delta_rows(place.directory / "out" / "minutes")
    assert sorted(row[1] for row in table.elements()) == sorted(totals.values())
    minutes = [json.loads(each.value() or b"")["total"] for each in records(own_broker, "minutes")]
    assert sorted(minutes) == sorted(totals.values())
    everything = records(own_broker, "raw", isolation="read_uncommitted")
    assert len(everything) > _NUMBERS
