"""Time as a port: the production clock, and nothing else in Weir reads the time."""

from __future__ import annotations

import random
import time
from typing import Protocol


class Clock(Protocol):
    """Where the kernel reads the time."""

    def now_ms(self) -> int:
        """Monotonic milliseconds, from an arbitrary zero."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch, for people and files, never for deadlines."""
        ...


class SystemClock:
    """The machine's clock. Its monotonic zero is random, so that a stray ``time.monotonic()`` beside it shows."""

    def __init__(self) -> None:
        self._offset_ms = random.randrange(10_000, 10_000_000)

    def now_ms(self) -> int:
        """Monotonic milliseconds, from a random zero."""
        return self._offset_ms + time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000
