"""The log of ``weir run`` on standard error, beside the progress.

*Text*: what code logs and what steps print, with time, level and step. On a terminal it appears
above the live table, and so does what else the program prints there. Standard output is the
program's.

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
from weir.monitoring.log_lines import Capture, LogEvent, as_json, as_text, pass_on
from weir.runtime.concurrency import Clock, SystemClock

_STDERR = 2
#: A line that no process writes by itself: all before it has been read.
_END = b"\x00weir: end\n"
#: How long the end of the run waits until the pipe has been read, in seconds.
_END_S = 2.0


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
            made = Capture(shown.line, as_text, wall_ms=wall_ms, passes=shown.text)
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
        """Show the lines that are complete. What is not for a terminal passes by."""
        if not stream.isatty():
            pass_on(text, stream)
            return
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
