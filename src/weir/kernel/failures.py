"""What an exception of blocking work means for the job: a sentence for people, its cause, and whether trying again can help.

Three kinds of errors, in one table each for Python's names and Weir's own classes; those of Spark's are in
``spark/error_text.py``:

1. *Final*: the same fails again however often it is tried. The job fails at once.
2. *Passing*: something outside does not answer, and will some day. The job is restarted for as long as its strategy says.
3. All others have a cause, by which ``core/job/restart.py`` sees that the same fails again and again.
"""

from __future__ import annotations

import re

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
from weir.kernel.tracebacks import Frame, Raised, print_exception, read_exception

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
_FINAL_NAMES = {"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError"} | {
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
    """One line for people: Weir's own sentence, or the kind and first line of any other error and where it was raised."""
    if isinstance(error, WeirError):
        return str(error)
    return at_place(read_exception(error))


def at_place(raised: Raised) -> str:
    """What was raised, and the line of the user's that it comes from."""
    return raised.error if raised.place is None else f"{raised.error} (in {raised.place})"


def cause_of(error: BaseException) -> Cause:
    """The cause of what was raised in this process. Of Weir's own errors those have one that an error of the user's led to,
    or nothing outside."""
    root = error
    while isinstance(root, WeirError) and root.__cause__ is not None:
        root = root.__cause__
    raised = read_exception(root)
    if raised.place is None and root is not error:
        return UNKNOWN
    key = key_of(raised.kind, raised.place, raised.error)
    return Cause(key=key, trace=shortened(print_exception(error)))


def key_of(kind: str, place: Frame | None, error: str) -> str:
    """The same for the same error at the same place; without a place for the same words. "" for what may pass."""
    if _PASSING.search(kind):
        return ""
    return f"{kind} in {place}" if place is not None else re.sub(r"[0-9a-f]*\d[0-9a-f]*", "#", error)


def shortened(trace: str) -> str:
    """The trace, or its begin and its end."""
    half = TRACE_LENGTH // 2
    return trace if len(trace) <= TRACE_LENGTH else f"{trace[:half]}\n ... \n{trace[-half:]}"
