"""Spark's connector under Weir: what is gone, late, aborted or behind is said, and what is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro
from tests.kafka.server import KafkaServer
from tests.kit.live_job import LiveJob, settings
from tests.kit.place import Place, files_rows
from tests.kit.waiting import wait_until

import weir
from weir.core.status import JobStatus
from weir.core.types import TaskState
from weir.errors import InputError
from weir.spark.kafka.code import ISOLATION
from weir.spark.kafka.inputs import KafkaInputs
from weir.spark.kafka.topics import KafkaPlace
from weir.spark.state.directory import QueryDirectory
from weir.storage.local import LocalFileSystem

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_PATIENCE_S = 60.0
#: A job that would be restarted for ever.
RESTARTED = {"restart-strategy.type": "exponential-delay"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A directory for a job's files."""
    return Place(tmp_path)


@pytest.fixture(scope="module")
def admin(broker: KafkaServer) -> AdminClient:
    """Kafka's admin client, which must outlive its answers."""
    return AdminClient({"bootstrap.servers": broker.address, "log_level": 0})


def produce(broker: KafkaServer, topic: str, rows: Iterable[tuple[int, Any]]) -> None:
    """Write values, as JSON unless they are bytes or None, each to its partition."""
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    for partition, value in rows:
        is_raw = value is None or isinstance(value, bytes)
        producer.produce(topic, value if is_raw else json.dumps(value), partition=partition)
    assert producer.flush(_PATIENCE_S) == 0


def copying(place: Place, broker: KafkaServer, topic: str, name: str, **options: Any) -> weir.Job:
    """A job that copies numbers from a topic into files."""
    job = weir.Job(name)
    events = job.source(
        "events",
        weir.sources.kafka(
            topic, servers=broker.address, value="json", schema="id long", **options
        ),
    )
    ids = events.transform("ids", lambda frame: frame.select("value.id"))
    ids.sink("copy", weir.sinks.Files(str(place.directory / "out")))
    return job


def copied(place: Place) -> list[int]:
    """The numbers that are committed."""
    return sorted(row[0] for row in files_rows(place.directory / "out").elements())


def copy_all(place: Place, job: weir.Job, rows: int, **options: Any) -> LiveJob:
    """Run the job until this many rows are committed by a checkpoint, and suspend it."""
    with LiveJob(job, settings(place), **options) as live:
        live.wait_until_it_runs()

        def committed() -> bool:
            live.checkpoint()
            return len(copied(place)) >= rows

        wait_until(committed, f"{rows} rows are committed", within_s=_PATIENCE_S)
    return live


def failure_of(place: Place, job: weir.Job) -> str:
    """Run a job that fails at its first start, whatever its restart strategy; return why."""
    with LiveJob(job, settings(place, RESTARTED)) as live:
        result = live.result()
        restarts = live.gateway.view().restarts
    assert (result.status, restarts) == (JobStatus.FAILED, 0)
    return result.failure or ""


def test_rows_that_retention_took_fail_the_job_once_and_are_given_up_on_request(
    broker: KafkaServer, admin: AdminClient, spark: SparkSession, place: Place
) -> None:
    """The sentence has topic, partition, offsets and how many rows; the checkpoints keep it."""
    topic = broker.create_topic("retention", partitions=2)
    produce(broker, topic, ((i % 2, {"id": i}) for i in range(100)))
    copy_all(place, copying(place, broker, topic, "retention"), 100)
    produce(broker, topic, ((i % 2, {"id": i}) for i in range(100, 200)))
    cut = TopicPartition(topic, 0, 80)
    admin.delete_records([cut])[cut].result(_PATIENCE_S)
    failure = failure_of(place, copying(place, broker, topic, "retention"))
    assert "30 rows of topic 'retention' that the job has not read are gone" in failure
    assert "partition 0: offsets 50 to 79" in failure
    assert "--accept-lost-rows events" in failure
    job = copying(place, broker, topic, "retention")
    live = copy_all(place, job, 170, accept_lost_rows=("events",))
    assert any("given up, as accepted: source 'events': 30 rows" in note for note in live.notes)
    lost = set(range(200)) - set(copied(place))
    assert lost == set(range(100, 160, 2))
    completed = live.gateway.view().latest_completed
    assert completed is not None
    kept = json.loads(completed.tasks[0].entries["weir-kafka-topics"])
    assert "30 rows" in kept["lost"][0]


def test_a_topic_that_does_not_exist_is_refused_by_name(
    broker: KafkaServer, spark: SparkSession, place: Place
) -> None:
    """Spark would fail each batch anew, without the topic's name."""
    failure = failure_of(place, copying(place, broker, "nowhere", "nowhere"))
    assert "The topic 'nowhere' of source 'events' does not exist at" in failure


def test_a_topic_that_was_made_again_is_noticed_though_it_has_more_rows(
    broker: KafkaServer, admin: AdminClient, spark: SparkSession, place: Place
) -> None:
    """Spark compares offsets only, and would go on in the middle of the new topic."""
    topic = broker.create_topic("again")
    produce(broker, topic, ((0, {"id": i}) for i in range(10)))
    copy_all(place, copying(place, broker, topic, "again"), 10)
    admin.delete_topics([topic])[topic].result(_PATIENCE_S)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, "it is gone")
    failure = failure_of(place, copying(place, broker, topic, "again"))
    assert "topic 'again' is gone, with what the job had not read of it" in failure
    broker.create_topic(topic, partitions=2)
    produce(broker, topic, ((i % 2, {"id": 1_000 + i}) for i in range(50)))
    failure = failure_of(place, copying(place, broker, topic, "again"))
    assert "topic 'again' was deleted and made again" in failure
    copy_all(place, copying(place, broker, topic, "again"), 60, accept_lost_rows=("events",))
    assert copied(place) == [*range(10), *range(1_000, 1_050)]


def test_no_snapshot_has_rows_of_a_topic_that_was_made_again_meanwhile(
    broker: KafkaServer, spark: SparkSession, tmp_path: Path
) -> None:
    """Though its offsets go on: they are compared with the topic's id before they are kept."""
    topic = broker.create_topic("renewed")
    produce(broker, topic, ((0, i) for i in range(10)))
    options = {"kafka.bootstrap.servers": broker.address, "subscribe": topic, ISOLATION: "any"}
    kafka = KafkaInputs(spark, accepted=frozenset(), group=None, note=print)
    place = KafkaPlace(step="events", name="events", number=0, options=options)
    kafka.start("events", [place], QueryDirectory(LocalFileSystem(), str(tmp_path)), None)

    def reached(position: int, offset: int) -> TaskState:
        metadata = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
        entry = "\n".join(("v1", metadata, json.dumps({topic: {"0": offset}})))
        entries = {f"offsets/{position}": entry}
        return TaskState(vertex="events", position=position, operators=(), entries=entries)

    kafka.acknowledged(1, reached(0, 10))
    broker.delete_topic(topic)
    broker.create_topic(topic)
    produce(broker, topic, ((0, i) for i in range(50)))
    kafka.acknowledged(2, reached(1, 10))
    with pytest.raises(InputError, match="Topic 'renewed' was deleted and made again while source"):
        kafka.acknowledged(3, reached(2, 30))
    kafka.close()


def test_rows_of_a_topic_that_is_made_again_under_a_running_job_are_not_committed(
    broker: KafkaServer, admin: AdminClient, spark: SparkSession, place: Place
) -> None:
    """Spark asks again if the new topic is shorter at first, and goes on once it is not."""
    topic = broker.create_topic("renewed-live")
    produce(broker, topic, ((0, {"id": i}) for i in range(10)))
    given = settings(place, RESTARTED, interval="500 ms")
    with LiveJob(copying(place, broker, topic, "renewed"), given) as live:
        wait_until(lambda: len(copied(place)) == 10, "the first rows are committed")
        admin.delete_topics([topic])[topic].result(_PATIENCE_S)
        broker.create_topic(topic)
        produce(broker, topic, ((0, {"id": 1_000 + i}) for i in range(50)))
        result = live.result()
    assert result.status is JobStatus.FAILED
    assert "topic 'renewed-live'" in (result.failure or "")
    assert copied(place) == list(range(10))


def test_offsets_of_checkpoints_are_committed_to_the_group_that_is_named(
    broker: KafkaServer, admin: AdminClient, spark: SparkSession, place: Place
) -> None:
    """Tools that watch the lag see how far the job is, though Spark uses groups of its own."""
    topic = broker.create_topic("watched", partitions=2)
    produce(broker, topic, ((i % 2, {"id": i}) for i in range(20)))

    def offsets() -> dict[int, int]:
        asked = ConsumerGroupTopicPartitions("watchers")
        (answer,) = admin.list_consumer_group_offsets([asked]).values()
        found = answer.result(_PATIENCE_S).topic_partitions
        return {one.partition: one.offset for one in found}

    with LiveJob(copying(place, broker, topic, "w", group="watchers"), settings(place)) as live:
        live.wait_for_records(20)
        live.checkpoint()
        wait_until(lambda: offsets() == {0: 10, 1: 10}, "the group has the offsets")


def test_aborted_rows_are_read_by_sparks_default_which_is_said(
    broker: KafkaServer, spark: SparkSession, place: Place
) -> None:
    """The helper reads committed rows only."""
    topic = broker.create_topic("aborted")
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "aborting"})
    producer.init_transactions(_PATIENCE_S)
    for first, end in ((0, producer.abort_transaction), (5, producer.commit_transaction)):
        producer.begin_transaction()
        for number in range(first, first + 5):
            producer.produce(topic, json.dumps({"id": number}))
        producer.flush(_PATIENCE_S)
        end(_PATIENCE_S)
    copy_all(place, copying(place, broker, topic, "committed"), 5)
    assert copied(place) == list(range(5, 10))

    def by_hand(session: SparkSession) -> DataFrame:
        reader = session.readStream.format("kafka").option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", broker.address)
        return reader.option("startingOffsets", "earliest").load()

    other = Place(place.directory / "by-hand")
    other.directory.mkdir()
    job = weir.Job("by-hand")
    parsed = job.source("plain", by_hand).transform(
        "ids", lambda frame: frame.select(F.from_json(F.col("value").cast("string"), "id long").id)
    )
    parsed.sink("copy", weir.sinks.Files(str(other.directory / "out")))
    live = copy_all(other, job, 10)
    assert copied(other) == list(range(10))
    said = [note for note in live.notes if "read_uncommitted" in note]
    assert len(said) == 1 and said[0].startswith("source 'plain' reads Kafka")


def test_a_slow_partition_loses_rows_and_the_job_says_so(
    broker: KafkaServer, spark: SparkSession, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark has one watermark for all partitions: the greatest event time that it has seen."""
    topic = broker.create_topic("slow", partitions=2)

    def at(second: int) -> dict[str, Any]:
        return {"id": second, "ts": f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"}

    produce(broker, topic, ((0, at(second)) for second in range(600)))
    schema = "id long, ts timestamp"
    source = weir.sources.kafka(topic, servers=broker.address, value="json", schema=schema)
    job = weir.Job("slow")
    timed = job.source("events", source).transform(
        "timed", lambda frame: frame.select("value.*").withWatermark("ts", "10 seconds")
    )
    sums = timed.transform(
        "sums", lambda frame: frame.groupBy(F.window("ts", "10 seconds")).count()
    )
    sums.sink("out", weir.sinks.Files(str(place.directory / "out")))
    with LiveJob(job, settings(place)) as live:
        live.wait_for_records(600)
        live.wait_for(lambda view: (view.vertices[0].watermark_ms or 0) > 0, "a watermark")
        produce(broker, topic, ((1, at(second)) for second in range(100)))
        live.wait_for_records(700)
        view = live.wait_for(lambda view: view.vertices[0].late > 0, "late rows")
    assert view.vertices[0].lags == {topic: {"0": 0, "1": 0}}
    assert [record for record in caplog.records if "Late rows that" in record.getMessage()]


AVRO = '{"type":"record","name":"r","fields":[{"name":"id","type":["long","null"]}]}'


def read(spark: SparkSession, source: Callable[[SparkSession], DataFrame], name: str) -> list[Any]:
    """What a source has now."""
    writer = source(spark).writeStream.format("memory").queryName(name)
    writer.trigger(availableNow=True).start().awaitTermination()
    return spark.table(name).select("value").collect()


def test_values_are_decoded_and_confluents_five_bytes_are_cut_off_only_if_they_are_there(
    broker: KafkaServer, spark: SparkSession
) -> None:
    """Cut off elsewhere, or left where they are, they would give wrong values without an error."""
    plain = broker.create_topic("avro")
    framed = broker.create_topic("avro-confluent")
    values = spark.range(50).select(to_avro(F.struct("id"), AVRO).alias("value"))
    for topic, frame in (
        (plain, values),
        (framed, values.selectExpr("concat(unhex('0000000007'), value) AS value")),
    ):
        writer = frame.write.format("kafka").option("kafka.bootstrap.servers", broker.address)
        writer.option("topic", topic).save()
    produce(broker, framed, [(0, None)])
    kafka = weir.sources.kafka
    found = read(spark, kafka(plain, servers=broker.address, value="avro", schema=AVRO), "avro")
    assert sum(row.value.id for row in found) == 1225
    source = kafka(framed, servers=broker.address, value="avro-confluent", schema=AVRO)
    found = read(spark, source, "avro_confluent")
    assert sum(row.value.id for row in found if row.value is not None) == 1225
    assert len(found) == 51
    with pytest.raises(Exception, match="does not begin as those of Confluent"):
        read(
            spark,
            kafka(plain, servers=broker.address, value="avro-confluent", schema=AVRO),
            "no_avro",
        )


def test_a_value_that_is_not_json_fails_or_is_null_as_the_source_says(
    broker: KafkaServer, spark: SparkSession
) -> None:
    """Spark's own default is null, without a word."""
    topic = broker.create_topic("not-json")
    produce(broker, topic, [(0, b"{oh"), (0, {"id": 7})])
    kafka = weir.sources.kafka
    source = kafka(topic, servers=broker.address, value="json", schema="id long", on_error="null")
    assert [row.value and row.value.id for row in read(spark, source, "nulls")] == [None, 7]
    with pytest.raises(Exception, match="MALFORMED_RECORD"):
        read(spark, kafka(topic, servers=broker.address, value="json", schema="id long"), "fails")
