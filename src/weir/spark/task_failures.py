"""How the failure of a query is told: what was raised, where in the user's code, in which step and batch, and which log has
all of it.

Spark does not say to which step of a chain a failing function belongs. Python operators note it themselves, with the
subtask and the records (``operator_worker.py``). Of other functions it is the step whose function is written around a
failing line, or refers to a function that is; where there is not exactly one such step, all of the chain are named.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

from weir.core.graph import Vertex
from weir.core.messages.task import TaskErrored
from weir.core.types import Cause
from weir.errors import WeirError
from weir.kernel.tracebacks import Frame
from weir.spark.error_text import read_error
from weir.spark.jvm import Jvm
from weir.spark.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TaskFailures:
    """Makes the failures of one vertex's query."""

    def __init__(
        self,
        session: SparkSession,
        vertex: Vertex,
        pipeline: Pipeline,
        log: str | None,
    ) -> None:
        """``log`` is the path of Spark's log, if it has one."""
        self._session = session
        self._vertex = vertex
        self._log = log
        #: What is told of a step or sink, with the user's function behind it, if it has one.
        self._steps: list[tuple[str, object]] = [
            *((f"step {step.name!r}", pipeline.functions.get(step.operator_id)) for step in vertex.steps),
            *(
                (f"sink {name!r}", pipeline.sinks[sink].function)
                for sink, name in zip(vertex.sinks, vertex.sink_names, strict=True)
            ),
        ]

    def errored(self, error: BaseException, when: str, *, misfit: str | None = None) -> TaskErrored:
        """The failure. ``when``: in which batch; ``misfit``: a sentence that says it better, and that it is final."""
        read = read_error(error)
        # Weir's own sentence names the thing, and so does what an operator noted.
        own = isinstance(error, WeirError) or misfit is not None
        step = [] if read.notes or own else [self._step(read.frames or tuple(filter(None, [read.place])))]
        place = [] if read.place is None else [f"in {read.place}"]
        log = [] if self._log is None else [f"log: {self._log}"]
        where = "; ".join([*place, *read.notes, *step, when, *log])
        failure = TaskErrored(
            message=f"{misfit or read.said} ({where})",
            fatal=misfit is not None or read.final,
            cause=Cause(key=read.key, trace=read.trace),
        )
        self._write_log(f"{failure.message}\n{read.trace}")
        return failure

    def _step(self, frames: tuple[Frame, ...]) -> str:
        users = [frame for frame in frames if frame.is_the_users]
        found = [
            told
            for told, function in self._steps
            if any(_contains(code, users) for code in _codes_of(function))
        ]
        return found[0] if len(found) == 1 else f"one of {', '.join(told for told, _ in self._steps)}"

    def _write_log(self, text: str) -> None:
        """Spark's log has only what went through the JVM. That may be gone: then nothing is written."""
        with contextlib.suppress(Exception):
            loggers = Jvm(self._session).java_class("org.slf4j.LoggerFactory")
            loggers.getLogger("weir").error(f"Task {self._vertex.name!r} failed: {text}")


def _contains(code: CodeType, frames: list[Frame]) -> bool:
    """Whether one of the frames is in a line of the code, or of a function written inside of it."""
    lines = {line for _, _, line in code.co_lines()}
    if any(frame.file == code.co_filename and frame.line in lines for frame in frames):
        return True
    return any(_contains(inner, frames) for inner in code.co_consts if isinstance(inner, CodeType))


def _codes_of(function: object) -> Iterator[CodeType]:
    """The code of a step's function, and of the functions of its module that it refers to."""
    own = _python_function(function)
    if own is None:
        return
    yield own.__code__
    variables = inspect.getclosurevars(own)
    for value in (*variables.globals.values(), *variables.nonlocals.values()):
        other = _python_function(value)
        if other is not None:
            yield other.__code__


def _python_function(value: object) -> Any:
    """The function written in Python behind a bound method, a partial, a callable object or a UDF; None if there is none."""
    value = inspect.unwrap(value) if callable(value) else value
    value = value.func if isinstance(value, functools.partial) else getattr(value, "__func__", value)
    if inspect.isfunction(value):
        return value
    called = vars(type(value)).get("__call__")
    return called if inspect.isfunction(called) and not inspect.isclass(value) else None
