"""Lines of the log: which part of the job writes them, their text and JSON forms, their capture.

``place`` says which step runs on this thread, so that whatever its code logs or prints can be
attributed: the driver enters it around functions, sinks, coordinators and hooks, a worker around
each batch of a subtask.

``Capture`` turns what a process logs and prints into lines. It takes the place of ``sys.stdout``
and ``sys.stderr``, and of the root logger's handlers that write there; handlers for files stay::

    2026-01-31 12:00:00.123 INFO  [score/2] orders.rules: 14 rules loaded
    {"time":"2026-01-31T11:00:00.123Z","level":"INFO","logger":"orders.rules","message":"14 ru...
"""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TextIO

from weir.core.types import OperatorId, VertexId

#: The task in the name of a thread that waits for a query.
_TASK = re.compile(r"weir-query-(.+)")
#: A printed line is cut after this many characters, so that no buffer grows without bound.
_LINE_LENGTH_MAX = 64 * 1024
_PY4J = "py4j"
#: Libraries whose INFO is about themselves: py4j logs every call from the JVM.
_CHATTY = (_PY4J, "httpx", "httpcore", "urllib3", "openlineage", "pyiceberg")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where in the job code runs; empty if unknown."""

    task: VertexId = ""
    #: A step, a sink or a master hook.
    step: OperatorId = ""
    subtask: int | None = None

    @property
    def label(self) -> str:
        """``score/2``: the step, or else the task, and the subtask."""
        name = self.step or self.task
        return name if self.subtask is None else f"{name}/{self.subtask}"


_NOWHERE = Place()
_place: ContextVar[Place] = ContextVar("weir-place", default=_NOWHERE)


def here() -> Place:
    """Where the calling thread is."""
    return _place.get()


@contextmanager
def place(
    *, task: VertexId | None = None, step: OperatorId | None = None, subtask: int | None = None
) -> Iterator[None]:
    """Say where the calling thread is; what is None stays as it is."""
    before = _place.get()
    given = {"task": task, "step": step, "subtask": subtask}
    changes = {name: value for name, value in given.items() if value is not None}
    _place.set(replace(before, **changes))  # type: ignore[arg-type]
    try:
        yield
    finally:
        # No token: a generator may be closed in another context.
        _place.set(before)


@contextmanager
def nowhere() -> Iterator[None]:
    """What the calling thread prints meanwhile is not the job's: it is passed on as it is."""
    before = _place.get()
    _place.set(_NOWHERE)
    try:
        yield
    finally:
        _place.set(before)


@dataclass(frozen=True, kw_only=True, slots=True)
class LogEvent:
    """An event of the log."""

    #: Milliseconds since the Unix epoch.
    time_ms: int
    #: INFO, WARNING and so on.
    level: str
    #: The logger's name; ``stdout`` or ``stderr`` for what was printed.
    logger: str
    message: str
    place: Place = _NOWHERE
    checkpoint_id: int | None = None
    #: The stack trace; "" for none.
    exception: str = ""


#: Makes the line of an event, without the line break.
Form = Callable[[LogEvent], str]
#: Gets a text, and the stream that it was written to.
PassOn = Callable[[str, TextIO], object]


def pass_on(text: str, stream: TextIO) -> None:
    """Write the text to the stream, as if there was no capture."""
    stream.write(text)


def as_text(event: LogEvent) -> str:
    """The event for people, in local time: one line, and those of its stack trace."""
    time = datetime.fromtimestamp(event.time_ms / 1000).isoformat(" ", "milliseconds")
    label = event.place.label
    where = f" [{label}]" if label else ""
    line = f"{time} {event.level:<5}{where} {event.logger}: {event.message}"
    return f"{line}\n{event.exception}" if event.exception else line


def as_json(event: LogEvent) -> str:
    """The event as one JSON object, in UTC. Unknown fields are left out."""
    time = datetime.fromtimestamp(event.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    fields: dict[str, Any] = {
        "time": time.replace("+00:00", "Z"),
        "level": event.level,
        "logger": event.logger,
        "message": event.message,
        "task": event.place.task,
        "step": event.place.step,
        "subtask": event.place.subtask,
        "checkpoint": event.checkpoint_id,
        "exception": event.exception,
    }
    return json.dumps({name: value for name, value in fields.items() if value not in ("", None)})


def event_of(record: logging.LogRecord) -> LogEvent:
    """The event of a record that this thread has just logged."""
    found = here()
    if not found.task:
        task = _TASK.fullmatch(record.threadName or "")
        found = found if task is None else replace(found, task=task[1])
    trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
    return LogEvent(
        time_ms=int(record.created * 1000),
        level=record.levelname,
        logger=record.name,
        message=record.getMessage(),
        place=found,
        exception=trace,
    )


class LogLines(logging.Handler):
    """Hands on the event of each record."""

    def __init__(self, emit: Callable[[LogEvent], None]) -> None:
        super().__init__()
        self._emit = emit

    def emit(self, record: logging.LogRecord) -> None:
        """Hand on the event of a record, but not those of Py4J.

        It logs every exception that a batch raises, which Weir reports itself.
        """
        try:
            if record.name.split(".")[0] != _PY4J:
                self._emit(event_of(record))
        except Exception:
            self.handleError(record)


class PrintedLines(io.TextIOBase):
    """A text stream whose lines become events; each thread writes lines of its own."""

    def __init__(
        self,
        name: str,
        emit: Callable[[LogEvent], None],
        *,
        wall_ms: Callable[[], int],
        original: TextIO,
        passes: PassOn | None,
    ) -> None:
        """``passes`` gets what code that is nowhere in the job writes; None: lines of it too."""
        self._name = name
        self._emit = emit
        self._wall_ms = wall_ms
        self._original = original
        self._passes = passes
        self._threads = threading.local()

    def write(self, text: str, /) -> int:
        """Take text; a line is handed on with its line break."""
        if self._passes is not None and here() is _NOWHERE:
            self._passes(text, self._original)
            return len(text)
        *lines, rest = (getattr(self._threads, "rest", "") + text).split("\n")
        while len(rest) > _LINE_LENGTH_MAX:
            lines.append(rest[:_LINE_LENGTH_MAX])
            rest = rest[_LINE_LENGTH_MAX:]
        self._threads.rest = rest
        for line in lines:
            self._tell(line)
        return len(text)

    def end_line(self) -> None:
        """Pass on what this thread has written without a line break."""
        rest, self._threads.rest = getattr(self._threads, "rest", ""), ""
        self._tell(rest)

    def flush(self) -> None:
        """Flush what was passed on: a line without its end waits for it."""
        if self._passes is not None:
            self._original.flush()

    def writable(self) -> bool:
        """See ``io.TextIOBase``."""
        return True

    def isatty(self) -> bool:
        """Whether the original stream is a terminal, and text is passed on to it."""
        return self._passes is not None and self._original.isatty()

    def fileno(self) -> int:
        """The original's, for processes that inherit it."""
        return self._original.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The original's."""
        return self._original.encoding or "utf-8"

    def __getattr__(self, name: str) -> Any:
        # What text files have beyond text streams: ``buffer``, ``reconfigure``, ``mode``.
        return getattr(self._original, name)

    def __reduce__(self) -> tuple[Any, ...]:
        # A function that refers to it, pickled for a worker, finds the worker's own there.
        return getattr, (sys, self._name)

    def _tell(self, line: str) -> None:
        if line.strip():
            self._emit(
                LogEvent(
                    time_ms=self._wall_ms(),
                    level="INFO",
                    logger=self._name,
                    message=line.rstrip("\r"),
                    place=here(),
                )
            )


class Capture:
    """Makes lines of what this process logs and prints, until it is left. A context manager."""

    def __init__(
        self,
        write: Callable[[str], None],
        form: Form,
        *,
        wall_ms: Callable[[], int],
        passes: PassOn | None,
    ) -> None:
        """``write`` gets each line with its line break. ``passes``: see ``PrintedLines``."""
        self._write = write
        self._form = form
        self._wall_ms = wall_ms
        self._passes = passes
        self._handler = LogLines(self.emit)
        self._streams: tuple[PrintedLines, ...] = ()
        self._replaced: list[logging.Handler] = []
        self._level = logging.WARNING

    def __enter__(self) -> Capture:
        self._streams = (self._stream("stdout", sys.stdout), self._stream("stderr", sys.stderr))
        sys.stdout, sys.stderr = self._streams
        self.take_log()
        return self

    def __exit__(self, *_: object) -> None:
        for stream, name in zip(self._streams, ("stdout", "stderr"), strict=True):
            stream.end_line()
            if getattr(sys, name) is stream:
                setattr(sys, name, stream._original)
        self.leave_log()

    def take_log(self) -> None:
        """Make lines of what is logged, too."""
        root = logging.getLogger()
        standard = (
            *(sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__),
            *(stream._original for stream in self._streams),
        )
        for handler in list(root.handlers):
            if isinstance(handler, logging.StreamHandler) and handler.stream in standard:
                root.removeHandler(handler)
                self._replaced.append(handler)
        root.addHandler(self._handler)
        self._level = root.level
        if root.level == logging.WARNING:
            # Python's default. A level that the user has set stays.
            root.setLevel(logging.INFO)
        for name in _CHATTY:
            chatty = logging.getLogger(name)
            chatty.setLevel(chatty.level or logging.WARNING)

    def leave_log(self) -> None:
        """Leave the root logger as it was, for code that may set it up (``basicConfig``)."""
        root = logging.getLogger()
        root.removeHandler(self._handler)
        root.setLevel(self._level)
        while self._replaced:
            root.addHandler(self._replaced.pop())

    def emit(self, event: LogEvent) -> None:
        """Write the line of an event."""
        self._write(self._form(event) + "\n")

    def end_lines(self) -> None:
        """Pass on what this thread has printed without a line break."""
        for stream in self._streams:
            stream.end_line()

    def _stream(self, name: str, original: TextIO) -> PrintedLines:
        return PrintedLines(
            name, self.emit, wall_ms=self._wall_ms, original=original, passes=self._passes
        )
