"""``BatchBound``: how many bytes of a channel one batch may read, so that the batch lasts about as
long as wanted.

A barrier waits for the batch that runs before it. A consumer that lags could read its whole backlog
in one batch, and every checkpoint would wait for that; with one segment at a time it would pay a
batch's fixed cost for each and never catch up. So the bound follows what batches took: a batch that
lasted too long shrinks it in proportion, and it is doubled by one that read more than half of what
the bound allows, if twice as much would have been in time too.
"""

from __future__ import annotations

#: What a batch should take, in milliseconds.
TARGET_MS = 1_000

#: Bytes at first, at least and at most.
FIRST = 16 << 20
_LEAST = 2 << 20
_MOST = 1 << 30


class BatchBound:
    """The bound for one task. It holds for each of its channels."""

    def __init__(self) -> None:
        self.size = FIRST
        #: When the batch that runs was let through, and the most bytes that it reads of a channel;
        #: None: none runs.
        self._running: tuple[int, int] | None = None

    def begun(self, size: int, now_ms: int) -> None:
        """A batch was let through that reads at most ``size`` bytes of a channel."""
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
