"""The log of ``weir run`` on standard error, and what it does to standard output.

*Text*: standard output has the progress, as always; standard error has what code logs and what
steps print, with time, level and step. On a terminal both appear above the live table.

*JSON*: standard error has everything, one object per line: progress, records, printed lines, and
what the JVM and Python workers write. For the latter, this process replaces its file descriptor 2
by a pipe, which the JVM inherits, and reads it: a worker's JSON line goes on as it is, and any
other line becomes the message of a JSON line.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TextIO

from rich.console import Console
from rich.text import Text

from weir.config.values import LogFormat
from weir.core.types import CompletedCheckpoint
from weir.gateway.job_gateway import JobGateway
from weir.launch.phases import Phases, answer_promptly
from weir.monitoring.log_lines import Capture, LogEvent, Place, as_json, as_text, pass_on
from weir.monitoring.recorder import Moment
from weir.runtime.concurrency import Clock, SystemClock

_STDERR = 2
#: A line that no process writes by itself: all before it has been read.
_END = b"\x00weir: end\n"
#: How long the end of the run waits until the pipe has been read, in seconds.
_END_S = 2.0
_POLL_S = 0.2


class LogOutput:
    """Captures the log of this process while it is entered."""

    def __init__(self, console: Console, form: LogFormat, *, clock: Clock | None = None) -> None:
        """``console`` is the console of the progress, with a file of its own."""
        self._console = console
        self._form = form
        self._clock: Clock = SystemClock() if clock is None else clock
        self._stack = ExitStack()
        self._capture: Capture | None = None
        #: Standard error as it was.
        self._stderr: TextIO = sys.stderr
        self._lock = threading.Lock()

    def __enter__(self) -> LogOutput:
        self._stderr = sys.stderr
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def is_json(self) -> bool:
        """Whether every line is a JSON object."""
        return self._form is LogFormat.JSON

    @contextmanager
    def loading(self) -> Iterator[None]:
        """While a pipeline's file is executed, the file may set up the log as without Weir."""
        self._leave_log()
        try:
            yield
        finally:
            self._take_log()

    @contextmanager
    def running(self) -> Iterator[None]:
        """While a job runs that the file itself has started, what is logged becomes lines again."""
        self._take_log()
        try:
            yield
        finally:
            self._leave_log()

    def _take_log(self) -> None:
        if self._capture is not None:
            self._capture.take_log()

    def _leave_log(self) -> None:
        if self._capture is not None:
            self._capture.leave_log()

    def use(self, form: LogFormat) -> None:
        """Change the form, once the job's own configuration is known."""
        if form is not self._form:
            self._stack.close()
            self._form = form
            self._start()

    def log(self, message: str, *, level: str = "INFO", logger: str = "weir.run") -> None:
        """Write a line of Weir's own."""
        self.write(
            LogEvent(time_ms=self._clock.wall_ms(), level=level, logger=logger, message=message)
        )

    def write(self, event: LogEvent) -> None:
        """Write the line of an event."""
        if self._capture is not None:
            self._capture.emit(event)

    def say_last(self, message: str) -> None:
        """Write a line without taking a lock, in a signal handler: the process ends now."""
        event = LogEvent(
            time_ms=self._clock.wall_ms(), level="ERROR", logger="weir.run", message=message
        )
        line = as_json(event) if self.is_json else message
        try:
            descriptor = self._stderr.fileno()
        except OSError:
            descriptor = _STDERR
        os.write(descriptor, f"{line}\n".encode())

    def _start(self) -> None:
        wall_ms = self._clock.wall_ms
        if self.is_json:
            self._redirect()
            made = Capture(self._write, as_json, wall_ms=wall_ms, passes=None)
        elif self._console.is_terminal:
            shown = _Shown(self._console)
            self._stack.callback(shown.end)
            write = shown.line if self._stderr.isatty() else self._write
            made = Capture(write, as_text, wall_ms=wall_ms, passes=shown.text)
        else:
            made = Capture(self._write, as_text, wall_ms=wall_ms, passes=pass_on)
        self._capture = self._stack.enter_context(made)

    def _write(self, line: str) -> None:
        # A full disk or a reader that is gone fails neither a step that prints nor the job.
        with self._lock, suppress(OSError, ValueError):
            self._stderr.write(line)
            self._stderr.flush()

    def _redirect(self) -> None:
        """Read what this process and its children write to file descriptor 2."""
        before = self._stderr
        try:
            if before.fileno() != _STDERR:
                return
        except OSError:
            return
        saved = os.dup(_STDERR)
        self._stderr = os.fdopen(saved, "w", encoding="utf-8", errors="replace", closefd=False)
        reading, writing = os.pipe()
        os.dup2(writing, _STDERR)
        os.close(writing)
        ended = threading.Event()
        threading.Thread(
            target=self._read, args=(reading, ended), name="weir-stderr", daemon=True
        ).start()

        def restore() -> None:
            os.write(_STDERR, b"\n" + _END)
            # The JVM keeps its end of the pipe, so that the thread reads on.
            ended.wait(_END_S)
            os.dup2(saved, _STDERR)
            self._stderr = before

        self._stack.callback(restore)

    def _read(self, descriptor: int, ended: threading.Event) -> None:
        with os.fdopen(descriptor, "rb") as pipe:
            for data in pipe:
                if data == _END:
                    ended.set()
                    continue
                line = data.decode("utf-8", errors="replace").strip()
                if not line:
                    continue
                if _is_event(line):
                    self._write(f"{line}\n")
                else:
                    self._write(as_json(self._foreign(line)) + "\n")

    def _foreign(self, line: str) -> LogEvent:
        return LogEvent(time_ms=self._clock.wall_ms(), level="INFO", logger="stderr", message=line)


def _is_event(line: str) -> bool:
    """Whether a worker has made the line."""
    if not line.startswith('{"time": '):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


class _Shown:
    """Shows text above the live table of a console, line by line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rests = threading.local()

    def text(self, text: str, stream: TextIO) -> None:
        """Show the lines that are complete."""
        del stream
        whole, _, self._rests.rest = (getattr(self._rests, "rest", "") + text).rpartition("\n")
        if whole:
            self.line(whole)

    def end(self) -> None:
        """Show what this thread has written without a line break."""
        rest, self._rests.rest = getattr(self._rests, "rest", ""), ""
        if rest:
            self.line(rest)

    def line(self, line: str) -> None:
        """Show one line or more."""
        # rich ends the process when a pipe is closed. The progress says that nothing is printed.
        with suppress(OSError, ValueError, SystemExit):
            self._console.print(Text.from_ansi(line.rstrip("\n")), soft_wrap=True)
            self._console.file.flush()


class EventDisplay:
    """Listens to a run and logs what happens: the counterpart of ``ProgressDisplay`` for JSON.

    A context manager. A thread reads the job's story, so that a log that nobody reads holds up
    nothing else.
    """

    def __init__(self, output: LogOutput, *, clock: Clock | None = None) -> None:
        self._output = output
        self._phases = Phases(self._phase_line, SystemClock() if clock is None else clock)
        self._gateway: JobGateway | None = None
        #: The number of the newest moment that was logged.
        self._logged = 0
        self._ending = threading.Event()
        self._looker = threading.Thread(target=self._look, name="weir-events", daemon=True)

    def __enter__(self) -> EventDisplay:
        self._looker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._looker.join()

    @property
    def gateway(self) -> JobGateway | None:
        """The job, once it is submitted."""
        return self._gateway

    def submitted(self, job_id: str, gateway: JobGateway, rest_address: str) -> None:
        """Log where the job can be reached, and from now on what happens in it."""
        self._gateway = gateway
        self.say(f"Job has been submitted with JobID {job_id}")
        self.say(f"REST server: {rest_address}")

    def restored(self, checkpoint: CompletedCheckpoint) -> None:
        """Log which checkpoint or savepoint the job was restored from."""
        what = "savepoint" if checkpoint.kind.is_savepoint else "checkpoint"
        self.say(f"Recovered from {what} {checkpoint.checkpoint_id}: {checkpoint.external_path}")

    def phase(self, name: str | None) -> None:
        """Log the phase if it takes longer than a second. After the start, answer promptly."""
        self._phases.begin(name)
        if name is None:
            answer_promptly()

    def note(self, message: str) -> None:
        """Log one line, unless the story has it."""
        if not message.startswith("FAILING: "):
            self.say(message)

    def say(self, line: str) -> None:
        """Log one line."""
        self._output.log(line)

    def _phase_line(self, line: str) -> None:
        self._output.log(line, logger="weir.start")

    def _look(self) -> None:
        ending = False
        while not ending:
            # Once more after the end, for the last events.
            ending = self._ending.wait(_POLL_S)
            self._phases.look()
            self._log_moments()

    def _log_moments(self) -> None:
        if self._gateway is None:
            return
        recorder = self._gateway.recorder
        for moment in tuple(recorder.moments):
            if moment.number > self._logged:
                self._logged = moment.number
                self._output.write(_event(moment, self._gateway))


def _event(moment: Moment, gateway: JobGateway) -> LogEvent:
    """The event of a moment; of a failure, with its whole message and trace."""
    message, trace = moment.text, ""
    if moment.kind == "failure":
        for failure in tuple(gateway.recorder.failures):
            if failure.time_ms <= moment.time_ms and failure.vertex == moment.vertex:
                message, trace = failure.message, failure.trace
    return LogEvent(
        time_ms=moment.time_ms,
        level="ERROR" if moment.kind == "failure" else "INFO",
        logger=f"weir.{moment.kind}",
        message=message,
        place=Place(task=moment.vertex or ""),
        checkpoint_id=moment.checkpoint_id,
        exception=trace,
    )
