"""Work that several requests need is done once.

A dashboard on many screens, a scraper and an exporter ask for the same things at the same moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weir.runtime.concurrency import Clock

#: How old a shared answer may be unless a caller says otherwise, in milliseconds, and how many are
#: kept.
FRESH_MS = 400
KEPT = 64
_READING = ("GET", "HEAD")

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

    def forget(self) -> None:
        """Make every answer anew."""
        self._answers.clear()


class RecentAnswers:
    """An ASGI application that shares another one's answers to requests that only read.

    ``share_ms``: for how long; 0: not at all. A request that may change something ends it, so that
    whoever sent that request sees what it did.
    """

    def __init__(self, app: ASGIApp, clock: Clock, share_ms: int) -> None:
        self._app = app
        self._shared = SharedAnswers(clock)
        self._share_ms = share_ms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["method"] not in _READING:
            self._shared.forget()
            try:
                await self._app(scope, receive, send)
            finally:
                self._shared.forget()
        elif not self._share_ms:
            await self._app(scope, receive, send)
        else:
            # What an answer depends on. A client that has it already is told so (304).
            known = [value for name, value in scope["headers"] if name == b"if-none-match"]
            key = (scope["method"], scope["path"], scope["query_string"], *known)
            answer = await self._shared.get(key, lambda: self._made(scope), fresh_ms=self._share_ms)
            for message in answer:
                await send(message)

    async def _made(self, scope: Scope) -> list[Message]:
        """The messages of which the answer consists."""
        answer: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def keep(message: Message) -> None:
            answer.append(message)

        # The client whose request this is may be gone before the others have their answer.
        try:
            await self._app(scope, receive, keep)
        except Exception:
            # Starlette answers with 500 and raises, so that a server can log it.
            if not any(message["type"] == "http.response.body" for message in answer):
                raise
        return answer
