"""Reads Spark's errors and reports the failures of queries.

``read_error`` puts the error in one line, finds the line of the user's code that led to it, and
decides whether trying again can help. ``TaskFailures`` adds the step, the batch, and the log with
the full text.

Spark does not say to which step of a chain a failing function belongs. Python operators note it
themselves, with the subtask and the records (``subtasks/worker.py``). For other functions it is the
step whose function contains a failing line, or refers to a function that does; if that is not
exactly one step, the report names all steps of the chain.

In a batch, what fails is the reading or processing of its input (``Cause.input``), unless the error
says that rows could not be stored: then nothing is wrong with them, and an outage passes.

The failure of a batch does not travel through Spark: ``QueryTask`` keeps what the batch raised and
throws one short sentence, since Spark runs a recursive regular expression over the text of the
exception. The full traceback goes to Spark's log and to REST.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from weir.core.graph import Vertex
from weir.core.messages.task import TaskErrored
from weir.core.types import Cause
from weir.errors import InvariantError, WeirError
from weir.runtime.failures import (
    FINAL,
    HEADER,
    Frame,
    Raised,
    is_final_by_name,
    is_passing,
    key_of,
    message_of,
    print_exception,
    read_crash,
    read_exception,
    read_text,
    shortened,
)
from weir.spark.java import Jvm
from weir.spark.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: What Spark puts around the message of the exception that ended a query. The message may be empty.
_STREAM_FAILED = re.compile(
    r"\[STREAM_FAILED\] Query \[.*?\] terminated with exception:|SQLSTATE: XXKST.*$"
)
#: Weir's own errors that are final, as a worker prints them.
_FINAL_OWN = re.compile(
    "|".join(rf"weir\.errors\.{kind.__name__}: " for kind in FINAL if issubclass(kind, WeirError))
)
#: Spark's error conditions that are final: a missing column, function or field, types and schemas
#: that do not fit, invalid SQL.
_FINAL_CONDITION = re.compile(
    r"\[(?:UNRESOLVED_\w+|MISSING_ATTRIBUTES|AMBIGUOUS_(?:REFERENCE|COLUMN_\w+)|FIELD_NOT_FOUND"
    r"|DATATYPE_MISMATCH|NUM_COLUMNS_MISMATCH|RESULT_\w*MISMATCH\w*|INCOMPATIBLE_DATA_FOR_TABLE"
    r"|INSERT_COLUMN_ARITY_MISMATCH|PARSE_SYNTAX_ERROR|COLUMN_ALREADY_EXISTS)[\].]"
)
#: A row that breaks a rule of ``weir.expect(fail=...)``, as Spark puts it. It would do so again.
_BROKEN_RULE = re.compile(
    r"\[USER_RAISED_EXCEPTION\] (?P<said>Step .+?: a row breaks .*?)(?: SQLSTATE: \w+)?$"
)
#: The line of the pipeline that made the expression that failed in the JVM.
_CALLED_FROM = re.compile(
    r'"(?P<function>[^"\n]+)" was called from\s+(?P<file>\S[^\n]*):(?P<line>\d+)'
)
_JAVA_CLASS = re.compile(r"\w*(?:Exception|Error)\b")
#: Weir's own code that stores rows, in a Python traceback.
_STORING = re.compile(r"/weir/(?:sinks|storage)/[^/]")
#: In a Java stack, from the top: rows were being written, or pulled out of what makes them.
_WRITING_OR_PULLING = re.compile(
    r"(?P<writing>Writer\b|OutputStream|OutputCommitter|StateStore|RocksDB)"
    r"|\.(?:hasNext|next|getNext)\("
)
#: The way out, for a module that a worker does not have.
_ELSEWHERE = (
    " in Spark's workers: install it there, import it at the top of the pipeline if it is one of"
    " the pipeline's own, or name it in spark.submit.pyFiles"
)
#: How many frames of Java's root cause are kept.
_JAVA_FRAMES = 30


@dataclass(frozen=True, kw_only=True)
class ErrorText:
    """What to report about an error."""

    #: One line, as from ``first_cause``.
    said: str
    #: The line of the user's code that led to it; None if unknown.
    place: Frame | None
    #: The notes that Weir added in the worker.
    notes: tuple[str, ...]
    #: The frames of the Python traceback; empty for an error in the JVM.
    frames: tuple[Frame, ...]
    #: Trying again cannot help.
    final: bool
    #: As in ``Cause``.
    key: str
    input: str
    trace: str


def read_error(error: BaseException, batch_range: str = "") -> ErrorText:
    """Parse an error that Spark raised, or the user's code in the driver.

    ``batch_range`` says which rows the batch that failed was to process; "" if none.
    """
    text = message_of(error)
    java = str(getattr(error, "_stackTrace", None) or (text if "\n\tat " in text else ""))
    from_worker = read_text(text) or read_crash(text)
    raised = from_worker or (None if java else read_exception(error))
    if isinstance(error, WeirError):
        said = text.removesuffix(".")
    else:
        said = first_cause(error) if from_worker or java else read_exception(error).error
        if from_worker is not None and from_worker.kind == "ModuleNotFoundError":
            said += _ELSEWHERE
    broken = _BROKEN_RULE.search(said)
    if broken is not None:
        said = broken["said"]
    # For an error in the JVM, or in a package's code in a worker, only the line in the driver is
    # known.
    place = (raised and raised.place) or _called_from(text) or read_exception(error).place
    root = _root_cause(java)
    java_kind = _JAVA_CLASS.search(root) if raised is None else None
    kind = raised.kind if raised is not None else java_kind[0] if java_kind else ""
    stored = is_passing(kind) and _failed_to_store(raised, root)
    failed_input = "" if stored else batch_range if raised is None else raised.input_of(batch_range)
    return ErrorText(
        said=said,
        place=place,
        notes=() if raised is None else raised.notes,
        frames=() if raised is None else raised.frames,
        final=(
            isinstance(error, FINAL)
            or _FINAL_OWN.search(text) is not None
            or _FINAL_CONDITION.search(said) is not None
            or broken is not None
            or (raised is not None and is_final_by_name(raised))
        ),
        key=key_of(kind, place, said, input=failed_input),
        input=failed_input,
        trace=shortened(
            "\n\n".join(
                part
                for part in (from_worker.text if from_worker else print_exception(error), root)
                if part
            )
        ),
    )


def _failed_to_store(raised: Raised | None, java: str) -> bool:
    """Whether rows could not be stored; the other errors of a batch are those of its input.

    ``java`` is the root cause of an error that Python did not raise.
    """
    if raised is not None:
        own = any(_STORING.search(frame.file) for frame in raised.frames)
        return own and raised.place is None
    found = _WRITING_OR_PULLING.search(java)
    return found is not None and found["writing"] is not None


def first_cause(error: BaseException) -> str:
    """The cause of a Spark error in one line, without its stack.

    Weir's own sentence, else what Python raised, else what Java threw, with the root cause if that
    says something else.
    """
    text = message_of(error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    own = [line for line in lines if line.startswith("weir.errors.")]
    if own:
        return own[-1].split(": ", 1)[-1]
    if isinstance(error, InvariantError):
        return text
    raised = read_text(text) or read_crash(text)
    if raised is not None:
        return _short(raised.error)
    java = [line.removeprefix(": ") for line in text.splitlines() if line.startswith(": ")]
    said = _STREAM_FAILED.sub("", [*java[:1], lines[0]][0]).strip()
    roots = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    if not roots or (said and roots[-1].split(": ", 1)[-1].split(" SQLSTATE")[0] in said):
        return _short(said or lines[0])
    return _short(f"{said} (caused by {roots[-1]})" if said else roots[-1])


def _short(cause: str) -> str:
    return cause.removesuffix(".")[:500]


def _called_from(text: str) -> Frame | None:
    found = _CALLED_FROM.search(text)
    if found is None:
        return None
    return Frame(file=found["file"], line=int(found["line"]), function=found["function"])


def _root_cause(java: str) -> str:
    """Java's root cause with its stack; "" if there is no stack."""
    lines = java.splitlines()
    starts = [at for at, line in enumerate(lines) if line.startswith(("Caused by: ", ": "))] or [0]
    frames = [line for line in lines[starts[-1] + 1 :] if line.startswith("\tat ")]
    if not frames:
        return ""
    return "\n".join(
        [lines[starts[-1]].partition(HEADER.strip())[0].strip(), *frames[:_JAVA_FRAMES]]
    )


class TaskFailures:
    """Makes ``TaskErrored`` for the query of one vertex."""

    def __init__(
        self,
        session: SparkSession,
        vertex: Vertex,
        pipeline: Pipeline,
        log: str | None,
    ) -> None:
        """``log`` is the path of Spark's log; None if it has no file."""
        self._session = session
        self._vertex = vertex
        self._log = log
        #: Each step and sink as the report names it, with the user's function, if it has one.
        self._steps: list[tuple[str, object]] = [
            *(
                (f"step {step.name!r}", pipeline.functions.get(step.operator_id))
                for step in vertex.steps
            ),
            *(
                (f"sink {name!r}", pipeline.sinks[sink].function)
                for sink, name in zip(vertex.sinks, vertex.sink_names, strict=True)
            ),
        ]

    def errored(
        self, error: BaseException, when: str, *, batch_range: str = "", misfit: str | None = None
    ) -> TaskErrored:
        """The failure for an error; also writes it to Spark's log.

        ``when`` says in which batch it occurred, and ``batch_range`` which rows that has; "" if
        none. ``misfit`` is a better sentence than Spark's, and means that the failure is final.
        """
        read = read_error(error, batch_range)
        # Weir's own sentences and an operator's notes already name the step.
        own = isinstance(error, WeirError) or misfit is not None
        step = (
            []
            if read.notes or own
            else [self._step(read.frames or tuple(filter(None, [read.place])))]
        )
        place = [] if read.place is None else [f"in {read.place}"]
        log = [] if self._log is None else [f"log: {self._log}"]
        where = "; ".join([*place, *read.notes, *step, when, *log])
        failure = TaskErrored(
            message=f"{misfit or read.said} ({where})",
            fatal=misfit is not None or read.final,
            cause=Cause(
                key=read.key,
                input=read.input and f"{read.input} in {self._vertex.name!r}",
                trace=read.trace,
            ),
        )
        self._write_log(f"{failure.message}\n{read.trace}")
        return failure

    def _step(self, frames: tuple[Frame, ...]) -> str:
        users = [frame for frame in frames if frame.is_the_users]
        found = [
            name
            for name, function in self._steps
            if any(_contains(code, users) for code in _codes_of(function))
        ]
        return (
            found[0] if len(found) == 1 else f"one of {', '.join(name for name, _ in self._steps)}"
        )

    def _write_log(self, text: str) -> None:
        """Write to Spark's log, which otherwise has only what went through the JVM.

        Writes nothing if the JVM has gone.
        """
        with contextlib.suppress(Exception):
            loggers = Jvm(self._session).java_class("org.slf4j.LoggerFactory")
            loggers.getLogger("weir").error(f"Task {self._vertex.name!r} failed: {text}")


def _contains(code: CodeType, frames: list[Frame]) -> bool:
    """Whether one of the frames is in a line of the code, or of a function nested in it."""
    lines = {line for _, _, line in code.co_lines()}
    if any(frame.file == code.co_filename and frame.line in lines for frame in frames):
        return True
    return any(_contains(inner, frames) for inner in code.co_consts if isinstance(inner, CodeType))


def _codes_of(function: object) -> Iterator[CodeType]:
    """The code of a step's function, and of the global and closure functions it refers to."""
    own = _python_function(function)
    if own is None:
        return
    code = own.__code__
    yield code
    values = [own.__globals__[name] for name in code.co_names if name in own.__globals__]
    for cell in own.__closure__ or ():
        # Python has not assigned every variable of the enclosing function.
        with contextlib.suppress(ValueError):
            values.append(cell.cell_contents)
    for value in values:
        other = _python_function(value)
        if other is not None:
            yield other.__code__


def _python_function(value: object) -> Any:
    """The Python function in a bound method, partial, callable object or UDF; None otherwise."""
    try:
        value = inspect.unwrap(value) if callable(value) else value
        value = (
            value.func
            if isinstance(value, functools.partial)
            else getattr(value, "__func__", value)
        )
    except Exception:
        # A global of the user's may be a proxy that raises whatever it is asked.
        return None
    if inspect.isfunction(value):
        return value
    called = vars(type(value)).get("__call__")
    return called if inspect.isfunction(called) and not inspect.isclass(value) else None
