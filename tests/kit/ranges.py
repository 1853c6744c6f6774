"""A source of numbers in ranges, for the contract's tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from weir.core.types import Payload
from weir.sources import (
    Fetched,
    Source,
    SourceReaderContext,
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitReader,
    SplitSerializer,
    decode_splits,
    encode_splits,
)

SCHEMA = pa.schema([("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])


@dataclass(frozen=True)
class Range:
    """The numbers from ``position`` to ``end``."""

    split_id: str
    position: int
    end: int


class Ranges(Source[Range]):
    """The numbers of each range, read some at a time; each is its own time in seconds."""

    schema = "n long, ts timestamp"

    def __init__(self, *ranges: Range, rows: int = 3, bounded: bool = True) -> None:
        self.ranges = ranges
        self.bounded = bounded
        self.max_rows_per_batch = rows
        #: Reading stops here, for want of rows.
        self.there = 1 << 40
        self.calls: list[Any] = []

    def split_serializer(self) -> SplitSerializer[Range]:
        return SplitSerializer(Range)

    def create_enumerator(self, context: SplitEnumeratorContext) -> RangesEnumerator:
        return RangesEnumerator(context, self, list(self.ranges))

    def restore_enumerator(
        self, context: SplitEnumeratorContext, state: Payload
    ) -> RangesEnumerator:
        left = decode_splits(self.split_serializer(), state.get("left"))
        return RangesEnumerator(context, self, left)

    def create_reader(self, context: SourceReaderContext) -> RangesReader:
        return RangesReader(context, self)


class RangesEnumerator(SplitEnumerator[Range]):
    """Gives each reader that asks the next range."""

    def __init__(self, context: SplitEnumeratorContext, source: Ranges, left: list[Range]) -> None:
        self.context = context
        self.left = left
        self._source = source
        self.calls = source.calls

    def start(self) -> None:
        self.calls.append("start")

    def add_reader(self, subtask: int) -> None:
        self.calls.append(("add_reader", subtask))

    def handle_split_request(self, subtask: int) -> None:
        self.calls.append(("request", subtask))
        if self.left:
            self.context.assign_splits([self.left.pop(0)], subtask)
        elif self._source.bounded:
            self.context.signal_no_more_splits(subtask)

    def handle_source_event(self, subtask: int, event: Payload) -> None:
        self.calls.append(("event", subtask, event))

    def add_splits_back(self, splits: Sequence[Range], subtask: int) -> None:
        self.calls.append(("back", subtask, list(splits)))
        self.left = [*splits, *self.left]

    def snapshot_state(self, checkpoint_id: int) -> Payload:
        return {"left": encode_splits(self._source.split_serializer(), self.left)}

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.calls.append(("complete", checkpoint_id))

    def close(self) -> None:
        self.calls.append("close")


class RangesReader(SplitReader[Range]):
    """Reads at most two numbers at a time."""

    def __init__(self, context: SourceReaderContext, source: Ranges) -> None:
        super().__init__(context)
        self._there = source.there

    def fetch(self, split: Range, max_rows: int) -> Fetched[Range]:
        end = min(split.position + min(max_rows, 2), split.end, self._there)
        numbers = pa.array(range(split.position, max(end, split.position)), pa.int64())
        times = pa.array([n * 1_000_000 for n in numbers.to_pylist()], pa.int64())
        batch = pa.RecordBatch.from_arrays(
            [numbers, times.cast(pa.timestamp("us", "UTC"))], schema=SCHEMA
        )
        after = replace(split, position=max(end, split.position))
        return Fetched(batch=batch, split=None if after.position == split.end else after)


def ranges(*lengths: int) -> list[Range]:
    """Ranges of these lengths, one after the other."""
    found, start = [], 0
    for number, length in enumerate(lengths):
        found.append(Range(f"r{number}", start, start + length))
        start += length
    return found
