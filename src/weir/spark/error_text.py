"""What a Spark error says in one line."""

from __future__ import annotations

import re

from weir.errors import InvariantError, PipelineError

#: What Spark writes around the message of the exception that ended a query. The message may be empty.
_STREAM_FAILED = re.compile(r"\[STREAM_FAILED\] Query \[.*?\] terminated with exception:|SQLSTATE: XXKST.*$")


def is_final(error: BaseException) -> bool:
    """Whether Weir itself said, in a worker or in the batch, that the pipeline is wrong: it would fail again."""
    return f"{PipelineError.__module__}.{PipelineError.__name__}: " in str(error)


def first_cause(error: BaseException) -> str:
    """One line that names the cause of a Spark error, without its stack: Weir's own sentence, else what Python raised,
    else what Java threw, with the root cause if that says something else."""
    text = str(error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    own = [line for line in lines if line.startswith("weir.errors.")]
    if own:
        return own[-1].split(": ", 1)[-1]
    if isinstance(error, InvariantError):
        return text
    _, traceback, raised = text.rpartition("Traceback (most recent call last):\n")
    # Places and code are indented; the exception is not.
    python = [line for line in raised.splitlines() if line and not line[0].isspace()] if traceback else []
    if python:
        return _short(python[0])
    java = [line.removeprefix(": ") for line in text.splitlines() if line.startswith(": ")]
    said = _STREAM_FAILED.sub("", [*java[:1], lines[0]][0]).strip()
    roots = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    if not roots or (said and roots[-1].split(": ", 1)[-1].split(" SQLSTATE")[0] in said):
        return _short(said or lines[0])
    return _short(f"{said} (caused by {roots[-1]})" if said else roots[-1])


def _short(cause: str) -> str:
    return cause.removesuffix(".")[:500]
