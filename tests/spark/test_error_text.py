"""One line for a failure of Spark's, with its root cause."""

from __future__ import annotations

import pytest

from weir.spark.error_text import first_cause

_QUERY = "[STREAM_FAILED] Query [id = 1a-2b, runId = 3c-4d] terminated with exception:"
_STACK = "JVM stacktrace:\norg.apache.spark.sql.streaming.StreamingQueryException: x\n\tat a.b.c(D.scala:1)\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"{_QUERY}  SQLSTATE: XXKST\n\n{_STACK}Caused by: java.nio.channels.ClosedChannelException\n\tat x",
            "java.nio.channels.ClosedChannelException",
        ),
        (
            f"{_QUERY} disk full SQLSTATE: XXKST\n\n{_STACK}Caused by: java.io.IOException: disk full\n\tat x",
            "disk full",
        ),
        (
            f"{_QUERY} Job aborted SQLSTATE: XXKST\n\n{_STACK}Caused by: org.a.B: Job aborted\n\tat x\n"
            "Caused by: java.io.EOFException\n\t... 3 more",
            "Job aborted (caused by java.io.EOFException)",
        ),
        (
            "An error occurred while calling o1.load.\n: java.lang.IllegalStateException: stopped\n\tat x",
            "java.lang.IllegalStateException: stopped",
        ),
        (
            f'{_QUERY} it broke\nTraceback (most recent call last):\n  File "a.py"\nValueError: no such day\n',
            "ValueError: no such day",
        ),
        ("\nweir.errors.PipelineError: Step 'a' is wrong.\n", "Step 'a' is wrong."),
    ],
)
def test_the_line_names_the_root_cause(text: str, expected: str) -> None:
    """Also where Spark's own message is empty."""
    assert first_cause(RuntimeError(text)) == expected


def test_an_error_without_a_text_is_named_by_its_type() -> None:
    """There is always something to read."""
    assert first_cause(EOFError()) == "EOFError"
