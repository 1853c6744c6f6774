"""What an exception means for the job: a sentence for people, its place in the user's code, whether
a retry can help.

Three kinds of errors, in one table each for Python's names and Weir's own classes; those of Spark's
are in ``spark/failures.py``:

1. *Final*: the same fails again however often it is tried. The job fails at once.
2. *Passing*: something outside does not answer, and will some day. The job is restarted for as long
   as its strategy says.
3. All others have a cause, by which ``core/job/restart.py`` sees that the same fails again and
   again.

*Where an error of the user's lies* (``read_exception``, ``read_text``). A traceback names frames
from the caller to the place where it was raised. The user's is the deepest one that belongs neither
to Weir, PySpark and Python's own library nor to any installed package: what a package raises, the
line that called it has caused. A text comes from another process (Spark's worker), as the message
of a Java exception with more around it::

    ... An exception was thrown from the Python worker. Please see the stack trace below.
    Traceback (most recent call last):
      File "/opt/spark/python/pyspark/worker.py", line 1247, in main
      File "/home/me/pipeline.py", line 12, in lookup      <- the user's frame
    KeyError: 'JP'                                          <- what was raised
    weir: in step 'enrich', subtask 0                       <- notes, of which Weir's own begin so

    at org.apache.spark.api.python.BasePythonRunner...    <- Java's
"""

from __future__ import annotations

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
    JobError,
    LostRowsError,
    PipelineError,
    SinkMismatchError,
    UnsupportedEnvironmentError,
    WeirError,
)

#: What stays wrong however often it is tried; storage and sinks may recover.
FINAL: tuple[type[BaseException], ...] = (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    ConfigurationError,
    CoordinatorStateError,
    JobError,
    LostRowsError,
    PipelineError,
    SinkMismatchError,
    UnsupportedEnvironmentError,
    # The pipeline's code is not complete, or not Python.
    ImportError,
    SyntaxError,
)
#: Names of exceptions that say the same, of which only a text may be there.
_FINAL_NAMES = {
    "ImportError",
    "ModuleNotFoundError",
    "SyntaxError",
    "IndentationError",
    "TabError",
} | {
    "PickleError",
    "PicklingError",
    "UnpicklingError",
}
#: Of a class that the module it was pickled in does not have.
_NOT_UNPICKLED = re.compile(r"AttributeError: Can't get attribute ")
#: Names of exceptions of Python or Java for what does not answer, or not in time.
_PASSING = re.compile(
    r"(Connect|Timeout|TimedOut|Unavailable|Throttl|UnknownHost|Socket|Network|Transport|NoRouteToHost|Interrupted)\w*$"
    r"|^(StorageError|OSError|IOError|IOException|BrokenPipeError|URLError|gaierror|HTTPError|EOFException|ClosedChannelException)$"
)
#: Characters of a stack trace that are kept: the first and the last, where the places are.
TRACE_LENGTH = 16_000


def is_fatal(error: BaseException) -> bool:
    """Whether the same would fail again."""
    return isinstance(error, FINAL) or is_final_by_name(read_exception(error))


def is_final_by_name(raised: Raised) -> bool:
    """Whether the same would fail again, of an exception of which only the text came here."""
    return raised.kind in _FINAL_NAMES or _NOT_UNPICKLED.match(raised.error) is not None


def describe(error: BaseException) -> str:
    """One line for people: Weir's own sentence, or the kind and first line of any other error and
    where it was raised."""
    if isinstance(error, WeirError):
        return str(error)
    return at_place(read_exception(error))


def at_place(raised: Raised) -> str:
    """What was raised, and the line of the user's that it comes from."""
    return raised.error if raised.place is None else f"{raised.error} (in {raised.place})"


def cause_of(error: BaseException) -> Cause:
    """The cause of what was raised in this process. Of Weir's own errors those have one that an
    error of the user's led to, or nothing outside."""
    root = error
    while isinstance(root, WeirError) and root.__cause__ is not None:
        root = root.__cause__
    raised = read_exception(root)
    if raised.place is None and root is not error:
        return UNKNOWN
    key = key_of(raised.kind, raised.place, raised.error)
    return Cause(key=key, trace=shortened(print_exception(error)))


def key_of(kind: str, place: Frame | None, error: str) -> str:
    """The same for the same error at the same place; without a place for the same words. "" for
    what may pass."""
    if _PASSING.search(kind):
        return ""
    return (
        f"{kind} in {place}" if place is not None else re.sub(r"[0-9a-f]*\d[0-9a-f]*", "#", error)
    )


def shortened(trace: str) -> str:
    """The trace, or its begin and its end."""
    half = TRACE_LENGTH // 2
    return trace if len(trace) <= TRACE_LENGTH else f"{trace[:half]}\n ... \n{trace[-half:]}"


#: With this begins a note that Weir adds to an exception in a worker (``BaseException.add_note``).
NOTE = "weir: "

#: With this begins what Python prints.
HEADER = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$')
_WEIR = f"{Path(__file__).resolve().parents[1]}/"
#: What else is not the user's. The first sign of each is enough, since a worker may have it
#: anywhere.
_FOREIGN = re.compile(
    r"/(?:site|dist)-packages/|/pyspark/|/pyspark\.zip/|/py4j|/lib/python3[.\d]*/|\.p(?:yx|xi|xd)$|^<frozen"
    r" |^<string>"
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
        """Whether somebody wrote it for this pipeline."""
        return not (self.file.startswith(_WEIR) or _FOREIGN.search(self.file))


@dataclass(frozen=True, kw_only=True)
class Raised:
    """A Python exception with its way."""

    #: As Python prints it, in one line: ``KeyError: 'JP'``.
    error: str
    #: From the caller down, those of the exceptions that led to it before its own.
    frames: tuple[Frame, ...]
    #: What Weir added to it, without ``NOTE``.
    notes: tuple[str, ...] = ()
    #: As Python prints it, in full.
    text: str = ""

    @property
    def kind(self) -> str:
        """The name of the exception's class, without its module."""
        return self.error.partition(":")[0].rpartition(".")[2]

    @property
    def place(self) -> Frame | None:
        """The deepest frame of the user's; None if there is none."""
        return next((frame for frame in reversed(self.frames) if frame.is_the_users), None)


def read_exception(error: BaseException) -> Raised:
    """What was raised in this process."""
    first = str(error).strip().partition("\n")[0]
    kind = type(error).__name__
    return Raised(error=f"{kind}: {first}" if first else kind, frames=tuple(_frames(error)))


def print_exception(error: BaseException) -> str:
    """What Python prints of it."""
    return "".join(traceback.format_exception(error))


def read_text(text: str) -> Raised | None:
    """What was raised in another process, out of the text that came of it; None if that has no
    traceback."""
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
            # What was raised before has led to what comes now.
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


def _frames(error: BaseException) -> Iterator[Frame]:
    """Those of what led to it first."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        yield from _frames(before)
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield Frame(file=frame.f_code.co_filename, line=line, function=frame.f_code.co_name)
