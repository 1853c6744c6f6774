"""The lines that a run prints on standard error: the same for ``weir run`` and ``Job.run``.

``ProgressLines`` is the listener of ``run_job``: once the job has its gateway, a thread reads the
newest view twice a second. There is a line

- for each note, and for each phase of the start that takes longer than a second (``phases``),
- for each savepoint, and for each checkpoint that fails while the job runs,
- with the totals (status, newest checkpoint, rows): when the first checkpoint completes, when the
  first rows are committed, when the status changes after that, at the end, and in between once in
  ``weir.progress-interval``.

With an interval of 0 there is a line for every checkpoint, too, as it is triggered and as it
completes, and one with the totals when they have changed, at most every ten seconds.

Every line is flushed at once, so that a log shows how far the job got. Pure functions and two small
classes, which remember what they have reported, make the lines.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable

from rich.filesize import decimal

from weir.core.checkpoints.stats import CheckpointStats, CheckpointStatsSnapshot
from weir.core.status import JobStatus
from weir.core.types import CheckpointFailureReason, CompletedCheckpoint
from weir.gateway.job_gateway import JobGateway
from weir.launch.options import JobResult
from weir.launch.phases import WORTH_A_LINE_MS, Phases, describe_time
from weir.monitoring.views import JobView
from weir.runtime.concurrency import Clock, SystemClock

_log = logging.getLogger(__name__)

_POLL_S = 0.5
#: The minimum time between two lines with totals if every checkpoint has a line.
DETAILED_TOTALS_MS = 10_000
_SUSPENDED = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND.message


class StandardError:
    """Writes lines to what is standard error at that moment.

    If that fails (a full disk, a reader that is gone), nothing but the output stops.
    """

    def __init__(self) -> None:
        self._is_gone = False

    def __call__(self, line: str) -> None:
        """Write one line and flush it."""
        if self._is_gone:
            return
        try:
            print(line, file=sys.stderr, flush=True)
        except (OSError, ValueError) as error:
            self._is_gone = True
            _log.warning("Nothing more is printed, because the output cannot be written: %s", error)


class CheckpointLines:
    """Turns checkpoint statistics into lines, each reported once."""

    def __init__(self, *, interval_ms: int = 0) -> None:
        """``interval_ms``: see ``Totals``. Above 0, a checkpoint that goes well has no line."""
        self._has_all = interval_ms == 0
        #: Status last reported, by checkpoint id; bounded by the history.
        self._reported: dict[int, str] = {}
        #: The last reported failure of a checkpoint without an id.
        self._reported_failure: str | None = None

    def new(self, snapshot: CheckpointStatsSnapshot) -> list[str]:
        """Lines for what has happened since the last call, oldest first."""
        lines = []
        for stats in reversed(snapshot.history):
            changed = self._reported.get(stats.checkpoint_id) != stats.status
            if changed and not stats.met_ending_tasks and self._is_worth_a_line(stats):
                lines.append(describe_checkpoint(stats))
        self._reported = {stats.checkpoint_id: stats.status for stats in snapshot.history}
        failure = snapshot.latest_trigger_failure
        if failure is not None and failure != self._reported_failure:
            lines.append(f"a checkpoint could not be triggered: {_why(failure)}")
        self._reported_failure = failure
        return lines

    def _is_worth_a_line(self, stats: CheckpointStats) -> bool:
        if self._has_all or stats.kind.is_savepoint:
            return True
        # Why the job suspends or fails has a line of its own.
        return stats.status == "FAILED" and _why(stats.failure_message or "") != _SUSPENDED


def describe_checkpoint(stats: CheckpointStats) -> str:
    """``checkpoint 7 completed in 123 ms, 4.5 kB`` and its like."""
    name = f"{'savepoint' if stats.kind.is_savepoint else 'checkpoint'} {stats.checkpoint_id}"
    if stats.status == "IN_PROGRESS":
        return f"{name} triggered"
    if stats.status == "FAILED":
        return f"{name} failed: {_why(stats.failure_message or 'unknown cause')}"
    path = f", {stats.external_path}" if stats.kind.is_savepoint else ""
    return (
        f"{name} completed in {stats.end_to_end_duration_ms} ms,"
        f" {decimal(stats.checkpointed_size)}{path}"
    )


def _why(message: str) -> str:
    """Why a checkpoint failed; shortened if the job is failing or ending: that has its own line."""
    return _SUSPENDED if message.startswith(_SUSPENDED) else message


def describe_progress(view: JobView) -> str:
    """One line with the newest checkpoint, the rows that sources have read, and those committed."""
    # What other vertices read from channels, sources have read before.
    reading = [vertex for vertex in view.vertices if not vertex.inputs]
    rows = sum(vertex.records_in for vertex in reading)
    per_second = sum(vertex.records_in_per_second for vertex in reading)
    committed = sum(vertex.records_committed for vertex in view.vertices)
    newest = view.checkpoints.latest_completed
    checkpoint = "" if newest is None else f"checkpoint {newest.checkpoint_id}, "
    return (
        f"{view.status.value}: {checkpoint}{rows} rows in, {per_second:.0f} rows/s,"
        f" {committed} rows committed"
    )


class Totals:
    """Decides when a line with the totals is due."""

    def __init__(self, clock: Clock, *, interval_ms: int) -> None:
        """``interval_ms`` is ``weir.progress-interval``."""
        self._clock = clock
        self._interval_ms = interval_ms or DETAILED_TOTALS_MS
        self._milestone: tuple[object, ...] = ()
        self._printed = ""
        #: When the last line was printed. With a line at each checkpoint, the first is due at once.
        self._printed_ms = clock.now_ms() - (0 if interval_ms else DETAILED_TOTALS_MS)
        self._has_milestones = interval_ms > 0

    def new(self, view: JobView, *, is_last: bool = False) -> list[str]:
        """The line, if it is due and says something new; always at the end.

        The last status is shown then, since rows are committed while it stands already.
        """
        if view.status is JobStatus.CREATED or (view.status.is_terminal and not is_last):
            return []
        line, now_ms = describe_progress(view), self._clock.now_ms()
        milestone: tuple[object, ...] = ()
        if self._has_milestones and view.checkpoints.latest_completed is not None:
            milestone = view.status, any(vertex.records_committed for vertex in view.vertices)
        due = (
            is_last
            or now_ms - self._printed_ms >= self._interval_ms
            or milestone != self._milestone
        )
        if not due or line == self._printed:
            return []
        self._milestone, self._printed, self._printed_ms = milestone, line, now_ms
        return [line]


def ending_lines(result: JobResult, *, again: str, resume: Callable[[str], str]) -> list[str]:
    """How a job has ended; of a failed one nothing, since an exception says why.

    ``again`` says how to run it again. ``resume`` returns what starts it from a savepoint.
    """
    name = f"Job {result.job_id}"
    if result.fenced:
        return [
            f"Another driver has taken over job {result.job_id}: this driver stopped without"
            " touching any file."
        ]
    match result.status:
        case JobStatus.FAILED:
            return []
        case JobStatus.CANCELED:
            return [f"{name} was cancelled"]
        case JobStatus.FINISHED:
            return _how_finished(name, result, resume)
    if result.checkpoint_id is not None:
        return [
            f"{name} is suspended with checkpoint {result.checkpoint_id}, and everything before it"
            f" is committed; {again} to go on"
        ]
    return [f"{name} is suspended; {again} to resume it"]


def _how_finished(name: str, result: JobResult, resume: Callable[[str], str]) -> list[str]:
    if result.already_finished:
        return [
            f"{name} has already finished; nothing was run. Start from scratch with --fresh"
            " (in Python: fresh=True), into new tables."
        ]
    if result.savepoint is None:
        return [f"{name} {'was drained and has finished' if result.drained else 'has finished'}"]
    if result.drained:
        return [f"{name} was drained and stopped. Savepoint: {result.savepoint}"]
    return [
        f"{name} was stopped. Savepoint: {result.savepoint}",
        f"Resume with: {resume(result.savepoint)}",
    ]


class ProgressLines:
    """Listens to a run and prints lines.

    A context manager: leaving it stops the threads, after what happened last was printed.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        interval_ms: int,
        has_totals: bool = True,
        started: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        """``write`` gets each line; ``started`` is called when the start is done."""
        self._write_line = write
        self._has_totals = has_totals
        self._started = started
        self._clock: Clock = SystemClock() if clock is None else clock
        self._lines = CheckpointLines(interval_ms=interval_ms)
        self._totals = Totals(self._clock, interval_ms=interval_ms)
        self._phases = Phases(self.say, self._clock)
        self._begun_ms = self._clock.now_ms()
        #: Whether the first rows have been read, and reported if they took long.
        self._has_rows = False
        self._looker = threading.Thread(target=self._look, name="weir-phases", daemon=True)
        self._gateway: JobGateway | None = None
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def __enter__(self) -> ProgressLines:
        self._looker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._looker.join()
        if self._thread is not None:
            self._thread.join()

    @property
    def gateway(self) -> JobGateway | None:
        """The job, once it is submitted."""
        return self._gateway

    def submitted(self, job_id: str, gateway: JobGateway, rest_address: str) -> None:
        """Print where the job can be reached, and start showing its progress."""
        # First, so that a signal handler finds the job.
        self._gateway = gateway
        self.say(f"Job has been submitted with JobID {job_id}")
        self.say(f"REST server: {rest_address}")
        self._thread = threading.Thread(
            target=self._watch, args=(gateway,), name="weir-progress", daemon=True
        )
        self._thread.start()

    def restored(self, checkpoint: CompletedCheckpoint) -> None:
        """Print which checkpoint or savepoint the job was restored from."""
        if checkpoint.kind.is_savepoint:
            self.say(f"recovered from savepoint {checkpoint.external_path}")
        else:
            self.say(f"recovered from checkpoint {checkpoint.checkpoint_id}")

    def phase(self, name: str | None) -> None:
        """Print the phase if it takes longer than a second."""
        self._phases.begin(name)
        if name is None:
            self._started()

    def note(self, message: str) -> None:
        """Print one line."""
        self.say(message)

    def say(self, line: str) -> None:
        """Print one line verbatim."""
        self._write_line(line)

    def _look(self) -> None:
        while not self._ending.wait(_POLL_S):
            self._phases.look()

    def _watch(self, gateway: JobGateway) -> None:
        """Show the newest view until the end, and then once more, for what happened last."""
        ending = False
        while not ending:
            ending = self._ending.wait(_POLL_S)
            self._show(gateway.view(), is_last=ending)

    def _show(self, view: JobView, *, is_last: bool) -> None:
        self._report_first_rows(view)
        for line in self._lines.new(view.checkpoints):
            self.say(line)
        if self._has_totals:
            for line in self._totals.new(view, is_last=is_last):
                self.say(line)

    def _report_first_rows(self, view: JobView) -> None:
        if self._has_rows or not any(vertex.records_in for vertex in view.vertices):
            return
        self._has_rows = True
        took_ms = self._clock.now_ms() - self._begun_ms
        if took_ms > WORTH_A_LINE_MS:
            self.say(f"first rows after {describe_time(took_ms)}")
