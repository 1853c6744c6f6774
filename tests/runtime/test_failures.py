"""How an exception of blocking work is read.

Its location, whether a retry can help, and its identity.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pickle import PicklingError

import pytest

from weir.durable.hooks import CheckpointListener, CheckpointListeners
from weir.errors import (
    CheckpointDamagedError,
    CoordinatorStateError,
    JobFailedError,
    ListenerError,
    OperatorError,
    PipelineError,
    SinkError,
    SinkMismatchError,
    StorageError,
    WeirError,
)
from weir.runtime.concurrency import ThreadWaits
from weir.runtime.failures import (
    TRACE_LENGTH,
    cause_of,
    describe,
    is_fatal,
    key_of,
    named,
    read_crash,
    read_text,
)


def raised_by(function: Callable[[], object]) -> Exception:
    """What the function raises."""
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def lookup() -> int:
    """The user's mistake."""
    return {"DE": 1}["JP"]


def read_numbers() -> object:
    """Raises inside a function of Python's standard library."""
    return json.loads("[1,")


def test_an_error_is_reported_with_the_users_line() -> None:
    """Library frames are skipped: the line that called the library is the user's."""
    assert (
        describe(raised_by(lookup))
        == f"KeyError: 'JP' (in lookup, {__file__}, line {line_of(lookup)})"
    )
    message = describe(raised_by(read_numbers))
    assert message.endswith(f" (in read_numbers, {__file__}, line {line_of(read_numbers)})")


def test_an_error_without_a_line_of_user_code_is_reported_alone() -> None:
    """So is a message of Weir's own."""
    assert describe(ValueError("7\nand more")) == "ValueError: 7"
    assert describe(EOFError()) == "EOFError"
    coloured = "No copy\n   \x1b[31m↳\x1b[0m No write\n    \x1b[31m↳\x1b[0m No space\nand more\n"
    assert describe(OSError(coloured)) == "OSError: No copy: No write: No space"
    assert describe(PipelineError("Step 'a' is wrong.")) == "Step 'a' is wrong."


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (PipelineError("x"), True),
        (JobFailedError("x"), True),
        (SinkMismatchError("The columns differ."), True),
        (CoordinatorStateError("The checkpoint says nonsense."), True),
        (ModuleNotFoundError("No module named 'geo'"), True),
        (ImportError("cannot import name 'x' from 'geo'"), True),
        (SyntaxError("invalid syntax"), True),
        (PicklingError("cannot pickle"), True),
        (AttributeError("Can't get attribute 'Rates' on <module '__main__'>"), True),
        (AttributeError("'NoneType' object has no attribute 'x'"), False),
        (SinkError("busy"), False),
        (StorageError("away"), False),
        (PermissionError("denied"), False),
        (KeyError("JP"), False),
    ],
    ids=repr,
)
def test_what_no_attempt_can_mend_is_final(error: Exception, final: bool) -> None:
    """Permissions may come back; a module, a class or a column does not."""
    assert is_fatal(error) is final


def test_an_error_has_a_cause_by_which_the_next_attempt_knows_it_again() -> None:
    """Its kind and the user's line; without such a line, its message without the numbers."""
    cause = cause_of(raised_by(lookup))
    assert cause.key == f"KeyError in lookup, {__file__}, line {line_of(lookup)}"
    assert cause.trace.startswith("Traceback (most recent call last):\n")
    keys = {cause_of(RuntimeError(f"batch {n} of 0x{n}f")).key for n in (3, 40)}
    assert len(keys) == 1


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("peer"),
        TimeoutError(),
        OSError("no space left on device"),
        StorageError("The disk is away."),
    ],
    ids=repr,
)
def test_what_may_pass_by_itself_has_no_cause(error: Exception) -> None:
    """An outage is no reason to give up a job, however long it lasts."""
    assert cause_of(error).key == ""


@pytest.mark.parametrize("kind", ["StorageError", "OSError", "ConnectionError", "EOFException"])
def test_no_failure_of_an_input_is_a_passing_one(kind: str) -> None:
    """A damaged file and a disk that is away raise the same: what was being done tells them
    apart."""
    said = f"{kind}: cannot read 17 bytes"
    assert key_of(kind, None, said) == ""
    assert key_of(kind, None, said, input="file x") == f"{kind}: cannot read # bytes"


CRASH = """Lost task 0.0 in stage 5.0: org.apache.spark.SparkException: Python worker exited \
unexpectedly (crashed): weir: reading split 'a' at Feed(split_id='a', after=7)
Fatal Python error: Segmentation fault

Current thread 0x00007fe389dd4b80 (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/geo/core.py", line 10 in convert
  File "/home/me/pipeline.py", line 12 in fetch
  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1955 in func

Thread 0x00007fe389dd4b81 (most recent call first):
  File "/home/me/pipeline.py", line 99 in beside

Extension modules: numpy._core._multiarray_umath (total: 1)

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.next(PythonRunner.scala:1143)
Caused by: java.io.EOFException
"""


def test_a_process_that_died_of_a_signal_is_read_like_an_exception() -> None:
    """Its signal, the user's line in the thread that died, and the split that it was reading."""
    raised = read_crash(CRASH)
    assert raised is not None
    assert raised.error == "Python worker crashed: Segmentation fault"
    assert str(raised.place) == "fetch, /home/me/pipeline.py, line 12"
    assert raised.input_of("batch") == "reading split 'a' at Feed(split_id='a', after=7)"
    assert raised.text.startswith("weir: reading split 'a'")
    assert raised.text.endswith("(total: 1)")
    silent = read_crash("x: Python worker exited unexpectedly (crashed). Consider setting 'a.b' to")
    assert silent is not None
    assert (silent.error, silent.place) == ("Python worker crashed", None)
    assert silent.input_of("batch") == "batch"
    assert read_crash("java.io.IOException: disk\n\tat x") is None


def test_the_name_of_an_input_is_one_line_of_bounded_length() -> None:
    """Two long names that differ only at their ends stay different."""
    assert named("the  input\nafter 3") == "the input after 3"
    long, other = named("x" * 10_000), named("x" * 9_999 + "y")
    assert len(long) < 350
    assert long[:300] == other[:300]
    assert long != other


def test_an_error_of_weirs_has_the_cause_of_the_error_that_led_to_it() -> None:
    """A message about the outside world has none; one about the user's function has that
    function's."""

    def wrapped(error: type[Exception], cause: Exception) -> Exception:
        def raise_it() -> None:
            raise error("A sentence.") from cause

        return raised_by(raise_it)

    refused = SinkError("The commit was refused.")
    refused.__cause__ = ConnectionError("away")
    assert cause_of(refused).key == ""
    assert (
        cause_of(SinkError("The function returned a set.")).key
        == "SinkError: The function returned a set."
    )
    assert cause_of(wrapped(ListenerError, raised_by(lookup))).key.startswith("KeyError in ")


def test_an_error_of_a_listener_is_reported_with_its_line() -> None:
    """A user's class that Weir calls in the driver."""

    class Strict(CheckpointListener):
        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            lookup()

    listeners = CheckpointListeners({"v": [Strict()]}, ThreadWaits())
    error = raised_by(lambda: listeners.complete("v", 3))
    assert str(error).endswith(
        f"completed: KeyError: 'JP' (in lookup, {__file__}, line {line_of(lookup)})"
    )
    assert cause_of(error).key == f"KeyError in lookup, {__file__}, line {line_of(lookup)}"


def test_an_error_that_is_its_own_cause_is_reported_once() -> None:
    """``raise error from error``, or two errors that name each other, are circles."""
    try:
        try:
            raise ValueError("first")
        except ValueError as first:
            second = KeyError("second")
            first.__cause__ = second
            raise second from first
    except KeyError as error:
        assert describe(error).startswith("KeyError: 'second' (in test_an_error_that_is_its_own")
        assert cause_of(error).key.startswith("KeyError in test_an_error_that_is_its_own")
    own = PipelineError("of itself")
    own.__cause__ = own
    assert (describe(own), cause_of(own).trace) == (
        "of itself",
        "weir.errors.PipelineError: of itself\n",
    )


@pytest.mark.parametrize(
    "error",
    [
        CheckpointDamagedError("gone", path="/chk-1", file="_metadata"),
        OperatorError("no space", operator="totals"),
    ],
)
def test_an_error_with_attributes_can_be_copied(error: WeirError) -> None:
    """Python copies and pickles errors by their arguments, as a pool of processes does."""
    again = copy.copy(error)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_an_error_that_cannot_say_its_message_is_reported_by_its_kind() -> None:
    """Whatever reports it must not fail itself."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert describe(Mute()) == "Mute: (its message cannot be read)"
    assert cause_of(Mute()).key == "Mute: (its message cannot be read)"


def test_a_trace_is_bounded() -> None:
    """The start and the end are kept, since they contain the locations."""
    trace = cause_of(ValueError("x" * 100_000 + "end")).trace
    assert TRACE_LENGTH < len(trace) < TRACE_LENGTH + 20
    assert trace.endswith("end\n")


def test_the_last_of_several_tracebacks_has_the_error_and_the_others_help_to_find_the_line() -> (
    None
):
    """What a package raised while handling the user's error has no line of user code."""
    text = (
        "Traceback (most recent call last):\n"
        '  File "/home/me/pipeline.py", line 6, in lookup\n'
        "KeyError: 'JP'\n"
        "\n"
        "The above exception was the direct cause of the following exception:\n"
        "\n"
        "Traceback (most recent call last):\n"
        '  File "/opt/venv/lib/python3.11/site-packages/geo/core.py", line 70, in convert\n'
        "geo.errors.GeoError: no such country\n"
        "see the manual\n"
    )
    raised = read_text(f"Lost task 0.0: {text}\n\tat java.lang.Thread.run(Thread.java:1)\n")
    assert raised is not None
    assert (raised.error, raised.kind) == ("geo.errors.GeoError: no such country", "GeoError")
    assert str(raised.place) == "lookup, /home/me/pipeline.py, line 6"
    assert raised.text == text.strip()


def test_a_text_without_a_traceback_has_nothing_to_read() -> None:
    """Most of Java's exceptions."""
    assert read_text("java.io.IOException: disk\n\tat x") is None


def line_of(function: Callable[[], object]) -> int:
    """The line of the function's only statement."""
    return function.__code__.co_firstlineno + 2
