"""Classifies exceptions: a message for people, the place in user code, whether a retry can help.

There are three kinds of errors. The tables here cover Python's and Java's exception names and
Weir's own classes; those for Spark's errors are in ``spark/failures.py``:

1. *Final*: the same error occurs again however often the job is restarted. The job fails at once.
2. *Passing*: something outside does not answer now, but may later. The job is restarted as long as
   its restart strategy allows.
3. All others have a cause, by which ``core/job/restart.py`` detects that the same error recurs.

*The failing input.* Where an input is read or processed, no error is a passing one, whatever its
name: a damaged file and a disk that is away may raise the same. There the code that reads says what
it reads, in a note that begins with ``READING``, and the code that runs a batch knows where the
range of the batch begins (``spark/query/task.py``). An operator that had no rows yet in its batch
says that too (``NO_ROWS``). A process that dies of a signal leaves its notes behind
(``read_crash``).

*The place in user code* (``read_exception``, ``read_text``). A traceback lists frames from the
caller down to the ``raise``. The user's frame is the deepest frame that belongs neither to Weir,
PySpark and Python's standard library nor to any installed package: an error raised in a package is
attributed to the line that called the package. A text comes from another process (Spark's Python
worker), embedded in the message of a Java exception::

    ... An exception was thrown from the Python worker. Please see the stack trace below.
    Traceback (most recent call last):
      File "/opt/spark/python/pyspark/worker.py", line 1247, in main
      File "/home/me/pipeline.py", line 12, in lookup      <- the user's frame
    KeyError: 'JP'                                          <- the exception
    weir: in step 'enrich', subtask 0                       <- a note; Weir's start with "weir: "

    at org.apache.spark.api.python.BasePythonRunner...    <- Java's

The code that sees a failure derives its cause, for instance the exception's class and the line of
the pipeline; the core only compares causes. A passing failure (a connection, a time-out, storage)
without an input has no cause, so a job is never given up during an outage.
"""

from __future__ import annotations

import hashlib
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weir.core.types import UNKNOWN, Cause
from weir.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    ConfigurationError,
    CoordinatorStateError,
    HangingTransactionError,
    JobError,
    LostInputError,
    LostRowsError,
    PipelineError,
    SinkMismatchError,
    UnsupportedEnvironmentError,
    WeirError,
)

#: The pipeline's code is incomplete, or not valid Python.
_UNFIT_CODE = (ImportError, ModuleNotFoundError, SyntaxError, IndentationError, TabError)
#: Errors that no retry can fix. (Errors of storage and sinks may pass.)
FINAL: tuple[type[BaseException], ...] = (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    ConfigurationError,
    CoordinatorStateError,
    HangingTransactionError,
    JobError,
    LostInputError,
    LostRowsError,
    PipelineError,
    SinkMismatchError,
    UnsupportedEnvironmentError,
    *_UNFIT_CODE,
)
#: Names of final exceptions, for exceptions of which only the text is known.
_FINAL_NAMES = {
    *(error.__name__ for error in _UNFIT_CODE),
    *("PickleError", "PicklingError", "UnpicklingError"),
}
#: Unpickling failed: the module does not have the class or function.
_NOT_UNPICKLED = re.compile(r"AttributeError: Can't get attribute ")
#: Names of Python and Java exceptions for services that do not answer, or not in time.
_PASSING = re.compile(
    r"(Connect|Timeout|TimedOut|Unavailable|Throttl|UnknownHost|Socket|Network|Transport"
    r"|NoRouteToHost|Interrupted)\w*$"
    r"|^(StorageError|OSError|IOError|IOException|BrokenPipeError|URLError|gaierror|HTTPError"
    r"|EOFException|ClosedChannelException)$"
)
#: Starts a line that delta-rs adds to its message for each cause, coloured.
_CAUSE = re.compile(r"\s*(?:\x1b\[\d+m)?↳(?:\x1b\[0m)?\s*")
#: Characters of a stack trace that are kept, half from its start and half from its end.
TRACE_LENGTH = 16_000
#: Characters of the name of an input.
_NAMED_LENGTH = 300


def is_fatal(error: BaseException) -> bool:
    """Whether a retry would fail in the same way."""
    return isinstance(error, FINAL) or is_final_by_name(read_exception(error))


def is_final_by_name(raised: Raised) -> bool:
    """Whether a retry would fail in the same way, for an exception known only by its text."""
    return raised.kind in _FINAL_NAMES or _NOT_UNPICKLED.match(raised.error) is not None


def describe(error: BaseException) -> str:
    """A message for people: that of a Weir error, or any other error's first line and place."""
    if isinstance(error, WeirError):
        return message_of(error)
    return at_place(read_exception(error))


def at_place(raised: Raised) -> str:
    """The error, with the line of user code it comes from, if any."""
    return raised.error if raised.place is None else f"{raised.error} (in {raised.place})"


def cause_of(error: BaseException) -> Cause:
    """The cause of an error raised in this process.

    For a Weir error that wraps another error, this is the cause of the wrapped error, and
    ``UNKNOWN`` unless that was raised by user code.
    """
    root = error
    for root in _led_to(error):
        if not isinstance(root, WeirError) or root.__cause__ is None:
            break
    raised = read_exception(root)
    if raised.place is None and root is not error:
        return UNKNOWN
    key = key_of(raised.kind, raised.place, raised.error)
    return Cause(key=key, trace=shortened(print_exception(error)))


def is_passing(kind: str) -> bool:
    """Whether this kind of error says that something outside does not answer now."""
    return _PASSING.search(kind) is not None


def key_of(kind: str, place: Frame | None, error: str, *, input: str = "") -> str:
    """A key by which two errors count as the same: kind and place in user code.

    Without a place: the message with its numbers masked. "" for a passing error, unless it is that
    of an input.
    """
    if not input and is_passing(kind):
        return ""
    return (
        f"{kind} in {place}" if place is not None else re.sub(r"[0-9a-f]*\d[0-9a-f]*", "#", error)
    )


def named(text: str) -> str:
    """A text that names an input, in one line; the end of a long text is replaced by its hash."""
    text = " ".join(text.split())
    if len(text) <= _NAMED_LENGTH:
        return text
    digest = hashlib.blake2s(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()
    return f"{text[:_NAMED_LENGTH]}... ({digest})"


def shortened(trace: str) -> str:
    """The trace, or only its start and its end if it is too long."""
    half = TRACE_LENGTH // 2
    return trace if len(trace) <= TRACE_LENGTH else f"{trace[:half]}\n ... \n{trace[-half:]}"


#: Prefix of the notes that Weir adds to exceptions in a worker (``BaseException.add_note``).
NOTE = "weir: "
#: Starts the note that says what was being read.
READING = "reading "
#: The note that an operator had met no rows of its batch.
NO_ROWS = "no rows of this batch had come to it"

#: First line of a Python traceback.
HEADER = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$')
_WEIR = f"{Path(__file__).resolve().parents[1]}/"
#: Other files that are not user code, recognised by a part of the path, since a worker may have
#: them anywhere.
_FOREIGN = re.compile(
    r"/(?:site|dist)-packages/|/pyspark/|/pyspark\.zip/|/py4j|/lib/python3[.\d]*/"
    r"|\.p(?:yx|xi|xd)$|^<frozen |^<string>"
)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One line of a traceback."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        where = f"{self.file}, line {self.line}"
        return where if self.function == "<module>" else f"{self.function}, {where}"

    @property
    def is_the_users(self) -> bool:
        """Whether the frame is in code written for this pipeline."""
        return not (self.file.startswith(_WEIR) or _FOREIGN.search(self.file))


@dataclass(frozen=True, kw_only=True)
class Raised:
    """A Python exception with its frames."""

    #: As Python prints it, in one line: ``KeyError: 'JP'``.
    error: str
    #: From the caller down; frames of the exceptions that led to it come before its own.
    frames: tuple[Frame, ...]
    #: The notes that Weir added to it, without ``NOTE``.
    notes: tuple[str, ...] = ()
    #: As Python prints it, in full.
    text: str = ""

    @property
    def kind(self) -> str:
        """The name of the exception's class, without its module."""
        return self.error.partition(":")[0].rpartition(".")[2]

    @property
    def place(self) -> Frame | None:
        """The deepest frame in user code; None otherwise."""
        return next((frame for frame in reversed(self.frames) if frame.is_the_users), None)

    def input_of(self, batch_range: str) -> str:
        """The input that failed, in a batch of this range; "" if none did."""
        reading = next((note for note in self.notes if note.startswith(READING)), None)
        if reading is not None:
            return reading
        return "" if NO_ROWS in self.notes else batch_range


def has_input(error: BaseException) -> bool:
    """Whether the error was noted to be one of reading."""
    return any(note.startswith(NOTE + READING) for note in getattr(error, "__notes__", ()))


def read_exception(error: BaseException) -> Raised:
    """An exception raised in this process, with the first line of its message.

    Rust libraries print the causes of an error below it, each after an arrow: they belong to it.
    """
    first, *more = message_of(error).strip().split("\n")
    first = ": ".join(
        [first, *(line[cause.end() :] for line in more if (cause := _CAUSE.match(line)))]
    )
    kind = type(error).__name__
    return Raised(error=f"{kind}: {first}" if first else kind, frames=tuple(_frames(error)))


def print_exception(error: BaseException) -> str:
    """The exception as Python prints it, with its traceback."""
    return "".join(traceback.format_exception(error))


def read_text(text: str) -> Raised | None:
    """An exception raised in another process, from its text; None if that has no traceback."""
    start = text.find(HEADER)
    if start < 0:
        return None
    frames: list[Frame] = []
    raised: list[str] = []
    notes: list[str] = []
    printed: list[str] = []
    for line in text[start:].splitlines():
        if line.startswith(("\tat ", "Caused by: ", "JVM stacktrace:", " SQLSTATE: ")):
            break
        printed.append(line)
        frame = _FRAME.match(line)
        if line.endswith(HEADER.strip()):
            # The exception read so far led to the next.
            raised, notes = [], []
        elif frame is not None:
            frames.append(
                Frame(file=frame["file"], line=int(frame["line"]), function=frame["function"])
            )
        elif line.startswith(NOTE):
            notes.append(line.removeprefix(NOTE))
        elif line and not line[0].isspace():
            raised.append(line)
    if not raised:
        return None
    return Raised(
        error=raised[0], frames=tuple(frames), notes=tuple(notes), text="\n".join(printed).strip()
    )


#: What Spark says of a Python worker that died of a signal, before what the worker left behind.
_CRASHED = re.compile(r"Python worker exited unexpectedly \(crashed\)[:.] ?")
#: Starts the line with which Python says that it dies.
_FATAL = "Fatal Python error: "
#: A frame of a process that dies.
_LAST_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')


def read_crash(text: str) -> Raised | None:
    """The death of another process, from its text; None if none died.

    The process leaves the note of what it was reading. Of the frames only those of the thread that
    died count: Python prints them first, from the deepest on.
    """
    crashed = _CRASHED.search(text)
    if crashed is None:
        return None
    left = text[crashed.end() :].partition("\n\tat ")[0].strip()
    lines = left.splitlines()
    why = [line.removeprefix(_FATAL) for line in lines if line.startswith(_FATAL)]
    notes = tuple(line.removeprefix(NOTE) for line in lines if line.startswith(NOTE))
    frames: list[Frame] = []
    for line in lines:
        frame = _LAST_FRAME.match(line)
        if frame is not None:
            frames.append(
                Frame(file=frame["file"], line=int(frame["line"]), function=frame["function"])
            )
        elif frames:
            break
    return Raised(
        error=": ".join(["Python worker crashed", *why[:1]]),
        frames=tuple(reversed(frames)),
        notes=notes,
        text=left,
    )


def _frames(error: BaseException) -> Iterator[Frame]:
    """The frames of the exceptions that led to it, then its own."""
    for raised in reversed(list(_led_to(error))):
        for frame, line in traceback.walk_tb(raised.__traceback__):
            yield Frame(file=frame.f_code.co_filename, line=line, function=frame.f_code.co_name)


def _led_to(error: BaseException) -> Iterator[BaseException]:
    """The error, then those that led to it, each once: ``raise error from error`` is a circle."""
    seen: set[int] = set()
    raised: BaseException | None = error
    while raised is not None and id(raised) not in seen:
        yield raised
        seen.add(id(raised))
        raised = raised.__cause__ or (None if raised.__suppress_context__ else raised.__context__)


def message_of(error: BaseException) -> str:
    """The message of an error, even if its ``__str__`` raises."""
    try:
        return str(error)
    except Exception:
        return "(its message cannot be read)"
