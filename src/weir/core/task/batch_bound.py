"""``BatchBound``: limits the bytes of a channel that one batch reads, to bound its duration.

A barrier waits for the batch that is running. If a lagging consumer read its whole backlog in one
batch, every checkpoint would wait for that batch; if it read one segment per batch, it would pay a
batch's fixed cost for each segment and never catch up. So the bound adapts to measured durations. A
batch that exceeded ``TARGET_MS`` shrinks the bound in proportion. A batch that took at most half of
``TARGET_MS`` and read more than half of the bound doubles it.
"""

from __future__ import annotations

#: How long a batch should take, in milliseconds.
TARGET_MS = 1_000

#: Initial, minimum and maximum bound, in bytes.
FIRST = 16 << 20
_LEAST = 2 << 20
_MOST = 1 << 30


class BatchBound:
    """The bound of one task. It applies to each of its channels."""

    def __init__(self) -> None:
        self.size = FIRST
        #: When the running batch was admitted, and the most bytes it reads of any channel; None if
        #: no batch with segments is running.
        self._running: tuple[int, int] | None = None

    def begun(self, size: int, now_ms: int) -> None:
        """A batch was admitted that reads at most ``size`` bytes of any channel."""
        self._running = (now_ms, size) if size else None

    def ended(self, now_ms: int) -> None:
        """The batch is committed, if one ran."""
        if self._running is None:
            return
        (begun_ms, size), self._running = self._running, None
        duration_ms = max(1, now_ms - begun_ms)
        if duration_ms > TARGET_MS:
            self.size = max(_LEAST, min(self.size, size) * TARGET_MS // duration_ms)
        elif duration_ms * 2 <= TARGET_MS and size * 2 > self.size:
            self.size = min(_MOST, self.size * 2)
