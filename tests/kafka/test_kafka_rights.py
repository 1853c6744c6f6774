"""A broker that asks who its clients are: what docs/KAFKA_SINK.md lists is enough, and needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import SparkSession
from tests.kafka.reading import records
from tests.kafka.server import KafkaServer, running_server
from tests.kafka.staged import StagedTopic, attempt, flushed, values
from tests.kit.live_job import LiveJob, settings
from tests.kit.place import Place
from tests.kit.sink import JOB

import weir
from weir.errors import SinkMismatchError
from weir.kernel import MACHINE
from weir.sinks.kafka.client import KafkaFailure, Partition
from weir.sinks.kafka.confluent import ConfluentClient
from weir.sinks.kafka.ledger import LEDGER_CONFIG

pytestmark = pytest.mark.kafka

_PATIENCE_S = 60.0
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
#: Who comes by the other listener, as the tests do, may do all.
_SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "listener.security.protocol.map": (
        "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURED:SASL_PLAINTEXT"
    ),
    "listener.name.secured.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.secured.plain.sasl.jaas.config": (
        f'{_LOGIN} required user_weir="open-sesame" user_stranger="open-sesame";'
    ),
}
CONF = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "weir",
    "sasl.password": "open-sesame",
}
#: What the sink needs: resource, name, whether all names that begin so are meant, operation.
Right = tuple[ResourceType, str, bool, AclOperation]


def needed(topic: str) -> dict[str, Right]:
    """The rights for a sink ``out`` that makes its ledger, as the docs name them."""
    ledger = f"weir-ledger.{topic}.out"
    op, kind = AclOperation, ResourceType
    return {
        "Write on the topic": (kind.TOPIC, topic, False, op.WRITE),
        "DescribeConfigs on the topic": (kind.TOPIC, topic, False, op.DESCRIBE_CONFIGS),
        "Create on the ledger": (kind.TOPIC, ledger, False, op.CREATE),
        "Write on the ledger": (kind.TOPIC, ledger, False, op.WRITE),
        "Read on the ledger": (kind.TOPIC, ledger, False, op.READ),
        "DescribeConfigs on the ledger": (kind.TOPIC, ledger, False, op.DESCRIBE_CONFIGS),
        "Write on the transactional ids": (kind.TRANSACTIONAL_ID, "weir-", True, op.WRITE),
    }


#: What the error says if one of them is missing.
SAID = {
    "Write on the topic": "Describe on topic '{topic}'",
    "DescribeConfigs on the topic": "DescribeConfigs on topic '{topic}'",
    "Create on the ledger": "Create on topic '{ledger}'",
    "Write on the ledger": "Write on topic '{ledger}'",
    "Read on the ledger": "Read on topic '{ledger}'",
    "DescribeConfigs on the ledger": "DescribeConfigs on topic '{ledger}'",
    "Write on the transactional ids": f"Write on the transactional id 'weir-{JOB}-out'",
}


class Rights:
    """Grants rights to the user ``weir``."""

    def __init__(self, server: KafkaServer) -> None:
        self._admin = AdminClient({"bootstrap.servers": server.address, "log_level": 0})

    def grant(self, *rights: Right) -> None:
        """Add rights."""
        bindings = [_binding(right) for right in rights]
        for answer in self._admin.create_acls(bindings).values():
            answer.result(_PATIENCE_S)

    def revoke_all(self) -> None:
        """Take all away."""
        everything = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        (answer,) = self._admin.delete_acls([everything]).values()
        answer.result(_PATIENCE_S)


def _binding(right: Right) -> AclBinding:
    kind, name, prefixed, operation = right
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    who = ("User:weir", "*", operation, AclPermissionType.ALLOW)
    return AclBinding(kind, name, pattern, *who)


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaServer]:
    """A broker with users and rights."""
    with running_server(_SETTINGS) as server:
        yield server


@pytest.fixture
def rights(guarded: KafkaServer) -> Iterator[Rights]:
    """The rights of ``weir``: none at first."""
    made = Rights(guarded)
    made.revoke_all()
    yield made
    made.revoke_all()


def sink_of(server: KafkaServer, topic: str, directory: Path, **conf: str) -> StagedTopic:
    """A sink whose clients log in."""
    return StagedTopic(
        topic,
        servers=server.secured_address,
        staging=str(directory / "staged"),
        conf=CONF | conf,
    )


def publish(sink: StagedTopic, directory: Path) -> int:
    """A whole life: check, open, publish an epoch."""
    sink.check(attempt(1))
    sink.open(attempt(1))
    try:
        return sink.commit(1, flushed(sink, 1, values("a", "b"), directory))
    finally:
        sink.close()


def test_the_rights_that_are_documented_are_enough(
    guarded: KafkaServer, rights: Rights, tmp_path: Path
) -> None:
    """Also for what happens beside other writers' transactions: that needs Read on the topic."""
    topic = guarded.create_topic("allowed")
    rights.grant(*needed(topic).values())
    assert publish(sink_of(guarded, topic, tmp_path), tmp_path) == 2
    other = Producer(
        {"bootstrap.servers": guarded.address, "transactional.id": "other", "log_level": 0}
    )
    other.init_transactions(_PATIENCE_S)
    other.begin_transaction()
    other.produce(topic, b"other")
    other.flush(_PATIENCE_S)
    again = sink_of(guarded, topic, tmp_path)
    with pytest.raises(SinkMismatchError, match=f"Read on topic '{topic}'"):
        again.open(attempt(2))
    rights.grant((ResourceType.TOPIC, topic, False, AclOperation.READ))
    again.open(attempt(3))
    assert again.newest_committed() == 1
    assert again.commit(2, flushed(again, 2, values("c"), tmp_path)) == 1
    again.close()
    other.abort_transaction(_PATIENCE_S)
    assert [each.value() for each in records(guarded, topic)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("missing", SAID)
def test_a_missing_right_is_named(
    guarded: KafkaServer, rights: Rights, tmp_path: Path, missing: str
) -> None:
    """In one sentence that fails the job for good; once it is granted, the same works."""
    topic = guarded.create_topic(f"no-{missing.replace(' ', '-')}")
    ledger = f"weir-ledger.{topic}.out"
    all_needed = needed(topic)
    rights.grant(*(right for name, right in all_needed.items() if name != missing))
    if missing != "Create on the ledger":
        guarded.create_topic(ledger, cleanup_policy=LEDGER_CONFIG["cleanup.policy"])
    with pytest.raises(SinkMismatchError) as refused:
        publish(sink_of(guarded, topic, tmp_path), tmp_path)
    assert SAID[missing].format(topic=topic, ledger=ledger) in str(refused.value)
    assert "grant it to the principal" in str(refused.value)
    rights.grant(all_needed[missing])
    assert publish(sink_of(guarded, topic, tmp_path), tmp_path) == 2


def test_a_reader_of_a_cut_needs_the_ledger(
    guarded: KafkaServer, rights: Rights, tmp_path: Path
) -> None:
    """To read, and its settings; the topic, as any reader. Other topics may be seen or not."""
    topic = guarded.create_topic("read-at-a-cut")
    rights.grant(*needed(topic).values())
    assert publish(sink_of(guarded, topic, tmp_path), tmp_path) == 2
    rights.revoke_all()
    ledger = f"weir-ledger.{topic}.out"
    op = AclOperation
    rights.grant(
        *(
            (ResourceType.TOPIC, name, False, op.READ)
            for name in (topic, ledger, guarded.create_topic("unrelated"))
        ),
        (ResourceType.TOPIC, ledger, False, op.DESCRIBE_CONFIGS),
    )
    cut = weir.read_consistent({"orders": sink_of(guarded, topic, tmp_path)})
    assert cut.offsets("orders") == {topic: {0: 2}}


def test_wrong_credentials_are_said_at_once(guarded: KafkaServer, tmp_path: Path) -> None:
    """Not tried for ever."""
    topic = guarded.create_topic("credentials")
    sink = sink_of(guarded, topic, tmp_path, **{"sasl.password": "guessed"})
    with pytest.raises(SinkMismatchError, match="credentials"):
        sink.check(attempt(1))


def test_a_repair_needs_the_right_to_alter_the_cluster(
    guarded: KafkaServer, rights: Rights, tmp_path: Path
) -> None:
    """And says so; looking needs Read on the topics only."""
    topic = guarded.create_topic("repaired")
    rights.grant((ResourceType.TOPIC, topic, False, AclOperation.READ))
    other = Producer(
        {"bootstrap.servers": guarded.address, "transactional.id": "open", "log_level": 0}
    )
    other.init_transactions(_PATIENCE_S)
    other.begin_transaction()
    other.produce(topic, b"other")
    other.flush(_PATIENCE_S)
    client = ConfluentClient(guarded.secured_address, CONF, MACHINE)
    (found,) = client.open_transactions([Partition(topic, 0)])
    with pytest.raises(KafkaFailure, match="Alter on the cluster"):
        client.finish(found, commit=False)
    rights.grant((ResourceType.BROKER, "kafka-cluster", False, AclOperation.ALTER))
    client.finish(found, commit=False)
    assert client.open_transactions([Partition(topic, 0)]) == []


@pytest.mark.spark
@pytest.mark.parametrize("own_reader", [False, True])
def test_a_job_with_the_documented_rights_goes_from_topic_to_topic(
    guarded: KafkaServer, rights: Rights, spark: SparkSession, tmp_path: Path, own_reader: bool
) -> None:
    """By Spark's connector and by Weir's reader; offsets go to a group by the former."""
    name = f"granted-{'own' if own_reader else 'spark'}"
    source = guarded.create_topic(f"{name}-in", partitions=2)
    target = guarded.create_topic(f"{name}-out", partitions=2)
    ledger = f"weir-ledger.{target}.published"
    op, kind = AclOperation, ResourceType
    rights.grant(
        (kind.TOPIC, source, False, op.READ),
        *(
            (right[0], ledger if right[1].startswith("weir-ledger") else right[1], *right[2:])
            for right in needed(target).values()
        ),
    )
    producer = Producer({"bootstrap.servers": guarded.address, "log_level": 0})
    for number in range(20):
        producer.produce(source, b"%d" % number, partition=number % 2)
    producer.flush(_PATIENCE_S)
    reader: Any
    if own_reader:
        reader = weir.sources.KafkaTopic(
            source, servers=guarded.secured_address, conf=CONF, bounded=True
        )
    else:
        rights.grant((kind.GROUP, "watchers", False, op.READ))
        jaas = f'{_LOGIN} required username="weir" password="open-sesame";'
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": jaas,
        }
        reader = weir.sources.kafka(
            source,
            servers=guarded.secured_address,
            conf=login,
            group="watchers",
        )
    job = weir.Job(name)
    read = job.source("read", reader, bounded=not own_reader)
    kept = read.transform("kept", lambda frame: frame.select("value"))
    kept.sink(
        "published",
        weir.sinks.KafkaTopic(
            target, servers=guarded.secured_address, staging=str(tmp_path / "staged"), conf=CONF
        ),
    )
    with LiveJob(job, settings(Place(tmp_path))) as live:
        result = live.result()
    assert result.failure is None
    found = sorted(int(each.value() or b"-1") for each in records(guarded, target))
    assert found == list(range(20))
