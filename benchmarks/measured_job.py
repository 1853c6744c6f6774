"""Runs a Weir job to be measured: something measures beside it, then the job is cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import weir
from weir.core.status import JobStatus
from weir.core.types import CompletedCheckpoint
from weir.errors import JobFailedError
from weir.run.options import RunOptions
from weir.run.runner import run_job
from weir.runtime.gateway import JobGateway

Result = TypeVar("Result")

#: What measures: it is given the running job, and an event that is set when the job has ended.
Measure = Callable[[JobGateway, threading.Event], Result]


def measure_job(
    job: weir.Job,
    options: RunOptions,
    measure: Measure[Result],
    *,
    status: JobStatus = JobStatus.CANCELED,
) -> Result:
    """Run the job until ``measure`` has returned, or the input has ended if that is the ``status``
    at its end; raises what stopped it, or ``JobFailedError``."""
    with ThreadPoolExecutor(1) as pool:
        listener = _Listener(pool, measure)
        try:
            ended = run_job(job, options, listener)
        finally:
            listener.over.set()
        if ended.status is not status:
            raise JobFailedError(f"The job ended as {ended.status.name}: {ended.failure}")
        return listener.result()


def check_running(over: threading.Event) -> None:
    """Raises ``JobFailedError`` if the job has ended."""
    if over.is_set():
        raise JobFailedError("The job ended before it was measured.")


class _Listener(Generic[Result]):
    """The run's listener: measures beside the job, then cancels it."""

    def __init__(self, pool: ThreadPoolExecutor, measure: Measure[Result]) -> None:
        self.over = threading.Event()
        self._pool = pool
        self._measure = measure
        self._future: Future[Result]

    def submitted(self, job_id: str, gateway: JobGateway, rest_address: str) -> None:
        """The job begins its first attempt as soon as this returns."""
        self._future = self._pool.submit(self._measure_and_cancel, gateway)

    def restored(self, checkpoint: CompletedCheckpoint) -> None:
        """A restored attempt measures something else."""
        raise JobFailedError(
            f"The job failed and was restored from checkpoint {checkpoint.checkpoint_id}."
        )

    def phase(self, name: str | None) -> None:
        """Nobody waits for the start here."""

    def note(self, message: str) -> None:
        """Into the run's log."""
        print(message, flush=True)

    def result(self) -> Result:
        """What was measured; raises what stopped the measurement."""
        return self._future.result()

    def _measure_and_cancel(self, gateway: JobGateway) -> Result:
        try:
            return self._measure(gateway, self.over)
        finally:
            if not self.over.is_set():
                gateway.cancel()
