"""Loads the job of a pipeline file, which is executed until it runs a job (``program.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.machinery import SourceFileLoader

from weir.cli.loading.program import Program, ScriptLoader
from weir.config import Configuration
from weir.job import Job


def load_job(
    spec: str,
    *,
    arguments: Sequence[str] = (),
    loader: type[SourceFileLoader] = ScriptLoader,
) -> Job:
    """The job of ``FILE`` or ``FILE:name``, executed with arguments by ``loader``.

    Raises ``PipelineError`` with the place and the fix, ``ConfigurationError`` for a key or a value
    of the job's configuration that is wrong by itself, and ``SystemExit`` if the file exits.
    """
    with Program(spec, arguments, loader=loader) as program:
        program.execute()
        return checked(program.chosen())


def checked(job: Job) -> Job:
    """The job. Raises ``ConfigurationError`` for a key or value that is wrong by itself."""
    Configuration.given(None, job.conf)
    return job
