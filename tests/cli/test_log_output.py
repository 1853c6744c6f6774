"""``weir run --log-format``: what standard output and standard error have in each form."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rich.console import Console
from tests.kit.gateway import JOB_ID, FakeGateway, completed

from weir.cli.log_output import LogOutput
from weir.config.values import LogFormat
from weir.core.status import JobStatus
from weir.definition import JobDefinition
from weir.errors import ConfigurationError
from weir.launch import runner
from weir.launch.options import JobResult, RunListener, RunOptions
from weir.monitoring.log_lines import place
from weir.monitoring.recorder import Failure

Weir = Callable[..., Result]
FAKE_RUN = str(Path(__file__).with_name("fake_run.py"))

#: A program that logs in every way and then runs ``weir run`` of a job that fails to start.
NOISY = """
import os, subprocess, sys
from rich.console import Console
from weir.cli.log_output import LogOutput
from weir.config.values import LogFormat
with LogOutput(Console(file=sys.stdout, width=1000), LogFormat.JSON) as output:
    print("printed")
    os.write(2, b"from outside of Python\\n")
    subprocess.run([sys.executable, "-c", "import sys; print('a child', file=sys.stderr)"])
    os.write(2, b'{"time": "t", "level": "INFO", "logger": "x", "message": "of a worker"}\\n')
print("after the end", file=sys.stderr)
"""


def run_job(job: JobDefinition, options: RunOptions, listener: RunListener) -> JobResult:
    """A job whose step prints, and that fails and recovers."""
    gateway = FakeGateway()
    listener.submitted(JOB_ID, gateway, "http://127.0.0.1:8081")
    listener.restored(completed(7, "/data/chk-7"))
    with place(task="clean", step="score"):
        print("from a step")
    print("from elsewhere")
    gateway.recorder.note("checkpoint", "Checkpoint 8 was triggered.", checkpoint_id=8)
    gateway.recorder.failures.append(
        Failure(
            time_ms=0,
            attempt=1,
            message="KeyError: 'JP'\nin line 3",
            trace="Traceback",
            vertex="clean",
            story=(),
        )
    )
    gateway.recorder.note("failure", "Failure: KeyError: 'JP'", vertex="clean")
    listener.note("FAILING: KeyError: 'JP'")
    listener.note("a note")
    return JobResult(job_id=JOB_ID, status=JobStatus.FINISHED)


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A pipeline file; the module path is restored after the test."""
    monkeypatch.setattr(runner, "run_job", run_job)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    path = tmp_path / "orders.py"
    path.write_text("import weir\njob = weir.Job('orders')\n")
    yield str(path)


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_in_json_standard_error_has_everything_and_standard_output_nothing(
    weir: Weir, pipeline: str
) -> None:
    """The progress, the story, what steps and others print, and the last line."""
    result = weir("run", pipeline, "--log-format", "json")
    assert result.exit_code == 0
    assert result.stdout == ""
    found = objects(result.stderr)
    assert all({"time", "level", "logger", "message"} <= one.keys() for one in found)
    messages = [one["message"] for one in found]
    assert messages[0] == f"Job has been submitted with JobID {JOB_ID}"
    assert {"from a step", "from elsewhere", "a note"} <= set(messages)
    assert messages[-1] == f"Job {JOB_ID} has finished"


def test_in_json_an_event_has_its_task_and_checkpoint(weir: Weir, pipeline: str) -> None:
    """And a failure its trace; it is there once."""
    found = objects(weir("run", pipeline, "--log-format", "json").stderr)
    by_logger = {one["logger"]: one for one in found}
    (printed,) = (one for one in found if one["message"] == "from a step")
    assert (printed["task"], printed["step"]) == ("clean", "score")
    assert by_logger["weir.checkpoint"]["checkpoint"] == 8
    failure = by_logger["weir.failure"]
    assert (failure["level"], failure["task"]) == ("ERROR", "clean")
    assert failure["message"] == "KeyError: 'JP'\nin line 3"
    assert failure["exception"] == "Traceback"
    assert len([one for one in found if "KeyError" in one["message"]]) == 1


def test_in_text_standard_output_has_only_what_the_program_prints(
    weir: Weir, pipeline: str
) -> None:
    """Standard error has the progress, and what steps print, with the time and the step."""
    result = weir("run", pipeline)
    assert result.stdout.splitlines() == ["from elsewhere"]
    assert "a note" in result.stderr.splitlines()
    (line,) = (one for one in result.stderr.splitlines() if one.endswith("from a step"))
    assert line.endswith(" INFO  [score] stdout: from a step")
    assert line[:2] == "20"


def test_the_job_may_choose_the_form(weir: Weir, pipeline: str) -> None:
    """By the key; the option overrides it."""
    Path(pipeline).write_text(
        "import weir\njob = weir.Job('orders', conf={'weir.log-format': 'json'})\n"
    )
    assert '"message": "a note"' in weir("run", pipeline).stderr
    assert "a note" in weir("run", pipeline, "--log-format", "text").stderr.splitlines()


def test_in_json_an_error_is_a_line_too(
    weir: Weir, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code stays 1."""

    def fail(*_: object) -> JobResult:
        raise ConfigurationError("rest.port is 'x'.")

    monkeypatch.setattr(runner, "run_job", fail)
    result = weir("run", pipeline, "--log-format", "json")
    assert result.exit_code == 1
    (found,) = objects(result.stderr)
    assert (found["level"], found["message"]) == ("ERROR", "rest.port is 'x'.")


def test_an_unknown_form_is_a_usage_error(weir: Weir, pipeline: str) -> None:
    """The message has those that exist."""
    result = weir("run", pipeline, "--log-format", "xml")
    assert result.exit_code == 2
    assert "'text'" in result.stderr


def test_what_others_write_to_standard_error_becomes_json() -> None:
    """Also a child's; a worker's own object goes on as it is, and nothing is lost at the end."""
    done = subprocess.run([sys.executable, "-c", NOISY], capture_output=True, text=True, check=True)
    *lines, last = done.stderr.splitlines()
    found = [json.loads(line) for line in lines]
    assert sorted((one["logger"], one["message"]) for one in found) == [
        ("stderr", "a child"),
        ("stderr", "from outside of Python"),
        ("stdout", "printed"),
        ("x", "of a worker"),
    ]
    assert last == "after the end"
    assert done.stdout == ""


def test_a_log_that_cannot_be_written_fails_nothing(
    weir: Weir, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that prints goes on, and so does the job."""
    broken = io.StringIO()
    broken.close()

    def run_broken(job: JobDefinition, options: RunOptions, listener: RunListener) -> JobResult:
        with LogOutput(Console(file=io.StringIO()), LogFormat.JSON) as output:
            output._stderr = broken
            with place(step="score"):
                print("from a step", flush=True)
        return run_job(job, options, listener)

    monkeypatch.setattr(runner, "run_job", run_broken)
    assert weir("run", pipeline).exit_code == 0


def test_in_json_a_killing_signal_is_a_line_too(tmp_path: Path) -> None:
    """Though the process ends at once."""
    path = tmp_path / "orders.py"
    path.write_text("import weir\njob = weir.Job('orders')\n")
    process = subprocess.Popen(
        [sys.executable, FAKE_RUN, "deaf", "run", str(path), "--log-format", "json"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    first = json.loads(process.stderr.readline())
    process.send_signal(signal.SIGTERM)
    lines = [first, json.loads(process.stderr.readline())]
    while "suspending the job" not in lines[-1]["message"]:
        lines.append(json.loads(process.stderr.readline()))
    process.send_signal(signal.SIGTERM)
    rest = process.stderr.read()
    assert process.wait() == 128 + signal.SIGTERM
    assert json.loads(rest.splitlines()[-1])["message"] == "weir: killed by a signal"
