"""Lines of the log: their place in the job, their two forms, and their capture."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark import cloudpickle

from weir.monitoring.log_lines import (
    Capture,
    Form,
    LogEvent,
    PassOn,
    Place,
    as_json,
    as_text,
    here,
    pass_on,
    place,
)


@contextmanager
def captured(
    monkeypatch: pytest.MonkeyPatch, form: Form = as_text, passes: PassOn | None = pass_on
) -> Iterator[tuple[list[str], io.StringIO]]:
    """The lines of what is logged and printed meanwhile, and what standard output got."""
    lines: list[str] = []
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with Capture(lines.append, form, wall_ms=lambda: 1_500, passes=passes):
        yield lines, out


def said(lines: list[str]) -> list[str]:
    """The lines without their times."""
    return [line.split(" ", 2)[2].rstrip("\n") for line in lines]


def test_a_record_and_a_printed_line_have_the_step_and_the_subtask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the code that the thread runs; INFO is shown without any set-up."""
    with captured(monkeypatch) as (lines, _), place(task="clean", step="score", subtask=2):
        logging.getLogger("orders").info("%d rules", 14)
        print("a line")
        print("another", file=sys.stderr)
    assert said(lines) == [
        "INFO  [score/2] orders: 14 rules",
        "INFO  [score/2] stdout: a line",
        "INFO  [score/2] stderr: another",
    ]


def test_places_nest_and_end() -> None:
    """What is not given stays, and nothing remains."""
    with place(task="clean"):
        with place(step="score", subtask=1):
            assert here() == Place(task="clean", step="score", subtask=1)
        assert here() == Place(task="clean")
    assert here() == Place()


def test_a_thread_starts_nowhere() -> None:
    """Places do not leak from thread to thread."""
    found: list[Place] = []
    with place(step="score"):
        thread = threading.Thread(target=lambda: found.append(here()))
        thread.start()
        thread.join()
    assert found == [Place()]


def test_text_is_passed_on_where_no_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, with or without a line break."""
    with captured(monkeypatch) as (lines, out):
        print("half", end="")
        assert out.getvalue() == "half"
    assert lines == []


def test_a_line_in_pieces_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with its line break, or with the capture; empty lines are left out."""
    with captured(monkeypatch, passes=None) as (lines, _):
        print("one", end=" ")
        print("line\n\nnext", end="")
        assert said(lines) == ["INFO  stdout: one line"]
    assert said(lines) == ["INFO  stdout: one line", "INFO  stdout: next"]


def test_threads_that_print_at_once_do_not_mix_their_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has a line of its own."""
    with captured(monkeypatch, passes=None) as (lines, _):
        print("mine", end="")
        thread = threading.Thread(target=lambda: print("yours"))
        thread.start()
        thread.join()
        print()
    assert said(lines) == ["INFO  stdout: yours", "INFO  stdout: mine"]


def test_an_endless_line_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """No buffer grows without bound."""
    with captured(monkeypatch, passes=None) as (lines, _):
        print("x" * 200_000, end="")
        assert len(lines) == 3


def test_a_json_line_is_one_object_with_what_is_known() -> None:
    """The time in UTC; a line break and a trace stay inside of it."""
    event = LogEvent(
        time_ms=1_500,
        level="ERROR",
        logger="weir.failure",
        message="two\nlines",
        place=Place(task="clean", subtask=0),
        checkpoint_id=7,
        exception="Traceback\n  File ...",
    )
    line = as_json(event)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "ERROR",
        "logger": "weir.failure",
        "message": "two\nlines",
        "task": "clean",
        "subtask": 0,
        "checkpoint": 7,
        "exception": "Traceback\n  File ...",
    }


def test_an_exception_comes_with_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a field of its own."""
    with captured(monkeypatch, as_json, None) as (lines, _):
        try:
            raise ValueError("no")
        except ValueError:
            logging.getLogger("orders").exception("it failed")
    found = json.loads(lines[0])
    assert (found["message"], found["level"]) == ("it failed", "ERROR")
    assert found["exception"].endswith("ValueError: no")


def test_a_users_handler_for_standard_error_is_replaced_and_put_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """Else each record would be there twice; a handler for anything else stays."""
    root = logging.getLogger()
    screen, other = logging.StreamHandler(sys.stderr), logging.StreamHandler(io.StringIO())
    root.addHandler(screen)
    root.addHandler(other)
    try:
        with captured(monkeypatch):
            assert screen not in root.handlers
            assert other in root.handlers
        assert screen in root.handlers
    finally:
        root.removeHandler(screen)
        root.removeHandler(other)


def test_a_level_that_the_user_has_set_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Python's default is lowered to INFO, and it is put back."""
    root = logging.getLogger()
    before = root.level
    try:
        root.setLevel(logging.ERROR)
        with captured(monkeypatch) as (lines, _):
            logging.getLogger("orders").warning("not this")
        assert lines == []
        root.setLevel(logging.WARNING)
        with captured(monkeypatch):
            assert root.level == logging.INFO
        assert root.level == logging.WARNING
    finally:
        root.setLevel(before)


def test_py4js_trace_of_each_exception_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's failure says it too. Other libraries with a handler that does nothing are heard."""
    logging.getLogger("a_library").addHandler(logging.NullHandler())
    with captured(monkeypatch) as (lines, _):
        logging.getLogger("py4j.clientserver").error("an exception")
        logging.getLogger("a_library.part").error("bad part")
    assert said(lines) == ["ERROR a_library.part: bad part"]


def test_code_may_set_up_the_root_logger_and_each_record_still_comes_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """``basicConfig`` does nothing where there is a handler already; files get records too."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers, file = [], tmp_path / "log"
    try:
        lines: list[str] = []
        with Capture(lines.append, as_text, wall_ms=lambda: 1_500, passes=pass_on) as capture:
            capture.leave_log()
            logging.basicConfig(level=logging.DEBUG)
            root.addHandler(logging.FileHandler(file))
            capture.take_log()
            logging.getLogger("orders").debug("a detail")
        assert said(lines) == ["DEBUG orders: a detail"]
        assert file.read_text() == "a detail\n"
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers = before
        root.setLevel(level)


def test_standard_output_still_is_what_code_expects_of_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has a buffer, and a function that refers to it can be pickled for a worker."""
    inside = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", inside)
    with Capture([].append, as_text, wall_ms=lambda: 1_500, passes=pass_on):
        assert sys.stdout.buffer is inside.buffer
        assert cloudpickle.loads(cloudpickle.dumps(sys.stdout)) is sys.stdout


def test_libraries_that_log_every_call_stay_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Py4J's INFO has a line for each call from the JVM."""
    with captured(monkeypatch) as (lines, _):
        logging.getLogger("py4j.clientserver").info("Received command c")
    assert lines == []
