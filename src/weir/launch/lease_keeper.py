"""Keeps a driver's lease: renews it on its own thread, and detects that a newer attempt took it."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable

import psutil

from weir.core.types import Recorded
from weir.durable.job import FENCED
from weir.errors import JobFencedError, StorageError
from weir.runtime.concurrency import Clock
from weir.storage.lease import Lease, LeaseRecord

_log = logging.getLogger(__name__)


class LeaseKeeper:
    """Keeps the lease of one run (PROTOCOL P20): a hint for people; the job log decides."""

    def __init__(
        self,
        *,
        lease: Lease,
        first_attempt: int,
        attempt: Callable[[], int],
        rest_address: str,
        timeout_ms: int,
        interval_ms: int,
        clock: Clock,
        on_lost: Callable[[str], None],
    ) -> None:
        self._lease = lease
        self._first_attempt = first_attempt
        self._attempt = attempt
        self._rest_address = rest_address
        self._timeout_ms = timeout_ms
        self._interval_ms = interval_ms
        self._clock = clock
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._lost = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="weir-lease", daemon=True)
        self._started = psutil.Process().create_time()
        #: The attempt that the lease names: the newest one has it from the next renewal on.
        self._named = first_attempt

    @property
    def is_lost(self) -> bool:
        """Whether a newer attempt holds the lease."""
        return self._lost.is_set()

    def start(self) -> None:
        """Take the lease, then renew it until ``stop``.

        Raises ``JobFencedError`` if a newer attempt holds it.
        """
        if self._renew() is Recorded.FENCED:
            raise JobFencedError("Another driver has just taken over the job: leave it running.")
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing and release the lease. If a renewal hangs, the lease is left to expire."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(self._timeout_ms / 1000)
            if not self._thread.is_alive():
                self._lease.remove(self._named)

    def _current(self) -> int:
        return max(self._attempt(), self._first_attempt)

    def _keep(self) -> None:
        while not self._stop.wait(self._interval_ms / 1000):
            try:
                outcome = self._renew()
            except StorageError as error:
                # Not a failure: the lease is only a hint, and the job log decides.
                _log.warning("Cannot renew the lease: %s", error)
                continue
            if outcome is Recorded.FENCED:
                self._lost.set()
                self._on_lost(FENCED)
                return

    def _renew(self) -> Recorded:
        attempt = self._current()
        outcome = self._lease.write(
            LeaseRecord(
                attempt=attempt,
                host=socket.gethostname(),
                pid=os.getpid(),
                pid_started=self._started,
                rest_address=self._rest_address,
                timestamp_ms=self._clock.wall_ms(),
                timeout_ms=self._timeout_ms,
            )
        )
        if outcome is Recorded.WON:
            self._named = attempt
        return outcome
