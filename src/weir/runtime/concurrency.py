"""Ports for the clock and for blocking work.

Production runs them on threads, the simulator on coroutines in virtual time. Code off the main
thread uses these ports and nothing from ``threading`` or ``time``, so that the simulator can run it
unchanged, interrupt it at any blocking call, and replay it. Nothing else in Weir reads the time.

What blocks has a thread of its own; idle threads are reused. A pool of a fixed size is full once
that many sinks or sources hang, and then nobody could cancel the job. Whatever ends a job waits for
hanging calls no longer than ``task.cancellation.timeout``, and the process then ends without them.
A commit that returns in a newer attempt goes no further. If a start or a query does not end, the
job fails, and another process resumes it.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from weir.errors import invariant


class Clock(Protocol):
    """The runtime's source of time."""

    def now_ms(self) -> int:
        """Monotonic milliseconds, from an arbitrary zero."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; for people and files, never for deadlines."""
        ...


class SystemClock:
    """The machine's clock, with a random monotonic zero.

    The random zero makes a stray ``time.monotonic()`` conspicuous.
    """

    def __init__(self) -> None:
        self._offset_ms = random.randrange(10_000, 10_000_000)

    def now_ms(self) -> int:
        """Monotonic milliseconds, from a random zero."""
        return self._offset_ms + time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000


_log = logging.getLogger(__name__)

T = TypeVar("T")

#: How long an idle thread waits for more work.
_IDLE_S = 60.0


class MainThread:
    """The only thread that may use the machines: the first that enters."""

    def __init__(self) -> None:
        self._ident: int | None = None

    def assert_inside(self) -> None:
        """Raise ``InvariantError`` on any other thread."""
        current = threading.get_ident()
        if self._ident is None:
            self._ident = current
        invariant(self._ident == current, "state machines may be used on the main thread only")


class Work(Protocol):
    """Work that runs off the main thread."""

    def done(self) -> bool:
        """Whether it has ended."""
        ...


class Event(Protocol):
    """Like ``threading.Event``."""

    def set(self) -> None:
        """Wake every waiter."""
        ...

    def clear(self) -> None:
        """Reset, so that later callers of ``wait`` block again."""
        ...

    def is_set(self) -> bool:
        """Whether it is set."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, for at most ``timeout`` seconds; return whether it is."""
        ...


class Waits(Protocol):
    """The primitives that blocking work may wait on."""

    def lock(self) -> AbstractContextManager[Any]:
        """A new lock."""
        ...

    def event(self) -> Event:
        """A new event, not set."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        ...


class Workers(Protocol):
    """Runs blocking work. No work queues behind other work, so work that hangs blocks no other."""

    def submit(self, work: Callable[[], None]) -> Work:
        """Run a function off the main thread. The function must not raise."""
        ...

    def submit_aside(self, work: Callable[[], None]) -> None:
        """Like ``submit``, for user code that may never return: nothing ever waits for it."""
        ...

    def wait(self, works: Sequence[Any], timeout_s: float) -> bool:
        """Wait, off the main thread, for ``works`` from ``submit``, at most ``timeout_s`` seconds.

        Returns whether all have ended. Those that have not are abandoned: nothing waits for them
        again.
        """
        ...


class ThreadWaits:
    """Waiting primitives of real threads."""

    def lock(self) -> AbstractContextManager[Any]:
        """A ``threading.Lock``."""
        return threading.Lock()

    def event(self) -> Event:
        """A ``threading.Event``."""
        return threading.Event()

    def sleep(self, seconds: float) -> None:
        """Block the thread for ``seconds``."""
        time.sleep(seconds)


class _ThreadWork:
    """A function to run on a thread."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._over = threading.Event()

    def done(self) -> bool:
        """Whether it has ended."""
        return self._over.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end, at most ``timeout_s`` seconds; return whether it has ended."""
        return self._over.wait(timeout_s)

    def run(self) -> None:
        """Run the function, and set the end even if it raises."""
        try:
            self._work()
        finally:
            self._over.set()


class ThreadWorkers:
    """An unbounded pool of daemon threads, which are reused.

    A pool of fixed size would be exhausted once that many sinks, sources or file systems hang, and
    then the job could not be cancelled. A daemon thread that hangs does not keep the process from
    exiting, as an executor's thread would.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: None ends the idle thread that takes it.
        self._queue: queue.SimpleQueue[_ThreadWork | None] = queue.SimpleQueue()
        #: Idle threads that no queued work has claimed.
        self._idle = 0
        self._under_way: set[_ThreadWork] = set()
        self._is_closed = False

    def submit(self, work: Callable[[], None]) -> _ThreadWork:
        """Run a function on a thread."""
        submitted = _ThreadWork(work)
        with self._lock:
            self._under_way = {known for known in self._under_way if not known.done()} | {submitted}
        self._run(submitted)
        return submitted

    def submit_aside(self, work: Callable[[], None]) -> None:
        """Run a function on a thread that nothing waits for."""
        self._run(_ThreadWork(work))

    def wait(self, works: Sequence[_ThreadWork], timeout_s: float) -> bool:
        """Wait until all have ended, at most ``timeout_s`` seconds; return whether they have."""
        until_s = time.monotonic() + timeout_s
        over = [work.wait(max(0.0, until_s - time.monotonic())) for work in works]
        with self._lock:
            self._under_way.difference_update(works)
        return all(over)

    def close(self, timeout_s: float) -> None:
        """Wait for submitted work, at most ``timeout_s`` seconds, except work already abandoned.

        Threads end as soon as they have no work.
        """
        self.wait(tuple(self._under_way), timeout_s)
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._queue.put(None)

    def _run(self, work: _ThreadWork) -> None:
        with self._lock:
            starts = not self._idle
            self._idle -= not starts
        self._queue.put(work)
        if starts:
            threading.Thread(target=self._serve, name="weir-work", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                work = self._queue.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        return
                # Work that claimed this thread is about to be queued.
                continue
            if work is None:
                return
            work.run()
            with self._lock:
                if self._is_closed:
                    return
                self._idle += 1


def in_background(work: Callable[[], T]) -> Future[T]:
    """Run a blocking function on a thread that does not keep the process from exiting."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="weir-background", daemon=True).start()
    return future


#: What user code may raise: ``sys.exit()`` or a cancelled coroutine must not leave an effect
#: without an answer.
RAISED = (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError)


def answered(
    work: Callable[[], Any],
    *,
    on_error: Callable[[BaseException], None],
    on_done: Callable[[Any], None] = lambda _: None,
) -> Callable[[], None]:
    """Wrap ``work`` so that it does not raise and always reports its outcome to a callback."""

    def run() -> None:
        try:
            result = work()
        except RAISED as error:
            _log.debug("A blocking effect failed.", exc_info=True)
            on_error(error)
        else:
            on_done(result)

    return run
