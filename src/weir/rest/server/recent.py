"""Answers a request from memory if the same bytes were answered a moment ago.

A dashboard on many screens, a scraper and an exporter ask for the same things again and again, and
often at the same moment. Parsing and answering a request takes ten times as long as comparing its
bytes: its head says all that an answer depends on, the token included. So of the same requests that
come within a moment one is answered, and the others get what it gets.

As in Flink, which keeps its execution graph for ``web.refresh-interval``, an answer to those who do
not say that they want the newest (``Cache-Control: no-cache``) may be older, until the job has news
of another kind than numbers that rise. Before it is too old, whoever asks next still gets it and
has the next one made, so that nobody waits.

Used on the server's event loop only.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

#: How many requests are remembered at a time, and how many bytes the answer to one may have.
KEPT = 64
ANSWER_MAX = 256 * 1024
#: The whole head of a request that only reads, and headers that make it more than that.
_READING = re.compile(rb"(?:GET|HEAD) [^\r\n]+ HTTP/1\.1\r\n(?:[^\r\n]+\r\n)*\r\n")
_MORE = re.compile(
    rb"\r\n(?:connection:(?![ \t]*keep-alive\r)"
    rb"|content-length:|expect:|transfer-encoding:|upgrade:)",
    re.IGNORECASE,
)
#: Whoever sends this wants what is so now; and texts (logs, threads, metrics) tell it.
_NEWEST = re.compile(rb"\r\n(?:cache-control|pragma):[^\r\n]*no-(?:cache|store)", re.IGNORECASE)
_TEXT = re.compile(rb"\r\ncontent-type: *text/", re.IGNORECASE)
#: The part of the time for which an answer serves after which it is made anew.
_DUE = 2 / 3
_SUCCESS = (b"HTTP/1.1 200 ", b"HTTP/1.1 304 ")


class Follower(Protocol):
    """A connection whose request is the same as one that is being answered."""

    def resume(self, answer: bytes | None) -> None:
        """Send this answer; None: make one, since there is none to share."""
        ...


@dataclass(eq=False)
class RecentAnswer:
    """The answer to one request."""

    request: bytes
    #: Until when it serves, on the loop's clock in seconds; and until when if there is no news.
    until_s: float
    unless_news_s: float
    #: The news that there was when it was asked for.
    news: object
    #: From when on the next to ask has it made anew, while all are still served.
    due_s: float
    #: The answer that serves until this one is complete.
    before: RecentAnswer | None = None
    #: None until it is complete.
    answer: bytes | None = None
    followers: list[Follower] = field(default_factory=list)


class RecentAnswers:
    """The newest answers by request."""

    def __init__(self, share_ms: int, refresh_ms: int, news: Callable[[], object]) -> None:
        """Each is good for ``share_ms``; 0: none is kept.

        It is good for ``refresh_ms`` as long as ``news`` returns the same.
        """
        self._share_s = share_ms / 1_000
        self._refresh_s = refresh_ms / 1_000
        self._news = news
        #: Oldest first.
        self._answers: dict[bytes, RecentAnswer] = {}

    def find(self, request: bytes) -> RecentAnswer | None:
        """The answer to these bytes, which may not be complete yet; None if there is none.

        None also for the first to ask for one that is due: it has the next one made.
        """
        found = self._answers.get(request)
        if found is None:
            return None
        if found.answer is None:
            before = found.before
            return before if before is not None and self._is_fresh(before) else found
        return found if self._is_fresh(found) and _now_s() < found.due_s else None

    def begin(self, request: bytes) -> RecentAnswer | None:
        """A request comes that has no answer; None if its answer is for it alone."""
        if not self._share_s or _MORE.search(request) or not _READING.fullmatch(request):
            return None
        while self._answers and (oldest := next(iter(self._answers.values()))):
            if len(self._answers) < KEPT and (oldest.answer is None or self._is_fresh(oldest)):
                break
            del self._answers[oldest.request]
        now_s, before = _now_s(), self._answers.pop(request, None)
        serves = before is not None and before.answer is not None and self._is_fresh(before)
        refresh_s = 0 if _NEWEST.search(request) else self._refresh_s
        made = RecentAnswer(
            request=request,
            until_s=now_s + self._share_s,
            unless_news_s=now_s + refresh_s,
            news=self._news(),
            due_s=now_s + max(self._share_s, _DUE * refresh_s),
            before=before if serves else None,
        )
        self._answers[request] = made
        return made

    def complete(self, recent: RecentAnswer, answer: bytes | None) -> None:
        """It is there: pass it on. None: it cannot be shared, or will not come."""
        before, recent.before = recent.before, None
        if answer is not None and len(answer) <= ANSWER_MAX:
            recent.answer = answer
            head = answer.partition(b"\r\n\r\n")[0]
            if not head.startswith(_SUCCESS) or _TEXT.search(head):
                recent.unless_news_s = 0
        elif self._answers.get(recent.request) is recent:
            del self._answers[recent.request]
            if before is not None:
                # It is due, so whoever asks next has the next one made.
                self._answers[recent.request] = before
        followers, recent.followers = recent.followers, []
        for one in followers:
            one.resume(recent.answer)

    def forget(self) -> None:
        """Make every answer anew: something may have changed."""
        self._answers.clear()

    def _is_fresh(self, recent: RecentAnswer) -> bool:
        now_s = _now_s()
        return now_s < recent.until_s or (
            now_s < recent.unless_news_s and recent.news == self._news()
        )


def _now_s() -> float:
    return asyncio.get_running_loop().time()
