"""What of Kafka's topics is gone since a checkpoint, and what is said of it (without a JVM)."""

from __future__ import annotations

from typing import Any

import pytest

from weir.errors import LostInputError
from weir.runtime.failures import is_fatal
from weir.spark.kafka.admin import Topic
from weir.spark.kafka.topics import KafkaPlace, check_place, loss_of, moved, with_lost

OFFSETS = {"orders": {"0": 500, "1": 480}}


class Cluster:
    """Brokers with these ids and earliest offsets of topics."""

    def __init__(self, ids: dict[str, str], earliest: dict[str, dict[str, int]]) -> None:
        self.ids = ids
        self.starts = earliest

    def topics(self, names: Any) -> dict[str, Topic]:
        return {
            name: Topic(id=self.ids[name], partitions=len(self.starts[name]))
            for name in names
            if name in self.ids
        }

    def earliest(self, offsets: Any) -> dict[str, dict[str, int]]:
        return {
            topic: {number: self.starts[topic][number] for number in partitions}
            for topic, partitions in offsets.items()
            if partitions
        }


def place(**options: str) -> KafkaPlace:
    return KafkaPlace(
        step="in1", name="events", number=1, options={"subscribe": "orders", **options}
    )


def check(cluster: Cluster, *, accepted: bool = False, **options: str) -> Any:
    before = {"orders": "A"}
    brokers: Any = cluster
    return check_place(place(**options), brokers, OFFSETS, before, accepted=accepted)


def test_rows_that_were_read_may_be_gone() -> None:
    """Only what is beyond the checkpoint counts, and the offsets stay as they are."""
    cluster = Cluster({"orders": "A"}, {"orders": {"0": 500, "1": 0, "2": 70}})
    assert check(cluster) == ({"orders": "A"}, OFFSETS, None)
    assert loss_of(OFFSETS, {"orders": {"0": 0, "1": 0}}, {}, {"orders": "B"}) is None


@pytest.mark.parametrize(
    ("cluster", "words", "kept"),
    [
        (
            Cluster({"orders": "A"}, {"orders": {"0": 800, "1": 481}}),
            (
                "301 rows of topic 'orders'",
                "(partition 0: offsets 500 to 799, partition 1: offsets 480 to 480)",
                "Go on at the earliest rows that are there with --accept-lost-rows events",
            ),
            {"orders": {"0": 800, "1": 481}},
        ),
        (
            Cluster({"orders": "B"}, {"orders": {"0": 0, "1": 3}}),
            ("topic 'orders' was deleted and made again",),
            {"orders": {"0": 0, "1": 3}},
        ),
        (
            Cluster({"orders": "A"}, {"orders": {"0": 7}}),
            ("topic 'orders' was deleted and made again",),
            {"orders": {"0": 7}},
        ),
        (
            Cluster({}, {}),
            ("topic 'orders' is gone", "Create the topic again; then go on"),
            {},
        ),
    ],
)
def test_what_is_gone_is_refused_by_name_and_given_up_on_request(
    cluster: Cluster, words: tuple[str, ...], kept: dict[str, dict[str, int]]
) -> None:
    """By no retry. Where rows are given up, the source goes on at the earliest that are there."""
    with pytest.raises(LostInputError) as refused:
        check(cluster)
    assert is_fatal(refused.value)
    for word in ("Source 'events' cannot go on", "--fresh", *words):
        assert word in str(refused.value)
    for found in (check(cluster, accepted=True), check(cluster, failondataloss="false")):
        assert found[1] == kept
        assert words[0] in found[2]


def test_partitions_that_lost_nothing_go_on_where_they_were() -> None:
    """Of a topic in which others have lost rows."""
    earliest = {"orders": {"0": 800, "1": 3}}
    loss = loss_of(OFFSETS, earliest, {}, {"orders": "A"})
    assert loss is not None
    assert moved(OFFSETS, earliest, loss) == {"orders": {"0": 800, "1": 480}}


def test_a_long_loss_is_shortened_and_reports_are_bounded() -> None:
    """A topic may have thousands of partitions, and lose rows every night."""
    offsets = {"orders": {str(number): 0 for number in range(50)}}
    earliest = {"orders": {str(number): 2 for number in range(50)}}
    loss = loss_of(offsets, earliest, {}, {"orders": "A"})
    assert loss is not None
    assert "100 rows" in loss.said and "and 42 more partitions" in loss.said
    known: tuple[str, ...] = ()
    for number in range(150):
        known = with_lost(known, f"loss {number}")
    assert (len(known), known[-1]) == (100, "loss 149")
    assert with_lost(known, None) == known


@pytest.mark.parametrize(
    ("options", "topics"),
    [
        ({"subscribe": "a, b"}, ("a", "b")),
        ({"assign": '{"a": [0], "c": [1]}'}, ("a", "c")),
        ({"subscribepattern": "a.*"}, ()),
    ],
)
def test_the_topics_of_a_source_are_in_its_options(
    options: dict[str, str], topics: tuple[str, ...]
) -> None:
    """Those of a pattern are known to the brokers only."""
    assert KafkaPlace(step="s", name="s", number=0, options=options).topics == topics
