"""Looks at Spark through the driver's JVM, shared by all who need them.

A look takes dozens of calls to the JVM, and a tenth of a second while its cores are busy. A driver
that is asked for its figures every moment must not spend its job's time on them. Used on the
server's event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from weir.metrics.readings import ProcessReading, probe
from weir.monitoring.cluster import Cluster, ExecutorView, JvmView, ThreadView
from weir.runtime.concurrency import Clock, in_background

_log = logging.getLogger(__name__)

#: For how long a look is good, and for how long it serves until the next is done, in
#: milliseconds. Flink fetches the metrics of its tasks every 10 s
#: (``metrics.fetcher.update-interval``).
_GOOD_MS = 5_000
_STALE_MS = 10_000
#: How long a request waits for a look, and for an executor's threads, which it may have to send.
_PATIENCE_S = 1.0
_THREADS_PATIENCE_S = 5.0

T = TypeVar("T")


class Looks:
    """The newest look at each thing. Each thing has at most one look running, even if it hangs.

    What the JVM does not answer, or not in time, is left out: the job may be over.
    """

    def __init__(self, cluster: Cluster | None, clock: Clock) -> None:
        """``cluster``: None if it cannot be asked."""
        self._cluster = cluster
        self._clock = clock
        self._running: dict[str, asyncio.Future[Any]] = {}
        #: When the newest look that succeeded began, in monotonic milliseconds, and what it saw.
        self._seen: dict[str, tuple[int, Any]] = {}

    async def figures(self) -> tuple[JvmView | None, ProcessReading | None]:
        """The driver's JVM and its process, at most 10 s ago."""
        if self._cluster is None:
            return None, None
        return await self._recent("figures", partial(probe, self._cluster)) or (None, None)

    async def jvm(self) -> JvmView | None:
        """The driver's JVM, at most 10 s ago."""
        return (await self.figures())[0]

    async def executors(self) -> tuple[ExecutorView, ...]:
        """Spark's executors, at most 10 s ago."""
        if self._cluster is None:
            return ()
        return await self._recent("executors", self._cluster.executors) or ()

    async def threads(self, executor_id: str) -> tuple[ThreadView, ...]:
        """The Java threads of an executor, now."""
        if self._cluster is None:
            return ()
        what = f"threads of executor {executor_id}"
        running = self._begin(what, partial(self._cluster.threads, executor_id))
        return await self._outcome(running, _THREADS_PATIENCE_S) or ()

    async def _recent(self, what: str, look: Callable[[], T]) -> T | None:
        """What a fresh look saw; while the next is under way, what the look before it saw."""
        began_ms, known = self._seen.get(what, (self._clock.now_ms() - _STALE_MS, None))
        seen: T | None = known
        age_ms = self._clock.now_ms() - began_ms
        if age_ms >= _GOOD_MS:
            running = self._begin(what, look, is_kept=True)
            if age_ms >= _STALE_MS:
                return await self._outcome(running, _PATIENCE_S)
        return seen

    def _begin(
        self, what: str, look: Callable[[], T], *, is_kept: bool = False
    ) -> asyncio.Future[T]:
        """The running look, or a new look."""
        running = self._running.get(what)
        if running is None:
            # Not on asyncio's own threads: the process waits for those when it ends.
            running = asyncio.wrap_future(in_background(look))
            self._running[what] = running
            running.add_done_callback(partial(self._end, what, self._clock.now_ms(), is_kept))
        return running

    def _end(self, what: str, began_ms: int, is_kept: bool, look: asyncio.Future[Any]) -> None:
        del self._running[what]
        if (error := look.exception()) is not None:
            _log.debug("Cannot ask the JVM for its %s.", what, exc_info=error)
        elif is_kept:
            self._seen[what] = began_ms, look.result()

    @staticmethod
    async def _outcome(running: asyncio.Future[T], patience_s: float) -> T | None:
        """What a look sees; None if it fails, or takes longer than this."""
        await asyncio.wait({running}, timeout=patience_s)
        return running.result() if running.done() and running.exception() is None else None
