"""``KafkaTopic`` against a real broker: each sentence of the contract of a sink."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import murmur2
from tests.kafka.reading import records
from tests.kafka.server import KafkaServer
from tests.kafka.slow import SlowOnce
from tests.kafka.staged import JobRecords, attempt, flushed, made, opened, values
from tests.kit.sink import JOB
from tests.kit.waiting import wait_until

import weir
from weir.core.types import Payload
from weir.errors import (
    JobFencedError,
    LostRowsError,
    SinkError,
    SinkMismatchError,
    StorageError,
)
from weir.kernel import MACHINE
from weir.sinks.kafka.client import Ends, Partition
from weir.sinks.kafka.confluent import ConfluentClient
from weir.sinks.kafka.options import RESERVED
from weir.sinks.kafka.sink import KafkaTopic

pytestmark = pytest.mark.kafka


def seen(server: KafkaServer, topic: str) -> list[str]:
    """The values of what readers of committed records see, sorted."""
    return sorted((each.value() or b"-").decode() for each in records(server, topic))


def test_an_epoch_is_visible_once_it_is_committed(broker: KafkaServer, tmp_path: Path) -> None:
    """Staged and flushed rows are not; a repeated commit adds nothing."""
    topic = broker.create_topic("once", partitions=3)
    sink = opened(broker, topic, tmp_path)
    assert sink.newest_committed() is None
    payloads = flushed(sink, 1, values("a", "b", "c"), tmp_path)
    assert seen(broker, topic) == []
    assert sink.commit(7, payloads) == 3
    assert seen(broker, topic) == ["a", "b", "c"]
    assert sink.newest_committed() == 7
    assert sink.commit(7, payloads) == 0
    assert sink.commit(9, flushed(sink, 2, values("d"), tmp_path)) == 1
    assert seen(broker, topic) == ["a", "b", "c", "d"]
    sink.close()


def test_another_process_finds_a_committed_epoch(broker: KafkaServer, tmp_path: Path) -> None:
    """It asks the ledger, which names the job, the attempt and the checkpoint."""
    topic = broker.create_topic("found")
    first = opened(broker, topic, tmp_path)
    payloads = flushed(first, 1, values("a"), tmp_path)
    assert first.commit(7, payloads) == 1
    again = opened(broker, topic, tmp_path, context=attempt(2))
    assert again.newest_committed() == 7
    assert again.commit(7, payloads) == 0
    (commit,) = again.commits(attempt(2))
    assert (commit.checkpoint_id, commit.attempt, commit.sink) == (7, 1, "out")
    assert seen(broker, topic) == ["a"]


def test_a_topic_that_was_created_again_is_refused(broker: KafkaServer, tmp_path: Path) -> None:
    """Its rows are gone; the same for a ledger that lacks an epoch that the job knows."""
    topic = broker.create_topic("sink-again")
    sink = opened(broker, topic, tmp_path)
    sink.commit(7, flushed(sink, 1, values("a"), tmp_path))
    later = flushed(sink, 2, values("b"), tmp_path)
    sink.close()
    broker.delete_topic(topic)
    broker.create_topic(topic)
    with pytest.raises(LostRowsError, match="created again"):
        made(broker, topic, tmp_path).open(attempt(2))
    accepting = made(broker, topic, tmp_path)
    accepting.open(attempt(3, may_have_gone_back=True))
    assert accepting.commit(8, later) == 1
    broker.delete_topic("weir-ledger.sink-again.out")
    with pytest.raises(LostRowsError, match="checkpoint 8"):
        accepting.commit(9, later)


def test_a_topic_that_is_created_again_while_the_job_runs_is_refused(
    broker: KafkaServer, tmp_path: Path
) -> None:
    """By the commit that would write into it; nothing is."""
    topic = broker.create_topic("again-running", partitions=2)
    sink = opened(broker, topic, tmp_path)
    rows = [{"value": b"a", "partition": number % 2} for number in range(4)]
    sink.commit(1, flushed(sink, 1, rows, tmp_path))
    later = flushed(sink, 2, rows, tmp_path)
    broker.delete_topic(topic)
    broker.create_topic(topic, partitions=2)
    for _ in range(2):
        with pytest.raises(LostRowsError, match="created again"):
            sink.commit(2, later)
    assert seen(broker, topic) == []
    accepting = made(broker, topic, tmp_path)
    accepting.open(attempt(2, may_have_gone_back=True))
    assert accepting.commit(2, later) == 4
    last = flushed(accepting, 3, rows, tmp_path)
    broker.delete_topic(topic)
    broker.create_topic(topic, partitions=2)
    with pytest.raises(LostRowsError, match="created again"):
        accepting.commit(3, last)


def test_a_topic_that_is_created_again_within_a_transaction_gets_all_of_it(
    broker: KafkaServer, tmp_path: Path
) -> None:
    """Before anything of the job was in it: what went into the old one is sent again."""
    topic = broker.create_topic("again-within")
    sink = opened(broker, topic, tmp_path)
    payloads = flushed(sink, 1, values("a", "b"), tmp_path)
    assert sink._producer is not None
    flush = sink._producer.flush

    def late(within_s: float) -> Ends:
        ends = flush(within_s)
        broker.delete_topic(topic)
        broker.create_topic(topic)
        return ends

    sink._producer.flush = late
    with pytest.raises(SinkError, match="was deleted"):
        sink.commit(1, payloads)
    assert sink.commit(1, payloads) == 2
    assert seen(broker, topic) == ["a", "b"]


def test_null_values_are_tombstones_and_columns_are_sparks(
    broker: KafkaServer, tmp_path: Path
) -> None:
    """Key, headers, partition and time arrive as they were given."""
    topic = broker.create_topic("columns", partitions=3)
    sink = opened(broker, topic, tmp_path)
    at = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    row = {"value": None, "key": b"k", "partition": 2, "timestamp": at}
    headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    payloads = flushed(sink, 1, [row | {"headers": headers}], tmp_path)
    assert sink.commit(1, payloads) == 1
    (found,) = records(broker, topic)
    assert (found.key(), found.value(), found.partition()) == (b"k", None, 2)
    assert found.headers() == [("h", b"1"), ("h", None)]
    assert found.timestamp()[1] == at.timestamp() * 1000


def test_partitions_are_those_of_javas_clients(broker: KafkaServer, tmp_path: Path) -> None:
    """By murmur2 of the key."""
    topic = broker.create_topic("murmur", partitions=7)
    sink = opened(broker, topic, tmp_path)
    rows = [{"value": b"", "key": b"%d" % number} for number in range(50)]
    sink.commit(1, flushed(sink, 1, rows, tmp_path))
    found = {each.key(): each.partition() for each in records(broker, topic)}
    assert found == {row["key"]: murmur2(row["key"], 7) for row in rows}


def test_rows_may_name_their_topics(broker: KafkaServer, tmp_path: Path) -> None:
    """All topics of an epoch are in one transaction; the ledger has their ends."""
    topics = [broker.create_topic(f"several-{number}", partitions=2) for number in range(2)]
    sink = opened(broker, None, tmp_path, ledger="several-ledger")
    rows = [{"value": b"%d" % number, "topic": topics[number % 2]} for number in range(10)]
    assert sink.commit(1, flushed(sink, 1, rows, tmp_path)) == 10
    assert [len(records(broker, topic)) for topic in topics] == [5, 5]
    broker.delete_topic(topics[1])
    payloads = flushed(sink, 2, rows, tmp_path)
    sink.close()
    again = made(broker, None, tmp_path, ledger="several-ledger")
    again.open(attempt(2))
    with pytest.raises(SinkError, match=r"'several-1' .* does not exist"):
        again.commit(2, payloads)
    assert len(records(broker, topics[0])) == 5


def test_an_upsert_publishes_the_newest_row_of_each_key(
    broker: KafkaServer, tmp_path: Path
) -> None:
    """Of several batches in an epoch; a null is a deletion, whatever came before."""
    topic = broker.create_topic("upserts", partitions=2, cleanup_policy="compact")
    sink = opened(broker, topic, tmp_path, mode="upsert")
    assert sink.takes_updates
    batches = (
        [{"key": b"a", "value": b"1"}, {"key": b"b", "value": b"1"}],
        [{"key": b"a", "value": b"2"}, {"key": b"c", "value": b"1"}],
        [{"key": b"c", "value": None}],
    )
    payloads = [
        payload
        for position, rows in enumerate(batches)
        for payload in flushed(sink, position, rows, tmp_path)
    ]
    assert sink.commit(1, payloads) == 3
    found = {each.key(): each.value() for each in records(broker, topic)}
    assert found == {b"a": b"2", b"b": b"1", b"c": None}


def test_two_drivers_end_with_the_newer_one(broker: KafkaServer, tmp_path: Path) -> None:
    """The older is fenced, sees the newer attempt in the job's records, and stops."""
    topic = broker.create_topic("duel")
    directory = str(tmp_path / "jobs" / JOB)
    driver = JobRecords(directory)
    driver.begin()
    old = opened(broker, topic, tmp_path, context=attempt(1, job_directory=directory))
    payloads = flushed(old, 1, values("a"), tmp_path)
    driver.begin()
    new = made(broker, topic, tmp_path)
    new.open(attempt(2, job_directory=directory))
    with pytest.raises(JobFencedError, match=r"Attempt 2 .* has replaced attempt 1"):
        old.commit(1, payloads)
    with pytest.raises(JobFencedError):
        old.commit(1, payloads)
    assert new.commit(1, payloads) == 1
    assert new.commit(2, flushed(new, 2, values("b"), tmp_path)) == 1
    assert seen(broker, topic) == ["a", "b"]


def test_a_driver_that_interferes_is_fenced_in_turn(broker: KafkaServer, tmp_path: Path) -> None:
    """The newer driver loses its producer to the older, looks at the records, and goes on."""
    topic = broker.create_topic("interference")
    directory = str(tmp_path / "jobs" / JOB)
    driver = JobRecords(directory)
    driver.begin()
    driver.begin()
    new = opened(broker, topic, tmp_path, context=attempt(2, job_directory=directory))
    payloads = flushed(new, 1, values("a"), tmp_path)
    # As if it had looked at the records just before the newer attempt was there.
    old = made(broker, topic, tmp_path)
    old.open(attempt(2))
    assert new.commit(1, payloads) == 1
    assert seen(broker, topic) == ["a"]
    with pytest.raises(JobFencedError):
        made(broker, topic, tmp_path).open(attempt(1, job_directory=directory))


def test_a_transaction_that_times_out_is_published_again(
    broker: KafkaServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka has fenced the producer, but nobody has taken over."""
    topic = broker.create_topic("time-out")
    sink = opened(broker, topic, tmp_path, conf={"transaction.timeout.ms": 1_000})
    payloads = flushed(sink, 1, values("a", "b"), tmp_path)
    slow = SlowOnce(sink, broker)
    assert sink.commit(1, payloads) == 2
    assert slow.waited
    assert seen(broker, topic) == ["a", "b"]
    assert "transaction.timeout.ms (1000 ms)" in caplog.text
    raw = records(broker, topic, isolation="read_uncommitted")
    assert len(raw) == 4


def test_a_time_out_above_the_brokers_limit_is_refused(broker: KafkaServer, tmp_path: Path) -> None:
    """By name; without the option, the broker's limit is kept."""
    topic = broker.create_topic("limit")
    with pytest.raises(SinkMismatchError, match=r"transaction.max.timeout.ms"):
        opened(broker, topic, tmp_path, conf={"transaction.timeout.ms": 3_600_000})
    assert opened(broker, topic, tmp_path)._timeout_ms == 900_000


def test_a_failed_commit_leaves_no_transaction_open(broker: KafkaServer, tmp_path: Path) -> None:
    """Readers of what other producers write do not wait for the time-out."""
    topic = broker.create_topic("sink-aborted")
    sink = opened(broker, topic, tmp_path)
    payloads = flushed(sink, 1, values("a"), tmp_path)
    sink._entry = None
    with pytest.raises(TypeError):
        sink.commit(1, payloads)
    client = ConfluentClient(broker.address, {}, MACHINE)
    assert client.open_transactions([Partition(topic, 0)]) == []
    del sink._entry
    assert sink.commit(1, payloads) == 1
    assert seen(broker, topic) == ["a"]


def test_a_topic_that_is_away_keeps_its_epoch_staged(broker: KafkaServer, tmp_path: Path) -> None:
    """Once it is there again, the same epoch is committed."""
    with pytest.raises(SinkError, match="'nowhere' does not exist"):
        opened(broker, "nowhere", tmp_path)
    topic = broker.create_topic("away")
    sink = opened(broker, topic, tmp_path)
    payloads = flushed(sink, 1, values("a"), tmp_path)
    broker.delete_topic(topic)
    with pytest.raises(SinkError):
        sink.commit(1, payloads)
    broker.create_topic(topic)
    assert sink.commit(1, payloads) == 1
    assert seen(broker, topic) == ["a"]


def test_a_broker_that_is_away_is_waited_for(own_broker: KafkaServer, tmp_path: Path) -> None:
    """The error passes; nothing is lost or doubled. A clean stop, and a kill."""
    topic = own_broker.create_topic("outage", partitions=2)
    sink = opened(own_broker, topic, tmp_path)
    for epoch, end in ((1, own_broker.stop), (2, own_broker.kill)):
        payloads = flushed(sink, epoch, values(f"{epoch}"), tmp_path)
        end()
        with pytest.raises(StorageError, match="does not answer"):
            sink.commit(epoch, payloads)
        own_broker.start()
        wait_until(partial(committed, sink, epoch, payloads), "the commit succeeds")
    assert seen(own_broker, topic) == ["1", "2"]


def committed(sink: KafkaTopic, epoch: int, payloads: list[Payload]) -> bool:
    """Whether a commit succeeds; as the job repeats it."""
    try:
        sink.commit(epoch, payloads)
    except StorageError:
        return False
    return True


def test_a_topic_is_read_at_a_checkpoint(broker: KafkaServer, tmp_path: Path) -> None:
    """The ledger says where each partition ends with an epoch; other writers change nothing."""
    topic = broker.create_topic("cut", partitions=2)
    sink = opened(broker, topic, tmp_path)
    rows = [{"value": b"1", "partition": 0}, {"value": b"2", "partition": 1}]
    sink.commit(3, flushed(sink, 1, rows, tmp_path))
    sink.commit(5, flushed(sink, 2, rows[:1], tmp_path))
    other = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    other.produce(topic, b"other", partition=0)
    other.flush(60)
    cut = weir.read_consistent({"orders": sink})
    assert cut.checkpoint_id == 5
    before = weir.read_consistent({"orders": sink}, checkpoint_id=4)
    found = [
        sum(
            1
            for each in records(broker, topic)
            if (each.offset() or 0) < shown.offsets("orders")[topic][each.partition() or 0]
        )
        for shown in (cut, before)
    ]
    assert found == [3, 2]


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_options_that_exactly_once_stands_on_are_refused(name: str, tmp_path: Path) -> None:
    """By name, with the reason."""
    with pytest.raises(SinkError, match=re.escape(repr(name))):
        KafkaTopic("t", servers="localhost:1", staging=str(tmp_path), conf={name: "x"})


def test_a_sink_shows_no_secret(tmp_path: Path) -> None:
    """Neither its description nor its representation."""
    sink = KafkaTopic(
        "t",
        servers="localhost:1",
        staging=str(tmp_path),
        conf={"sasl.password": "open-sesame"},
        value="avro",
        schema_registry={"url": "mock://", "basic.auth.user.info": "me:open-sesame"},
    )
    shown = f"{sink.describe()} {sink.identity()} {sink!r} {sink._encoding!r}"
    assert "sesame" not in shown
