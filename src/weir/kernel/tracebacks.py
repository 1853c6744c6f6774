"""Where an error of the user's lies: which frame of a Python traceback is the user's, in this process or in a text.

A traceback names frames from the caller to the place where it was raised. The user's is the deepest one that belongs neither
to Weir, PySpark and Python's own library nor to any installed package: what a package raises, the line that called it has
caused. A text comes from another process (Spark's worker), as the message of a Java exception with more around it::

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

#: With this begins a note that Weir adds to an exception in a worker (``BaseException.add_note``).
NOTE = "weir: "

#: With this begins what Python prints.
HEADER = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$')
_WEIR = f"{Path(__file__).resolve().parents[1]}/"
#: What else is not the user's. The first sign of each is enough, since a worker may have it anywhere.
_FOREIGN = re.compile(
    r"/(?:site|dist)-packages/|/pyspark/|/pyspark\.zip/|/py4j|/lib/python3[.\d]*/|\.p(?:yx|xi|xd)$|^<frozen |^<string>"
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
    """What was raised in another process, out of the text that came of it; None if that has no traceback."""
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
            frames.append(Frame(file=frame["file"], line=int(frame["line"]), function=frame["function"]))
        elif line.startswith(NOTE):
            notes.append(line.removeprefix(NOTE))
        elif line and not line[0].isspace():
            raised.append(line)
    if not raised:
        return None
    return Raised(error=raised[0], frames=tuple(frames), notes=tuple(notes), text="\n".join(printed).strip())


def _frames(error: BaseException) -> Iterator[Frame]:
    """Those of what led to it first."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        yield from _frames(before)
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield Frame(file=frame.f_code.co_filename, line=line, function=frame.f_code.co_name)
