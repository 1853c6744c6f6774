"""A topic and a table at one checkpoint, read as DataFrames; and the example that writes both."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from tests.kafka import jars
from tests.kafka.reading import records
from tests.kafka.server import KafkaServer
from tests.kafka.staged import flushed, opened
from tests.kit.place import Place

import weir

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

EXAMPLE = Path(__file__).parents[2] / "examples" / "kafka_orders.py"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A directory in which commands run; they are ended with the test."""
    made = Place(tmp_path)
    yield made
    made.clear()


def test_a_topic_at_a_checkpoint_is_a_frame(
    broker: KafkaServer, tmp_path: Path, spark: SparkSession
) -> None:
    """It has the checkpoint's rows and the columns of Spark's connector; what others write after
    it, and a later checkpoint, are not in it."""
    topic = broker.create_topic("cut-frame", partitions=2)
    sink = opened(broker, topic, tmp_path)
    rows = [{"value": b"1", "partition": 0}, {"value": b"2", "partition": 1}]
    sink.commit(3, flushed(sink, 1, rows, tmp_path))
    at_first = weir.read_consistent({"orders": sink})
    sink.commit(5, flushed(sink, 2, rows[:1], tmp_path))
    other = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    other.produce(topic, b"other", partition=1)
    other.flush(60)
    found = [
        sorted((row.partition, bytes(row.value)) for row in cut.frame("orders", spark).collect())
        for cut in (at_first, weir.read_consistent({"orders": sink}))
    ]
    assert found == [[(0, b"1"), (1, b"2")], [(0, b"1"), (0, b"1"), (1, b"2")]]
    assert {"key", "value", "topic", "partition", "offset", "timestamp"} <= set(
        at_first.frame("orders", spark).columns
    )


@pytest.mark.timeout(600)
def test_the_example_writes_a_topic_and_a_table_at_one_cut(
    broker: KafkaServer, place: Place, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of the command; then both have every order with an amount once, by one cut."""
    broker.create_topic("orders", partitions=3)
    broker.create_topic("orders-clean", partitions=3)
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    environment = {"WEIR_ORDERS_SERVERS": broker.address, "WEIR_ORDERS_OUT": "out"}
    for first in (0, 100):
        for number in range(first, first + 100):
            order = {"id": number, "country": "NL", "amount": number % 4, "at": "2026-01-01"}
            producer.produce("orders", json.dumps(order).encode(), str(number).encode())
        producer.flush(60)
        connector = f"spark.jars={jars.connector()}"
        run = place.start(
            "--until-idle", "--conf", connector, pipeline=EXAMPLE, environment=environment
        )
        assert run.wait() == 0, run.story
    expected = [number for number in range(200) if number % 4]
    ids = [json.loads(each.value() or b"")["id"] for each in records(broker, "orders-clean")]
    assert sorted(ids) == expected

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(place.directory)
    cut = runpy.run_path(str(EXAMPLE))["at_one_cut"]()
    topic = cut.frame("topic", spark).selectExpr("get_json_object(CAST(value AS STRING), '$.id')")
    assert sorted(int(row[0]) for row in topic.collect()) == expected
    assert sorted(row.id for row in cut.frame("table", spark).collect()) == expected
