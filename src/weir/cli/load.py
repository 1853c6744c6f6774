"""Loads a pipeline file: ``weir run FILE`` and ``weir run FILE:job``.

The file is an ordinary Python module that builds a ``weir.Job``. It is executed once, under its own
module name (so ``if __name__ == "__main__":`` blocks do not run). Two things make user functions
work on Spark's Python workers, which do not have the file:

1. The module is removed from ``sys.modules`` once it is loaded. Spark then pickles its functions by
   value, as for a script, and not by reference to a module that the workers cannot import.
2. The file's directory, from which it may import helpers, is put on the module path of this process
   and of the workers that Spark starts on this machine. Workers of a cluster get the helpers as a
   zip file (``spark/session/user_modules.py``).
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from weir.config import Configuration
from weir.errors import PipelineError
from weir.job import Job
from weir.spark.session.user_modules import prepend_to_module_path

#: The module name that the file gets.
_MODULE_NAME = "weir_pipeline"


def load_job(spec: str, *, loader: type[SourceFileLoader] = SourceFileLoader) -> Job:
    """The job of ``FILE`` or ``FILE:attribute``; ``loader`` executes its module.

    Raises ``PipelineError`` with the place and the fix, and ``ConfigurationError`` for a key or a
    value of the job's configuration that is wrong by itself.
    """
    job = _found(spec, loader)
    Configuration.given(None, job.conf)
    return job


def _found(spec: str, loader: type[SourceFileLoader]) -> Job:
    path, attribute = _split(spec)
    if not _is_file(path):
        raise PipelineError(
            f"Pipeline file {path} not found: give the path of a Python file that builds a"
            " weir.Job."
        )
    module = _load(path, loader)
    if attribute is not None:
        return _named(module, path, attribute)
    jobs = {
        id(value): (name, value) for name, value in vars(module).items() if isinstance(value, Job)
    }
    if not jobs:
        raise PipelineError(
            f"{path} does not build a weir.Job at module level: add one, for example job ="
            f" weir.Job({path.stem!r})."
        )
    if len(jobs) > 1:
        names = ", ".join(name for name, _ in jobs.values())
        first = next(iter(jobs.values()))[0]
        raise PipelineError(
            f"{path} has several jobs ({names}): choose one, for example {path}:{first}."
        )
    return next(iter(jobs.values()))[1]


def _split(spec: str) -> tuple[Path, str | None]:
    file, colon, attribute = spec.rpartition(":")
    if colon and attribute.isidentifier() and not _is_file(Path(spec)):
        return Path(file), attribute
    return Path(spec), None


def _is_file(path: Path) -> bool:
    """Whether the path is a file; False also for text that cannot be a path."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _named(module: ModuleType, path: Path, attribute: str) -> Job:
    job = getattr(module, attribute, None)
    if isinstance(job, Job):
        return job
    what = (
        f"{path} has no attribute {attribute!r}"
        if job is None
        else f"{attribute!r} in {path} is of type {type(job).__name__}, not a weir.Job"
    )
    raise PipelineError(f"{what}: give the name of a weir.Job after the colon.")


def _load(path: Path, loader: type[SourceFileLoader]) -> ModuleType:
    directory = str(path.resolve().parent)
    prepend_to_module_path(directory)
    if path.suffix != ".py":
        raise PipelineError(f"{path} is not a Python file: its name must end in .py.")
    file = str(path.resolve())
    own = loader(_MODULE_NAME, file)
    spec = importlib.util.spec_from_file_location(_MODULE_NAME, file, loader=own)
    if spec is None:
        raise PipelineError(f"{path} is not a Python file: it cannot be loaded.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE_NAME] = module
    try:
        own.exec_module(module)
    except (Exception, SystemExit) as error:
        raise PipelineError(_describe(path, error)) from error
    finally:
        del sys.modules[_MODULE_NAME]
    return module


def _describe(path: Path, error: BaseException) -> str:
    """File, line and exception, in one sentence."""
    if isinstance(error, SyntaxError) and error.filename == str(path.resolve()):
        return f"{path}, line {error.lineno}: {type(error).__name__}: {error.msg}."
    frames = traceback.extract_tb(error.__traceback__)
    line = next(
        (frame.lineno for frame in reversed(frames) if frame.filename == str(path.resolve())), None
    )
    place = str(path) if line is None else f"{path}, line {line}"
    if isinstance(error, PipelineError):
        return f"{place}: {error}"
    if isinstance(error, SystemExit):
        return f"{place}: the file exited (code {error.code}) while loading."
    return f"{place}: {type(error).__name__}: {error}."
