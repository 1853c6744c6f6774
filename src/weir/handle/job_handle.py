"""``JobHandle``: a job that runs in this process beside the caller's code.

1. The job runs on a thread of its own, as under ``weir run``. ``Job.start`` returns once its
   queries run, so what refuses a start is raised there; ``Job.run`` starts the job and waits.
2. Whatever the handle asks of the job goes through its gateway, on no network.
3. A job that is started again in this process, as by a notebook's cell, takes over from the run
   that still goes on: that is suspended, and the new one resumes.
4. When the job has ended, its thread, REST server, lease and files in the working directory are
   gone. A Spark session that was there before stays.
"""

from __future__ import annotations

import builtins
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, NoReturn, TypeVar
from weakref import WeakValueDictionary

from weir.config import Configuration
from weir.config.options import CHECKPOINT_DIR, LOG_FORMAT, PROGRESS_INTERVAL
from weir.config.values import LogFormat
from weir.core.status import JobStatus
from weir.core.types import CompletedCheckpoint
from weir.definition import JobDefinition
from weir.errors import JobEndedError, JobFailedError, WeirError
from weir.gateway.job_gateway import JobGateway
from weir.handle.event_log import EventLog
from weir.handle.job_progress import JobProgress, as_html, progress_of
from weir.handle.lines import ProgressLines, StandardError, ending_lines
from weir.launch import runner
from weir.launch.options import JobResult, RunOptions
from weir.launch.signals import ENDING, SuspendOnSignal
from weir.monitoring.log_lines import as_json
from weir.storage.paths import normalize

#: How long a signal may wait for its handler, in seconds.
_TURN_S = 0.2
#: How often a notebook's view is drawn again, in seconds.
_REDRAW_S = 2.0

T = TypeVar("T")


class _HostedRun:
    """A run on a thread of its own. Listens to it, and passes on what happens to ``display``."""

    def __init__(
        self, job: JobDefinition, options: RunOptions, display: ProgressLines | EventLog
    ) -> None:
        self.name = job.name
        self.display = display
        #: The job, once it is submitted.
        self.gateway: JobGateway | None = None
        self.job_id = ""
        self.address: str | None = None
        #: Done when the first attempt runs or has failed, or when the job was never submitted.
        self.started: Future[None] = Future()
        self.result: Future[JobResult] = Future()
        self._lock = threading.Lock()
        self._is_leaving = False
        self._thread = threading.Thread(
            target=self._work, args=(job, options), name="weir-job", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def suspend(self) -> None:
        """Suspend the job, or do so as soon as it is submitted. Does nothing after the end."""
        with self._lock:
            self._is_leaving = True
        if self.gateway is not None:
            self.gateway.suspend()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing of the run is left; return whether that is so.

        Raises nothing of what the run raised.
        """
        ended = _wait(self.result, timeout_s)
        if ended:
            self._thread.join()
        return ended

    # ---- the listener, on the job's threads

    def submitted(self, job_id: str, gateway: JobGateway, rest_address: str) -> None:
        """See ``RunListener``."""
        self.job_id, self.address = job_id, rest_address
        with self._lock:
            self.gateway, is_leaving = gateway, self._is_leaving
        self.display.submitted(job_id, gateway, rest_address)
        if is_leaving:
            gateway.suspend()

    def restored(self, checkpoint: CompletedCheckpoint) -> None:
        """See ``RunListener``."""
        self.display.restored(checkpoint)

    def phase(self, name: str | None) -> None:
        """See ``RunListener``."""
        self.display.phase(name)
        if name is None and self.gateway is not None and not self.started.done():
            self.started.set_result(None)

    def note(self, message: str) -> None:
        """See ``RunListener``."""
        self.display.note(message)

    def _work(self, job: JobDefinition, options: RunOptions) -> None:
        try:
            with self.display:
                result = runner.run_job(job, options, self)
            self.job_id = result.job_id
            for line in ending_lines(
                result,
                again="run it again",
                resume=lambda path: f"from_savepoint={path!r}",
            ):
                self.display.say(line)
        except BaseException as error:
            self.result.set_exception(error)
            if not self.started.done():
                self.started.set_exception(error)
        else:
            self.result.set_result(result)
            if not self.started.done():
                self.started.set_result(None)


class JobHandle:
    """A job that runs in this process; made by ``Job.start``.

    A context manager: leaving it suspends the job, if it runs, and waits. In a notebook it shows
    what the job does. Methods that ask something of the job wait for the answer, and raise
    ``JobError`` with the reason if it cannot be done.
    """

    def __init__(self, run: _HostedRun) -> None:
        self._run = run
        #: Whether the caller's ``with`` suspends the job.
        self._is_entered = False
        #: Held by the thread that draws the notebook's views.
        self._drawing = threading.Lock()
        self._views: list[str] = []

    @property
    def job_id(self) -> str:
        """The job's id, as in its checkpoint directory."""
        return self._run.job_id

    @property
    def status(self) -> JobStatus:
        """The job's status; FAILED also if the run broke off."""
        if self._run.gateway is not None and not self._run.result.done():
            return self._run.gateway.view().status
        if not self._run.result.done():
            return JobStatus.CREATED
        failed = self._run.result.exception() is not None
        return JobStatus.FAILED if failed else self._run.result.result().status

    @property
    def url(self) -> str | None:
        """The address of the web page and the REST server; None once it has ended."""
        return None if self._run.result.done() else self._run.address

    def progress(self) -> JobProgress | None:
        """How far the job has got; after its end, how far it got.

        None if it had finished before, so that nothing was run.
        """
        gateway = self._run.gateway
        return None if gateway is None else progress_of(gateway.view())

    def checkpoint(self) -> int:
        """Take a checkpoint now; returns its id once it is complete."""
        return _answer(self._gateway().trigger_checkpoint()).checkpoint_id

    def savepoint(self, directory: str | None = None) -> str:
        """Take a savepoint below the directory; returns its path.

        None: below ``execution.checkpointing.savepoint-dir``.
        """
        return _answer(self._gateway().trigger_savepoint(_path(directory))).external_path

    def stop(self, *, drain: bool = False, savepoint_dir: str | None = None) -> JobResult:
        """Stop the job with a savepoint, whose path is in the result, and wait for the end.

        With ``drain``, every window and timer fires before; nothing can resume after that.
        """
        _answer(self._gateway().stop_with_savepoint(_path(savepoint_dir), drain=drain))
        return self._ended()

    def cancel(self) -> JobResult:
        """Cancel the job, and wait for the end."""
        _answer(self._gateway().cancel())
        return self._ended()

    def suspend(self) -> JobResult:
        """Stop the job so that the next run of it resumes it, and wait for the end.

        Returns how it has ended, also if that was before.
        """
        self._run.suspend()
        return self._ended()

    def wait(self, timeout: float | None = None) -> JobResult | None:
        """Wait until the job has ended, at most ``timeout`` seconds; None if it has not.

        Raises ``JobFailedError`` if the job failed, and what broke the run off. Ctrl-C, or a
        notebook's interruption, ends the waiting and not the job.
        """
        try:
            if not self._run.wait(timeout):
                return None
        except KeyboardInterrupt:
            if not self._is_entered:
                self._run.display.say(
                    f"Job {self._run.name!r} keeps running; suspend() or stop() of its handle ends"
                    " it"
                )
            raise
        return self._ended()

    def _ended(self) -> JobResult:
        self._run.wait()
        result = _answer(self._run.result)
        if result.status is JobStatus.FAILED:
            raise JobFailedError(
                f"Job {self._run.name!r} ({result.job_id}) failed: {result.failure}"
            )
        return result

    def _gateway(self) -> JobGateway:
        if self._run.gateway is None:
            raise JobEndedError(
                f"Job {self._run.name!r} does not run: start it with fresh=True to run it again."
            )
        return self._run.gateway

    def __enter__(self) -> JobHandle:
        self._is_entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run.suspend()
        if error is None:
            self._ended()
        else:
            self._run.wait()

    def __repr__(self) -> str:
        progress, url = self.progress(), self.url
        parts = [f"{self._run.name!r} {self.status.value}"]
        if progress is not None:
            if progress.checkpoint is not None:
                parts.append(f"checkpoint {progress.checkpoint}")
            parts.append(f"{progress.rows_in} rows in, {progress.rows_committed} rows committed")
        return f"<weir.JobHandle {', '.join([*parts, *([] if url is None else [url])])}>"

    def _repr_html_(self) -> str:
        """For notebooks: a table as of now."""
        return as_html(self._run.name, self.job_id, self.url, self.progress(), self.status)

    def _ipython_display_(self) -> None:
        """For notebooks: the table, drawn again while the job runs."""
        shown = _notebook().display(*_bundle(self), raw=True, display_id=True)
        if shown is not None and not self._run.result.done():
            self._views.append(shown.display_id)
            threading.Thread(target=self._draw, name="weir-view", daemon=True).start()

    def _draw(self) -> None:
        if not self._drawing.acquire(blocking=False):
            return  # another thread draws all views
        try:
            ended = False
            while not ended:
                ended = bool(wait((self._run.result,), timeout=_REDRAW_S).done)
                for view in tuple(self._views):
                    _notebook().update_display(*_bundle(self), raw=True, display_id=view)
        finally:
            self._drawing.release()


def _notebook() -> Any:
    """What shows things in a notebook; only a notebook asks for it."""
    return importlib.import_module("IPython.display")


def _bundle(handle: JobHandle) -> tuple[dict[str, str]]:
    """What a notebook shows, in both forms."""
    return ({"text/plain": repr(handle), "text/html": handle._repr_html_()},)


def start_job(job: JobDefinition, options: RunOptions) -> JobHandle:
    """Start a job for ``Job.start``. Raises ``WeirError`` if it cannot start."""
    configuration = Configuration.load(None, {**job.conf, **options.conf})
    run = _begin(job, options, configuration, _display(configuration, has_totals=False))
    try:
        _answer(run.started)
    except KeyboardInterrupt:
        # Spark cannot be interrupted while it starts.
        run.suspend()
        raise
    return JobHandle(run)


def run_in_script(job: JobDefinition, options: RunOptions) -> JobResult:
    """Start a job and wait, for ``Job.run``: a signal that would end the program suspends the job.

    After that, raises ``SystemExit``, or ``KeyboardInterrupt`` after Ctrl-C at a prompt or in a
    notebook. Raises what ``run_job`` raises, and ``JobFailedError`` if the job failed.
    """
    configuration = Configuration.load(None, {**job.conf, **options.conf})
    display = _display(configuration, has_totals=True)
    with SuspendOnSignal(
        _unhandled(), gateway=lambda: display.gateway, say=display.say, end=_leave
    ) as signals:
        run = _begin(job, options, configuration, display)
        try:
            run.wait()
        except BaseException:
            run.suspend()
            raise
    if signals.received is not None:
        _leave(signals.received)
    return JobHandle(run)._ended()


def wait_for_started(
    handle: JobHandle, *, end: Callable[[int], None]
) -> tuple[JobResult, signal.Signals | None]:
    """Wait for a job on the main thread; a signal suspends it, and is returned.

    ``end`` ends the process after a second signal. Raises what ``JobHandle.wait`` raises.
    """
    run = handle._run
    with SuspendOnSignal(
        (signal.SIGINT, *ENDING), gateway=lambda: run.gateway, say=run.display.say, end=end
    ) as signals:
        run.wait()
    return handle._ended(), signals.received


def _unhandled() -> Iterator[signal.Signals]:
    """The signals that would end this program; none on another thread, which gets none."""
    if threading.current_thread() is threading.main_thread():
        yield from (number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            yield signal.SIGINT


def _leave(number: int) -> NoReturn:
    if number == signal.SIGINT and (hasattr(sys, "ps1") or hasattr(builtins, "get_ipython")):
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


#: Guards the runs of this process; held while an earlier run ends.
_beginning = threading.Lock()
#: The newest run of each job, by its checkpoint directory and its name. A run that goes on is kept
#: by its thread.
_runs: WeakValueDictionary[tuple[str, str], _HostedRun] = WeakValueDictionary()


def _begin(
    job: JobDefinition,
    options: RunOptions,
    configuration: Configuration,
    display: ProgressLines | EventLog,
) -> _HostedRun:
    """Start the run, after the end of an earlier one in this process."""
    key = configuration.value(CHECKPOINT_DIR), job.name
    with _beginning:
        earlier = _runs.get(key)
        if earlier is not None and not earlier.wait(0):
            display.say(f"Job {job.name!r} still runs in this process: suspending it first")
            earlier.suspend()
            earlier.wait()
        run = _runs[key] = _HostedRun(job, options, display)
        run.start()
    return run


def _display(configuration: Configuration, *, has_totals: bool) -> ProgressLines | EventLog:
    interval_ms = configuration.value(PROGRESS_INTERVAL)
    write: Callable[[str], None] = StandardError()
    if interval_ms is None:
        return ProgressLines(lambda line: None, interval_ms=1, has_totals=False)
    if configuration.value(LOG_FORMAT) is LogFormat.JSON:
        return EventLog(lambda event: write(as_json(event)), interval_ms=interval_ms)
    return ProgressLines(write, interval_ms=interval_ms, has_totals=has_totals)


def _path(directory: str | None) -> str | None:
    return None if directory is None else normalize(directory)


def _wait(future: Future[Any], timeout_s: float | None = None) -> bool:
    """Wait for a future, at most so long; return whether it is done.

    In turns: Python runs signal handlers when this thread wakes up, and a signal that arrives just
    before an endless wait starts would not end it.
    """
    left_s = timeout_s
    while not future.done():
        if left_s is not None and left_s <= 0:
            return False
        turn_s = _TURN_S if left_s is None else min(_TURN_S, left_s)
        wait((future,), timeout=turn_s)
        left_s = None if left_s is None else left_s - turn_s
    return True


def _answer(future: Future[T]) -> T:
    """The result of a future.

    What refuses something comes without the frames of the thread that found it, unless they are
    asked for as in the command line: its message says all that a user needs.
    """
    _wait(future)
    error = future.exception()
    if isinstance(error, WeirError) and os.environ.get("WEIR_DEBUG") != "1":
        raise error.with_traceback(None)
    return future.result()
