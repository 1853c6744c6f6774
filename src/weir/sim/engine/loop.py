"""Virtual time: one loop, processes that can be killed and paused, and greenlets for blocking code.

Nothing here runs in parallel. Code that blocks in production (a pool thread that writes a file) is
a greenlet, which yields at each operation on the simulated disk or table; the loop then runs
whatever is due next in virtual time. So the whole run is one sequence of steps, determined by its
seed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any
from weakref import ref

from greenlet import GreenletExit, getcurrent, greenlet

from weir.errors import invariant

#: How much may be due at one time.
_MOST_AT_ONCE = 20_000
#: How often what ends may wait once more.
_THROWS_MAX = 100


class Process:
    """A driver's process: killing it stops everything that runs in it for good."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        #: Until when the process is paused (SIGSTOP), in virtual microseconds.
        self.paused_until_us = 0
        self.greenlets: dict[greenlet, None] = {}
        #: Killed, it stops where it is: code of users must not notice (``user/interleaving.py``).
        self.stops_dead = False


class Loop:
    """Runs what is due in order of time; at the same time, what was scheduled first."""

    def __init__(self) -> None:
        self.now_us = 0
        #: The greenlet in which the loop runs; all others yield to it.
        self.hub = getcurrent()
        self._number = 0
        self._due: list[tuple[int, int, Process, Callable[[], object]]] = []
        self._spawned: list[ref[greenlet]] = []

    def at(self, delay_us: int, process: Process, function: Callable[[], object]) -> None:
        """Call the function after a delay, unless its process is dead by then."""
        self._number += 1
        heapq.heappush(self._due, (self.now_us + delay_us, self._number, process, function))

    def run(self, until: Callable[[], bool], limit_us: int) -> bool:
        """Run until ``until`` holds, nothing is due, or the limit is reached; return ``until()``.

        At the time limit, and if time no longer passes, it returns False.
        """
        at_once = 0
        while self._due and not until():
            time_us, _, process, function = heapq.heappop(self._due)
            if not process.alive:
                continue
            if process.paused_until_us > time_us:
                self._number += 1
                heapq.heappush(
                    self._due, (process.paused_until_us, self._number, process, function)
                )
                continue
            at_once = at_once + 1 if time_us == self.now_us else 0
            if time_us > limit_us or at_once > _MOST_AT_ONCE:
                return False
            self.now_us = time_us
            function()
        return until()

    def spawn(self, process: Process, function: Callable[[], object], delay_us: int = 0) -> Task:
        """Run a function that may block."""
        task = Task(self, process, function, delay_us)
        self._spawned.append(ref(task.greenlet))
        return task

    def sleep(self, process: Process, delay_us: int) -> None:
        """Yield for a delay. Only a spawned function may call this."""
        self.at(delay_us, process, getcurrent().switch)
        self.hub.switch()

    def wait(self) -> None:
        """Yield until someone switches back. Only a spawned function may call this."""
        invariant(getcurrent() is not self.hub, "the loop itself cannot wait")
        self.hub.switch()

    def kill(self, process: Process) -> None:
        """SIGKILL: nothing in the process runs any more."""
        process.alive = False
        if process.stops_dead:
            return
        for one in list(process.greenlets):
            one.throw(GreenletExit)
        process.greenlets.clear()

    def end(self) -> None:
        """End all that still waits: Python's collector never frees a greenlet that is suspended."""
        for known in self._spawned:
            for _ in range(_THROWS_MAX):
                one = known()
                if one is None or one.dead:
                    break
                # It may wait again while it ends; what it raises concerns nobody any more.
                with suppress(Exception):
                    one.throw(GreenletExit)
        self._due.clear()


class Task:
    """A spawned function (``runtime.concurrency.Work``)."""

    def __init__(
        self, loop: Loop, process: Process, function: Callable[[], object], delay_us: int
    ) -> None:
        self._ended = SimEvent(loop, process)
        self._loop = loop
        self._process = process
        self._function = function
        self.greenlet = greenlet(self._run, parent=loop.hub)
        self.greenlet.process = process  # type: ignore[attr-defined]
        process.greenlets[self.greenlet] = None
        loop.at(delay_us, process, self.greenlet.switch)

    def done(self) -> bool:
        """Whether the function has ended."""
        return self._ended.is_set()

    def join(self) -> None:
        """Wait until the function has ended."""
        self._ended.wait()

    def interrupt(self) -> None:
        """Interrupt the function where it yielded, and wait until it has ended."""
        if self.greenlet is not getcurrent():
            self._loop.at(0, self._process, self._throw)
            self.join()

    def _run(self) -> None:
        self._function()
        self._over()

    def _throw(self) -> None:
        if not self.done():
            self.greenlet.throw(GreenletExit)
            self._over()

    def _over(self) -> None:
        self._process.greenlets.pop(self.greenlet, None)
        self._ended.set()


class SimWorkers:
    """``runtime.concurrency.Workers`` of one process: a pool that never lacks a thread."""

    def __init__(self, loop: Loop, process: Process, delay_us: Callable[[], int]) -> None:
        """Create a pool. ``delay_us`` draws how long submitted work waits before it begins."""
        self._loop = loop
        self._process = process
        self._delay_us = delay_us
        self._under_way: dict[Task, None] = {}

    def submit(self, work: Callable[[], None]) -> Task:
        """Run a function concurrently with the main thread."""

        def run() -> None:
            work()
            del self._under_way[task]

        task = self._loop.spawn(self._process, run, self._delay_us())
        self._under_way[task] = None
        return task

    def submit_aside(self, work: Callable[[], None]) -> None:
        """Run a function that nobody waits for."""
        self._loop.spawn(self._process, work, self._delay_us())

    def close(self) -> None:
        """Wait until all submitted work has ended."""
        self.wait(list(self._under_way), 0.0)

    def wait(self, works: Sequence[Any], timeout_s: float) -> bool:
        """Wait until all have ended, without a timeout: nothing hangs here."""
        del timeout_s
        for work in works:
            work.join()
        return True


class SimWaits:
    """``runtime.concurrency.Waits`` of one process."""

    def __init__(self, loop: Loop, process: Process) -> None:
        self._loop = loop
        self._process = process

    def lock(self) -> AbstractContextManager[Any]:
        """A lock for greenlets."""
        return SimLock(self._loop, self._process)

    def event(self) -> SimEvent:
        """An event for greenlets."""
        return SimEvent(self._loop, self._process)

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self._loop.sleep(self._process, round(seconds * 1_000_000))


class SimLock:
    """A lock among the greenlets of one process."""

    def __init__(self, loop: Loop, process: Process) -> None:
        self._loop = loop
        self._process = process
        self._held = False
        self._waiting: list[Callable[[], object]] = []

    def __enter__(self) -> None:
        while self._held:
            self._waiting.append(getcurrent().switch)
            self._loop.wait()
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
        # Wake all of them: the first may have been interrupted meanwhile.
        for waiter in self._waiting:
            self._loop.at(0, self._process, waiter)
        self._waiting.clear()


class SimEvent:
    """An event among greenlets, like ``threading.Event``."""

    def __init__(self, loop: Loop, process: Process) -> None:
        self._loop = loop
        self._process = process
        self._is_set = False
        self._waiting: list[Callable[[], None]] = []

    def set(self) -> None:
        """Wake everyone who waits."""
        self._is_set = True
        for waiter in self._waiting:
            self._loop.at(0, self._process, waiter)
        self._waiting.clear()

    def clear(self) -> None:
        """Make later callers wait again."""
        self._is_set = False

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most ``timeout`` seconds; return whether it is set."""
        if self._is_set:
            return True
        with self._woken_once() as wake:
            self._waiting.append(wake)
            if timeout is not None:
                self._loop.at(round(timeout * 1_000_000), self._process, wake)
            self._loop.wait()
        return self._is_set

    @contextmanager
    def _woken_once(self) -> Iterator[Callable[[], None]]:
        """A function that resumes the caller at most once."""
        current, armed = getcurrent(), True

        def wake() -> None:
            nonlocal armed
            if armed:
                armed = False
                current.switch()

        try:
            yield wake
        finally:
            armed = False
