"""When a final checkpoint that failed is tried again (MISSION E3, PROTOCOL P29).

Tasks that have ended their records wait for a checkpoint, and the job master asks for one by itself. So one that fails is
followed by the next, and nothing but this lies between the two: without it a master hook that refuses at the end of the
input would be asked thousands of times, and what the job tolerates would be used up before anybody can mend anything.

The delay doubles with each failure in a row. A periodic checkpoint, or one that a user asks for, may come sooner and serves
as well. A completed checkpoint, and each attempt, begins anew.
"""

from __future__ import annotations

from weir.errors import invariant

INITIAL_DELAY_MS = 100
MAX_DELAY_MS = 10_000


def delay_ms(failures: int) -> int:
    """How long after the last of so many failures in a row the next try comes."""
    return min(MAX_DELAY_MS, INITIAL_DELAY_MS << min(failures - 1, 30))


class FinalCheckpointRetry:
    """The failures in a row, and until when the next try waits."""

    def __init__(self) -> None:
        self._failures = 0
        #: Monotonic ms. Law: None unless the last try has failed.
        self._at_ms: int | None = None

    @property
    def at_ms(self) -> int | None:
        """When the next try may come, in monotonic ms; None: at once."""
        return self._at_ms

    def failed(self, now_ms: int) -> None:
        """A final checkpoint was asked for, and there is none."""
        self._failures += 1
        self._at_ms = now_ms + delay_ms(self._failures)

    def on_deadline(self, now_ms: int) -> None:
        """The next try need not wait any more, if it is late enough."""
        if self._at_ms is not None and self._at_ms <= now_ms:
            self._at_ms = None

    def reset(self) -> None:
        """A checkpoint completed, or an attempt begins."""
        self._failures, self._at_ms = 0, None

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        invariant(self._at_ms is None or self._failures > 0, "a final checkpoint waits after no failure")
