"""Clocks for tests: time that only the test moves, so that none waits for it."""

from __future__ import annotations

from dataclasses import replace

from weir.kernel import MACHINE, Kernel
from weir.runtime.concurrency import SystemClock


class ManualClock:
    """A ``Clock`` that stands until the test sets ``ms``.

    With ``tick_ms`` each look at it advances it, as if the code under test took that long.
    """

    def __init__(
        self, ms: int = 10_000, *, epoch_ms: int = 1_700_000_000_000, tick_ms: int = 0
    ) -> None:
        #: Monotonic milliseconds.
        self.ms = ms
        #: The wall clock's time at zero monotonic milliseconds.
        self._epoch_ms = epoch_ms
        self._tick_ms = tick_ms

    def now_ms(self) -> int:
        self.ms += self._tick_ms
        return self.ms

    def wall_ms(self) -> int:
        return self._epoch_ms + self.now_ms()

    def kernel(self) -> Kernel:
        """The machine with this clock; waits take no time."""
        return replace(QUICK, now_ms=self.now_ms, wall_ms=self.wall_ms)


class LaterClock(SystemClock):
    """The machine's clock, which a test can put forward."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


#: The machine, on which waits take no time.
QUICK = replace(MACHINE, sleep=lambda _: None)
