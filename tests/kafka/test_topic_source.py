"""``KafkaTopic``, Weir's own reader, over a real broker.

``tests/sources/test_topics.py`` has its rules over a cluster in memory; here is what that assumes
of Kafka and librdkafka, and whole jobs.
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from tests.kafka.reading import records
from tests.kafka.server import KafkaServer
from tests.kit.live_job import LiveJob, settings
from tests.kit.place import Place, Rows, Run, assert_same, files_rows
from tests.kit.source_job import FakeJob
from tests.kit.waiting import PATIENCE_S, wait_until

import weir
from weir.core.status import JobStatus
from weir.errors import InputError, LostInputError
from weir.sources import KafkaTopic

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

ID = pa.schema([("id", pa.int64())])
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A directory in which commands run; whatever they started is ended with the test."""
    made = Place(tmp_path)
    yield made
    made.clear()


class Feed:
    """Writes rows in transactions, which must end before the next begins."""

    def __init__(self, broker: KafkaServer, topic: str) -> None:
        self._topic = topic
        options = {"bootstrap.servers": broker.address, "log_level": 0}
        self._producer = Producer({**options, "transactional.id": topic})
        self._producer.init_transactions(PATIENCE_S)

    def put(self, rows: dict[int, list[object]], end: str = "commit") -> None:
        """Write rows by partition, then ``commit``, ``abort`` or leave the transaction ``open``."""
        self._producer.begin_transaction()
        for partition, values in rows.items():
            for value in values:
                self._producer.produce(self._topic, json.dumps(value), partition=partition)
        self._producer.flush()
        self.end(end)

    def end(self, end: str) -> None:
        """End the open transaction."""
        if end == "commit":
            self._producer.commit_transaction(PATIENCE_S)
        elif end == "abort":
            self._producer.abort_transaction(PATIENCE_S)


def ids(*numbers: int) -> list[object]:
    return [{"id": number} for number in numbers]


def add_partition(broker: KafkaServer, topic: str, partitions: int) -> None:
    """Let the topic have so many partitions."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    made = admin.create_partitions([NewPartitions(topic, partitions)])
    made[topic].result(PATIENCE_S)
    wait_until(
        lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == partitions,
        "the new partition",
    )


def source(broker: KafkaServer, topic: str, **options: object) -> KafkaTopic:
    given = {"value": "json", "schema": "id long", "discovery_interval": 0.2, **options}
    return KafkaTopic(topic, servers=broker.address, **given)  # type: ignore[arg-type]


def read_until(job: FakeJob, count: int) -> list[int]:
    """Step until so many rows were read; their ids in order."""

    def has_them() -> bool:
        if job.run.timers:
            job.run.timers.popleft()()
        job.step()
        return len(job.rows) >= count

    wait_until(has_them, f"{count} rows are read")
    return sorted(row["id"] for row in job.rows)


# -- what Kafka and librdkafka do


def test_a_bounded_input_ends_at_stable_ends_behind_aborted_rows(broker: KafkaServer) -> None:
    """A partition may end with the marks of transactions, or in front of an open one."""
    topic = broker.create_topic("bounded", 3)
    feed = Feed(broker, topic)
    feed.put({0: ids(1, 2), 1: ids(3)})
    feed.put({0: ids(-1), 1: ids(-2, -3)}, "abort")
    feed.put({0: ids(4)})
    feed.put({0: ids(99)}, "open")
    job = FakeJob(source(broker, topic, bounded=True), 2, schema=ID)
    job.finish()
    feed.end("commit")
    assert sorted(row["id"] for row in job.rows) == [1, 2, 3, 4]
    later = FakeJob(source(broker, topic, bounded=True), 2, schema=ID)
    later.finish()
    assert sorted(row["id"] for row in later.rows) == [1, 2, 3, 4, 99]


def test_new_partitions_are_read_while_the_job_runs_and_after_a_restore(
    broker: KafkaServer,
) -> None:
    """From their beginning, by another number of readers, too."""
    topic = broker.create_topic("partitions", 1)
    feed = Feed(broker, topic)
    feed.put({0: ids(1)})
    job = FakeJob(source(broker, topic), 2, schema=ID)
    assert read_until(job, 1) == [1]
    add_partition(broker, topic, 2)
    feed = Feed(broker, topic)
    feed.put({0: ids(2), 1: ids(3)})
    assert read_until(job, 3) == [1, 2, 3]
    checkpoint = job.checkpoint()
    add_partition(broker, topic, 3)
    feed = Feed(broker, topic)
    feed.put({2: ids(4)})
    job.restore(checkpoint, 3)
    assert read_until(job, 4) == [1, 2, 3, 4]


def test_a_time_to_start_at_is_looked_up(broker: KafkaServer) -> None:
    """Beyond the newest record it is the end."""
    topic = broker.create_topic("times", 1)
    producer = Producer({"bootstrap.servers": broker.address})
    for second in range(5):
        producer.produce(topic, json.dumps({"id": second}), timestamp=1_000 * second + 1_000)
    producer.flush()
    from_three = datetime.fromtimestamp(2.5, UTC)
    job = FakeJob(source(broker, topic, start=from_three, bounded=True), 1, schema=ID)
    job.finish()
    assert [row["id"] for row in job.rows] == [2, 3, 4]
    beyond = datetime.fromtimestamp(100, UTC)
    job = FakeJob(source(broker, topic, start=beyond, bounded=True), 1, schema=ID)
    job.finish()
    assert job.rows == []


@pytest.mark.parametrize("restores", [True, False])
def test_a_topic_made_again_with_more_rows_than_the_former_is_refused(
    broker: KafkaServer, restores: bool
) -> None:
    """librdkafka would go on in the middle of it, and so would Spark's connector."""
    topic = broker.create_topic(f"again-{restores}", 1)
    Feed(broker, topic).put({0: ids(1, 2, 3)})
    job = FakeJob(source(broker, topic), 1, schema=ID)
    assert read_until(job, 3) == [1, 2, 3]
    checkpoint = job.checkpoint()
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic is gone")
    broker.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(100):
        producer.produce(topic, json.dumps({"id": -number}))
    producer.flush()
    if restores:
        job.restore(checkpoint)
    refused = "'again-.*' is not the one that the job has read"
    deadline = time.monotonic() + PATIENCE_S
    with pytest.raises(LostInputError, match=refused):
        # Without the enumerator, which would see it, too.
        while time.monotonic() < deadline:
            job.batch()
    assert len(job.rows) == 3


def test_retention_past_the_position_is_refused_with_how_many_rows_are_gone(
    broker: KafkaServer,
) -> None:
    """By the reader that has the partition."""
    topic = broker.create_topic("expired", 1)
    Feed(broker, topic).put({0: ids(*range(10))})
    job = FakeJob(source(broker, topic), 1, schema=ID)
    read_until(job, 10)
    checkpoint = job.checkpoint()
    Feed(broker, topic).put({0: ids(*range(50))})
    admin = AdminClient({"bootstrap.servers": broker.address})
    cut = TopicPartition(topic, 0, 41)
    admin.delete_records([cut])[cut].result(PATIENCE_S)
    job.restore(checkpoint)
    lost = "has lost up to 30 rows of partition 0 .*: it is at offset 11, .* starts at 41"
    with pytest.raises(LostInputError, match=lost):
        read_until(job, 11)


def test_a_cluster_that_is_not_there_is_named_with_the_reason(broker: KafkaServer) -> None:
    """So is one that this client may not talk to."""
    answers = {
        "127.0.0.1:1": ({}, "refused"),
        broker.address: ({"security.protocol": "ssl"}, "SSL|ssl|handshake|Disconnected"),
    }
    for address, (conf, why) in answers.items():
        absent = KafkaTopic("t", servers=address, conf={"socket.timeout.ms": 3_000, **conf})
        with pytest.raises(InputError, match=f"Kafka at {address} does not answer .*({why})"):
            FakeJob(absent, 1, schema=ID).coordinate()


# -- whole jobs


def windows(frame: DataFrame) -> DataFrame:
    counted = frame.groupBy(F.window("ts", "10 seconds"), "partition").agg(F.count("*").alias("n"))
    return counted.select(F.col("window.start").alias("start"), "partition", "n")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_no_row_of_a_slow_partition_is_late(broker: KafkaServer, place: Place) -> None:
    """Ten minutes of one partition come before older rows of the other. Spark's connector has one
    watermark for both, so that windows drop all rows of the slow one."""
    topic = broker.create_topic("late", 2)
    times = [{"ts": (START + timedelta(seconds=one)).isoformat()} for one in range(600)]
    feed = Feed(broker, topic)
    feed.put({0: list(times)})
    job = weir.Job("slow")
    schema, columns = "ts timestamp", ["partition"]
    events = source(broker, topic, schema=schema, columns=columns, max_rows_per_batch=200)
    watermarks = weir.sources.Watermarks(column="ts", delay_ms=10_000)
    stream = job.source("events", events, parallelism=2, watermarks=watermarks)
    sums = weir.sinks.Files(str(place.directory / "sums"))
    stream.transform("sums", windows).sink("sums", sums)
    with LiveJob(job, settings(place)) as live:
        live.wait_for_records(600)
        for _ in range(2):
            live.checkpoint()
        feed.put({1: list(times[:100])})
        live.wait_for_records(700)
        live.gateway.stop_with_savepoint(None, drain=True).result(PATIENCE_S)
        assert live.result().status is JobStatus.FINISHED
    rows: Counter[int] = Counter()
    for (_, partition, n), count in files_rows(place.directory / "sums").items():
        rows[partition] += n * count
    assert rows == {0: 600, 1: 100}


#: The job that is killed.
KILLED = """
import os
import weir
from pyspark.sql import functions as F

job = weir.Job("killed")
events = weir.sources.KafkaTopic(
    "killed",
    servers=os.environ["SERVERS"],
    value="json",
    schema="id long, ts timestamp",
    columns=["partition"],
    discovery_interval=0.5,
    max_rows_per_batch=500,
)
stream = job.source(
    "events",
    events,
    parallelism=2,
    watermarks=weir.sources.Watermarks(column="ts", delay_ms=20_000, idle_after_ms=60_000),
)
stream.sink("raw", weir.sinks.Files("raw"))


def sums(frame):
    counted = frame.groupBy(F.window("ts", "5 seconds")).agg(F.sum("id").alias("sum"))
    return counted.select(F.col("window.start").alias("start"), "sum")


stream.transform("sums", sums).sink("sums_table", weir.sinks.Files("sums"))
"""


class SteadyFeed:
    """Writes transactions on a thread of its own, of which every fifth is aborted."""

    _ROWS = 200
    #: However long the job takes to start: what is written must be read, too.
    _ROWS_MAX = 20_000

    def __init__(self, broker: KafkaServer, topic: str, partitions: int) -> None:
        self._broker, self._topic, self.partitions = broker, topic, partitions
        self._ended = threading.Event()
        self._grows = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def grow(self) -> None:
        """Add a partition before the next transaction."""
        self._grows.set()

    def end(self) -> None:
        """Write no more."""
        self._ended.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        feed, number, id = Feed(self._broker, self._topic), 0, 0
        while not self._ended.wait(0.1):
            if self._grows.is_set():
                self._grows.clear()
                self.partitions += 1
                add_partition(self._broker, self._topic, self.partitions)
                feed = Feed(self._broker, self._topic)
            if id >= self._ROWS_MAX:
                continue
            aborts = number % 5 == 4
            number += 1
            rows: dict[int, list[object]] = {}
            for one in range(id, id + self._ROWS):
                time = (START + timedelta(milliseconds=2 * one)).isoformat()
                row = {"id": -1 if aborts else one, "ts": time}
                rows.setdefault(one % self.partitions, []).append(row)
            feed.put(rows, "abort" if aborts else "commit")
            id += 0 if aborts else self._ROWS


def kill(run: Run, which: str) -> None:
    """Kill the driver, its JVM, or all of its processes."""
    if which == "all":
        run.end()
        return
    names = {
        "driver": lambda one: one.pid == run.process.pid,
        "jvm": lambda one: one.name() == "java",
    }
    for process in run.processes():
        if names[which](process):
            process.send_signal(signal.SIGKILL)
    run.process.wait(PATIENCE_S)
    run.end()


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.parametrize("seed", [1])
def test_no_row_is_lost_or_doubled_when_drivers_and_jvms_are_killed(
    broker: KafkaServer, place: Place, seed: int
) -> None:
    """A copy and windowed sums of a topic with aborted transactions and partitions that are added
    while the job runs; the judge is another consumer."""
    rng = random.Random(seed)
    topic = broker.create_topic("killed", 3)
    pipeline = place.write("pipeline.py", KILLED)
    environment = {"SERVERS": broker.address}
    feed = SteadyFeed(broker, topic, 3)
    try:
        for which in ("driver", "jvm", "all"):
            run = place.start(pipeline=pipeline, environment=environment)
            run.wait_for(r"checkpoint \d+ completed")
            feed.grow()
            time.sleep(rng.uniform(0, 4))
            kill(run, which)
    finally:
        feed.end()
    run = place.start(pipeline=pipeline, environment=environment)
    expected = Rows()
    sums: Counter[datetime] = Counter()
    for record in records(broker, topic):
        row = json.loads(record.value() or b"")
        time_of = datetime.fromisoformat(row["ts"])
        expected[row["id"], time_of, record.partition()] += 1
        sums[time_of - timedelta(seconds=time_of.second % 5, microseconds=time_of.microsecond)] += (
            row["id"]
        )
    assert feed.partitions == 6
    assert min(id for id, _, _ in expected) == 0
    raw = place.directory / "raw"
    wait_until(lambda: files_rows(raw).total() >= expected.total(), "every row is committed")
    assert place.weir("stop", "--drain", "killed", "-m", run.address).returncode == 0
    assert run.wait() == 0, run.story()
    assert_same(files_rows(raw), expected, "the copy")
    assert_same(files_rows(place.directory / "sums"), Rows(sums.items()), "the sums")
