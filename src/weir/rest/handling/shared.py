"""Work that several requests need is done once.

A dashboard on many screens, a scraper and an exporter ask for the same things at the same moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from weir.runtime.concurrency import Clock

#: How old a shared answer may be unless a caller says otherwise, in milliseconds, and how many are
#: kept.
FRESH_MS = 400
KEPT = 64

T = TypeVar("T")


class SharedAnswers:
    """The newest answers by key; used on the server's event loop only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: When each was asked for, in monotonic ms, oldest first.
        self._answers: dict[object, tuple[int, asyncio.Future[Any]]] = {}

    async def get(
        self, key: object, make: Callable[[], Awaitable[T]], *, fresh_ms: int = FRESH_MS
    ) -> T:
        """The answer of ``make``, or that of a call with the same key that is running or fresh.

        ``fresh_ms``: how old it may be.
        """
        now_ms = self._clock.now_ms()
        known = self._answers.get(key)
        if known is not None and (not known[1].done() or now_ms - known[0] < fresh_ms):
            found: asyncio.Future[T] = known[1]
            return await asyncio.shield(found)
        self._answers.pop(key, None)
        while len(self._answers) >= KEPT:
            del self._answers[next(iter(self._answers))]
        made = asyncio.ensure_future(make())
        self._answers[key] = (now_ms, made)
        return await asyncio.shield(made)
