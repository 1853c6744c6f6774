"""One line for a Spark failure, with its root cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weir.core.messages.task import TaskErrored
from weir.job import Job, definition_of
from weir.runtime.failures import NO_ROWS
from weir.sinks.foreach.sink import Foreach
from weir.spark.failures import TaskFailures, first_cause, read_error
from weir.spark.pipeline import Pipeline

_QUERY = "[STREAM_FAILED] Query [id = 1a-2b, runId = 3c-4d] terminated with exception:"
_STACK = (
    "JVM stacktrace:\norg.apache.spark.sql.streaming.StreamingQueryException: x\n\tat"
    " a.b.c(D.scala:1)\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            (
                f"{_QUERY}  SQLSTATE: XXKST\n\n{_STACK}Caused by:"
                " java.nio.channels.ClosedChannelException\n\tat x"
            ),
            "java.nio.channels.ClosedChannelException",
        ),
        (
            (
                f"{_QUERY} disk full SQLSTATE: XXKST\n\n{_STACK}Caused by: java.io.IOException:"
                " disk full\n\tat x"
            ),
            "disk full",
        ),
        (
            (
                f"{_QUERY} Job aborted SQLSTATE: XXKST\n\n{_STACK}Caused by: org.a.B: Job"
                " aborted\n\tat x\nCaused by: java.io.EOFException\n\t... 3 more"
            ),
            "Job aborted (caused by java.io.EOFException)",
        ),
        (
            (
                "An error occurred while calling o1.load.\n: java.lang.IllegalStateException:"
                " stopped\n\tat x"
            ),
            "java.lang.IllegalStateException: stopped",
        ),
        (
            (
                f'{_QUERY} it broke\nTraceback (most recent call last):\n  File "a.py"\nValueError:'
                " no such day\n"
            ),
            "ValueError: no such day",
        ),
        ("\nweir.errors.PipelineError: Step 'a' is wrong.\n", "Step 'a' is wrong."),
    ],
)
def test_the_line_names_the_root_cause(text: str, expected: str) -> None:
    """Even where Spark's own message is empty."""
    assert first_cause(RuntimeError(text)) == expected


def test_an_error_without_a_text_is_named_by_its_type() -> None:
    """The line is never empty."""
    assert first_cause(EOFError()) == "EOFError"


# -- recorded from Spark 4.3 -----------------------------------------------------------------------

RECORDED = json.loads(Path(__file__).with_name("recorded_errors.json").read_text())
PIPELINE = "/home/me/pipeline.py"


class Captured(Exception):
    """PySpark's form of a Java exception: its text and Java's stack."""

    def __init__(self, name: str) -> None:
        super().__init__(RECORDED[name]["text"])
        self._stackTrace = RECORDED[name]["stack"]


@pytest.mark.parametrize(
    ("name", "said", "place"),
    [
        ("udf", "KeyError: 'JP'", f"lookup, {PIPELINE}, line 6"),
        ("pandas_udf", "KeyError: 'JP'", f"<lambda>, {PIPELINE}, line 12"),
        (
            "map_in_arrow",
            "ValueError: invalid literal for int() with base 10: 'DE'",
            f"parse, {PIPELINE}, line 16",
        ),
        ("chained", "ValueError: country JP is", f"chained, {PIPELINE}, line 28"),
        (
            "missing_module",
            "ModuleNotFoundError: No module named 'no_such_module_xyz'",
            f"missing, {PIPELINE}, line 20",
        ),
        ("not_unpickled", "ModuleNotFoundError: No module named 'here_only'", None),
        (
            "udf_below_foreach_batch",
            "KeyError: 'JP'",
            f"lookup, {PIPELINE}, line 6",
        ),
        ("foreach_batch", "RuntimeError: Batch 1 failed", f"short, {PIPELINE}, line 47"),
        ("cast", "[CAST_INVALID_INPUT] The value 'DE' of the type", f"cast, {PIPELINE}, line 33"),
        ("missing_column", "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, ", None),
    ],
)
def test_an_error_is_reported_with_the_deepest_line_of_the_user_that_led_to_it(
    name: str, said: str, place: str | None
) -> None:
    """Neither a line of PySpark nor one of a package that user code has called."""
    read = read_error(Captured(name))
    assert read.said.startswith(said)
    assert (None if read.place is None else str(read.place)) == place


@pytest.mark.parametrize("name", list(RECORDED))
def test_what_cannot_be_mended_by_trying_is_final(name: str) -> None:
    """A module that a worker lacks, a class that it cannot unpickle, a column that does not
    exist."""
    final = {"missing_module", "not_unpickled", "missing_column"}
    assert read_error(Captured(name)).final is (name in final)


def test_a_row_that_breaks_a_rule_of_fail_is_final_and_told_without_sparks_words() -> None:
    """The same row would come again; the user's own ``raise_error`` is not such a rule."""
    rule = "Step \"Ann's\": a row breaks 'has an id', 'positive': {\"id\":null}"
    spark = "org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] {} SQLSTATE: P0001"
    for said, final in ((rule, True), ("no such day", False)):
        text = f"Job aborted\n: {spark.format(said)}\n\tat a.b.c(D.scala:1)\n"
        read = read_error(RuntimeError(text))
        assert (read.final, read.said == rule) == (final, final), read.said


def test_a_cause_is_the_same_for_other_rows_and_other_batches() -> None:
    """It has the kind and the line, or the message without numbers; transient failures have
    none."""
    assert read_error(Captured("udf")).key == f"KeyError in lookup, {PIPELINE}, line 6"
    assert (
        read_error(Captured("cast")).key
        == f"SparkNumberFormatException in cast, {PIPELINE}, line 33"
    )
    keys = [read_error(RuntimeError(f"Lost 0x{n}f, again {n}")).key for n in (1, 27)]
    assert keys == [read_error(RuntimeError("Lost 0x3f, again 4")).key] * 2
    assert read_error(Captured("no_permission")).key == ""
    assert read_error(ConnectionRefusedError("no")).key == ""


def test_the_trace_is_pythons_with_the_stack_of_javas_root_cause() -> None:
    """Both are shortened: of a long trace the start and the end are kept."""
    trace = read_error(Captured("udf")).trace
    assert trace.startswith(
        'Traceback (most recent call last):\n  File "/home/me/pipeline.py", line 6, in lookup\n'
    )
    assert (
        "KeyError: 'JP'\n\norg.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exc"
        in trace
    )
    assert trace.count("KeyError") == 1
    assert "\tat org.apache.spark.api.python.BasePythonRunner" in trace
    captured = Captured("udf")
    captured.args = (captured.args[0].replace("KeyError: ", "KeyError: " + "x\n" * 50_000),)
    assert len(read_error(captured).trace) < 17_000


def test_an_exception_of_the_driver_is_reported_with_its_kind_and_its_line() -> None:
    """A message such as 'JP' alone says nothing."""

    def lookup() -> None:
        raise KeyError("JP")

    with pytest.raises(KeyError) as raised:
        lookup()
    read = read_error(raised.value)
    assert read.said == "KeyError: 'JP'"
    assert read.place is not None
    assert (read.place.function, read.place.file) == ("lookup", __file__)
    assert 'raise KeyError("JP")' in read.trace


def test_notes_that_an_operator_made_in_the_worker_come_along() -> None:
    """They follow the exception and are not part of it."""
    text = (
        RECORDED["udf"]["text"]
        + "\nweir: subtask 1 of 'enrich', its record batch 0 (rows 0 to 99)\n"
    )
    read = read_error(RuntimeError(text))
    assert read.notes == ("subtask 1 of 'enrich', its record batch 0 (rows 0 to 99)",)
    assert read.said == "KeyError: 'JP'"


# -- what failed -----------------------------------------------------------------------------------

#: As Spark 4.3 prints them, shortened.
_AWAY = "java.io.IOException: Input/output error"
_READ = (
    "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading"
    f" file file:///in/a.json.gz. SQLSTATE: KD001\n\tat a.b.c(D.scala:1)\nCaused by: {_AWAY}\n"
    "\tat org.apache.hadoop.fs.FSDataInputStream.read(FSDataInputStream.java:100)\n"
    "\tat org.apache.spark.sql.execution.datasources.FileScanRDD$$anon$1.hasNext(F.scala:1)\n"
    "\tat org.apache.spark.sql.execution.datasources.FileFormatDataWriter.writeWithIterator(F:1)\n"
)
_WRITE = (
    "org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to"
    f" file:/out. SQLSTATE: 58030\n\tat a.b.c(D.scala:1)\nCaused by: {_AWAY}\n"
    "\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)\n"
    "\tat org.apache.spark.sql.execution.datasources.FileFormatDataWriter.commit(F.scala:1)\n"
)


def _from_worker(file: str, error: str, *notes: str) -> str:
    text = f'Traceback (most recent call last):\n  File "{file}", line 7, in call\n{error}: away\n'
    return text + "".join(f"weir: {note}\n" for note in notes)


_READING = "reading split 'a' at Feed(split_id='a', after=7)"


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        (_READ, "the input after 7"),
        (_WRITE, ""),
        (_from_worker(PIPELINE, "ConnectionError"), "the input after 7"),
        (_from_worker(PIPELINE, "weir.errors.StorageError"), "the input after 7"),
        (_from_worker("/x/site-packages/geo/core.py", "OSError"), "the input after 7"),
        (
            _from_worker(
                "/x/site-packages/weir/sinks/postgres/copy.py", "weir.errors.StorageError"
            ),
            "",
        ),
        (_from_worker("/x/site-packages/weir/sinks/files/sink.py", "OSError"), ""),
        (
            _from_worker("/x/site-packages/weir/sources/formats/csv.py", "OSError", _READING),
            _READING,
        ),
        (_from_worker(PIPELINE, "ConnectionError", _READING, "subtask 0 of 'a'"), _READING),
        (_from_worker(PIPELINE, "ConnectionError", "subtask 0 of 'a'", NO_ROWS), ""),
    ],
)
def test_in_a_batch_the_input_fails_unless_rows_cannot_be_stored(text: str, failed: str) -> None:
    """All of these raise what an outage raises. Where an input fails it has a cause, by which it is
    counted; where none does, nothing is, and the outage is waited for."""
    read = read_error(RuntimeError(text), "the input after 7")
    assert read.input == failed
    assert bool(read.key) is bool(failed)
    assert read_error(RuntimeError(_WRITE.replace(_AWAY, "a.B: x")), "range").input == "range"


def test_a_batch_without_rows_has_no_input_that_could_fail() -> None:
    """A timer that calls a service meets an outage of it."""
    read = read_error(RuntimeError(_from_worker(PIPELINE, "ConnectionError")))
    assert (read.input, read.key) == ("", "")


def test_a_worker_that_dies_is_counted_with_what_it_was_reading() -> None:
    """Its connection ends, which is no outage. Without the note, it is the batch's range."""
    for left, failed in ((f"weir: {_READING}\nweir: subtask 0 of 'a'\n", _READING), ("", "range")):
        text = (
            "Lost task 0.0 in stage 5.0 (TID 7): org.apache.spark.SparkException: Python worker"
            f" exited unexpectedly (crashed): {left}Fatal Python error: Aborted\n\n"
            "Current thread 0x00007f (most recent call first):\n"
            f'  File "{PIPELINE}", line 6 in lookup\n\n'
            "\tat org.apache.spark.api.python.BasePythonRunner(P.scala:1)\n"
            "Caused by: java.io.EOFException\n\tat java.io.DataInputStream.readInt(D.java:386)\n"
        )
        read = read_error(RuntimeError(text), "range")
        assert read.said == "Python worker crashed: Aborted"
        assert read.key == f"Python worker crashed in lookup, {PIPELINE}, line 6"
        assert read.input == failed


# -- the step --------------------------------------------------------------------------------------


def _lookup(code: str) -> int:
    return {"DE": 1}[code]


def _parse(code: str) -> int:
    return int(code)


def _failure_of(function: Callable[[str], int]) -> TaskErrored:
    """The description of a failing function to which only the step ``looked_up`` refers."""
    return _failure_in(function, looks_up=function)


def _failure_in(
    function: Callable[[str], int], *, looks_up: Callable[[str], int] = _lookup
) -> TaskErrored:
    """The description of a function that fails in the vertex ``parsed``."""
    job = Job("j")
    looked_up = job.source("codes", lambda spark: spark).transform(
        "looked_up", lambda frame: frame.map(looks_up)
    )
    looked_up.transform("parsed", lambda frame: frame.map(_parse)).sink(
        "out", Foreach(lambda frame, step: frame.x)
    )
    (vertex,) = definition_of(job).vertices()
    pipeline = Pipeline(
        vertices={vertex.name: vertex},
        functions=definition_of(job).functions,
        sinks=definition_of(job).sinks,
    )
    session: Any = None
    try:
        function("JP")
    except Exception as error:
        return TaskFailures(session, vertex, pipeline, "/w/spark.log").errored(error, "batch 7")
    raise AssertionError("it did not fail")


def test_a_failure_names_the_step_whose_function_is_or_refers_to_the_one_that_failed() -> None:
    """Spark does not say which step it was; if it cannot be determined, the whole chain is
    named."""
    at = _lookup.__code__.co_firstlineno + 1
    failure = _failure_in(_lookup)
    assert (
        failure.message
        == f"KeyError: 'JP' (in _lookup, {__file__}, line {at}; step 'looked_up'; batch 7; log:"
        " /w/spark.log)"
    )
    assert (failure.fatal, failure.cause.key) == (
        False,
        f"KeyError in _lookup, {__file__}, line {at}",
    )
    assert "; step 'parsed'; " in _failure_in(_parse).message
    everyone = "; one of step 'codes', step 'looked_up', step 'parsed', sink 'out'; "
    assert everyone in _failure_in(lambda code: {}[code]).message


class _Proxy:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"there is no request, and so no {name}")

    def __call__(self) -> None:
        raise AssertionError("it is not called")


_proxy = _Proxy()


def _through_a_proxy(code: str) -> int:
    return {}[code] if _proxy else 0


def test_the_users_variables_cannot_prevent_the_report_of_a_failure() -> None:
    """Nothing else reports it, so the job would wait for ever: a variable that a closure needs has
    no value yet, a global raises whatever it is asked, an error cannot say its message."""

    def with_rate(assigned: bool) -> Callable[[str], int]:
        def convert(code: str) -> int:
            return len(code) * rate

        if assigned:
            rate = 3
        return convert

    class UnreadableError(Exception):
        def __str__(self) -> str:
            raise ValueError("no message")

    def unreadable(code: str) -> int:
        raise UnreadableError(code)

    failure = _failure_of(with_rate(False))
    assert failure.message.startswith("NameError: ")
    assert "; step 'looked_up'; " in failure.message
    assert "; step 'looked_up'; " in _failure_of(_through_a_proxy).message
    failure = _failure_of(unreadable)
    assert failure.message.startswith(
        "UnreadableError: (its message cannot be read) (in unreadable, "
    )


def test_an_error_of_the_function_of_a_sink_names_the_sink() -> None:
    """``Foreach`` calls it in the driver."""

    def stage(frame: Any, step: Any) -> None:
        raise KeyError(step)

    job = Job("j")
    job.source("codes", lambda spark: spark).sink("out", Foreach(stage))
    (vertex,) = definition_of(job).vertices()
    pipeline = Pipeline(
        vertices={vertex.name: vertex},
        functions=definition_of(job).functions,
        sinks=definition_of(job).sinks,
    )
    session: Any = None
    with pytest.raises(KeyError) as raised:
        stage(None, 1)
    failure = TaskFailures(session, vertex, pipeline, None).errored(raised.value, "batch 7")
    assert failure.message.endswith("; sink 'out'; batch 7)")
