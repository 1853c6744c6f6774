"""What no retry can bring back: rows that were to be read and that the topic does not have."""

from __future__ import annotations

from weir.errors import LostInputError
from weir.sources.topics.splits import KafkaSplit

_ELSE = "restore the job from a savepoint that fits the topic, or start it afresh (--fresh)"


def deleted(topic: str) -> LostInputError:
    """A topic that the job has read does not exist any more."""
    return LostInputError(
        f"Topic {topic!r} has been deleted since the job read it, with all rows that it had not"
        f" read: take it out of the source's topics and start the job afresh (--fresh)."
    )


def made_again(topic: str, known_id: str, found_id: str) -> LostInputError:
    """A topic has the name of the one that the job has read, and is another."""
    return LostInputError(
        f"Topic {topic!r} is not the one that the job has read: it was deleted and made again (its"
        f" id is {found_id}, and was {known_id}), so the job's offsets mean nothing in it: {_ELSE}."
    )


def gone(split: KafkaSplit, earliest: int, step: str) -> LostInputError:
    """Retention has passed the position."""
    return LostInputError(
        f"Topic {split.topic!r} has lost up to {earliest - split.offset} rows of partition"
        f" {split.partition} that the job had not read: it is at offset {split.offset}, and the"
        f" topic now starts at {earliest}. Keep them for longer next time; to go on without them,"
        f" run the job again with --accept-lost-rows {step}."
    )


def cut(split: KafkaSplit, end: int) -> LostInputError:
    """The partition ends before the position."""
    return LostInputError(
        f"Topic {split.topic!r} has lost rows of partition {split.partition} that the job has read:"
        f" it is at offset {split.offset}, and the partition ends at {end}, as after the loss of a"
        f" broker's disk: {_ELSE}."
    )
