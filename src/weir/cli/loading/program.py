"""``Program``: a Python file with its arguments, executed once, as ``spark-submit`` executes it.

The file is executed on the main thread, as ``__main__`` with ``sys.argv`` of its own, so that
``if __name__ == "__main__":`` blocks run. ``with program:`` makes it the main module:

1. Spark pickles functions and classes of ``__main__`` by value, since its workers have another
   main module; a pickle that the driver itself makes refers to the file's classes by name, and
   finds them as long as the program is entered.
2. The file's directory comes first on the module path of this process and of the workers that
   Spark starts on this machine. Workers of a cluster get the modules as a zip file
   (``spark/session/user_modules.py``).

``execute`` keeps every ``weir.Job`` that is built meanwhile, also inside functions. What
``job.run()`` does there is up to the caller: ``weir run`` runs the job, and the file then goes on;
``weir plan`` and ``weir sim`` only want the job, and end the execution there.
"""

from __future__ import annotations

import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, TypeVar

from weir.adopt.reading import imports
from weir.errors import PipelineError, WeirError
from weir.handle.job_handle import JobHandle
from weir.job import Job, hosted_by
from weir.launch.options import JobResult, RunOptions
from weir.spark.session.user_modules import put_first_on_module_path

_MAIN = "__main__"

#: Runs a job with the options of ``job.run()``, and returns its result.
RunJob = Callable[[Job, RunOptions], JobResult]
#: Starts a job with the options of ``job.start()``, and returns its handle.
StartJob = Callable[[Job, RunOptions], JobHandle]

T = TypeVar("T")


class ScriptLoader(SourceFileLoader):
    """Compiles a file as Python compiles a script: no byte code is kept."""

    def path_stats(self, path: Any) -> Any:
        """Raise: there is no byte code to be used."""
        raise OSError


class Program:
    """A Python file with its arguments. Enter it, then execute it once."""

    def __init__(
        self,
        spec: str,
        arguments: Sequence[str] = (),
        *,
        run: RunJob | None = None,
        start: StartJob | None = None,
        loader: type[SourceFileLoader] = ScriptLoader,
    ) -> None:
        """``spec``: ``FILE``, or ``FILE:name`` with the variable or the name of one of its jobs.

        ``run`` and ``start`` are what ``job.run()`` and ``job.start()`` do in the file; None: the
        execution ends there. Raises ``PipelineError`` if there is no such file.
        """
        self._given, self.choice = split_spec(spec)
        self.path = Path(self._given)
        self.arguments = tuple(arguments)
        #: Every job that was built so far, in order.
        self.jobs: list[Job] = []
        #: The first job that the file ran or started.
        self.reached: Job | None = None
        self._run = run
        self._start = start
        self._failure: BaseException | None = None
        if not _is_file(self.path):
            raise PipelineError(
                f"Pipeline file {self.path} not found: give the path of a Python file that builds"
                " a weir.Job, or of a script with writeStream."
            )
        if self.path.suffix != ".py":
            raise PipelineError(f"{self.path} is not a Python file: its name must end in .py.")
        # As Python has it: absolute, but with symbolic links as they are.
        self.file = str(self.path.absolute())
        self._loader = loader(_MAIN, self.file)
        self.module = _main_module(self._loader, self.file)
        self._stack = ExitStack()

    @property
    def directory(self) -> Path:
        """What comes first on the module path: the file's directory, symbolic links resolved."""
        return Path(self.file).resolve().parent

    @cached_property
    def imports_weir(self) -> bool:
        """Whether the file imports Weir anywhere; False also if it cannot be parsed."""
        return imports(Path(self.file), "weir")

    def __enter__(self) -> Program:
        main, argv = sys.modules[_MAIN], sys.argv
        self._stack.callback(sys.modules.__setitem__, _MAIN, main)
        self._stack.callback(setattr, sys, "argv", argv)
        sys.modules[_MAIN] = self.module
        sys.argv = [self._given, *self.arguments]
        put_first_on_module_path(str(self.directory))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def execute(self, around: AbstractContextManager[object] | None = None) -> None:
        """Execute the file, inside of ``around``.

        Raises ``SystemExit`` if the file exits, what ``job.run()`` raised in it, and for any other
        exception ``PipelineError`` with the place.
        """
        try:
            with hosted_by(self), ExitStack() as stack:
                if around is not None:
                    stack.enter_context(around)
                self._loader.exec_module(self.module)
        except (Exception, SystemExit) as error:
            if self.reached is not None and self._run is None:
                # What the file does after that does not count.
                return
            if error is self._failure or isinstance(error, SystemExit):
                raise
            raise PipelineError(self._describe(error)) from error

    def made(self, job: Job) -> None:
        """A job was built (``weir.job.Host``)."""
        self.jobs.append(job)

    def run(self, job: Job, options: RunOptions) -> JobResult:
        """``job.run()`` was called (``weir.job.Host``).

        Raises ``PipelineError`` if the command has chosen another job.
        """
        return self._reach(job, options, self._run)

    def start(self, job: Job, options: RunOptions) -> JobHandle:
        """``job.start()`` was called (``weir.job.Host``). Raises what ``run`` raises."""
        return self._reach(job, options, self._start)

    def _reach(
        self, job: Job, options: RunOptions, action: Callable[[Job, RunOptions], T] | None
    ) -> T:
        self._check_choice(job)
        if self.reached is None:
            self.reached = job
        if action is None:
            # Code lets this pass, threads end quietly, and no clean-up is left out.
            raise SystemExit
        try:
            return action(job, options)
        except Exception as error:
            self._failure = error
            raise

    def chosen(self) -> Job:
        """The job that the command means, once the file was executed.

        It is the job of that variable or name; without one, the job whose ``run`` was reached, or
        else the only job. Raises ``PipelineError`` with the way to choose.
        """
        if self.choice is not None:
            return self._of_choice(self.choice)
        if self.reached is not None:
            return self.reached
        found = list({id(job): job for job in self._variables().values()}.values()) or self.jobs
        if not found:
            raise PipelineError(
                f"{self.path} does not build a weir.Job: add one, for example job ="
                f" weir.Job({self.path.stem!r})."
            )
        if len(found) > 1:
            raise PipelineError(
                f"{self.path} has several jobs ({self._listed(found)}): choose one by its variable"
                f" or name, for example {self._spec_of(found[0])}."
            )
        return found[0]

    def place(self, frame: FrameType | None) -> str:
        """The line of the file that is executed in this frame or below it: ``job.py, line 12``."""
        while frame is not None:
            if frame.f_code.co_filename == self.file:
                return f"{self.path}, line {frame.f_lineno}"
            frame = frame.f_back
        return str(self.path)

    def place_of(self, error: BaseException) -> str:
        """The line of the file in which an exception was raised."""
        if isinstance(error, SyntaxError) and error.filename == self.file:
            return f"{self.path}, line {error.lineno}"
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == self.file
        ]
        return f"{self.path}, line {lines[-1]}" if lines else str(self.path)

    def early_exit(self, error: SystemExit) -> str | None:
        """What to say of a file that exits before it ran its job; None if it has none."""
        if self.reached is not None or not self.jobs:
            return None
        return f"{self.place_of(error)}: the file exited before it ran job {self.jobs[0].name!r}"

    def _describe(self, error: Exception) -> str:
        """File, line and exception, in one sentence."""
        place = self.place_of(error)
        if isinstance(error, SyntaxError) and error.filename == self.file:
            return f"{place}: {type(error).__name__}: {error.msg}."
        if isinstance(error, WeirError):
            return str(error) if str(error).startswith(place) else f"{place}: {error}"
        return f"{place}: {type(error).__name__}: {error}."

    def _check_choice(self, job: Job) -> None:
        if self.choice is None or self.choice == job.name:
            return
        if self._variables().get(self.choice) is not job:
            raise PipelineError(
                f"{self.place(sys._getframe(2))}: runs job {job.name!r}, but the command chooses"
                f" {self.choice!r}: choose {self._spec_of(job)}, or call run() of the chosen job"
                " alone."
            )

    def _of_choice(self, choice: str) -> Job:
        value = vars(self.module).get(choice)
        if isinstance(value, Job):
            return value
        named = [job for job in self.jobs if job.name == choice]
        if len(named) == 1:
            return named[0]
        if named:
            raise PipelineError(
                f"{self.path} has {len(named)} jobs of the name {choice!r}: give each a name of its"
                " own."
            )
        known = f"; its jobs: {self._listed(self.jobs)}" if self.jobs else ""
        what = (
            f"{self.path} has no attribute {choice!r} and no job of that name{known}"
            if value is None
            else f"{choice!r} in {self.path} is of type {type(value).__name__}, not a weir.Job"
            f"{known}"
        )
        raise PipelineError(f"{what}: give the variable or the name of a weir.Job after the colon.")

    def _variables(self) -> dict[str, Job]:
        """The jobs that are attributes of the module."""
        return {name: value for name, value in vars(self.module).items() if isinstance(value, Job)}

    def _listed(self, jobs: Sequence[Job]) -> str:
        """``first (variable a), second``."""
        variables = self._variables()
        texts = []
        for job in jobs:
            name = next((name for name, value in variables.items() if value is job), None)
            texts.append(f"{job.name!r}" if name is None else f"{job.name!r} in variable {name}")
        return ", ".join(texts)

    def _spec_of(self, job: Job) -> str:
        name = next((name for name, value in self._variables().items() if value is job), job.name)
        return shlex.quote(f"{self.path}:{name}")


def split_spec(spec: str) -> tuple[str, str | None]:
    """File and name of ``FILE`` or ``FILE:name``. A job's name may have colons, as may a file's."""
    if not _is_file(Path(spec)):
        parts = spec.split(":")
        for number in range(len(parts) - 1, 0, -1):
            file, name = ":".join(parts[:number]), ":".join(parts[number:])
            if name and (_is_file(Path(file)) or (number == 1 and file.endswith(".py"))):
                return file, name
    return spec, None


def _is_file(path: Path) -> bool:
    """Whether the path is a file; False also for text that cannot be a path."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _main_module(loader: SourceFileLoader, file: str) -> ModuleType:
    """An empty main module, as Python makes it for a script."""
    module = ModuleType(_MAIN)
    module.__dict__.update(__file__=file, __loader__=loader, __cached__=None)
    return module
