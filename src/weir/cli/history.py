"""Jobs in a checkpoint directory, with a driver or without: ``weir list, checkpoints, history``.

No JVM is started for this.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from weir.config import Configuration
from weir.config.options import CHECKPOINT_DIR
from weir.core.status import JobStatus
from weir.errors import JobNotFoundError, RestError, StorageError
from weir.monitoring.views import JobView
from weir.rest.client import FoundJob, JobClient, ServerGoneError, connect, find_jobs, named
from weir.rest.flink.job_answers import job_summary
from weir.rest.past.history import StoredJobs
from weir.rest.server.server import RestServer
from weir.runtime.concurrency import SystemClock
from weir.storage.file_systems import FileSystems
from weir.storage.paths import needs_spark, normalize


def listed_jobs(
    directory: str | None, address: str | None, *, token: str | None, ca_file: str | None
) -> tuple[FoundJob, ...]:
    """The jobs of drivers, then the other jobs in a directory.

    The directory is read if it was given, or if no ``address`` was. Raises ``RestError`` if no
    driver answers at ``address`` and no ``directory`` was given, and ``StorageError``.
    """
    failure: RestError | None = None
    try:
        running = find_jobs(address, token=token, ca_file=ca_file)
    except ServerGoneError as error:
        running, failure = (), None if address is None else error
    except RestError as error:
        running, failure = (), error
    known = {found.job.job_id for found in running}
    stored: tuple[FoundJob, ...] = ()
    if directory is not None or address is None:
        jobs = _stored(directory)
        there = () if jobs is None else _all(jobs)
        stored = tuple(found for found in there if found.job.job_id not in known)
    if failure is not None and not stored and directory is None:
        raise failure
    return (*running, *stored)


def no_jobs(directory: str | None, address: str | None) -> str:
    """The sentence for ``listed_jobs`` that has found none: it names where it has looked."""
    drivers = "no driver of yours on this machine has one"
    if address is not None:
        drivers = f"{address} has none"
    if directory is None and address is not None:
        return f"No jobs: {drivers}."
    place = _directory(directory)
    there = "cannot be read without Spark" if needs_spark(place) else "has none"
    return f"No jobs: {drivers}, and {place} {there}. 'weir list DIR' looks into another directory."


def _address(view: JobView) -> str:
    """Where the driver's lease says that it answers, if it runs elsewhere. Nobody is asked."""
    return "" if view.driver is None or view.driver.address is None else view.driver.address


@contextmanager
def running_or_stored(
    job: str, directory: str | None, address: str | None, *, token: str | None, ca_file: str | None
) -> Iterator[JobClient]:
    """A client of a job: of its driver, or else of what a checkpoint directory has of it.

    The directory is read as for ``listed_jobs``. Raises what ``connect`` raises, and
    ``StorageError``.
    """
    try:
        running = find_jobs(address, token=token, ca_file=ca_file)
    except RestError:
        # It may be the driver of another job that hangs; ``connect`` raises it where it matters.
        running = ()
    jobs = None if address is not None and directory is None else _stored(directory)
    stored = [] if jobs is None else _stored_as(job, jobs)
    if jobs is None or named(job, running) or not stored:
        with connect(job, address, token=token, ca_file=ca_file) as client:
            yield client
        return
    server = RestServer(port=0)
    try:
        known_as = stored[0].job.job_id if len(stored) == 1 else job
        with connect(known_as, server.start_history(jobs)) as client:
            yield client
    finally:
        server.stop()


def connect_to_running(
    job: str, address: str | None, *, token: str | None, ca_file: str | None
) -> JobClient:
    """A client of the job's driver.

    Raises what ``connect`` raises; ``JobNotFoundError`` with how the job stands, if it is in the
    default checkpoint directory and no driver of this user on this machine has it.
    """
    try:
        return connect(job, address, token=token, ca_file=ca_file)
    except (ServerGoneError, JobNotFoundError) as error:
        jobs = None if address is not None else _stored(None)
        found = [] if jobs is None else _stored_as(job, jobs)
        if not found:
            raise
        summary, elsewhere = found[0].job, found[0].address
        if elsewhere:
            raise JobNotFoundError(
                f"The driver of job {summary.job_id} ({summary.name}) is at {elsewhere}: pass that"
                " with --address."
            ) from error
        if summary.state == JobStatus.RUNNING.name:
            raise
        way_on = ", and 'weir run' resumes it" if summary.state == JobStatus.SUSPENDED.name else ""
        raise JobNotFoundError(
            f"No driver runs job {summary.job_id} ({summary.name}): it is {summary.state}{way_on}."
        ) from error


def _stored_as(job: str, jobs: StoredJobs) -> list[FoundJob]:
    """The job of a directory with this id, or the newest with this name, or those with a prefix."""
    found = named(job, _all(jobs))
    if not any(one.job.name == job for one in found):
        return found
    # Each start from a savepoint, or from scratch, is a new job of the name.
    return [max(found, key=lambda one: one.job.start_time_ms)]


def _all(jobs: StoredJobs) -> list[FoundJob]:
    now_ms = SystemClock().wall_ms()
    return [
        FoundJob(address=_address(view), job=job_summary(view, now_ms)) for view in jobs.views()
    ]


def serve_history(directory: str | None, port: int, say: Callable[[str], None]) -> None:
    """Serve the jobs in a directory until a signal comes. Raises ``WeirError``."""
    place, jobs = _directory(directory), _stored(directory)
    if jobs is None or not _is_directory(place):
        raise StorageError(
            f"There is no directory {place} that can be read without Spark: name the checkpoint"
            " directory of the jobs."
        )
    jobs.views()
    server = RestServer(port=port)
    try:
        address = server.start_history(jobs)
        say(f"The jobs in {place}: {address}/")
        ending = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ending.set())
        ending.wait()
    finally:
        server.stop()


def _directory(directory: str | None) -> str:
    configured = Configuration({}).value(CHECKPOINT_DIR)
    return configured if directory is None else normalize(directory)


def _stored(directory: str | None) -> StoredJobs | None:
    """The jobs of a directory; None if only Spark can read it."""
    place = _directory(directory)
    if needs_spark(place):
        return None
    return StoredJobs(place, FileSystems(), SystemClock())


def _is_directory(place: str) -> bool:
    status = FileSystems()(place).status(place)
    return status is not None and status.is_directory
