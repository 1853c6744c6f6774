"""What a driver must do in time, apart from the end of its job.

1. A request that has reached the job is answered before the driver ends.
2. No checkpoint ends by its timeout if that is far longer than a checkpoint takes, and nothing
   slows it down: what cannot complete is declined, not waited for.
"""

from __future__ import annotations

from weir.core.messages.job import (
    AnswerRequest,
    CancelRequested,
    DiscardCheckpoint,
    LocationAllocated,
    SnapshotRequested,
)


class Liveness:
    """Checks these laws for one driver; its methods return how one is broken."""

    def __init__(self, patience_ms: int | None) -> None:
        """``patience_ms``: the timeout of checkpoints, if none may reach it."""
        self._patience_ms = patience_ms
        self._asked: set[str] = set()
        self._answered: set[str] = set()
        #: Checkpoint -> when it began, by the driver's clock.
        self._began_ms: dict[int, int] = {}

    def turn(self, envelope: object, now_ms: int) -> None:
        """The driver has processed an event."""
        match envelope:
            case SnapshotRequested(request=request) | CancelRequested(request=request):
                self._asked.add(request)
            case LocationAllocated(checkpoint_id=n):
                self._began_ms[n] = now_ms

    def effect(self, effect: object, now_ms: int) -> str | None:
        """The driver carries out an effect."""
        match effect:
            case AnswerRequest(request=request):
                self._answered.add(request)
            case DiscardCheckpoint(checkpoint_id=n, subsumed=False) if self._patience_ms:
                took_ms = now_ms - self._began_ms.get(n, now_ms)
                if took_ms >= self._patience_ms:
                    waits = f"checkpoint {n} waits for its timeout, {took_ms} ms"
                    return f"{waits}, though nothing slows it down"
        return None

    def ended(self) -> str | None:
        """The driver has ended by itself."""
        open_requests = sorted(self._asked - self._answered)
        return f"nobody answers the requests {open_requests}" if open_requests else None
