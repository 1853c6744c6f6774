"""Signals that reach a script while its jobs run.

1. The first suspends the jobs, or stops them with savepoints: the next start of the same command
   resumes them (``launch/signals.py``).
2. When they have ended, the script's main thread gets what Python would have raised at once:
   ``KeyboardInterrupt`` for SIGINT, ``SystemExit`` for the others. So its ``finally`` blocks run.
3. A second signal ends the process.

Without a running job, the script gets the exception at once. A handler that the script installs
itself replaces this.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from weir.adopt.jobs import ScriptJob
from weir.launch.signals import ENDING, leave


class ScriptSignals:
    """A context manager that handles signals. Enter it on the main thread."""

    def __init__(
        self,
        *,
        jobs: Callable[[], Sequence[ScriptJob]],
        say: Callable[[str], None],
        end: Callable[[int], None],
    ) -> None:
        """``end`` ends the process with the number of a signal."""
        self._jobs = jobs
        self._say = say
        self._end = end
        self._previous: Mapping[signal.Signals, object] = {}
        #: The first signal received.
        self.received: signal.Signals | None = None
        #: Whether the jobs have ended, so that the next signal is our own.
        self._is_due = False
        self._is_raised = False

    def __enter__(self) -> ScriptSignals:
        self._previous = {
            number: signal.signal(number, self._handle)
            for number in (signal.SIGINT, *ENDING)
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def raise_if_received(self) -> None:
        """Raise the exception of a signal whose jobs have ended, once, on the main thread."""
        if (
            self.received is not None
            and not self._is_raised
            and threading.current_thread() is threading.main_thread()
        ):
            self._is_raised = True
            if self.received is signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + self.received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_due:
            self._is_due = False
            self.raise_if_received()
            return
        running = [job for job in self._jobs() if job.has_begun and job.is_running]
        if self.received is not None or any(job.gateway is None for job in running):
            self._end(number)
            return
        self.received = signal.Signals(number)
        if not running:
            self.raise_if_received()
            return
        # On a thread: a handler may interrupt code that holds a lock which ``leave`` needs.
        threading.Thread(target=self._leave, args=(running, self.received), daemon=True).start()

    def _leave(self, running: Sequence[ScriptJob], received: signal.Signals) -> None:
        leave([job.gateway for job in running if job.gateway is not None], received, self._say)
        for job in running:
            job.join()
        main = threading.main_thread().ident
        if not self._is_raised and main is not None and self.received is not None:
            self._is_due = True
            signal.pthread_kill(main, self.received)
