"""``StandInSource``: rows of a schema in splits, in place of a ``FileSource``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from weir.core.types import Payload
from weir.sources.base import (
    Source,
    SourceReader,
    SourceReaderContext,
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitSerializer,
    decode_splits,
    encode_splits,
)
from weir.sources.split_reader import Fetched, SplitReader

_SPLITS = 4
_ROWS_AT_ONCE = 3


@dataclass(frozen=True)
class _Range:
    first: int
    end: int
    at: int

    @property
    def split_id(self) -> str:
        return f"{self.first}-{self.end}"


class StandInSource(Source[_Range]):
    """Rows by number, in a few ranges."""

    def __init__(
        self, of: Source[Any], rows: Callable[[Sequence[int]], pa.RecordBatch], records: int
    ) -> None:
        self.schema = of.schema
        # It has no more rows; the end of an unbounded source would never come.
        self.bounded = True
        self.max_rows_per_batch = _ROWS_AT_ONCE
        self.rows = rows
        self.records = records

    def split_serializer(self) -> SplitSerializer[_Range]:
        """The default one."""
        return SplitSerializer(_Range)

    def create_enumerator(self, context: SplitEnumeratorContext) -> SplitEnumerator[_Range]:
        """All ranges."""
        size = max(1, -(-self.records // _SPLITS))
        ends = [(one, min(self.records, one + size)) for one in range(0, self.records, size)]
        return _Enumerator(self, context, [_Range(first, end, first) for first, end in ends])

    def restore_enumerator(
        self, context: SplitEnumeratorContext, state: Payload
    ) -> SplitEnumerator[_Range]:
        """The ranges that are left."""
        splits = decode_splits(self.split_serializer(), state["splits"])
        return _Enumerator(self, context, splits)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[_Range]:
        """A reader of ranges."""
        return _Reader(context, self)


class _Enumerator(SplitEnumerator[_Range]):
    def __init__(
        self, source: StandInSource, context: SplitEnumeratorContext, splits: Sequence[_Range]
    ) -> None:
        self._source = source
        self._context = context
        self._splits = list(splits)

    def handle_split_request(self, subtask: int) -> None:
        if self._splits:
            self._context.assign_splits([self._splits.pop(0)], subtask)
        else:
            self._context.signal_no_more_splits(subtask)

    def add_splits_back(self, splits: Sequence[_Range], subtask: int) -> None:
        self._splits.extend(splits)

    def snapshot_state(self, checkpoint_id: int) -> Payload:
        return {"splits": encode_splits(self._source.split_serializer(), self._splits)}


class _Reader(SplitReader[_Range]):
    def __init__(self, context: SourceReaderContext, source: StandInSource) -> None:
        super().__init__(context)
        self._source = source

    def fetch(self, split: _Range, max_rows: int) -> Fetched[_Range]:
        end = min(split.end, split.at + max_rows)
        rows = self._source.rows(range(split.at, end)) if end > split.at else None
        return Fetched(batch=rows, split=replace(split, at=end) if end < split.end else None)
