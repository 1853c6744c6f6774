"""``SplitReader``: a reader that reads one split at a time, and keeps the positions itself.

A source derives from it and defines ``fetch``, which returns rows together with the split at the
position after them. So no row can be emitted without its position, nor the other way round.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from weir.sources.base import SourceReader, SourceReaderContext, SplitRecords, SplitT

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class Fetched(Generic[SplitT]):
    """What one call of ``SplitReader.fetch`` has read."""

    #: Rows with the columns of the source's schema, in any order; None for none at the moment.
    batch: pa.RecordBatch | None = None
    #: The split at the position after the rows; None if nothing is left to read.
    split: SplitT | None


class SplitReader(SourceReader[SplitT]):
    """Base class of most readers (Flink: ``SourceReaderBase`` with a ``SplitReader``).

    It asks for splits when it has no more, and reads those that it has in turns.
    """

    def __init__(self, context: SourceReaderContext) -> None:
        self.context = context
        #: The splits at their positions, in the order in which they are read next.
        self._splits: deque[SplitT] = deque()
        self._paused: frozenset[str] = frozenset()

    @abc.abstractmethod
    def fetch(self, split: SplitT, max_rows: int) -> Fetched[SplitT]:
        """Read at most about ``max_rows`` rows from the split's position on.

        Must not wait for rows that do not exist yet.
        """

    def start(self) -> None:
        """Ask for splits, unless some are left."""
        self._ask()

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Take splits, to be read after those that are here."""
        self._splits.extend(splits)

    def read(self, max_rows: int) -> Iterator[SplitRecords]:
        """Fetch from each split in turn until there are enough rows, or no split has any."""
        left, quiet = max_rows, 0
        while left > 0 and quiet < len(self._splits):
            split = self._splits.popleft()
            name = split.split_id
            if name in self._paused:
                self._splits.append(split)
                quiet += 1
                continue
            self.announce(split)
            try:
                fetched = self.fetch(split, left)
            except Exception:
                self._splits.appendleft(split)
                raise
            if fetched.split is not None:
                self._splits.append(fetched.split)
            rows = 0 if fetched.batch is None else fetched.batch.num_rows
            # A split that has ended changes how many there are, so the round starts again.
            quiet = quiet + 1 if rows == 0 and fetched.split is not None else 0
            left -= rows
            yield SplitRecords(split_id=name, batch=fetched.batch, finished=fetched.split is None)
        self._ask()

    def snapshot_state(self) -> Sequence[SplitT]:
        """The unfinished splits."""
        return list(self._splits)

    def pause_or_resume_splits(self, paused: frozenset[str]) -> None:
        """Fetch nothing from these splits."""
        self._paused = paused

    def _ask(self) -> None:
        if not self._splits:
            self.context.send_split_request()
