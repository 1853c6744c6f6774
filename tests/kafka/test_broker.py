"""The tests' own broker: it keeps what it has over a kill, and transactions work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from tests.kafka.reading import records
from tests.kafka.server import KafkaServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka


def test_readers_see_committed_transactions_and_no_aborted_ones(broker: KafkaServer) -> None:
    """The second transaction is aborted; a reader that asks for everything sees both."""
    topic = broker.create_topic("committed-and-aborted", partitions=2)
    producer = Producer(
        {"bootstrap.servers": broker.address, "transactional.id": "server", "log_level": 0}
    )
    producer.init_transactions(60)
    for value, end in (
        (b"kept", producer.commit_transaction),
        (b"dropped", producer.abort_transaction),
    ):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(60)
        end(60)
    assert [each.value() for each in records(broker, topic)] == [b"kept"]
    seen = {each.value() for each in records(broker, topic, isolation="read_uncommitted")}
    assert seen == {b"kept", b"dropped"}


def test_a_broker_that_was_killed_has_its_records(own_broker: KafkaServer) -> None:
    """Kill -9, then a start on the same data."""
    topic = own_broker.create_topic("kept")
    producer = Producer({"bootstrap.servers": own_broker.address, "log_level": 0})
    producer.produce(topic, b"kept")
    assert producer.flush(60) == 0
    own_broker.kill()
    own_broker.start()
    assert [each.value() for each in records(own_broker, topic)] == [b"kept"]


@pytest.mark.spark
def test_spark_writes_and_reads_with_the_connector(
    broker: KafkaServer, spark: SparkSession
) -> None:
    """With the jars that PySpark lacks."""
    topic = broker.create_topic("by-spark", partitions=2)
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    frame.write.format("kafka").option("kafka.bootstrap.servers", broker.address).option(
        "topic", topic
    ).save()
    found = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.address)
    assert found.option("subscribe", topic).load().selectExpr(
        "sum(CAST(CAST(value AS STRING) AS LONG))"
    ).first() == (4950,)
