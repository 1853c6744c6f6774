"""Rows of Spark become Kafka's records: columns, formats, and what is refused when staged."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from google.protobuf.source_context_pb2 import SourceContext
from pyspark.sql import functions as F
from tests.kafka.reading import records
from tests.kafka.server import KafkaServer
from tests.kit.live_job import LiveJob, settings
from tests.kit.place import Place, files_rows
from tests.kit.sink import sink_context

import weir
from weir.errors import SinkMismatchError
from weir.sinks.base import Batch
from weir.sinks.kafka.encoding import Encoding
from weir.sinks.kafka.formats import RowFormat
from weir.sinks.kafka.sink import KafkaTopic

if TYPE_CHECKING:
    from confluent_kafka import Message
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.kafka
spark_only = pytest.mark.spark

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "order",
        "fields": [{"name": "id", "type": "long"}, {"name": "country", "type": ["null", "string"]}],
    }
)


def published(
    server: KafkaServer, topic: str | None, frame: DataFrame, directory: Path, **given: Any
) -> list[Message]:
    """Publish a frame's rows; the records of the topic."""
    sink = KafkaTopic(topic, servers=server.address, staging=str(directory / "staged"), **given)
    sink.check(sink_context())
    sink.open(sink_context())
    payload = sink.stage(frame, Batch(batch_id=1))
    assert payload is not None
    assert sink.commit(1, sink.flush([payload])) == frame.count()
    sink.close()
    return records(server, topic or frame.first()["topic"])


@spark_only
def test_columns_have_the_names_of_sparks_sink(
    broker: KafkaServer, spark: SparkSession, tmp_path: Path
) -> None:
    """Also those that Spark's own sink lacks; other columns are passed over, as by Spark."""
    topic = broker.create_topic("rows-columns", partitions=3)
    frame = spark.sql(
        f"SELECT 'k' AS key, 'v' AS value, '{topic}' AS topic, 2 AS partition,"
        " array(named_struct('key', 'h', 'value', X'01')) AS headers,"
        " TIMESTAMP '2026-01-02 03:04:05.678' AS timestamp, 1 AS other"
    )
    (found,) = published(broker, None, frame, tmp_path)
    assert (found.key(), found.value(), found.partition()) == (b"k", b"v", 2)
    assert (found.headers(), found.timestamp()[1]) == ([("h", b"\x01")], 1767323045678)


@spark_only
def test_values_are_made_of_all_other_columns(
    broker: KafkaServer, spark: SparkSession, tmp_path: Path
) -> None:
    """JSON with nulls, a key of columns, tombstones by a condition; Avro without a registry."""
    frame = spark.sql(
        "SELECT id, if(id = 2, NULL, 'JP') AS country, id = 3 AS gone FROM range(1, 4)"
    )
    topic = broker.create_topic("rows-json")
    given: dict[str, Any] = {"key": "id", "tombstone_where": "gone"}
    found = published(broker, topic, frame, tmp_path / "a", value="json", **given)
    assert {each.key(): each.value() and json.loads(each.value() or b"") for each in found} == {
        b"1": {"id": 1, "country": "JP", "gone": False},
        b"2": {"id": 2, "country": None, "gone": False},
        b"3": None,
    }
    topic = broker.create_topic("rows-avro")
    found = published(broker, topic, frame, tmp_path / "b", value="avro", schema=SCHEMA, **given)
    schema = fastavro.parse_schema(json.loads(SCHEMA))
    values = {
        each.key(): each.value()
        and fastavro.schemaless_reader(BytesIO(each.value() or b""), schema)
        for each in found
    }
    assert values == {
        b"1": {"id": 1, "country": "JP"},
        b"2": {"id": 2, "country": None},
        b"3": None,
    }
    topic = broker.create_topic("rows-text")
    found = published(broker, topic, frame.select("id"), tmp_path / "c", value="text")
    assert sorted(each.value() or b"" for each in found) == [b"1", b"2", b"3"]


@spark_only
def test_a_record_that_its_topic_cannot_take_is_refused_when_it_is_staged(
    broker: KafkaServer, spark: SparkSession, tmp_path: Path
) -> None:
    """Too large, an unknown topic or partition, by its key; and columns that do not fit."""
    small = broker.create_topic("rows-small", max_message_bytes="2000")
    for columns, what in (
        (
            "'big' AS key, repeat('x', 3000) AS value",
            r"3103 bytes .* 'rows-small' takes 2000 .*big",
        ),
        ("'k' AS key, 'v' AS value, 7 AS partition", r"names partition 7, .* has 1 .*key k"),
        ("'k' AS key, 'v' AS value, 'nowhere' AS topic", r"topic 'nowhere' does not exist .*k"),
        ("'k' AS key, 1 AS value", r"have int in column 'value', which must be string or binary"),
        ("'k' AS key", r"have no column 'value'"),
    ):
        frame = spark.sql(f"SELECT {columns}")
        named = None if "topic" in frame.columns else small
        with pytest.raises(SinkMismatchError, match=what):
            published(broker, named, frame, tmp_path)
    assert records(broker, small) == []
    taken = spark.sql("SELECT 'k' AS key, repeat('x', 1890) AS value")
    assert len(published(broker, small, taken, tmp_path)) == 1


@spark_only
def test_rows_that_a_topic_cannot_take_are_set_aside_by_a_rule(
    broker: KafkaServer, spark: SparkSession, tmp_path: Path
) -> None:
    """As the docs say: the step before the sink measures the value, and the others go on."""
    topic = broker.create_topic("rows-fitting", max_message_bytes="2000")
    given = spark.sql("SELECT id, repeat('x', id * 1000) AS text FROM range(4)")
    given.write.parquet(str(tmp_path / "in"))
    job = weir.Job("fitting")
    bad = job.rejects("bad")
    reading = job.source(
        "read",
        lambda session: session.readStream.schema(given.schema).parquet(str(tmp_path / "in")),
        bounded=True,
    )
    fits = weir.expect(
        reject={
            "fits the topic": lambda df: F.octet_length(F.to_json(F.struct(*df.columns))) < 1_800
        }
    )
    fitting = reading.transform("fitting", fits, on_error=bad)
    staging = str(tmp_path / "staged")
    fitting.sink(
        "published",
        weir.sinks.KafkaTopic(topic, servers=broker.address, staging=staging, value="json"),
    )
    bad.sink("bad_rows", weir.sinks.Files(str(tmp_path / "out")))
    with LiveJob(job, settings(Place(tmp_path))) as live:
        assert live.result().failure is None
    assert sorted(json.loads(each.value() or b"")["id"] for each in records(broker, topic)) == [
        0,
        1,
    ]
    errors = [row[1] for row in files_rows(tmp_path / "out").elements()]
    assert errors == ["breaks 'fits the topic'"] * 2


def test_a_schema_registry_gets_the_schema_and_the_value_its_id() -> None:
    """Confluent's own client and serializers, on their registry in memory."""
    row = {"id": 7, "country": None}
    value = RowFormat(schema=SCHEMA, registry={"url": "mock://rows"}).encoder()(row, "orders")
    assert (value[:1], int.from_bytes(value[1:5])) == (b"\0", 1)
    schema = fastavro.parse_schema(json.loads(SCHEMA))
    assert fastavro.schemaless_reader(BytesIO(value[5:]), schema) == row


def test_protobuf_messages_are_made_of_rows() -> None:
    """Plain, and for a registry, with the message's place in its file."""
    row, message = {"file_name": "a"}, SourceContext(file_name="a")
    assert SourceContext.FromString(RowFormat(message=SourceContext).encoder()(row, "t")) == message
    encode = RowFormat(message=SourceContext, registry={"url": "mock://messages"}).encoder()
    value = encode(row, "t")
    assert value[:1] == value[5:6] == b"\0"
    assert SourceContext.FromString(value[6:]) == message


def test_rows_without_spark_become_sql() -> None:
    """Names are quoted, and so are the texts of errors."""
    encoding = Encoding(
        topic="it's",
        value_format="json",
        key=("a`b", "c"),
        tombstone_where="gone OR c = 'x'",
        rows=None,
        place="KafkaTopic('t')",
    )
    types = {"a`b": "string", "c": "int", "gone": "boolean"}
    assert encoding._key(types) == (
        "CAST(to_json(named_struct('a`b', `a``b`, 'c', `c`)) AS BINARY)"
    )
    assert encoding._value(types).startswith("CASE WHEN (gone OR c = 'x') THEN NULL ELSE CAST(")


@pytest.mark.parametrize(
    ("topic", "key", "columns"),
    [
        ("t", ("id",), ["id", "key", "topic", "value"]),
        ("t", (), ["id", "topic", "value"]),
        (None, ("id",), ["id", "key", "value"]),
        ("t", ("timestamp",), ["id", "key", "topic", "timestamp", "value"]),
    ],
)
def test_a_column_that_the_sink_does_not_use_is_in_the_value(
    topic: str | None, key: tuple[str, ...], columns: list[str]
) -> None:
    """No column of the user's is left out because of its name alone."""
    encoding = Encoding(
        topic=topic,
        value_format="json",
        key=key,
        tombstone_where=None,
        rows=None,
        place="KafkaTopic('t')",
    )
    names = ["id", "key", "topic", "timestamp", "value"]
    assert encoding._value_columns(dict.fromkeys(names, "string")) == columns
