"""What a child process writes to standard error while its start is filtered, in a process apart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
#: A shell stands in for the JVM: it writes, waits until it may go on, and writes again.
STARTS = """
import subprocess, sys, threading
from weir.spark.session.jvm_errors import filtered_errors
with filtered_errors():
    jvm = subprocess.Popen(["sh", "-c", sys.argv[1]], stdin=subprocess.PIPE)
print("not filtered: WARNING: Using incubator modules: mine", file=sys.stderr, flush=True)
jvm.communicate()
for thread in threading.enumerate():
    if thread.name == "weir-jvm-errors":
        thread.join()
"""
FAILS = """
import subprocess, sys
from weir.spark.session.jvm_errors import filtered_errors
with filtered_errors():
    subprocess.run(["sh", "-c", sys.argv[1]], check=True)
"""
WARNING = "WARNING: Using incubator modules: jdk.incubator.vector"


def errors_of(program: str, shell: str) -> str:
    """The standard error of a program that starts the shell."""
    done = subprocess.run(
        [sys.executable, "-c", program, shell],
        env=os.environ | {"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr


def test_a_warning_that_is_no_news_is_left_out_and_all_else_comes_as_it_is() -> None:
    """Also what has no line break, and what comes after the start."""
    shell = f"echo '{WARNING}' >&2; printf 'par' >&2; read x; echo 'tial' >&2; echo WARNING >&2"
    said = errors_of(STARTS, shell)
    assert WARNING not in said
    assert "not filtered: WARNING: Using incubator modules: mine\n" in said
    assert "tial\nWARNING\n" in said and "par" in said


def test_the_last_words_of_what_does_not_start_are_shown() -> None:
    """They say why."""
    said = errors_of(FAILS, f"echo '{WARNING}' >&2; echo 'no such option' >&2; exit 1")
    assert said.startswith("no such option\nTraceback")
