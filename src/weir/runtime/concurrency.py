"""The clock and whatever can block, as ports: threads in production, coroutines on virtual time in
the simulator.

Code that runs beside the main thread uses these and nothing of ``threading`` or ``time``, so that
the simulator can run it unchanged, stop it between any two steps, and replay it. Nothing else in
Weir reads the time.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar


class Clock(Protocol):
    """Where the runtime reads the time."""

    def now_ms(self) -> int:
        """Monotonic milliseconds, from an arbitrary zero."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch, for people and files, never for deadlines."""
        ...


class SystemClock:
    """The machine's clock. Its monotonic zero is random, so that a stray ``time.monotonic()``
    beside it shows."""

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


class Work(Protocol):
    """Something that runs beside the main thread."""

    def done(self) -> bool:
        """Whether it is over."""
        ...


class Event(Protocol):
    """As ``threading.Event``."""

    def set(self) -> None:
        """Let everyone who waits go on."""
        ...

    def clear(self) -> None:
        """Let those who come later wait again."""
        ...

    def is_set(self) -> bool:
        """Whether it is set."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait, at most so many seconds, until it is set; says whether it is."""
        ...


class Waits(Protocol):
    """What blocking work may wait for."""

    def lock(self) -> AbstractContextManager[Any]:
        """A new lock."""
        ...

    def event(self) -> Event:
        """A new event, not set."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait so long."""
        ...


class Workers(Protocol):
    """Where blocking work runs. No work waits for other work to end, so what hangs holds up nothing
    else."""

    def submit(self, work: Callable[[], None]) -> Work:
        """Run a function beside the main thread. It raises nothing."""
        ...

    def submit_aside(self, work: Callable[[], None]) -> None:
        """As ``submit``, for users' code that may never return: nothing ever waits for it."""
        ...

    def wait(self, works: Sequence[Any], timeout_s: float) -> bool:
        """Wait, beside the main thread, until all of ``works`` (of ``submit``) are over, at most so
        many seconds.

        Says whether they are. What is not is left behind: nothing waits for it again.
        """
        ...


class ThreadWaits:
    """What threads wait for."""

    def lock(self) -> AbstractContextManager[Any]:
        """A thread's lock."""
        return threading.Lock()

    def event(self) -> Event:
        """A thread's event."""
        return threading.Event()

    def sleep(self, seconds: float) -> None:
        """Let the thread sleep."""
        time.sleep(seconds)


class _ThreadWork:
    """One piece of work for a thread."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._over = threading.Event()

    def done(self) -> bool:
        """Whether it is over."""
        return self._over.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait at most so long for its end; says whether it is over."""
        return self._over.wait(timeout_s)

    def run(self) -> None:
        """Do it."""
        try:
            self._work()
        finally:
            self._over.set()


class ThreadWorkers:
    """As many threads as there is work; one that has become idle is used again.

    A pool of a fixed size would be full once as many sinks, sources or file systems hang, and then
    nobody could cancel the job. The threads are daemons: one that hangs does not keep the process
    from ending, as those of an executor would.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[_ThreadWork] = queue.SimpleQueue()
        #: Threads that wait for work and for which there is none in the queue.
        self._idle = 0
        self._under_way: set[_ThreadWork] = set()

    def submit(self, work: Callable[[], None]) -> _ThreadWork:
        """Run a function on a thread."""
        submitted = _ThreadWork(work)
        with self._lock:
            self._under_way = {known for known in self._under_way if not known.done()} | {submitted}
        self._run(submitted)
        return submitted

    def submit_aside(self, work: Callable[[], None]) -> None:
        """Run a function on a thread for which nobody waits."""
        self._run(_ThreadWork(work))

    def wait(self, works: Sequence[_ThreadWork], timeout_s: float) -> bool:
        """Wait until all are over."""
        until_s = time.monotonic() + timeout_s
        over = [work.wait(max(0.0, until_s - time.monotonic())) for work in works]
        with self._lock:
            self._under_way.difference_update(works)
        return all(over)

    def close(self, timeout_s: float) -> None:
        """Let what was submitted end; at most so many seconds, and without what was waited for in
        vain before."""
        self.wait(tuple(self._under_way), timeout_s)

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
                # A piece of work has been promised this thread.
                continue
            work.run()
            with self._lock:
                self._idle += 1


def in_background(work: Callable[[], T]) -> Future[T]:
    """Do something that blocks, on a thread that does not keep the process from ending."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="weir-background", daemon=True).start()
    return future


def answered(
    work: Callable[[], Any],
    *,
    on_error: Callable[[BaseException], None],
    on_done: Callable[[Any], None] = lambda _: None,
) -> Callable[[], None]:
    """``work`` as something that raises nothing and whose outcome is always told."""

    def run() -> None:
        try:
            result = work()
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # Users' code may call sys.exit(), which must not leave an effect without an answer.
            _log.debug("A blocking effect failed.", exc_info=True)
            on_error(error)
        else:
            on_done(result)

    return run
