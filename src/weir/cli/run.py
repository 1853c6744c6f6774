"""``weir run``: executes the pipeline's file, runs its job, shows progress, and handles signals.

The file is executed on the main thread (``program.py``). Where it calls ``job.run()``, the job runs
there, with the command line's options; if it ends without that, its job runs then. The job has a
thread of its own and the main thread waits for it, because ``SparkContext`` replaces the SIGINT
handler when it is made on the main thread. So Weir handles the signals (``launch/signals.py``).
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import ExitStack
from functools import partial

from rich.console import Console

from weir.cli.loading.load import checked
from weir.cli.loading.needed_session import needed_session
from weir.cli.loading.program import Program
from weir.cli.log_output import LogOutput
from weir.cli.progress import ProgressDisplay
from weir.config import Configuration
from weir.config.options import CLASS_ARCHIVE, LOG_FORMAT, PROGRESS_INTERVAL
from weir.core.status import JobStatus
from weir.errors import JobFailedError, JobFencedError, PipelineError, WeirError
from weir.gateway.job_gateway import JobGateway
from weir.handle.event_log import EventLog
from weir.handle.job_handle import JobHandle, start_job, wait_for_started
from weir.handle.lines import ProgressLines, ending_lines
from weir.job import Job, definition_of
from weir.launch import runner
from weir.launch.options import JobResult, RunOptions
from weir.launch.phases import answer_promptly
from weir.launch.signals import ENDING, SuspendOnSignal, is_left
from weir.masking import masked_arguments
from weir.spark.session import class_archive
from weir.spark.session.user_modules import py_files_found

#: How long a signal may wait for its handler, in seconds.
_TURN_S = 0.2


def run_pipeline(spec: str, options: RunOptions, console: Console) -> int:
    """Run the pipeline ``FILE[:job]`` and return the exit code of the process.

    0: finished now or earlier, stopped with a savepoint, or suspended with a last checkpoint since
    all that was available is read. 1: cancelled, or suspended without a signal. 129, 130 or 143:
    suspended by SIGHUP, SIGINT or SIGTERM. If the file exits itself, its code. Raises ``WeirError``
    if the job cannot start, ``JobFailedError`` if it failed, and ``JobFencedError`` if another
    driver took it over.
    """
    given = options.conf.get(LOG_FORMAT.key, LOG_FORMAT.default)
    with LogOutput(console, LOG_FORMAT.parse(str(given))) as output:
        try:
            return _Run(spec, options, console, output).execute()
        except WeirError as error:
            if not output.is_json or os.environ.get("WEIR_DEBUG") == "1":
                raise
            output.log(str(error), level="ERROR")
            return 1


class _Run:
    """One ``weir run``."""

    def __init__(self, spec: str, options: RunOptions, console: Console, output: LogOutput) -> None:
        self._spec = spec
        self._options = options
        self._console = console
        self._output = output
        self._program = Program(
            spec, options.arguments, run=self._run_in_file, start=self._start_in_file
        )
        self._session = needed_session(
            self._program,
            name=options.name,
            master=options.master,
            conf=options.conf,
            say=self._say,
        )
        #: The job of each run, and the exit code that it stands for.
        self._ran: list[Job] = []
        self._codes: list[int] = []
        #: The jobs that the file has started beside its own code.
        self._started: list[JobHandle] = []

    def execute(self) -> int:
        """Execute the file, and its job unless the file has run one; return the exit code."""
        program = self._program
        py_files = str(self._options.conf.get("spark.submit.pyFiles", ""))
        with ExitStack() as stack:
            if program.imports_weir:
                stack.enter_context(self._session)
            stack.enter_context(program)
            stack.enter_context(py_files_found(py_files))
            try:
                if not program.imports_weir:
                    code = self._run_script()
                    if code is not None:
                        return code
                else:
                    with self._output.loading():
                        program.execute()
            except SystemExit as error:
                return self._exited(error)
            except KeyboardInterrupt:
                return 128 + signal.SIGINT
            if not self._ran:
                self._run(program.chosen(), self._options)
            for handle in self._started:
                self._codes.append(self._code_of_started(handle))
            return self._code()

    def _code(self) -> int:
        """The exit code of the first run that has not ended well."""
        return next(filter(None, self._codes), 0)

    def _run_script(self) -> int | None:
        """Execute a file that does not import Weir; None if it has made no session."""
        # Not at the top: it imports Spark.
        from weir.cli.script import run_script

        configuration = Configuration.load(None, self._options.conf)
        return run_script(
            self._program,
            self._options,
            show=partial(_display, configuration, self._console, self._output),
            output=self._output,
            say=self._say,
            report=partial(_report, resume=self._resume, say=self._say),
            end=partial(_end, self._output),
        )

    def _run_in_file(self, job: Job, given: RunOptions) -> JobResult:
        """``job.run()`` in the file. Raises ``SystemExit`` after a signal, as outside of Weir."""
        options = self._options_of(job)
        with self._output.running():
            result, received = self._run(job, options.over(given))
        if received is not None and is_left(result, received):
            raise SystemExit(128 + received)
        return result

    def _start_in_file(self, job: Job, given: RunOptions) -> JobHandle:
        """``job.start()`` in the file. The command waits for the job once the file has ended."""
        options = self._options_of(job).over(given)
        self._ran.append(job)
        self._check(job, options)
        handle = start_job(definition_of(job), options)
        self._started.append(handle)
        return handle

    def _code_of_started(self, handle: JobHandle) -> int:
        result, received = wait_for_started(handle, end=partial(_end, self._output))
        return _exit_code(result, received)

    def _options_of(self, job: Job) -> RunOptions:
        """The command's options for the next job that the file runs or starts."""
        options = self._options
        if self._ran:
            if options.name is not None and job is not self._ran[0]:
                raise PipelineError(
                    f"--name {options.name} is for one job, but the file runs a second one,"
                    f" {job.name!r}: choose a job with FILE:job."
                )
            options = options.going_on()
        return options

    def _run(self, job: Job, options: RunOptions) -> tuple[JobResult, signal.Signals | None]:
        """Run a job and say how it ended; also return the signal that suspended it."""
        number = len(self._codes)
        self._ran.append(job)
        # Unless it ends well, or with a code of its own.
        self._codes.append(1)
        configuration = self._check(job, options)
        self._output.use(configuration.value(LOG_FORMAT))
        with (
            _display(configuration, self._console, self._output) as display,
            self._signals(lambda: display.gateway, display.say) as signals,
        ):
            result = _on_own_thread(lambda: runner.run_job(definition_of(job), options, display))
        if configuration.value(CLASS_ARCHIVE):
            # In the background, so that the next job starts in half the time.
            class_archive.make_later()
        self._codes[number] = _report(
            result, resume=self._resume, received=signals.received, say=display.say
        )
        return result, signals.received

    def _check(self, job: Job, options: RunOptions) -> Configuration:
        if options.read_apart:
            raise PipelineError(
                "--read-apart is for the queries of a script, but the file builds a weir.Job: give"
                " a step a source of its own instead."
            )
        configuration = Configuration.load(None, {**checked(job).conf, **options.conf})
        self._session.check(configuration.spark_conf(), options.master)
        return configuration

    def _signals(
        self, gateway: Callable[[], JobGateway | None], say: Callable[[str], None]
    ) -> SuspendOnSignal:
        """Handles the signals; none on another thread than the main thread."""
        on_main = threading.current_thread() is threading.main_thread()
        return SuspendOnSignal(
            (signal.SIGINT, *ENDING) if on_main else (),
            gateway=gateway,
            say=say,
            end=partial(_end, self._output),
        )

    def _resume(self, savepoint: str) -> str:
        """What starts the same job from the savepoint, without secrets."""
        options = self._options
        if options.master is not None or options.conf:
            # Without them it would run elsewhere, with records of its own.
            return f"the same command and --from-savepoint {savepoint}"
        words = [] if options.name is None else ["--name", options.name]
        words.append(self._spec)
        arguments = f" -- {masked_arguments(options.arguments)}" if options.arguments else ""
        return f"weir run --from-savepoint {savepoint} {shlex.join(words)}{arguments}"

    def _exited(self, error: SystemExit) -> int:
        """The exit code of a file that has ended itself; without a code it is that of its job."""
        early = self._program.early_exit(error)
        if early is not None:
            self._say(early)
        if error.code is None:
            return self._code()
        if isinstance(error.code, int):
            return error.code
        self._say(str(error.code))
        return 1

    def _say(self, line: str) -> None:
        if self._output.is_json:
            self._output.log(line)
        else:
            print(line, file=sys.stderr, flush=True)


def _display(
    configuration: Configuration, console: Console, output: LogOutput
) -> ProgressLines | EventLog:
    interval_ms = configuration.value(PROGRESS_INTERVAL)
    if interval_ms is None:
        return ProgressLines(
            lambda line: None, interval_ms=1, has_totals=False, started=answer_promptly
        )
    if output.is_json:
        return EventLog(output.write, interval_ms=interval_ms, started=answer_promptly)
    return ProgressDisplay(console, interval_ms=interval_ms)


def _end(output: LogOutput, number: int) -> None:
    output.say_last("weir: killed by a signal")
    os._exit(128 + number)


def _on_own_thread(run: Callable[[], JobResult]) -> JobResult:
    future: Future[JobResult] = Future()

    def work() -> None:
        try:
            future.set_result(run())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="weir-run", daemon=True).start()
    # With a timeout: Python runs signal handlers when this thread wakes up, and a signal that
    # arrives just before an endless wait starts would not end it.
    while not future.done():
        wait((future,), timeout=_TURN_S)
    return future.result()


def _report(
    result: JobResult,
    *,
    resume: Callable[[str], str],
    received: signal.Signals | None,
    say: Callable[[str], None],
) -> int:
    """Print how the job ended; return the exit code. ``resume`` is that of ``ending_lines``.

    Raises ``JobFailedError`` and ``JobFencedError``.
    """
    if result.status is JobStatus.FAILED:
        raise JobFailedError(f"Job {result.job_id} failed: {result.failure or 'unknown cause'}")
    lines = ending_lines(
        result,
        again="run the same command again",
        resume=resume,
    )
    if result.fenced:
        raise JobFencedError(lines[0])
    for line in lines:
        say(line)
    return _exit_code(result, received)


def _exit_code(result: JobResult, received: signal.Signals | None) -> int:
    if result.checkpoint_id is None and received is not None and is_left(result, received):
        return 128 + received
    if result.status is JobStatus.FINISHED or result.checkpoint_id is not None:
        return 0
    return 1
