"""``writeStream.format("kafka")`` becomes ``KafkaTopic``, or stays with Spark's batch writer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from weir.adopt.outputs import topics
from weir.adopt.outputs.request import Request
from weir.errors import PipelineError
from weir.sinks import ForeachBatch, KafkaTopic

SERVERS = {"kafka.bootstrap.servers": "broker:9092"}


def request(directory: Path, options: dict[str, str], **changes: Any) -> Request:
    """A query that writes to Kafka with these options."""
    query: Any = SimpleNamespace(
        options={"checkpointlocation": "there", **options},
        output_mode=changes.pop("output_mode", "append"),
        partition_by=(),
        name="q",
        place="script.py:7",
        trigger=SimpleNamespace(interval=None),
    )
    given: dict[str, Any] = {"uid": "q", "updates": False, "keys": None} | changes
    return Request(query=query, directory=str(directory), **given)


def test_options_of_javas_client_are_translated(tmp_path: Path) -> None:
    """Names that both clients have, the login, PEM files; what has no effect is said."""
    login = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="me" password="open-sesame";'
    )
    options = {
        **SERVERS,
        "topic": "orders",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": login,
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/etc/ca.pem",
        "kafka.max.request.size": "2000000",
        "kafka.acks": "1",
        "includeheaders": "true",
    }
    sink, says = topics.topic(request(tmp_path, options), "kafka")
    assert isinstance(sink, KafkaTopic)
    assert sink._conf == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": "open-sesame",
        "ssl.ca.location": "/etc/ca.pem",
        "message.max.bytes": "2000000",
    }
    assert "'orders' at broker:9092" in sink.describe()
    assert any("'kafka.acks' has no effect" in said for said in says)
    assert not any("sesame" in said for said in says)


def test_changes_are_published_one_by_one(tmp_path: Path) -> None:
    """In update and complete mode, as Spark does."""
    sink, _ = topics.topic(request(tmp_path, SERVERS, updates=True), "kafka")
    assert isinstance(sink, KafkaTopic)
    assert sink.takes_updates
    assert sink._mode == "append"
    whole = request(tmp_path, SERVERS, updates=True, output_mode="complete")
    _, says = topics.topic(whole, "kafka")
    assert any("not the whole result" in said for said in says)


@pytest.mark.parametrize("option", ["kafka.ssl.keystore.location", "kafka.interceptor.classes"])
def test_what_only_javas_client_knows_is_left_to_spark(tmp_path: Path, option: str) -> None:
    """At least once, and that is said."""
    sink, says = topics.topic(request(tmp_path, SERVERS | {option: "x"}), "kafka")
    assert isinstance(sink, ForeachBatch)
    assert option in says[0]
    assert "at least once" in says[1]


def test_without_confluent_kafka_sparks_writer_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And Weir says how to publish exactly once."""
    monkeypatch.setattr(topics, "find_spec", lambda name: None)
    sink, says = topics.topic(request(tmp_path, SERVERS), "kafka")
    assert isinstance(sink, ForeachBatch)
    assert "pip install 'weir-spark[kafka]'" in says[0]


def test_a_query_without_servers_is_refused_at_its_line(tmp_path: Path) -> None:
    """As by Spark."""
    with pytest.raises(PipelineError, match=r"script.py:7: .*kafka.bootstrap.servers"):
        topics.topic(request(tmp_path, {}), "kafka")
