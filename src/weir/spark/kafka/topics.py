"""Compares the topics that a restored query reads with its checkpoint, before its first batch.

Spark compares numbers only, and late: it fails in a batch, names no topic, and goes on in the
middle of a topic that was deleted and made again with more rows than before. Here the checkpoint
holds the ids of the topics (``TOPICS_ENTRY``), and a start compares them, and the offsets with
the earliest that there are. Rows that the job has not read and that are gone fail it for good,
unless the user accepts it: then the step goes on at the earliest rows that are there, and the
checkpoints hold what was given up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import msgspec

from weir.core.types import OperatorId
from weir.errors import LostInputError, PipelineError
from weir.spark.kafka.admin import Brokers, Offsets
from weir.spark.kafka.code import ISOLATION

#: The entry of a snapshot with ``KnownTopics``.
TOPICS_ENTRY = "weir-kafka-topics"
#: Reports of lost rows that are kept, the newest.
_LOST_MAX = 100


@dataclass(frozen=True, kw_only=True)
class KafkaPlace:
    """A place of a query's plan that reads Kafka."""

    step: OperatorId
    #: The step's name.
    name: str
    #: Which of the offsets in the offset log is its own.
    number: int
    #: The options of Spark's reader, with names in lower case.
    options: Mapping[str, str]

    @property
    def is_committed(self) -> bool:
        """Whether it reads committed rows only, unless the user has said otherwise."""
        return ISOLATION in self.options

    @property
    def tolerates_loss(self) -> bool:
        """Whether the user has told Spark to go on without rows that are gone."""
        return self.options.get("failondataloss", "true").lower() == "false"

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it names; empty for a pattern."""
        named = self.options.get("subscribe")
        if named is None:
            return tuple(msgspec.json.decode(self.options.get("assign", "{}")))
        return tuple(filter(None, (topic.strip() for topic in named.split(","))))


class KnownTopics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint holds of the topics of one query."""

    #: The ids of topics by name, by step.
    ids: dict[OperatorId, dict[str, str]] = {}
    #: What was given up, in sentences.
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Rows of a source that are gone, and that its job has not read."""

    #: First offset that was not read, and first offset that is there, by topic and partition.
    passed: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    #: Topics that are others of the same name.
    renewed: tuple[str, ...] = ()
    #: Topics that are not there.
    gone: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """What is gone, as a sentence without its end."""
        parts = [
            f"{sum(end - first for first, end in partitions.values()):,} rows of topic {topic!r}"
            f" that the job has not read are gone, deleted by Kafka's retention or by hand"
            f" ({_ranges(partitions)})"
            for topic, partitions in self.passed.items()
        ]
        parts += [
            f"topic {topic!r} was deleted and made again: what the job had not read of the old one"
            " is gone, and the positions in the checkpoint mean nothing in the new one"
            for topic in self.renewed
        ]
        parts += [
            f"topic {topic!r} is gone, with what the job had not read of it" for topic in self.gone
        ]
        return "; ".join(parts)


def _ranges(partitions: Mapping[str, tuple[int, int]], most: int = 8) -> str:
    shown = [
        f"partition {number}: offsets {first} to {end - 1}"
        for number, (first, end) in sorted(partitions.items(), key=lambda one: int(one[0]))
    ]
    more = [f"and {len(shown) - most} more partitions"] if len(shown) > most else []
    return ", ".join(shown[:most] + more)


def loss_of(
    offsets: Offsets, earliest: Offsets, before: Mapping[str, str], now: Mapping[str, str]
) -> Loss | None:
    """What is gone of what would be read from these offsets on; None if nothing is.

    ``earliest``: the earliest offsets that there are; ``before`` and ``now``: ids of the topics in
    the checkpoint, as far as it holds them, and of those that there are.
    """
    gone = tuple(topic for topic in offsets if topic not in now)
    renewed = tuple(
        topic
        for topic in offsets
        if topic in now
        # Kafka never removes a partition of a topic.
        and (before.get(topic, now[topic]) != now[topic] or offsets[topic].keys() - earliest[topic])
    )
    passed = {
        topic: found
        for topic, partitions in offsets.items()
        if topic not in (*gone, *renewed)
        and (
            found := {
                number: (offset, earliest[topic][number])
                for number, offset in partitions.items()
                if offset < earliest[topic][number]
            }
        )
    }
    if not (gone or renewed or passed):
        return None
    return Loss(passed=passed, renewed=renewed, gone=gone)


def moved(offsets: Offsets, earliest: Offsets, loss: Loss) -> Offsets:
    """The offsets from which the source can go on without what is gone."""
    return {
        topic: {
            number: earliest[topic][number]
            if topic in loss.renewed
            else max(offset, earliest[topic][number])
            for number, offset in partitions.items()
            if number in earliest[topic]
        }
        for topic, partitions in offsets.items()
        if topic not in loss.gone
    }


def check_place(
    place: KafkaPlace,
    brokers: Brokers,
    offsets: Offsets,
    before: Mapping[str, str],
    *,
    accepted: bool,
) -> tuple[dict[str, str], Offsets, str | None]:
    """The ids of the topics, the offsets to go on from, and what is given up.

    Raises ``LostInputError`` if something is gone that the user has not accepted, and
    ``PipelineError`` for a topic that the job has never read and that does not exist.
    """
    topics = brokers.topics(dict.fromkeys((*place.topics, *offsets)))
    for name in place.topics:
        if name not in topics and name not in offsets:
            raise PipelineError(
                f"The topic {name!r} of source {place.name!r} does not exist at"
                f" {place.options.get('kafka.bootstrap.servers')}: create it, or correct the name."
            )
    ids = {name: topic.id for name, topic in topics.items()}
    there = {
        name: {
            number: offset
            for number, offset in of_topic.items()
            if name in topics and int(number) < topics[name].partitions
        }
        for name, of_topic in offsets.items()
    }
    earliest: Offsets = {name: {} for name in offsets} | brokers.earliest(there)
    loss = loss_of(offsets, earliest, before, ids)
    if loss is None:
        return ids, offsets, None
    if not (accepted or place.tolerates_loss):
        _refuse(place, loss)
    return ids, moved(offsets, earliest, loss), f"source {place.name!r}: {loss.said}"


def _refuse(place: KafkaPlace, loss: Loss) -> NoReturn:
    create = "Create the topic again; then go" if loss.gone else "Go"
    raise LostInputError(
        f"Source {place.name!r} cannot go on where its checkpoint ends: {loss.said}. {create} on at"
        f" the earliest rows that are there with --accept-lost-rows {place.name}, or start from"
        " scratch with --fresh."
    )


def with_lost(known: Sequence[str], lost: str | None) -> tuple[str, ...]:
    """What was given up, bounded."""
    return tuple(dict.fromkeys((*known, *filter(None, (lost,)))))[-_LOST_MAX:]
