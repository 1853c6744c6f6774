"""``weir run``: loads and runs the pipeline, shows its progress, and handles signals.

The job runs on its own thread and the main thread waits for it, because ``SparkContext`` replaces
the SIGINT handler when it is made on the main thread. So Weir handles the signals
(``launch/signals.py``).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial

from rich.console import Console

from weir.cli.load import load_job
from weir.cli.log_output import EventDisplay, LogOutput
from weir.cli.progress import ProgressDisplay
from weir.config import Configuration
from weir.config.options import CLASS_ARCHIVE, LOG_FORMAT
from weir.core.status import JobStatus
from weir.errors import JobFailedError, JobFencedError, WeirError
from weir.job import definition_of
from weir.launch import runner
from weir.launch.options import JobResult, RunOptions
from weir.launch.signals import ENDING, SuspendOnSignal
from weir.spark.session import class_archive

#: How long a signal may wait for its handler, in seconds.
_TURN_S = 0.2


def run_pipeline(spec: str, options: RunOptions, console: Console) -> int:
    """Run the pipeline ``FILE[:job]`` and return the exit code of the process.

    0: finished now or earlier, or stopped with a savepoint. 1: cancelled, or suspended without a
    signal. 129, 130 or 143: suspended by SIGHUP, SIGINT or SIGTERM. Raises ``WeirError`` if the job
    cannot start, ``JobFailedError`` if it failed, and ``JobFencedError`` if another driver took it
    over.
    """
    given = options.conf.get(LOG_FORMAT.key, LOG_FORMAT.default)
    with LogOutput(console, LOG_FORMAT.parse(str(given))) as output:
        try:
            return _run(spec, options, console, output)
        except WeirError as error:
            if not output.is_json or os.environ.get("WEIR_DEBUG") == "1":
                raise
            output.log(str(error), level="ERROR")
            return 1


def _run(spec: str, options: RunOptions, console: Console, output: LogOutput) -> int:
    with output.loading():
        job = load_job(spec)
    configuration = Configuration.load(None, {**job.conf, **options.conf})
    output.use(configuration.value(LOG_FORMAT))
    made = EventDisplay(output) if output.is_json else ProgressDisplay(console)
    with (
        made as display,
        SuspendOnSignal(
            (signal.SIGINT, *ENDING),
            gateway=lambda: display.gateway,
            say=display.say,
            end=partial(_end, output),
        ) as signals,
    ):
        result = _on_own_thread(lambda: runner.run_job(definition_of(job), options, display))
    if configuration.value(CLASS_ARCHIVE):
        # In the background, so that the next job starts in half the time.
        class_archive.make_later()
    return _report(result, spec, signals.received, display.say)


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
    result: JobResult, spec: str, received: signal.Signals | None, say: Callable[[str], None]
) -> int:
    """Print how the job ended; return the exit code."""
    if result.status is JobStatus.FAILED:
        raise JobFailedError(f"Job {result.job_id} failed: {result.failure or 'unknown cause'}")
    if result.fenced:
        raise JobFencedError(
            f"Another driver has taken over job {result.job_id}: this driver stopped without"
            " touching any file."
        )
    if result.status is JobStatus.FINISHED:
        if result.already_finished:
            say(
                f"Job {result.job_id} has already finished; nothing was run. Start from scratch"
                " with --fresh."
            )
        elif result.savepoint is not None:
            how = "drained and stopped" if result.drained else "stopped"
            say(f"Job {result.job_id} was {how}. Savepoint: {result.savepoint}")
            if not result.drained:
                say(f"Resume with: weir run --from-savepoint {result.savepoint} {spec}")
        else:
            say(f"Job {result.job_id} has finished")
        return 0
    if result.status is JobStatus.CANCELED:
        say(f"Job {result.job_id} was cancelled")
        return 1
    say(f"Job {result.job_id} is suspended; run the same command again to resume it")
    return 1 if received is None else 128 + received
