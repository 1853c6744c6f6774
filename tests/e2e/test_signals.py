"""SIGINT, SIGTERM and SIGHUP suspend a job: it ends soon, leaves nothing half done, and resumes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest
from tests.kit.place import Place, Run, parquet_rows, visible_files
from tests.kit.waiting import PATIENCE_S

pytestmark = [pytest.mark.spark, pytest.mark.kill]

FILES = 4
#: Without an end: no signal comes too late.
UNBOUNDED = {"NUMBERS": "unbounded"}
#: Limit from the signal to the end of the process: a hang is to fail, and no slow machine.
ENDS_S = PATIENCE_S


def interrupt(pid: int) -> None:
    """Ctrl-C: the terminal sends the signal to the whole process group."""
    os.killpg(pid, signal.SIGINT)


def terminate(pid: int) -> None:
    """The signal of a service manager, to the driver alone."""
    os.kill(pid, signal.SIGTERM)


def terminate_group(pid: int) -> None:
    """The signal of a service manager or of ``timeout``, to Spark's JVM too."""
    os.killpg(pid, signal.SIGTERM)


def hang_up(pid: int) -> None:
    """The terminal is closed."""
    os.killpg(pid, signal.SIGHUP)


def assert_suspended(place: Place, run: Run, code: int) -> None:
    """The exit code, no process left, only complete files of completed checkpoints."""
    assert run.wait(ENDS_S) == code, run.story()
    assert "is suspended; run the same command again to resume it" in run.output
    run.assert_no_stack_trace()
    run.wait_for_no_processes(ENDS_S)
    completed = {json.loads(record.read_bytes())["completed"] for record in place.log_records()}
    for sink in ("minutes", "raw_files"):
        for file in visible_files(place.directory / "out" / sink):
            parquet_rows(file)
            assert int(file.name.split("-")[-3]) in completed


@pytest.mark.parametrize(
    ("send", "code"),
    [
        pytest.param(interrupt, 130, marks=pytest.mark.slow),
        pytest.param(terminate, 143, marks=pytest.mark.slow),
        (terminate_group, 143),
        pytest.param(hang_up, 129, marks=pytest.mark.slow),
    ],
)
def test_a_signal_suspends_the_job_and_the_same_command_resumes_it(
    place: Place, send: Callable[[int], None], code: int
) -> None:
    """Exit code 128 + signal; then every sink is exact."""
    place.land(FILES)
    run = place.start(environment=UNBOUNDED)
    run.wait_for(r"checkpoint 2 completed")
    send(run.process.pid)
    assert_suspended(place, run, code)
    assert "recovered from checkpoint" in place.finish().output
    place.assert_exact()


@pytest.mark.slow
def test_sigterm_stops_the_job_with_a_savepoint_from_which_the_same_command_goes_on(
    place: Place,
) -> None:
    """With ``weir.on-sigterm=savepoint``: the code is the signal's, and every row is there."""
    place.land(FILES)
    options = ("--conf", "weir.on-sigterm=savepoint", "--from-savepoint", "latest")
    run = place.start(*options, environment=UNBOUNDED)
    run.wait_for(r"checkpoint 2 completed")
    terminate(run.process.pid)
    assert run.wait(ENDS_S) == 143, run.story()
    savepoint = run.wait_for(r"was stopped. Savepoint: (\S+)")[1]
    run.assert_no_stack_trace()
    resumed = place.finish(*options)
    resumed.wait_for(f"recovered from savepoint .*|{savepoint}")
    place.assert_exact()
