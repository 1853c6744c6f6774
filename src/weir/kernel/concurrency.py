"""What can block, as a port: threads in production, coroutines on virtual time in the simulator.

Code that runs beside the main thread uses these and nothing of ``threading`` or ``time``, so that the simulator can
run it unchanged, stop it between any two steps, and replay it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Any, Protocol

_log = logging.getLogger(__name__)


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
    """Where blocking work runs."""

    def submit(self, work: Callable[[], None]) -> Work:
        """Run a function beside the main thread. It raises nothing."""
        ...

    def submit_aside(self, work: Callable[[], None]) -> None:
        """Run users' code that may never return: nothing ever waits for it, and nothing lacks the thread that it keeps."""
        ...

    def wait(self, works: Sequence[Any]) -> None:
        """Wait, beside the main thread, until all of ``works`` (of ``submit``) are over."""
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


class ThreadWorkers:
    """A pool of threads."""

    #: Snapshots and commits of several tasks side by side, and room for one that hangs.
    POOL_SIZE = 16

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(self.POOL_SIZE, thread_name_prefix="weir-io")

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Run a function on a thread of the pool."""
        return self._pool.submit(work)

    def submit_aside(self, work: Callable[[], None]) -> None:
        """Run a function on a thread of its own, which does not outlive the process."""
        threading.Thread(target=work, name="weir-aside", daemon=True).start()

    def wait(self, works: Sequence[Future[None]]) -> None:
        """Wait until all are over."""
        wait(works)

    def close(self) -> None:
        """Let what runs end, and start nothing more."""
        self._pool.shutdown(wait=True, cancel_futures=True)


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
