"""``Watermarks``: event time by split, idle splits, and splits that are too far ahead.

Spark derives a watermark from the newest row of all. If one split is ahead of another, the rows of
the other would be late. So a source with ``Watermarks`` keeps a watermark for each split, and the
source's is the lowest of them (Flink: ``WatermarkStrategy`` with a source of splits):

1. A split's watermark is the newest time among its rows, minus ``delay_ms``. It is part of the
   split's state, so it does not start again after a restore.
2. A split without rows so far holds the source's watermark where it is.
3. A split that was read for ``idle_after_ms`` without a row is *idle*: it holds back nothing until
   it has rows again. A split whose rows wait to be read is not idle, nor is a split after a restart
   before it has been read. A reader without splits is idle too.
4. A finished split counts in the batch in which it finished, and then no more.
5. The source's watermark never falls: rows of a split that was idle, or was assigned late, may be
   late.
6. A split whose watermark is more than ``max_drift_ms`` above the lowest is *paused* until the
   others have come closer (Flink: ``withWatermarkAlignment``). Idle splits hold back no others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from weir.core.messages.channel import MAX_WATERMARK_MS
from weir.errors import PipelineError


@dataclass(frozen=True, kw_only=True)
class Watermarks:
    """How a source derives its watermark, for ``Job.source``. The module's docstring has the rules.

    Raises ``PipelineError`` for a time that is not a whole number of milliseconds, is below 0, or
    is 0 where that means nothing.
    """

    #: The column with the event time, of Spark's type ``timestamp``.
    column: str
    #: How much older than the newest row of its split a row may be, in milliseconds.
    delay_ms: int = 0
    #: After how long a split that is read without rows is idle; None: never.
    idle_after_ms: int | None = None
    #: How far a split may be ahead of the slowest; None: no limit.
    max_drift_ms: int | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("delay_ms", self.delay_ms, 0),
            ("idle_after_ms", self.idle_after_ms, 1),
            ("max_drift_ms", self.max_drift_ms, 1),
        ):
            if value is None and name != "delay_ms":
                continue
            if type(value) is not int or value < least:
                raise PipelineError(
                    f"Watermarks has {name}={value!r}: set it to whole milliseconds, {least} or"
                    " more."
                )


class ReaderTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a reader is in event time."""

    #: The lowest watermark of its splits that are not idle; None while any lacks a watermark.
    watermark_ms: int | None
    #: Whether it has a split that is not idle.
    is_active: bool


@dataclass
class SplitTime:
    """How far a split is in event time."""

    #: None before its first row.
    watermark_ms: int | None
    #: Since when it was read without a row, by the driver's clock; None if it had some.
    quiet_ms: int | None


class SplitWatermarks:
    """The watermarks of one reader's splits."""

    def __init__(self, strategy: Watermarks) -> None:
        self._strategy = strategy
        self._splits: dict[str, SplitTime] = {}
        #: Splits that have finished in this batch.
        self._finished: set[str] = set()

    def add(
        self, split_id: str, watermark_ms: int | None = None, quiet_ms: int | None = None
    ) -> None:
        """A split came to the reader, with its time if it was here before."""
        self._splits[split_id] = SplitTime(watermark_ms, quiet_ms)

    def begin_attempt(self) -> None:
        """The time before a restart does not count."""
        for time in self._splits.values():
            time.quiet_ms = None

    def read_nothing(self, split_id: str, now_ms: int) -> None:
        """A split was read without a row."""
        time = self._splits[split_id]
        time.quiet_ms = now_ms if time.quiet_ms is None else time.quiet_ms

    def read(self, split_id: str, newest_ms: int | None) -> None:
        """Rows of a split were read; the newest has this time, None if no row has a time."""
        time = self._splits[split_id]
        time.quiet_ms = None
        if newest_ms is not None:
            reached = newest_ms - self._strategy.delay_ms
            known = time.watermark_ms
            time.watermark_ms = reached if known is None else max(reached, known)

    def finish(self, split_id: str) -> None:
        """Nothing more will come from a split."""
        self._finished.add(split_id)

    def end_batch(self, now_ms: int) -> ReaderTime:
        """How far the reader is after a batch; forgets the splits that have finished in it."""
        patience = self._strategy.idle_after_ms
        active = [
            split.watermark_ms
            for split in self._splits.values()
            if patience is None or split.quiet_ms is None or now_ms - split.quiet_ms < patience
        ]
        for split_id in self._finished:
            del self._splits[split_id]
        self._finished.clear()
        return ReaderTime(watermark_ms=_lowest(active), is_active=bool(active))

    @property
    def unread(self) -> int:
        """How many splits may have rows: those that had some when they were last read, if ever."""
        return sum(split.quiet_ms is None for split in self._splits.values())

    def time_of(self, split_id: str) -> SplitTime:
        """The time of a split."""
        return self._splits[split_id]

    def ahead(self, slowest_ms: int | None) -> frozenset[str]:
        """The splits to pause, given how far the slowest split of all is (``slowest_of``)."""
        drift = self._strategy.max_drift_ms
        if drift is None:
            return frozenset()
        return frozenset(
            split_id
            for split_id, split in self._splits.items()
            if split.watermark_ms is not None
            and (slowest_ms is None or split.watermark_ms > slowest_ms + drift)
        )


def lowest_of(readers: Iterable[ReaderTime]) -> ReaderTime:
    """How far all readers are together."""
    active = [reader.watermark_ms for reader in readers if reader.is_active]
    return ReaderTime(watermark_ms=_lowest(active), is_active=bool(active))


def slowest_of(readers: Iterable[ReaderTime]) -> int | None:
    """The lowest watermark of all splits that are not idle; None while any lacks a watermark.

    If all are idle, no split has to wait for another: ``MAX_WATERMARK_MS``.
    """
    lowest = lowest_of(readers)
    return lowest.watermark_ms if lowest.is_active else MAX_WATERMARK_MS


def _lowest(watermarks: list[int | None]) -> int | None:
    known = [watermark_ms for watermark_ms in watermarks if watermark_ms is not None]
    return min(known) if known and len(known) == len(watermarks) else None
