"""What a modelled query has of its channels: segments that it was let read, how far it has read, and watermarks.

Spark asks the sources of a query in any order. A channel that it lists *before* it asks the control input does not show
what that call admits: the batch passes it over, and the next one reads it (PROTOCOL P7). So what was admitted and what was
read are kept apart here.

What a query was told of watermarks belongs to its state, as Spark's offset log keeps it. Laws, of P25:

1. No record lies below the watermark that the query was told for its channel, with this batch or before.
2. The watermark of a channel never falls, not over a restart either.
3. After a checkpoint each channel's watermark is at least what its producer's was at the barrier; a producer whose records
   had ended holds nothing back. Not where an unaligned checkpoint has overtaken records: the watermarks behind them follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from weir.core.channel import Segment
from weir.core.input_gate import Admission
from weir.core.types import VertexId


class BrokenWatermarkError(Exception):
    """A query was told a watermark that is wrong. Caught by nobody: the auditor looks for it in failures of tasks."""


class SimInbox:
    """The channels of one query, on Spark's side."""

    def __init__(self, inputs: Sequence[VertexId], lists_early: Callable[[], bool]) -> None:
        """``lists_early`` says whether Spark lists a channel before it asks the control input."""
        self._lists_early = lists_early
        self._read: dict[VertexId, int] = {}
        self._watermarks_ms: dict[VertexId, int] = {}
        #: Admitted and not read, in order.
        self._waiting: dict[VertexId, list[Segment]] = {name: [] for name in inputs}
        #: How many of them Spark has listed for the next batch; None: it has not looked yet.
        self._listed: dict[VertexId, int | None] = {}

    @property
    def consumed(self) -> dict[VertexId, int]:
        """How far each channel has been read by complete batches."""
        return dict(self._read)

    @property
    def watermark_ms(self) -> int | None:
        """The watermark of what was read: the least over the channels, once each has one."""
        if len(self._watermarks_ms) < len(self._waiting):
            return None
        return min(self._watermarks_ms.values(), default=None)

    def dump(self) -> str:
        """Its part of a snapshot. Segments are none: those that a barrier has overtaken wait in the core."""
        return msgspec.json.encode(self._watermarks_ms).decode()

    def load(self, dumped: str) -> None:
        """Take up what a snapshot holds."""
        self._watermarks_ms = msgspec.json.decode(dumped, type=dict[VertexId, int])

    def list_early(self) -> None:
        """Before the control input asks: Spark lists some channels."""
        self._listed = {
            name: len(waiting) if self._lists_early() else None for name, waiting in self._waiting.items()
        }

    def admit(self, admitted: Sequence[Admission]) -> dict[VertexId, list[Segment]]:
        """The answer to the call admits segments. Says what the next batch reads."""
        for one in admitted:
            self._waiting[one.channel].extend(one.segments)
        return {
            name: waiting[: self._listed[name]]
            for name, waiting in self._waiting.items()
            if waiting[: self._listed[name]]
        }

    def tell(self, watermarks_ms: Mapping[VertexId, int], at_barrier: Mapping[VertexId, int]) -> bool:
        """The answer to the call carries watermarks; says whether one has risen. ``at_barrier``: what those of the producers
        were at the last checkpoint, of channels that were empty there."""
        for name, before in self._watermarks_ms.items():
            if watermarks_ms.get(name, before) < before:
                raise BrokenWatermarkError(
                    f"the watermark of {name} falls from {before} to {watermarks_ms[name]}"
                )
        for name, least in at_barrier.items():
            if watermarks_ms.get(name, -1) < least:
                raise BrokenWatermarkError(
                    f"{name} was at {least} at the barrier, and behind it {watermarks_ms.get(name)} is told"
                )
        risen = any(self._watermarks_ms.get(name) != told for name, told in watermarks_ms.items())
        self._watermarks_ms |= watermarks_ms
        return risen

    def check(self, channel: VertexId, rows: Sequence[int]) -> None:
        """The query reads these rows of a channel."""
        watermark_ms = self._watermarks_ms.get(channel)
        if watermark_ms is not None and rows and min(rows) < watermark_ms:
            raise BrokenWatermarkError(f"{min(rows)} of {channel} is read below the watermark {watermark_ms}")

    def committed(self, read: Mapping[VertexId, Sequence[Segment]]) -> None:
        """The batch that read these segments is complete."""
        for name, segments in read.items():
            del self._waiting[name][: len(segments)]
            self._read[name] = segments[-1].position
