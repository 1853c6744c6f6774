"""Suspends a running job when a signal asks the process to end.

1. The first signal suspends the job: its tasks stop, and the next run of the same job resumes it.
   SIGTERM stops it with a savepoint instead, if ``weir.on-sigterm`` says so.
2. The second ends the process at once, as does a signal that arrives before the job is submitted.
   That is a crash, from which the next run recovers.

A signal that the process ignores stays ignored, as SIGHUP below ``nohup``.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import FrameType

from weir.core.status import JobStatus
from weir.core.types import CompletedCheckpoint
from weir.gateway.job_gateway import JobGateway
from weir.launch.options import JobResult

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
        # On a thread: a handler may interrupt code that holds a lock which ``leave`` needs.
        threading.Thread(
            target=leave, args=((gateway,), self.received, self._say), daemon=True
        ).start()


def leave(
    gateways: Sequence[JobGateway], received: signal.Signals, say: Callable[[str], None]
) -> None:
    """Ask running jobs to end, as this signal does. ``say`` shows a line."""
    saves = received is signal.SIGTERM and any(one.saves_on_sigterm for one in gateways)
    doing = "stopping the job with a savepoint" if saves else "suspending the job"
    say(f"{doing}; a second signal kills the process")
    for gateway in gateways:
        if saves and gateway.saves_on_sigterm:
            gateway.stop_with_savepoint(None).add_done_callback(
                partial(_suspend_if_failed, gateway, say)
            )
        else:
            gateway.suspend()


def _suspend_if_failed(
    gateway: JobGateway, say: Callable[[str], None], stopped: Future[CompletedCheckpoint]
) -> None:
    error = stopped.exception()
    if error is not None:
        say(f"suspending the job, as it cannot be stopped with a savepoint: {error}")
        gateway.suspend()


def is_left(result: JobResult, received: signal.Signals | None) -> bool:
    """Whether the signal ended the job, by suspending it or with the savepoint of SIGTERM."""
    return received is not None and (
        result.status is JobStatus.SUSPENDED
        or (received is signal.SIGTERM and result.savepoint is not None)
    )
