"""Runs a Weir job while a function measures it, then cancels the job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import weir
from weir.core.status import JobStatus
from weir.core.types import CompletedCheckpoint
from weir.errors import JobFailedError
from weir.gateway.job_gateway import JobGateway
from weir.job import definition_of
from weir.launch.options import RunOptions
from weir.launch.runner import run_job

Result = TypeVar("Result")

#: A function that measures: it gets the running job, and an event that is set when the job ends.
Measure = Callable[[JobGateway, threading.Event], Result]


def measure_job(
    job: weir.Job,
    options: RunOptions,
    measure: Measure[Result],
    *,
    status: JobStatus = JobStatus.CANCELED,
) -> Result:
    """Run the job and return the result of ``measure``.

    The job is cancelled when ``measure`` has returned, unless it is expected to end with another
    ``status``, as a bounded job does. Raises the error that stopped the measurement, or
    ``JobFailedError``.
    """
    with ThreadPoolExecutor(1) as pool:
        listener = _Listener(pool, measure)
        try:
            ended = run_job(definition_of(job), options, listener)
        finally:
            listener.over.set()
        error = listener.error()
        if error is not None and ended.status is JobStatus.CANCELED:
            # For this error alone the job was cancelled.
            raise error
        if ended.status is not status:
            raise JobFailedError(
                f"The job ended as {ended.status.name}: {ended.failure}"
            ) from error
        return listener.result()


def check_running(over: threading.Event) -> None:
    """Check that the job runs. Raises ``JobFailedError`` if it has ended."""
    if over.is_set():
        raise JobFailedError("The job ended before it was measured.")


class _Listener(Generic[Result]):
    """The run's listener: measures in a thread while the job runs, then cancels it."""

    def __init__(self, pool: ThreadPoolExecutor, measure: Measure[Result]) -> None:
        self.over = threading.Event()
        self._pool = pool
        self._measure = measure
        self._future: Future[Result]

    def submitted(self, job_id: str, gateway: JobGateway, rest_address: str) -> None:
        """Start measuring; the job begins its first attempt as soon as this returns."""
        self._future = self._pool.submit(self._measure_and_cancel, gateway)

    def restored(self, checkpoint: CompletedCheckpoint) -> None:
        """Fail: a restored attempt measures something else."""
        raise JobFailedError(
            f"The job failed and was restored from checkpoint {checkpoint.checkpoint_id}."
        )

    def phase(self, name: str | None) -> None:
        """Do nothing: the phases of the start are not shown here."""

    def note(self, message: str) -> None:
        """Print to the run's log."""
        print(message, flush=True)

    def result(self) -> Result:
        """The result of the measurement; raises the error that stopped it."""
        return self._future.result()

    def error(self) -> BaseException | None:
        """The error that stopped the measurement, if any."""
        return self._future.exception()

    def _measure_and_cancel(self, gateway: JobGateway) -> Result:
        try:
            return self._measure(gateway, self.over)
        finally:
            if not self.over.is_set():
                gateway.cancel()
