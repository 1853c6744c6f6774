"""Suspends a running job when a signal asks the process to end.

1. The first signal suspends the job: its tasks stop, and the next run of the same job resumes it.
2. The second ends the process at once, as does a signal that arrives before the job is submitted.
   That is a crash, from which the next run recovers.

A signal that the process ignores stays ignored, as SIGHUP below ``nohup``.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from types import FrameType

from weir.gateway.job_gateway import JobGateway

#: By service managers and ``kill``; by a terminal that is closed.
ENDING = (signal.SIGTERM, signal.SIGHUP)


class SuspendOnSignal:
    """A context manager that handles signals. Enter it on the main thread."""

    def __init__(
        self,
        numbers: Iterable[signal.Signals],
        *,
        gateway: Callable[[], JobGateway | None],
        say: Callable[[str], None],
        end: Callable[[int], None],
    ) -> None:
        """Handle the signals ``numbers``.

        ``gateway`` returns the job once it is submitted. ``say`` shows a line. ``end`` ends the
        process with the number of a signal; it is called on the main thread, wherever that is.
        """
        self._numbers = tuple(numbers)
        self._gateway = gateway
        self._say = say
        self._end = end
        self._previous: Mapping[signal.Signals, object] = {}
        #: The first signal received.
        self.received: signal.Signals | None = None

    def __enter__(self) -> SuspendOnSignal:
        self._previous = {
            number: signal.signal(number, self._handle)
            for number in self._numbers
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        gateway = self._gateway()
        if self.received is not None or gateway is None:
            self._end(number)
            return
        self.received = signal.Signals(number)
        # On a thread: a handler may interrupt code that holds a lock which ``suspend`` needs.
        threading.Thread(target=self._suspend, args=(gateway.suspend,), daemon=True).start()

    def _suspend(self, suspend: Callable[[], None]) -> None:
        self._say("suspending the job; a second signal kills the process")
        suspend()
