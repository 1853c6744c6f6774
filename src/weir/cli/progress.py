"""Progress output of a running job: a live table on a terminal, plain lines everywhere else.

``ProgressDisplay`` is the listener of ``run_job``: once the job has its gateway, a thread reads the
newest view five times a second. Both modes print one line for each checkpoint that is triggered,
completed or failed, for each note, and for each phase of the start that takes longer than a second
(``phases``); the live table is below these lines. On a plain stream, a line with the totals is
printed at most every ten seconds, and only if something has changed; every line is flushed at once,
so that a log shows how far the job got.

If output cannot be written (a full disk, ``| head``, a terminal that is gone), nothing but the
output stops: the log says so once, and the job goes on.

Pure functions and ``CheckpointLines``, which remembers what it has reported, make the lines.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from rich.console import Console, Group
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from weir.core.checkpoints.stats import CheckpointStats, CheckpointStatsSnapshot
from weir.core.types import CheckpointFailureReason, CompletedCheckpoint
from weir.gateway.job_gateway import JobGateway
from weir.launch.phases import WORTH_A_LINE_MS, Phases, answer_promptly, describe_time
from weir.monitoring.views import JobView
from weir.runtime.concurrency import Clock, SystemClock

_log = logging.getLogger(__name__)

_POLL_S = 0.5
#: The minimum time between two lines with totals on a plain stream.
PROGRESS_LINE_MS = 10_000


class CheckpointLines:
    """Turns checkpoint statistics into lines, each reported once."""

    def __init__(self) -> None:
        #: Status last reported, by checkpoint id; bounded by the history.
        self._reported: dict[int, str] = {}
        #: The last reported failure of a checkpoint without an id.
        self._reported_failure: str | None = None

    def new(self, snapshot: CheckpointStatsSnapshot) -> list[str]:
        """Lines for what has happened since the last call, oldest first."""
        lines = []
        for stats in reversed(snapshot.history):
            changed = self._reported.get(stats.checkpoint_id) != stats.status
            if changed and not stats.met_ending_tasks:
                lines.append(describe_checkpoint(stats))
        self._reported = {stats.checkpoint_id: stats.status for stats in snapshot.history}
        failure = snapshot.latest_trigger_failure
        if failure is not None and failure != self._reported_failure:
            lines.append(f"a checkpoint could not be triggered: {_why(failure)}")
        self._reported_failure = failure
        return lines


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
    suspended = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND.message
    return suspended if message.startswith(suspended) else message


def describe_progress(view: JobView) -> str:
    """One line with the totals over all vertices: rows read, rows per second, rows committed."""
    rows = sum(vertex.records_in for vertex in view.vertices)
    per_second = sum(vertex.records_in_per_second for vertex in view.vertices)
    committed = sum(vertex.records_committed for vertex in view.vertices)
    return (
        f"{view.status.value}: {rows} rows in, {per_second:.0f} rows/s, {committed} rows committed"
    )


def render(view: JobView) -> Group:
    """The live table: status, checkpoints, and a row for each vertex."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("vertex")
    table.add_column("status")
    for column in ("batch", "rows in", "rows/s", "committed"):
        table.add_column(column, justify="right")
    for vertex in view.vertices:
        table.add_row(
            Text(vertex.vertex),
            vertex.status.value,
            str(vertex.position),
            f"{vertex.records_in:,}",
            f"{vertex.records_in_per_second:,.0f}",
            f"{vertex.records_committed:,}",
        )
    return Group(
        Text(f"{view.name}: {view.status.value}, attempt {view.attempt}"), _checkpoints(view), table
    )


def _checkpoints(view: JobView) -> Text:
    counts, latest = view.checkpoints.counts, view.checkpoints.latest_completed
    last = "none yet"
    if latest is not None:
        size = decimal(latest.checkpointed_size)
        last = f"last {latest.checkpoint_id} in {latest.end_to_end_duration_ms} ms, {size}"
    text = f"checkpoints: {counts.completed} completed, {counts.failed} failed, {last}"
    failure = view.checkpoints.newest_failure
    return Text(text if failure is None else f"{text}\nnewest failure: {failure}")


class ProgressDisplay:
    """Listens to a run and shows it on ``console``.

    A context manager: leaving it stops the threads and the table.
    """

    def __init__(self, console: Console, *, clock: Clock | None = None) -> None:
        self._console = console
        self._clock: Clock = SystemClock() if clock is None else clock
        self._lines = CheckpointLines()
        self._phases = Phases(self.say, self._clock)
        self._begun_ms = self._clock.now_ms()
        #: Whether the first rows have been read, and reported if they took long.
        self._has_rows = False
        self._looker = threading.Thread(target=self._look, name="weir-phases", daemon=True)
        self._gateway: JobGateway | None = None
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._live: Live | None = None
        self._printed_progress = ""
        self._printed_progress_ms: int | None = None

    def __enter__(self) -> ProgressDisplay:
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
        """Show the phase if it takes longer than a second. After the start, answer promptly."""
        self._phases.begin(name)
        if name is None:
            answer_promptly()

    def note(self, message: str) -> None:
        """Show one line."""
        self.say(message)

    def say(self, line: str) -> None:
        """Print one line verbatim, above the live table if it is shown, and flush it."""
        # A path may hold characters that the output's encoding does not have.
        shown = line.encode(self._console.encoding, "backslashreplace").decode(
            self._console.encoding
        )

        def show() -> None:
            self._console.print(shown, markup=False, highlight=False, soft_wrap=True)
            self._console.file.flush()

        self._write(show)

    def _write(self, show: Callable[[], None]) -> None:
        """Call ``show``, which writes to the console, unless that has become impossible."""
        try:
            show()
        except (OSError, ValueError, SystemExit) as error:
            # rich ends the process when a pipe is closed.
            why = "its reader is gone" if isinstance(error, SystemExit) else error
            self._console.quiet = True
            with suppress(OSError, ValueError):
                # So that what is still buffered fails nothing when the process ends.
                output = self._console.file.fileno()
                with Path(os.devnull).open("wb") as nothing:
                    os.dup2(nothing.fileno(), output)
            _log.warning("Nothing more is printed, because the output cannot be written: %s", why)

    def _look(self) -> None:
        while not self._ending.wait(_POLL_S):
            self._phases.look()

    def _watch(self, gateway: JobGateway) -> None:
        if not self._console.is_terminal:
            self._poll(gateway)
            return
        # What is printed meanwhile goes through ``LogOutput``.
        live = Live(
            render(gateway.view()),
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._write(partial(live.start, refresh=True))
        self._live = live
        try:
            self._poll(gateway)
        finally:
            self._write(live.stop)

    def _poll(self, gateway: JobGateway) -> None:
        ending = False
        while not ending:
            # Show the view once more after the end, to report the last events.
            ending = self._ending.wait(_POLL_S)
            self._show(gateway.view())

    def _show(self, view: JobView) -> None:
        self._report_first_rows(view)
        for line in self._lines.new(view.checkpoints):
            self.say(line)
        if self._live is not None:
            self._write(partial(self._live.update, render(view), refresh=True))
            return
        progress, now_ms = describe_progress(view), self._clock.now_ms()
        due = (
            self._printed_progress_ms is None
            or now_ms - self._printed_progress_ms >= PROGRESS_LINE_MS
        )
        if due and progress != self._printed_progress:
            self.say(progress)
            self._printed_progress, self._printed_progress_ms = progress, now_ms

    def _report_first_rows(self, view: JobView) -> None:
        if self._has_rows or not any(vertex.records_in for vertex in view.vertices):
            return
        self._has_rows = True
        took_ms = self._clock.now_ms() - self._begun_ms
        if took_ms > WORTH_A_LINE_MS:
            self.say(f"first rows after {describe_time(took_ms)}")
