"""The options that ``weir.sources.kafka`` gives to Spark's reader (without a JVM)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import weir
from weir.errors import PipelineError

COMMITTED = {"kafka.bootstrap.servers": "b:9092", "kafka.isolation.level": "read_committed"}


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({"topics": "orders"}, {"subscribe": "orders", "startingOffsets": "earliest"}),
        (
            {"topics": ["a", "b"], "start": "latest", "max_offsets_per_batch": 500},
            {"subscribe": "a,b", "startingOffsets": "latest", "maxOffsetsPerTrigger": "500"},
        ),
        (
            {"pattern": "orders-.*", "start": datetime(2026, 1, 1, tzinfo=UTC)},
            {
                "subscribePattern": "orders-.*",
                "startingTimestamp": "1767225600000",
                "startingOffsetsByTimestampStrategy": "latest",
            },
        ),
        (
            {"topics": "a", "start": {"a": {0: 5, 1: -2}}, "headers": True, "group": "watchers"},
            {
                "subscribe": "a",
                "startingOffsets": '{"a": {"0": 5, "1": -2}}',
                "includeHeaders": "true",
                "weir.kafka.group": "watchers",
            },
        ),
        (
            {"topics": "a", "conf": {"security.protocol": "SSL", "isolation.level": "x"}},
            {"subscribe": "a", "startingOffsets": "earliest", "kafka.security.protocol": "SSL"},
        ),
    ],
)
def test_arguments_become_options_of_sparks_reader(
    arguments: dict[str, Any], options: dict[str, str]
) -> None:
    """Committed rows only, also if the settings of the client say otherwise."""
    assert weir.sources.kafka(servers="b:9092", **arguments).options == COMMITTED | options


def test_the_isolation_level_can_be_lowered_by_name() -> None:
    """Then nothing is said: the user knows."""
    source = weir.sources.kafka("orders", servers="b:9092", isolation="read_uncommitted")
    assert source.options["kafka.isolation.level"] == "read_uncommitted"


def test_a_source_shows_no_settings() -> None:
    """They may hold passwords."""
    source = weir.sources.kafka(
        "orders", servers="b:9092", conf={"sasl.jaas.config": "password=hunter2"}
    )
    assert repr(source) == "kafka('b:9092', 'orders')"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "needs topics, or a pattern"),
        ({"topics": "a", "pattern": "b"}, "needs topics, or a pattern"),
        ({"topics": "a", "value": "xml"}, "use one of 'bytes', 'text', 'json'"),
        ({"topics": "a", "value": "json"}, "every other format needs one"),
        ({"topics": "a", "value": "text", "schema": "id long"}, "have no schema"),
        ({"topics": "a", "value": "protobuf", "schema": "Order"}, "a descriptor too"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(
    arguments: dict[str, Any], said: str
) -> None:
    """Before any job runs."""
    with pytest.raises(PipelineError, match=said):
        weir.sources.kafka(servers="b:9092", **arguments)
