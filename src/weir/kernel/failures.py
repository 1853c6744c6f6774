"""What an exception of blocking work means for the job: a sentence for people, and whether trying again can help."""

from __future__ import annotations

from weir.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    ConfigurationError,
    JobError,
    LostRowsError,
    PipelineError,
    UnsupportedEnvironmentError,
    WeirError,
)

#: What stays wrong however often it is tried; storage and sinks may recover.
_FATAL = (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    ConfigurationError,
    JobError,
    LostRowsError,
    PipelineError,
    UnsupportedEnvironmentError,
)


def is_fatal(error: BaseException) -> bool:
    """Whether the same would fail again."""
    return isinstance(error, _FATAL)


def describe(error: BaseException) -> str:
    """One line for people: Weir's own sentence, or the kind and first line of any other error."""
    if isinstance(error, WeirError):
        return str(error)
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__
