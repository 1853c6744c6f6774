"""``KafkaEnumerator``: finds partitions, assigns each to a reader, and says where reading ends.

A partition is *out* from its assignment until its reader reports that it has reached its stop::

    {"finished": "orders-3", "offset": 1200}

1. The partitions of the first listing are read from where the source starts; those found later
   from their beginning. The offset is looked up before the assignment, so it is the same after a
   restore.
2. An unbounded partition is out for ever. A bounded input ends at the ends of the first listing. If
   a run ends at what is available now, it ends at the ends of the first listing of its attempt. The
   ends are stable ones: no transaction is open before them.
3. A restored reader may have a partition with the stop of an earlier run. In each attempt the
   readers get the stops of what is out, and a partition that is reported as finished before its
   stop is assigned again. A topic that was taken out of the source stops where it is.
4. When nothing is out or left to assign, the readers of an input with ends are notified.
5. Every listing compares the topics' ids with those that the job knows. A topic that was deleted,
   or deleted and made again, fails the job for good; one that is not found is looked for twice,
   since a broker may not know yet what others do.
6. Listing blocks, so it is done on another thread. The first of an attempt must succeed; while
   later ones fail, no partitions are found.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from re import Pattern
from typing import TypeAlias

import msgspec

from weir.core.types import Count, Payload
from weir.errors import InputError, PipelineError
from weir.sources.base import SplitEnumerator, SplitEnumeratorContext
from weir.sources.topics import losses
from weir.sources.topics.client import BEGINNING, END, Cluster, Topic
from weir.sources.topics.splits import KafkaSplit, Partition, name_of
from weir.storage.records import converted

_log = logging.getLogger(__name__)

#: The topics that are read, by name, or by a pattern of names.
Topics: TypeAlias = tuple[str, ...] | Pattern[str]
#: Where the first listing's partitions are read from: the beginning, the end, a time, or offsets
#: by topic and partition.
Start: TypeAlias = str | datetime | Mapping[str, Mapping[int, int]]

#: How soon to look again for a topic that was not found.
_AGAIN_MS = 1_000


class _Known(msgspec.Struct, frozen=True):
    """A partition in the state."""

    topic: str
    partition: Count
    #: Where it is read from when it is assigned next; while it is out, where that was.
    offset: Count
    stop: Count | None = None
    is_out: bool = False

    @property
    def place(self) -> Partition:
        return (self.topic, self.partition)

    @property
    def is_over(self) -> bool:
        return not self.is_out and self.stop is not None and self.offset >= self.stop


class _State(msgspec.Struct, frozen=True):
    """The enumerator's state in a checkpoint."""

    listed: bool = False
    #: The ids of topics by name.
    topics: dict[str, str] = {}
    partitions: list[_Known] = []


@dataclass(frozen=True, kw_only=True)
class _Listing:
    """What the cluster has."""

    topics: Mapping[str, Topic]
    #: Where the partitions that were not known are read from.
    offsets: Mapping[Partition, int]
    #: The stable ends, if reading ends at them.
    ends: Mapping[Partition, int]


class KafkaEnumerator(SplitEnumerator[KafkaSplit]):
    """Finds partitions and assigns them. The module's docstring has the rules."""

    def __init__(
        self,
        context: SplitEnumeratorContext,
        state: Payload,
        cluster: Cluster,
        topics: Topics,
        *,
        start: Start,
        interval_ms: int,
        bounded: bool,
    ) -> None:
        """``state`` is that of a checkpoint, or empty; raises ``ValueError`` for any other."""
        self._context = context
        self._cluster = cluster
        self._topics = topics
        self._start = start
        self._interval_ms = interval_ms
        self._bounded = bounded
        checked = converted(state, _State)
        #: Whether there was a listing: in the job's history, and since this start or restore.
        self._listed = checked.listed
        self._looked = False
        self._ids = dict(checked.topics)
        self._partitions = {name_of(known.place): known for known in checked.partitions}
        #: Topics that the listing before did not find.
        self._missing: set[str] = set()
        #: Whether the listing before failed.
        self._is_away = False
        #: The stops of what is out, for the readers.
        self._stops_due: dict[str, int | None] = {}
        #: The readers that got their end.
        self._ended: set[int] = set()

    def start(self) -> None:
        """Look for partitions."""
        self._discover()

    def snapshot_state(self, checkpoint_id: int) -> Payload:
        """The topics and partitions."""
        state: Payload = msgspec.to_builtins(
            _State(
                listed=self._listed, topics=self._ids, partitions=list(self._partitions.values())
            )
        )
        return state

    def add_reader(self, subtask: int) -> None:
        """Assign what waits for readers."""
        self._assign()

    def handle_split_request(self, subtask: int) -> None:
        """Nothing: partitions are assigned as soon as they are found."""

    def handle_source_event(self, subtask: int, event: Payload) -> None:
        """A partition is finished."""
        name = event["finished"]
        self._partitions[name] = msgspec.structs.replace(
            self._partitions[name], offset=event["offset"], is_out=False
        )
        self._assign()

    def unassigned_splits(self) -> int:
        """The partitions that no reader has, and that have something to read."""
        return sum(not known.is_out and not known.is_over for known in self._partitions.values())

    def add_splits_back(self, splits: Sequence[KafkaSplit], subtask: int) -> None:
        """Assign these partitions again."""
        for split in splits:
            self._partitions[split.split_id] = msgspec.structs.replace(
                self._partitions[split.split_id], offset=split.offset, is_out=False
            )
        self._context.run_in_coordinator(self._assign)

    # -- listings

    def _discover(self) -> None:
        look = partial(
            self._look,
            known={known.place for known in self._partitions.values()},
            start="earliest" if self._listed else self._start,
            ends=not self._looked and (self._context.available_now or self._bounded),
        )
        self._context.call_async(look, self._found)

    def _look(self, *, known: Collection[Partition], start: Start, ends: bool) -> _Listing:
        """Ask the cluster. On another thread."""
        names = (
            filter(self._wants, self._cluster.names())
            if isinstance(self._topics, Pattern)
            else self._topics
        )
        topics = self._cluster.topics({*names, *(topic for topic, _ in known)})
        there = {
            (name, number) for name, topic in topics.items() for number in range(topic.partitions)
        }
        return _Listing(
            topics=topics,
            offsets=self._offsets(there - set(known), start),
            ends=self._cluster.offsets(there, END) if ends else {},
        )

    def _wants(self, topic: str) -> bool:
        if isinstance(self._topics, Pattern):
            return bool(self._topics.fullmatch(topic)) and not topic.startswith("__")
        return topic in self._topics

    def _offsets(self, places: Collection[Partition], start: Start) -> dict[Partition, int]:
        if isinstance(start, Mapping):
            lacking = [
                name_of(place)
                for place in sorted(places)
                if place[1] not in start.get(place[0], {})
            ]
            if lacking:
                raise PipelineError(
                    f"KafkaTopic has start offsets, but none for {', '.join(lacking)}: give each"
                    " partition one."
                )
            return {place: start[place[0]][place[1]] for place in places}
        if isinstance(start, datetime):
            return self._cluster.offsets(places, round(start.timestamp() * 1000))
        return self._cluster.offsets(places, BEGINNING if start == "earliest" else END)

    def _found(self, listing: _Listing | None, error: BaseException | None) -> None:
        if listing is None:
            if not self._looked or error is None or not isinstance(error, InputError):
                raise error or RuntimeError("nothing was listed")
            if not self._is_away:
                _log.warning("%s No new partitions are found until it does.", error)
            self._is_away = True
            self._context.schedule(self._interval_ms, self._discover)
            return
        self._is_away = False
        if self._look_again(listing.topics):
            return
        self._take(listing)
        self._assign()
        if not (self._bounded or self._context.available_now):
            self._context.schedule(self._interval_ms, self._discover)

    def _look_again(self, topics: Mapping[str, Topic]) -> bool:
        """Whether a topic was not found for the first time. Raises by rule 5."""
        wanted = set(filter(self._wants, self._ids))
        if not isinstance(self._topics, Pattern):
            wanted.update(self._topics)
        missing = wanted - topics.keys()
        for name in sorted(missing & self._missing):
            if name in self._ids:
                raise losses.deleted(name)
            raise InputError(
                f"Topic {name!r} does not exist, or this user may not see it: create it, or correct"
                " its name in the source."
            )
        for name, topic in topics.items():
            known = self._ids.get(name, "")
            if known and known != topic.topic_id and name in wanted:
                raise losses.made_again(name, known, topic.topic_id)
        self._missing = missing
        if missing:
            self._context.schedule(_AGAIN_MS, self._discover)
        return bool(missing)

    def _take(self, listing: _Listing) -> None:
        if not (self._bounded and self._listed):
            for place, offset in sorted(listing.offsets.items()):
                self._partitions[name_of(place)] = _Known(*place, offset=offset)
            self._ids |= {name: topic.topic_id for name, topic in listing.topics.items()}
        if not self._looked:
            for name, known in self._partitions.items():
                stop = self._stop(known, listing.ends)
                self._partitions[name] = msgspec.structs.replace(known, stop=stop)
            self._stops_due = {
                name: known.stop for name, known in self._partitions.items() if known.is_out
            }
        self._listed = self._looked = True

    def _stop(self, known: _Known, ends: Mapping[Partition, int]) -> int | None:
        """Where reading ends in this attempt."""
        if not self._wants(known.topic):
            return 0
        if self._bounded and known.stop is not None:
            return known.stop
        return ends.get(known.place)

    # -- assignments

    def _assign(self) -> None:
        """Assign what is not out, once there was a listing and all readers run."""
        readers = self._context.registered_readers
        if not self._looked or len(readers) < self._context.current_parallelism:
            return
        if self._stops_due:
            for subtask in sorted(readers):
                self._context.send_event_to_reader(subtask, {"stops": self._stops_due})
            self._stops_due = {}
        due: dict[int, list[KafkaSplit]] = {}
        for name, known in self._partitions.items():
            if not known.is_out and not known.is_over:
                subtask = (zlib.crc32(known.topic.encode()) + known.partition) % len(readers)
                due.setdefault(subtask, []).append(
                    KafkaSplit(
                        topic=known.topic,
                        partition=known.partition,
                        topic_id=self._ids[known.topic],
                        offset=known.offset,
                        stop=known.stop,
                    )
                )
                self._partitions[name] = msgspec.structs.replace(known, is_out=True)
        for subtask, splits in sorted(due.items()):
            self._context.assign_splits(splits, subtask)
        if (self._bounded or self._context.available_now) and all(
            known.is_over for known in self._partitions.values()
        ):
            for subtask in sorted(readers - self._ended):
                self._context.signal_no_more_splits(subtask)
            self._ended |= readers
