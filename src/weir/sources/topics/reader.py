"""``KafkaReader``: reads the partitions that a subtask has, through one consumer.

1. A partition's position is the offset after the last record that was emitted, or its end if the
   consumer has reached that: what a reader of committed records does not see, the marks of
   transactions and the records of aborted ones, is passed over.
2. A partition counts as read without a row only when the consumer has reached its end. Only while
   it has not does a read wait, and not for long.
3. Nothing is emitted before the cluster has been asked, after the records were fetched, whether
   their topics are still those with the ids that the splits have. A topic that was deleted and made
   again would be read on at the former topic's offset.
4. A partition without the offset from which it is to be read has lost rows.
5. A split with a stop finishes there, and the enumerator is notified where that was.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from weir.core.types import Payload
from weir.errors import InputError
from weir.sources.base import SourceReader, SourceReaderContext, SplitRecords
from weir.sources.topics import losses
from weir.sources.topics.client import BEGINNING, END, Cluster, Consumer, Message, Polled
from weir.sources.topics.splits import KafkaSplit, Partition

if TYPE_CHECKING:
    from weir.sources.topics.rows import RecordRows

_log = logging.getLogger(__name__)

#: How many records are taken from the consumer at once, and the bytes of values after which a read
#: takes no more.
_CHUNK_ROWS = 10_000
_MAX_BYTES = 64 * 1024 * 1024
#: How long a read waits for partitions that were not read to their end, and for all of its records.
_PATIENCE_S = 0.5
_READ_S = 2.0


class KafkaReader(SourceReader[KafkaSplit]):
    """Reads partitions. The module's docstring has the rules."""

    def __init__(
        self,
        context: SourceReaderContext,
        cluster: Cluster,
        rows: RecordRows,
        *,
        accepts_lost_rows: bool,
    ) -> None:
        """With ``accepts_lost_rows``, it goes on where retention has passed its position."""
        self._context = context
        self._cluster = cluster
        self._rows = rows
        self._accepts_lost_rows = accepts_lost_rows
        self._consumer: Consumer = cluster.consumer()
        self._splits: dict[Partition, KafkaSplit] = {}
        #: The partitions that are read: not paused, not finished.
        self._active: set[Partition] = set()
        #: Those that were read to their end, as far as is known.
        self._at_end: set[Partition] = set()
        self._paused: frozenset[str] = frozenset()

    def add_splits(self, splits: Sequence[KafkaSplit]) -> None:
        """Read these partitions, too."""
        for split in splits:
            self._splits[split.place] = split
        self._follow()

    def handle_source_event(self, event: Payload) -> None:
        """Take new stops: ``{"stops": {split_id: offset}}``."""
        for place, split in self._splits.items():
            if split.split_id in event["stops"]:
                self._splits[place] = replace(split, stop=event["stops"][split.split_id])

    def pause_or_resume_splits(self, paused: frozenset[str]) -> None:
        """Do not read these partitions."""
        self._paused = paused
        self._follow()

    def snapshot_state(self) -> list[KafkaSplit]:
        """The partitions at their positions."""
        return list(self._splits.values())

    def close(self) -> None:
        """Stop fetching."""
        self._consumer.close()

    def read(self, max_rows: int) -> Iterator[SplitRecords]:
        """Emit what has been fetched."""
        polled = self._fetched(max_rows)
        if polled.records or polled.out_of_range:
            self._check_topics()
        for place in polled.out_of_range & self._active:
            self._lose(self._splits[place])
        for place, records in polled.records.items():
            if place in self._active:
                yield from self._emitted(self._splits[place], records)
        for place, end in polled.ends.items():
            self._reach(place, end)
        for split in self._reading:
            if _is_over(split):
                yield self._finished(split)
            elif split.place in self._at_end - polled.records.keys():
                self.announce(split)
                yield SplitRecords(split_id=split.split_id)

    # -- inside

    @property
    def _reading(self) -> list[KafkaSplit]:
        return [self._splits[place] for place in sorted(self._active)]

    def _follow(self) -> None:
        """Let the consumer read what is to be read, and no more."""
        wanted = {
            place for place, split in self._splits.items() if split.split_id not in self._paused
        }
        if left := self._active - wanted:
            self._consumer.unassign(left)
        if new := wanted - self._active:
            self._consumer.assign({place: self._splits[place].offset for place in new})
        self._active = wanted
        self._at_end &= wanted - new

    def _fetched(self, max_rows: int) -> Polled:
        found = Polled()
        until = time.monotonic() + _READ_S
        rows = size = 0
        behind = self._active - self._at_end
        while self._active and rows < max_rows and size < _MAX_BYTES and time.monotonic() < until:
            polled = self._consumer.poll(
                min(_CHUNK_ROWS, max_rows - rows), _PATIENCE_S if behind else 0
            )
            if not (polled.records or polled.ends or polled.out_of_range):
                break
            for place, records in polled.records.items():
                found.records.setdefault(place, []).extend(records)
                rows += len(records)
                size += sum(map(len, records))
            found.ends.update(polled.ends)
            found.out_of_range.update(polled.out_of_range)
            if found.out_of_range:
                break
            behind = (behind | polled.records.keys()) - polled.ends.keys() - polled.out_of_range
        return found

    def _check_topics(self) -> None:
        known = {split.topic: split.topic_id for split in self._reading if split.topic_id}
        found = self._cluster.topics(known.keys())
        for name, topic_id in known.items():
            if name not in found:
                # That it is gone for good, the enumerator finds out.
                raise InputError(f"Topic {name!r} is not found.")
            if found[name].topic_id != topic_id:
                raise losses.made_again(name, topic_id, found[name].topic_id)

    def _lose(self, split: KafkaSplit) -> None:
        """Go on at the first offset that is there, if the user accepts that; raise otherwise."""
        earliest = self._cluster.offsets([split.place], BEGINNING)[split.place]
        if split.offset >= earliest:
            raise losses.cut(split, self._cluster.offsets([split.place], END)[split.place])
        if not self._accepts_lost_rows:
            raise losses.gone(split, earliest, self._context.operator_id)
        _log.warning(
            "Topic %r has lost up to %d rows of partition %d that the job had not read: it goes on"
            " at offset %d without them, as --accept-lost-rows says.",
            *(split.topic, earliest - split.offset, split.partition, earliest),
        )
        self._consumer.unassign({split.place})
        self._consumer.assign({split.place: earliest})
        self._splits[split.place] = replace(split, offset=earliest)

    def _emitted(self, split: KafkaSplit, records: Sequence[Message]) -> Iterator[SplitRecords]:
        last = records[-1].offset()
        stop = last + 1 if split.stop is None else split.stop
        # None was emitted before, and none behind the stop.
        if records[0].offset() < split.offset or last >= stop:
            records = [one for one in records if split.offset <= one.offset() < stop]
        self._at_end.discard(split.place)
        if records:
            self.announce(split)
            batch = self._rows.batch(records)
            self._splits[split.place] = replace(split, offset=min(last + 1, stop))
            yield SplitRecords(split_id=split.split_id, batch=batch)
        elif last >= stop:
            self._splits[split.place] = replace(split, offset=max(split.offset, stop))

    def _reach(self, place: Partition, end: int) -> None:
        """A partition was read to its end."""
        if place not in self._active or end < self._splits[place].offset:
            return
        split = self._splits[place]
        stop = end if split.stop is None else split.stop
        self._splits[place] = replace(split, offset=max(split.offset, min(end, stop)))
        self._at_end.add(place)

    def _finished(self, split: KafkaSplit) -> SplitRecords:
        del self._splits[split.place]
        self._follow()
        self._context.send_source_event({"finished": split.split_id, "offset": split.offset})
        return SplitRecords(split_id=split.split_id, finished=True)


def _is_over(split: KafkaSplit) -> bool:
    return split.stop is not None and split.offset >= split.stop
